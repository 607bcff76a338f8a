"""The small examples do what they say, alone and inside a run."""

import json
import os
import runpy
import subprocess
from math import exp
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from groupwise.advantages import ADV_ESTIMATOR_REGISTRY, OUTCOME_ESTIMATORS, advantages_from_scores
from groupwise.checks import check_config
from groupwise.config import ActorConfig
from groupwise.objectives import LOSS_MODES, LossInputs, Totals, objective
from groupwise.overrides import read_overrides
from groupwise.rewards import user_scorer
from groupwise.rewards.verdicts import Item
from groupwise.running import start_run
from groupwise.types import Task

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["data.train_batch_size=2", "data.val_size=2", "data.val_n=1", "rollout.n=4", "trainer.total_training_steps=1"]


@pytest.fixture(autouse=True)
def _registries():
    """What an example registers is gone after it."""
    tables = (OUTCOME_ESTIMATORS, ADV_ESTIMATOR_REGISTRY, LOSS_MODES)
    before = [dict(table) for table in tables]
    yield
    for table, names in zip(tables, before, strict=True):
        table.clear()
        table.update(names)


def train(run_dir, *settings):
    """A short run: its rows of metrics, and the rollouts of step 1."""
    config, _ = read_overrides([*SMALL, *settings, f"trainer.run_dir={run_dir}"])
    assert start_run(config) == 0
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return rows, pq.read_table(run_dir / "rollouts" / "step_000001.parquet").to_pylist()


def test_rank_is_the_share_of_siblings_beaten(tmp_path):
    runpy.run_path(str(EXAMPLES / "own_estimator.py"))
    # 9 beats both others: 2 / 2. Each 1 loses to the 9 and ties with the other: -1 / 2. Alone: nobody to beat.
    found = advantages_from_scores([9.0, 1.0, 1.0, 5.0], ["a", "a", "a", "b"], "rank")
    assert found.tolist() == [1.0, -0.5, -0.5, 0.0]
    _, answers = train(tmp_path / "run", "algorithm.adv_estimator=rank", "data.val_size=1")
    for uid in {answer["uid"] for answer in answers}:
        group = [answer for answer in answers if answer["uid"] == uid]
        expected = advantages_from_scores([answer["score"] for answer in group], [uid] * len(group), "rank")
        assert [answer["advantage"] for answer in group] == pytest.approx(expected.tolist())


def test_smooth_counts_a_token_less_the_further_it_moved(tmp_path):
    runpy.run_path(str(EXAMPLES / "own_loss.py"))
    log_probs = torch.tensor([-1.0, -1.2], requires_grad=True)
    old = torch.tensor([-1.0, -1.0])
    inputs = LossInputs(log_probs, old, torch.tensor([2.0]), torch.tensor([0, 0]), torch.tensor([0]))
    outputs = objective(inputs, ActorConfig(loss_mode="smooth", loss_agg_mode="token-sum"), Totals.of(inputs))
    outputs.loss.backward()
    # x = 0 and -0.2, low = 0.2: weights 1 and exp(-1/2). Loss: -2 * -1 * 1 and -2 * -1.2 * exp(-1/2).
    assert outputs.loss.item() == pytest.approx(2.0 + 2.4 * exp(-0.5))
    assert log_probs.grad.tolist() == pytest.approx([-2.0, -2.0 * exp(-0.5)])
    reward = f"reward.function={EXAMPLES}/own_reward.py:close"
    rows, _ = train(tmp_path / "run", "actor.loss_mode=smooth", "actor.ppo_epochs=2", "rollout.n=16", reward)
    assert rows[-1]["groups/no_signal"] < 1
    assert rows[-1]["grad_norm"] > 0


def judge(name, told, truth="46"):
    function = runpy.run_path(str(EXAMPLES / "own_reward.py"))[name]
    (verdict,) = user_scorer(function).judge([Item(Task("k", "12+34=", truth), told)])
    return verdict


def test_the_rewards_are_what_they_say():
    assert judge("close", "46").score == 1.0
    assert judge("close", "16").score == 0.5
    assert judge("close", "146").score == pytest.approx(2 / 3)
    short = judge("right_and_short", "46")
    assert short.score == pytest.approx(1.05)
    assert (short.parts["right"], short.parts["short"]) == (1.0, 0.5)
    assert judge("terse", "46").score == pytest.approx(1.1)
    assert judge("terse", "446").score == 0.0
    assert judge("terse", "").failure


@pytest.mark.parametrize(
    "settings",
    [
        ["reward.function={}/own_reward.py:close"],
        [
            "reward.function={}/own_reward.py:right_and_short",
            "algorithm.adv_estimator=gdpo",
            "algorithm.gdpo_reward_keys=[right,short]",
        ],
        ["reward.function={}/own_reward.py:terse"],
        ["data.train_files={}/simple.jsonl"],
        ["data.train_files={}/verl_schema.jsonl"],
    ],
    ids=["close", "right_and_short", "terse", "simple.jsonl", "verl_schema.jsonl"],
)
def test_a_run_takes_the_files(tmp_path, settings):
    _, answers = train(tmp_path / "run", *(setting.format(EXAMPLES) for setting in settings))
    assert all(answer["failure"] is None for answer in answers)
    assert all(answer["score"] is not None for answer in answers)


def test_the_command_for_a_real_model_is_understood(tmp_path):
    stub = tmp_path / "groupwise"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    command = [str(EXAMPLES / "real_model.sh"), "some/model", "a.parquet", "b.parquet", "rollout.n=4"]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    name, *settings = said.splitlines()
    assert name == "train"
    config, notes = read_overrides(settings)
    check_config(config)
    assert notes == []
    assert (config.model.path, config.data.val_files, config.rollout.n) == ("some/model", ("b.parquet",), 4)
    same = ["model.path=some/model", "data.train_files=a.parquet", "data.val_files=b.parquet", "rollout.n=4"]
    assert read_overrides(same, file=EXAMPLES / "real_model.yaml")[0] == config
