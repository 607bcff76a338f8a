"""How far a run is, by hand."""

from groupwise.observe.progress import Progress


def test_what_a_resumed_run_did_before_is_history_and_not_pace():
    now = iter([0.0, 0.0, 0.0, 100.0, 100.0, 103.0])
    progress = Progress(10, lambda: next(now))
    progress.recall([{"step": 4, "reward/mean": 0.25, "eval/accuracy": 0.5}, {"step": 5, "reward/mean": 0.5}])
    progress.update({"step": 6, "reward/mean": 0.75})
    assert progress.step == 6
    assert progress.curves == {
        "reward/mean": [0.25, 0.5, 0.75],
        "eval/accuracy": [0.5],
        "groups/no_signal": [],
        "actor/entropy": [],
    }
