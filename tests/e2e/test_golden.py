"""A golden run: the numbers of three steps as they were when this was written.

They change when what a run computes changes: its random numbers, its questions, its model, its arithmetic. That may be
meant; then the new numbers belong here, and the reason into the change that brings them.
"""

import json

import pytest
from children import prepare, program

SETTINGS = (
    "data.train_batch_size=8",
    "data.val_size=32",
    "data.val_n=2",
    "rollout.n=8",
    "algorithm.adv_estimator=dr_grpo",
    "actor.recipe=dapo",
    "actor.ppo_epochs=2",
    "trainer.total_training_steps=6",
    "trainer.test_freq=3",
    "trainer.num_threads=1",
    "trainer.seed=7",
)
# Counts and means of counts: equal while the same tokens are drawn.
EXACT = {
    "reward/mean": (0.25, 0.328125, 0.1875),
    "groups/no_signal": (0.375, 0.0, 0.25),
    "advantage/abs_mean": (0.21875, 0.39453125, 0.203125),
    "response_length/mean": (3.640625, 3.734375, 3.765625),
    "response_length/max": (15.0, 4.0, 5.0),
}
# Sums in float32, whose order is the processor's; AdamW's first steps turn a rounded gradient of nearly 0 into a part
# of the rate, which the next steps see.
ROUNDED = {
    "loss": (-0.00045163, -0.00930681, -0.00162406),
    "grad_norm": (0.693201, 1.378688, 0.465068),
    "actor/entropy": (0.647066, 0.481317, 0.550455),
    "actor/ppo_kl": (0.0795359, 0.0156219, 0.0234364),
    "lr": (0.0003, 0.000246, 0.000192),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    prepare()
    run_dir = tmp_path_factory.mktemp("golden") / "run"
    ended = program("train", *SETTINGS, f"trainer.run_dir={run_dir}")
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", EXACT)
def test_the_same_tokens_are_drawn(rows, name):
    assert tuple(row[name] for row in rows[1:4]) == EXACT[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_the_same_sums_come_out(rows, name):
    assert tuple(row[name] for row in rows[1:4]) == pytest.approx(ROUNDED[name], rel=2e-3, abs=2e-5)


def test_the_same_questions_are_answered(rows):
    # 11, 6 and 9 of 32.
    assert [row["eval/accuracy"] for row in rows if "eval/accuracy" in row] == [0.34375, 0.1875, 0.28125]
    assert (rows[0]["eval/mean@2"], rows[0]["eval/pass@2"], rows[0]["eval/maj@2"]) == (0.1875, 0.3125, 0.15625)
