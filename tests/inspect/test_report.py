"""What the report says about a run, and that nothing missing or damaged keeps it from being written."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fake_run import answers, metrics_row, write_rollout, write_run
from groupwise.errors import BadValueError
from groupwise.inspect import write_report
from groupwise.inspect.answers import MOST_FILES, count_endings, evenly, read_rollout
from groupwise.inspect.run import read_run
from skeleton import Skeleton


def text_of(run):
    return Skeleton(write_report(run).read_text(encoding="utf-8")).text


def test_the_verdict_names_accuracy_steps_and_time(tmp_path):
    run = write_run(tmp_path / "first", steps=2, rollouts={})
    (run / "metrics.jsonl").write_text(
        '{"step": 0, "eval/accuracy": 0.5, "time/evaluation": 3}\n'
        '{"step": 1, "reward/mean": 0.25, "time/step": 40, "time/rollout": 25}\n'
        '{"step": 2, "reward/mean": 0.5, "eval/accuracy": 0.9375, "time/step": 50, "time/evaluation": 7}\n'
    )
    text = text_of(run)
    assert "Run first" in text
    assert "Accuracy 50.0% → 93.8%" in text
    # 40 + 50 seconds of steps, 3 + 7 of evaluations.
    assert "2 steps · 1 min 40 s · model embedded · rloo · 8 prompts a step · 16 answers a prompt · seed 3" in text
    assert "evaluation10 s10.0%" in text
    assert "rollout25 s25.0%" in text


@pytest.mark.parametrize(("last", "side"), [(0.75, "up"), (0.25, "down"), (0.5, "same")])
def test_the_verdict_says_which_way_it_went(tmp_path, last, side):
    (tmp_path / "metrics.jsonl").write_text(
        f'{{"step": 0, "eval/accuracy": 0.5}}\n{{"step": 1, "eval/accuracy": {last}}}\n'
    )
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert f'Accuracy 50.0% → <b class="{side}">{100 * last:.1f}%</b>' in page


def test_every_curve_is_drawn_and_labelled(tmp_path):
    page = write_report(write_run(tmp_path / "run")).read_text(encoding="utf-8")
    labels = [value for tag, name, value in Skeleton(page).attributes if (tag, name) == ("svg", "aria-label")]
    titles = [label.split(":")[0] for label in labels]
    assert titles == ["Reward", "Accuracy", "No signal", "Answer length", "Entropy", "KL", "Gradient norm", "Loss"]
    assert labels[1] == "Accuracy: 50.0% at step 0, 93.7% at step 100"


def test_settings_off_their_defaults_are_marked(tmp_path):
    found = Skeleton(write_report(write_run(tmp_path / "run")).read_text(encoding="utf-8"))
    assert "data.train_batch_size832" in found.text  # setting, value, default
    assert "algorithm.adv_estimatorrloogrpo" in found.text
    marked = [event for event in found.events if event[0] == "tr" and event[2] == "changed"]
    assert len(marked) % 2 == 0  # once on top, once among all settings


def test_the_groups_that_differ_most_and_the_worst_are_shown(tmp_path):
    def row(uid, response, score, **more):
        common = {"step": 1, "uid": uid, "prompt": f"prompt {uid}", "response": response, "score": score}
        return common | {"advantage": 0.0, "finish_reason": "stop", "failure": None} | more

    rows = [
        *(row("even", "same", 1.0) for _ in range(3)),
        row("some", "right", 1.0, advantage=2.0),
        *(row("some", "wrong", 0.0, advantage=-1.0) for _ in range(2)),
        row("half", "right", 1.0),
        row("half", "wrong", 0.0),
        *(row("none", "wrong", 0.0) for _ in range(3)),
        *(row("lost", "?", None, advantage=None, failure="timed out") for _ in range(2)),
    ]
    run = write_run(tmp_path / "run", rollouts={1: rows})
    rollout = read_rollout(run / "rollouts" / "step_000001.parquet", 2, [])
    # Deviations: some sqrt(2)/3 = 0.471, half 0.5, the others 0.
    assert [group.prompt for group in rollout.learned_most] == ["prompt half", "prompt some"]
    assert [group.prompt for group in rollout.worst] == ["prompt lost", "prompt none"]
    text = text_of(run)
    assert "3 answers, scores from 0 to 1, mean 0.333" in text
    assert "1+2right0−1wrong× 2" in text.replace("\n", "").replace(".000", "")
    assert "all 2 answers failed" in text
    assert "––?× 2 · failed: timed out" in text
    assert "timed out214.3%" not in text
    assert "13 answers: 2 failed, 0 cut off" in text
    assert "timed out215.4%" in text  # 2 of 13


def test_an_evaluation_table_is_thinned_and_keeps_its_ends(tmp_path):
    text = text_of(write_run(tmp_path / "run", steps=1000, rollouts={}))
    assert "14 of 101" in text
    assert "stepaccuracymean@4pass@40" in text


@pytest.mark.parametrize("missing", ["config.yaml", "metrics.jsonl", "rollouts"])
def test_what_is_missing_is_left_out(tmp_path, missing):
    run = write_run(tmp_path / "run", rollouts={} if missing == "rollouts" else None)
    if missing == "rollouts":
        (run / "rollouts").rmdir()
    else:
        (run / missing).unlink()
    assert "Run run" in text_of(run)


def test_an_empty_folder_has_a_report(tmp_path):
    assert "Nothing has been measured yet" in text_of(tmp_path)
    with pytest.raises(BadValueError, match="is not a folder; give the folder of a run"):
        write_report(tmp_path / "nowhere")


@pytest.mark.parametrize("column", ["uid", "prompt", "response", "score", "advantage", "finish_reason", "failure"])
def test_a_missing_column_is_no_error(tmp_path, column):
    rows = [{key: value for key, value in row.items() if key != column} for row in answers(1)]
    assert "Run run" in text_of(write_run(tmp_path / "run", rollouts={1: rows}))


def test_empty_and_strange_columns_are_no_error(tmp_path):
    run = write_run(tmp_path / "run", rollouts={1: answers(1)})
    strange = {"uid": [[1], None], "prompt": [3, None], "response": [b"\xff", None], "score": ["high", None]}
    pq.write_table(pa.table(strange), run / "rollouts" / "step_000002.parquet")
    pq.write_table(pa.table({"uid": pa.array([], pa.string())}), run / "rollouts" / "step_000003.parquet")
    assert "Step 1, 8 groups" in text_of(run)


def test_damage_is_named_and_passed_over(tmp_path):
    run = write_run(tmp_path / "run", steps=10)
    (run / "rollouts" / "step_000001.parquet").write_bytes(b"PAR1 torn")
    (run / "config.yaml").write_text("model: [")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(
            '[1]\n{"step": 11, "reward/mean": NaN, "actor/kl": true, "loss": 1e999, "lr": 0.5}\n{"step": 12, "rew'
        )
    text = text_of(run)
    assert "metrics.jsonl line 12 is not a row of metrics and is left out" in text
    assert "metrics.jsonl line 14 is not a row of metrics (cut off while it was written) and is left out" in text
    assert "rollouts/step_000001.parquet cannot be read" in text
    assert "config.yaml cannot be read: ParserError" in text
    assert read_run(run).rows[-1] == {"step": 11.0, "lr": 0.5}


@pytest.mark.parametrize(
    "content",
    [
        b"- 1",
        b"text",
        b"\xff\xfe\x00",
        b"a: [",
        b"a: !!timestamp x",
        b"a: ${b",
        b"a: ???",
        b"1: {2: 3}",
        b"",
        b"{" * 3000,
    ],
)
def test_no_config_keeps_the_report_from_being_written(tmp_path, content):
    (tmp_path / "config.yaml").write_bytes(content)
    assert "Nothing has been measured yet" in text_of(tmp_path)


def test_rows_come_in_step_order_and_the_later_of_two_counts(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 2, "loss": 1}\n{"step": 1}\n\n{"step": 2, "loss": 3}\n')
    assert read_run(tmp_path).rows == ({"step": 1.0}, {"step": 2.0, "loss": 3.0})
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1' + "0" * 5000 + "}\n" + "[" * 100_000 + "\n")
    assert read_run(tmp_path).rows == ({"step": 0},)


def test_the_extremes_of_a_curve_do_not_break_its_drawing(tmp_path):
    run = write_run(tmp_path / "run", rollouts={})
    rows = [
        '{"step": 1, "actor/kl": 1e149, "loss": 0}',
        '{"step": 2, "actor/kl": -1e149, "loss": 0, "actor/entropy": 1e-300}',
    ]
    (run / "metrics.jsonl").write_text("\n".join(rows))
    page = write_report(run).read_text()
    assert "nan" not in page
    assert "inf" not in page.replace("information", "")


def test_failures_of_a_long_run_are_counted_in_a_part_of_it(tmp_path):
    paths = [tmp_path / str(place) for place in range(1000)]
    chosen = evenly(paths, 3)
    assert chosen == [paths[0], paths[499], paths[999]]
    assert len(evenly(paths, MOST_FILES)) == MOST_FILES
    notes = []
    assert count_endings(paths[:1], notes).num_files == 0
    assert len(notes) == 1


def test_the_report_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", steps=2)
    target = write_report(run)
    before = target.read_bytes()
    (run / "metrics.jsonl").write_text('{"step": 0}\n')

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_report(run)
    assert target.read_bytes() == before
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


def test_the_report_can_be_read_by_others(tmp_path):
    umask = os.umask(0o022)
    try:
        assert write_report(tmp_path).stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(umask)


def test_a_run_of_a_single_step_has_a_curve(tmp_path):
    run = write_run(tmp_path / "run", steps=1, rollouts={})
    (run / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    assert "Reward 0.500" in text_of(run)
    assert "1 step · " in text_of(run)


def test_two_reports_of_one_run_are_equal(tmp_path):
    run = write_run(tmp_path / "run")
    write_rollout(run, 7, answers(7))
    assert write_report(run).read_bytes() == write_report(run).read_bytes()
    assert metrics_row(3) == metrics_row(3)
