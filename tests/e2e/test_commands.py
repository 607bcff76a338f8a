"""The commands as a user calls them: what they say, what they leave, and what they never touch."""

import json
from pathlib import Path

import pytest
from children import SMALL, outcome, prepare, program, resume, train

from groupwise.store.lock import RunLock


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    prepare()
    run_dir = tmp_path_factory.mktemp("commands") / "run"
    ended = train(run_dir)
    assert ended.code == 0, ended.err
    return run_dir


def last_row(run_dir):
    return json.loads((Path(run_dir) / "metrics.jsonl").read_text().splitlines()[-1])


def everything(run_dir):
    return {path: path.stat().st_mtime_ns for path in Path(run_dir).rglob("*")}


def refused(ended, *said):
    assert ended.code == 2
    assert ended.err.startswith("groupwise: ")
    assert ended.err.count("\n") == 1
    for words in said:
        assert words in ended.err


def test_a_finished_run_is_left_as_it_is(finished):
    before = everything(finished)
    ended = resume(finished)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"{finished} has finished: 4 steps; nothing to do\n"
    assert everything(finished) == before


def test_a_folder_that_holds_a_run_takes_no_other(finished):
    before = everything(finished)
    refused(train(finished), f"trainer.run_dir={finished} already holds a run", f"--resume {finished}")
    assert everything(finished) == before


def test_what_lies_where_a_run_writes_is_moved_and_not_removed(finished, tmp_path):
    run_dir = tmp_path / "littered"
    (run_dir / "checkpoints" / "step_9999").mkdir(parents=True)
    (run_dir / "model").mkdir()
    (run_dir / "model" / "precious.safetensors").write_text("weights")
    (run_dir / "metrics.jsonl").write_text('{"step": 77}\n')
    (run_dir / "notes.txt").write_text("mine")
    (run_dir / ".tmp-1-model").mkdir()
    ended = train(run_dir)
    assert ended.code == 0
    (aside,) = run_dir.glob("earlier-*")
    assert f"{run_dir} held no run; what lay where a run writes is now in {aside}" in ended.err
    assert (aside / "model" / "precious.safetensors").read_text() == "weights"
    assert (aside / "metrics.jsonl").read_text() == '{"step": 77}\n'
    assert (aside / "checkpoints" / "step_9999").is_dir()
    assert (run_dir / "notes.txt").read_text() == "mine"
    assert not (run_dir / ".tmp-1-model").exists()
    assert outcome(run_dir) == outcome(finished)


def test_a_model_that_the_run_would_write_over_is_refused(finished):
    folder = finished.parent
    before = everything(finished)
    ended = program("train", *SMALL, f"trainer.run_dir={finished}", f"model.path={finished / 'model'}")
    refused(ended, "already holds a run")
    (finished / "config.yaml").rename(folder / "config.yaml")
    try:
        ended = program("train", *SMALL, f"trainer.run_dir={finished}", f"model.path={finished / 'model'}")
        refused(ended, f"model.path={finished / 'model'} lies where trainer.run_dir={finished} would write")
    finally:
        (folder / "config.yaml").rename(finished / "config.yaml")
    assert everything(finished).keys() == before.keys()


def test_a_run_without_a_checkpoint_begins_anew(finished, tmp_path):
    run_dir = tmp_path / "run"
    assert train(run_dir).code == 0
    for name in ("checkpoints", "model"):
        (run_dir / name).rename(tmp_path / name)
    assert resume(run_dir).code == 0
    assert outcome(run_dir) == outcome(finished)


def test_a_folder_in_use_is_refused(finished):
    with RunLock(finished):
        (finished / "model").rename(finished.parent / "model")
        try:
            refused(resume(finished), str(finished))
        finally:
            (finished.parent / "model").rename(finished / "model")


def test_resuming_what_is_no_run_says_so(tmp_path):
    refused(resume(tmp_path), f"--resume {tmp_path}: there is no run there")
    refused(resume(tmp_path / "nowhere"), "there is no run there")


def test_resuming_under_other_settings_names_them(finished):
    refused(resume(finished, "rollout.n=5"), "rollout.n: 4 -> 5")


def test_eval_says_what_the_last_step_said(finished):
    ended = program("eval", finished)
    assert ended.code == 0, ended.err
    shown = dict(line.split() for line in ended.out.splitlines())
    row = last_row(finished)
    expected = {name.removeprefix("eval/"): f"{row[name]:.4f}" for name in row if name.startswith("eval/")}
    assert shown == expected
    assert {"accuracy", "mean@2", "pass@2", "maj@2"} <= set(shown)


def test_sample_shows_held_out_questions_with_scores(finished):
    ended = program("sample", finished)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    questions = [line for line in lines if not line.startswith(" ")]
    assert len(questions) == 4
    assert all(line.endswith(("score 0", "score 1")) for line in lines if line.startswith(" "))
    assert len(lines) == 4 + 4 * 4


def test_sample_answers_a_prompt_as_often_as_it_is_told(finished):
    single = program("sample", finished, "12+34=", "rollout.n=1")
    # The question and one answer: nothing is judged here.
    assert (single.code, single.out.count("\n")) == (0, 2)
    ended = program("sample", finished, "12+34=", "rollout.n=6")
    question, *answers = ended.out.splitlines()
    assert question == "12+34="
    assert len(answers) == 6
    assert not any("score" in answer for answer in answers)
    # The built-in questions are text: the model continues them, with no template around.
    assert all(any(character.isdigit() for character in answer) for answer in answers)


def test_nothing_held_out_is_said_and_not_shown_as_nothing(finished, tmp_path):
    (tmp_path / "data.jsonl").write_text('{"prompt": "12+34=", "answer": "46"}\n')
    for command in ("eval", "sample"):
        refused(program(command, "embedded", f"data.train_files=[{tmp_path / 'data.jsonl'}]"), "no held-out questions")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "rolout.n=4"], "the nearest is 'rollout.n'"),
        (["train", "rollout.n=four"], "rollout.n"),
        (["train", "trainer.total_training_steps=0"], "trainer.total_training_steps=0 must be 1 or more"),
        (["train", "data.train_files=[nowhere.parquet]"], "nowhere.parquet"),
        (["train", "model.path=nowhere"], "model.path='nowhere': there is no such folder"),
        (["train", "reward.function=nowhere.py:score"], "nowhere.py"),
        (["train", "trainer.run_dir=/proc/groupwise"], "/proc/groupwise"),
        (["train", "--resum", "runs/a"], "--resum"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, said, tmp_path, monkeypatch):
    prepare()
    monkeypatch.chdir(tmp_path)
    refused(program(*arguments), said)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
