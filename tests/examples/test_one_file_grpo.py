"""The one-file example is the training system, written plainly: the same answers, rewards, losses and weights."""

import json
import runpy
from pathlib import Path

import pytest
from safetensors.torch import load_file

from groupwise.overrides import read_overrides
from groupwise.running import start_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "one_file_grpo.py"
SMALL = [
    "data.train_batch_size=8",
    "data.val_size=16",
    "data.val_n=1",
    "rollout.n=8",
    "trainer.total_training_steps=4",
    "trainer.seed=3",
]


# The mean of grpo's advantages is 0 in every group and so is its loss; with dapo and dr_grpo long answers weigh more
# and the loss is not 0.
@pytest.mark.parametrize("method", [[], ["actor.recipe=dapo", "algorithm.adv_estimator=dr_grpo"]], ids=["grpo", "dapo"])
def test_the_one_file_example_writes_the_numbers_of_the_training_system(tmp_path, method):
    config, _ = read_overrides([*SMALL, *method, f"trainer.run_dir={tmp_path / 'run'}"])
    assert start_run(config) == 0
    before, *rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    grpo = runpy.run_path(str(EXAMPLE))["Grpo"](config)

    assert grpo.accuracy() == before["eval/accuracy"]
    for row in rows:
        found = grpo.step(row["step"])
        # The same tokens were drawn and judged: counts and means of counts are equal.
        for name in ("reward/mean", "groups/no_signal", "response_length/mean"):
            assert found[name] == row[name]
        # Packed and padded the same sums are rounded in another order: float32, relative 1e-7, over some hundred terms.
        assert found["loss"] == pytest.approx(row["loss"], rel=1e-5, abs=1e-7)
        assert found["grad_norm"] == pytest.approx(row["grad_norm"], rel=2e-5)
        assert row["grad_norm"] > 0.1
    assert grpo.accuracy() == rows[-1]["eval/accuracy"]
    if method:
        assert max(abs(row["loss"]) for row in rows) > 1e-3

    trained = load_file(tmp_path / "run" / "model" / "model.safetensors")
    own = dict(grpo.model.named_parameters())
    compared = [name for name in trained if name in own]
    assert len(compared) == len(own)
    # Adam divides by the gradient's own size, so that where a gradient is nearly 0 rounding alone moves a weight by a
    # part of the rate: a few weights in ten thousand. What had learned otherwise would be off by the rate everywhere.
    for name in compared:
        gap = (trained[name] - own[name]).abs()
        assert gap.mean() < 1e-7
        assert (gap > 1e-6).float().mean() < 1e-3
        assert gap.max() < config.actor.optim.lr


def test_the_example_is_as_short_as_it_says():
    assert len(EXAMPLE.read_text().splitlines()) < 250
