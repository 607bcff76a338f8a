"""Sampling and learning on a GPU: the CPU's first steps in float32, and a compiled bfloat16 run that learns."""

import pytest
import torch

from gpu_path import answers_of, sized_policy, updater_of
from groupwise.advantages import advantages_from_scores
from groupwise.config import ActorConfig, ModelConfig, OptimConfig
from groupwise.policy import load_policy, save_model
from groupwise.rollout import EmbeddedEngine
from groupwise.types import Sampling
from tiny_models import random_prompts

# What torch and Triton have to say on a GPU is theirs; a warning of this package is an error.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default", "error::groupwise.errors.GroupwiseWarning"),
]

WANTED, N = 5, 8


def score(answer):
    """The share of tokens that are the wanted one; by chance a fortieth."""
    return sum(token == WANTED for token in answer.token_ids) / len(answer.token_ids)


class Run:
    def __init__(self, policy, config, num_steps):
        self.policy, self.engine = policy, EmbeddedEngine(policy, 64)
        self.updater = updater_of(policy, config, total_steps=num_steps)
        self.num_steps = 0

    def step(self):
        lengths = [3 + (self.num_steps + place) % 7 for place in range(8)]
        prompts = random_prompts(lengths, seed=self.num_steps)
        groups = self.engine.generate(prompts, N, Sampling(16, seed=1, step=self.num_steps))
        self.num_steps += 1
        scores = torch.tensor([score(answer) for answer in answers_of(groups)], dtype=torch.float64)
        labels = torch.arange(len(scores)) // N
        advantages = advantages_from_scores(scores, labels, "grpo")
        return {"score": scores.mean().item(), **self.updater.step(groups, advantages.tolist())}


def test_the_first_steps_in_float32_are_those_of_the_cpu():
    config = ActorConfig(optim=OptimConfig(lr=1e-3))
    on_gpu, on_cpu = (Run(sized_policy(device=device), config, 10) for device in ("cuda", "cpu"))
    for _ in range(3):
        ours, theirs = on_gpu.step(), on_cpu.step()
        # Equal scores mean equal answers: the seed fixes them. AdamW's first steps turn tiny gradients into whole
        # steps, so that rounding is worth more from step to step.
        assert ours["score"] == theirs["score"]
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        assert ours["rollout/log_prob_gap/max"] < 1e-5


def test_a_compiled_bfloat16_run_learns_and_compiles_no_more_after_its_first_steps(tmp_path):
    config = ActorConfig(optim=OptimConfig(lr=3e-3), use_kl_loss=True, kl_loss_coef=1e-3)
    policy = sized_policy(dtype=torch.bfloat16, compiles=True)
    run = Run(policy, config, 40)
    rows = [run.step() for _ in range(3)]
    compiled = graphs_compiled()
    rows += [run.step() for _ in range(37)]
    assert graphs_compiled() == compiled
    assert [row["update/compiled"] for row in rows[2:]] == [compiled] * 38
    assert rows[0]["score"] < 0.1
    assert sum(row["score"] for row in rows[-5:]) / 5 > 0.5
    assert all(row["update/skipped"] == 0 for row in rows)
    # The reference is the policy before its first step, its joined layers joined anew.
    assert rows[0]["actor/kl"] < 1e-3 < rows[-1]["actor/kl"]
    # Two paths round differently: of a log-probability near 4, 8 bits leave about 0.02.
    assert max(row["rollout/log_prob_gap"] for row in rows) < 0.02
    save_model(policy, tmp_path)
    again = load_policy(ModelConfig(path=str(tmp_path), dtype="bfloat16", device="cpu"), tmp_path)
    own = dict(policy.parameters())
    assert own.keys() == dict(again.parameters()).keys()
    assert all(torch.equal(own[name].cpu(), parameter) for name, parameter in again.parameters())


def graphs_compiled():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]
