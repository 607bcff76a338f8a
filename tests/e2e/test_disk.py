"""A full disk costs what could not be written, and neither the run nor what was written before."""

import pytest
from children import SMALL, Ended, fill_disk, litter, outcome, prepare, program, refuse_write, resume, train

from groupwise.store.checkpoint import load_newest

SHORT = ("trainer.total_training_steps=2", "trainer.save_freq=1")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    prepare()
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    assert train(run_dir, *SHORT).code == 0
    return outcome(run_dir)


def end_of(found):
    """What no refused write may change: the metrics and the trained model. Rollouts and checkpoints may be fewer."""
    rows, files = found
    return rows, {name: content for name, content in files.items() if name.startswith("model")}


def go_on(run_dir):
    """What a user does when there is room again."""
    if (run_dir / "config.yaml").exists():
        return resume(run_dir)
    return train(run_dir, *SHORT)


def is_one_line(ended):
    return ended.err.startswith("groupwise: ") and ended.err.count("\n") == 1 and "No space" in ended.err


def test_any_write_may_find_the_disk_full(uninterrupted, tmp_path):
    refused = 0
    while True:
        run_dir = tmp_path / f"run{refused}"
        ended = train(run_dir, *SHORT, before=lambda folder=run_dir, number=refused + 1: refuse_write(folder, number))
        if "No space" not in ended.out + ended.err:
            assert ended.code == 0
            break
        refused += 1
        # At the start nothing has begun (2), at the end only the model is missing (1), in between the run goes on.
        assert ended.code == 0 or (ended.code in (1, 2) and is_one_line(ended)), ended
        assert litter(run_dir) == [] if run_dir.exists() else True
        if ended.code != 0:
            assert go_on(run_dir).code == 0
        assert end_of(outcome(run_dir)) == end_of(uninterrupted), f"write {refused} was refused"
    # Three rows of metrics, two checkpoints, two rollouts, a report and a model.
    assert refused > 20


@pytest.mark.parametrize("number", [1, 3, 5, 8, 12, 17, 22])
def test_a_disk_that_stays_full_ends_the_run_in_one_line_and_loses_nothing(uninterrupted, tmp_path, number):
    run_dir = tmp_path / "run"
    ended = train(run_dir, *SHORT, before=lambda: fill_disk(run_dir, number))
    assert ended.code in (1, 2)
    assert ended.err.startswith("groupwise: ")
    assert ended.err.count("\n") == 1
    assert "File too large" in ended.err
    assert litter(run_dir) == []
    checkpoint, reasons = load_newest(run_dir / "checkpoints")
    assert reasons == []
    assert checkpoint is None or checkpoint.step in (1, 2)
    assert go_on(run_dir).code == 0
    assert outcome(run_dir) == uninterrupted


def test_a_full_disk_is_said_once_and_not_at_every_step(tmp_path):
    prepare()
    ended = train(tmp_path / "run", "trainer.total_training_steps=12", before=lambda: fill_disk(tmp_path / "run", 10))
    for what in ("the rollouts", "a checkpoint", "metrics.jsonl"):
        assert ended.out.count(f"{what} could not be written (File too large); the run goes on") == 1
    assert "report.html could not be written (File too large); later: groupwise report" in ended.out
    assert "step 12/12" in ended.out


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    prepare()
    (tmp_path / "file").touch()
    ended = program("train", *SMALL, f"trainer.run_dir={tmp_path}/file/run")
    expected = f"trainer.run_dir={tmp_path}/file/run cannot be written: Not a directory; choose a folder you may write"
    assert ended == Ended(2, "", f"groupwise: {expected} to\n")
