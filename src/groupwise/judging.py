"""Scored groups to one advantage per answer, and what the groups of a step looked like."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from groupwise.advantages import OUTCOME_ESTIMATORS, RunningBaseline, advantages_from_scores, get_adv_estimator_fn
from groupwise.advantages.scores import find_equation
from groupwise.config import AlgoConfig
from groupwise.errors import BadValueError
from groupwise.types import Completion, Group


@dataclass(frozen=True)
class Judgement:
    """advantages: one per answer, group after group. metrics: `reward/...`, `groups/...`, `response_length/...`."""

    advantages: list[float]
    metrics: dict[str, float]


class Judge:
    """The estimator of a run with its state, if it has one."""

    def __init__(self, algorithm: AlgoConfig) -> None:
        name = algorithm.adv_estimator
        get_adv_estimator_fn(name)
        if name not in OUTCOME_ESTIMATORS:
            raise BadValueError(
                f"algorithm.adv_estimator={name!r} needs what this loop does not make (values of a critic, rewards "
                f"per token); use one of {', '.join(sorted(OUTCOME_ESTIMATORS))}"
            )
        self._algorithm = algorithm
        self._baseline = RunningBaseline()

    def __call__(self, groups: Sequence[Group]) -> Judgement:
        answers = [answer for group in groups for answer in group.completions]
        failed = [answer.score is None for answer in answers]
        scores = [0.0 if answer.score is None else answer.score for answer in answers]
        by_key = self._algorithm.adv_estimator == "running_baseline"
        labels = [g.prompt.task.key if by_key else g.prompt.uid for g in groups for _ in g.completions]
        advantages = advantages_from_scores(
            torch.tensor(scores, dtype=torch.float64),
            labels,
            self._algorithm.adv_estimator,
            failed=failed,
            **self._options(answers),
        ).tolist()
        return Judgement(advantages, _metrics(groups, advantages))

    def state(self) -> dict[str, Any]:
        return self._baseline.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._baseline = RunningBaseline.from_state(dict(state))

    def _options(self, answers: Sequence[Completion]) -> dict[str, Any]:
        """What the equation takes beyond scores and labels."""
        algorithm = self._algorithm
        takes = inspect.signature(find_equation(algorithm.adv_estimator)).parameters
        settings: dict[str, Any] = {
            "epsilon": algorithm.epsilon,
            "norm_adv_by_std_in_grpo": algorithm.norm_adv_by_std_in_grpo,
            "convention": algorithm.convention,
            "k": algorithm.k,
            "lengths": torch.tensor([len(answer.token_ids) for answer in answers]),
            "baseline": self._baseline,
        }
        if "parts" in takes:
            settings |= self._parts(answers)
        return {name: value for name, value in settings.items() if name in takes}

    def _parts(self, answers: Sequence[Completion]) -> dict[str, Any]:
        keys = self._algorithm.gdpo_reward_keys
        if not keys:
            raise BadValueError(
                "algorithm.adv_estimator='gdpo' needs algorithm.gdpo_reward_keys: the names of the parts that the "
                "reward function returns, such as [format,accuracy]"
            )
        # An answer that failed has no parts; it is left out before they are looked at.
        parts = [[answer.parts.get(key, float("nan")) for answer in answers] for key in keys]
        return {"parts": parts, "weights": self._algorithm.gdpo_reward_weights}


def _metrics(groups: Sequence[Group], advantages: Sequence[float]) -> dict[str, float]:
    answers = [answer for group in groups for answer in group.completions]
    scores = torch.tensor([a.score for a in answers if a.score is not None] or [torch.nan], dtype=torch.float64)
    lengths = torch.tensor([len(answer.token_ids) for answer in answers], dtype=torch.float64)
    remaining = iter(advantages)
    no_signal = [not any(list(islice(remaining, len(group.completions)))) for group in groups]
    return {
        "reward/mean": scores.mean().item(),
        "reward/std": scores.std(correction=0).item(),
        "reward/failed": sum(answer.score is None for answer in answers) / len(answers),
        "groups/no_signal": sum(no_signal) / len(groups),
        "advantage/abs_mean": sum(map(abs, advantages)) / len(answers),
        "response_length/mean": lengths.mean().item(),
        "response_length/max": lengths.max().item(),
        "response_length/cut_off": sum(answer.finish_reason == "length" for answer in answers) / len(answers),
    }
