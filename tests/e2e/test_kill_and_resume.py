"""Killed at any write and resumed, a run is the run that was never interrupted."""

import os
import signal
import threading
import time

import pytest
from children import in_child, killed_at_write, outcome, prepare, settings, start_or_resume

from groupwise.running import resume_run, start_run


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    prepare()
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    assert in_child(lambda: start_run(settings(run_dir))) == 0
    return outcome(run_dir)


def test_the_same_seed_gives_the_same_run(uninterrupted, tmp_path):
    assert in_child(lambda: start_run(settings(tmp_path / "run"))) == 0
    assert outcome(tmp_path / "run") == uninterrupted


def test_another_seed_gives_another_run(uninterrupted, tmp_path):
    assert in_child(lambda: start_run(settings(tmp_path / "run", "trainer.seed=1"))) == 0
    assert outcome(tmp_path / "run")[0] != uninterrupted[0]


def test_a_kill_at_every_write_loses_nothing(uninterrupted, tmp_path):
    killed = 0
    while True:
        run_dir = tmp_path / f"run{killed}"
        ended = in_child(killed_at_write(run_dir, killed + 1))
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        assert in_child(lambda folder=run_dir: start_or_resume(folder)) == 0, f"after a kill at write {killed + 1}"
        assert outcome(run_dir) == uninterrupted, f"after a kill at write {killed + 1}"
        killed += 1
    # Four steps, five rows of metrics, two checkpoints of three files each, four rollouts, a model and a report.
    assert killed > 40


def test_killed_again_and_again_it_still_arrives(uninterrupted, tmp_path):
    run_dir, kills = tmp_path / "run", 0
    while in_child(killed_at_write(run_dir, 32)) != 0:
        kills += 1
        assert kills < 30
    assert kills > 1
    assert outcome(run_dir) == uninterrupted


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_leaves_with_its_code(uninterrupted, tmp_path, number, code):
    run_dir = tmp_path / "run"

    def work():
        def interrupt():
            while not (run_dir / "rollouts" / "step_000001.parquet").exists():
                time.sleep(0.002)
            os.kill(os.getpid(), number)

        threading.Thread(target=interrupt, daemon=True).start()
        return start_run(settings(run_dir))

    assert in_child(work) == code
    assert list((run_dir / "checkpoints").glob("step_*"))
    assert in_child(lambda: resume_run(run_dir, [])) == 0
    kept, files = outcome(run_dir)
    assert kept == uninterrupted[0]
    assert files == uninterrupted[1]
