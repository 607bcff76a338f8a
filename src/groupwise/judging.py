"""Scored groups to advantages, and what the groups of a step looked like.

An estimator that judges answers gives one number per answer; one that judges tokens gives one per token. What it
asks for beyond scores (log-probabilities, greedy answers) is made on the spot, and only then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

from groupwise.advantages import (
    CONVENTIONS,
    OUTCOME_ESTIMATORS,
    RunningBaseline,
    advantages_from_scores,
    compute_advantage,
    get_adv_estimator_fn,
)
from groupwise.config import AlgoConfig
from groupwise.errors import BadValueError, unknown_name
from groupwise.kl_reward import KLInReward
from groupwise.token_table import Decode, TokenTable
from groupwise.types import Completion, Group


class Policies(Protocol):
    """The policy that learns and its reference: one tensor per answer, one number per token."""

    def log_probs(self, groups: Sequence[Group], *, reference: bool = False) -> list[Tensor]: ...
    def sum_pi_squared(self, groups: Sequence[Group]) -> list[Tensor]: ...


GreedyScores = Callable[[Sequence[Group]], list[float | None]]
"""The score of the greedy answer to each group's prompt; None where it has none."""


@dataclass(frozen=True)
class Judgement:
    """advantages: one per answer, group after group; of an answer judged by tokens, their mean. tokens: one tensor
    per answer, where tokens were judged. metrics: `reward/...`, `groups/...`, `response_length/...`, `kl/...`."""

    advantages: list[float]
    metrics: dict[str, float]
    tokens: list[Tensor] | None = None

    @property
    def to_learn(self) -> list[float] | list[Tensor]:
        """What an update takes."""
        return self.advantages if self.tokens is None else self.tokens


class Judge:
    """The estimator of a run with its state, if it has one.

    policies, greedy_scores: asked where the estimator, or a KL penalty in the reward, needs them. decode: tokens to
    text, to find the tokens of steps that have a reward of their own.
    """

    def __init__(
        self,
        algorithm: AlgoConfig,
        policies: Policies | None = None,
        greedy_scores: GreedyScores | None = None,
        decode: Decode = str,
    ) -> None:
        name = algorithm.adv_estimator
        check_estimator(algorithm)
        self._algorithm = algorithm
        self._equation = OUTCOME_ESTIMATORS.get(name)
        self._takes = inspect.signature(self._equation or get_adv_estimator_fn(name)).parameters
        self._policies, self._greedy_scores, self._decode = policies, greedy_scores, decode
        self._baseline = RunningBaseline()
        self._kl = KLInReward(algorithm) if algorithm.kl_in_reward else None

    def __call__(self, groups: Sequence[Group]) -> Judgement:
        penalties: list[Tensor] | None = None
        found: dict[str, float] = {}
        if self._kl is not None:
            assert self._policies is not None
            penalties, found = self._kl(
                self._policies.log_probs(groups), self._policies.log_probs(groups, reference=True)
            )
        if self._equation is None:
            tokens = self._judge_tokens(groups, penalties)
            advantages = [row.mean().item() if len(row) else 0.0 for row in tokens]
            silent = [not row.any() for row in tokens]
            return Judgement(advantages, _metrics(groups, advantages, silent) | found, tokens)
        advantages = self._judge_answers(groups, penalties)
        return Judgement(advantages, _metrics(groups, advantages, [a == 0 for a in advantages]) | found)

    def state(self) -> dict[str, Any]:
        return {"baseline": self._baseline.state(), "kl": self._kl.state() if self._kl else None}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._baseline = RunningBaseline.from_state(state["baseline"])
        if self._kl is not None:
            self._kl.load_state(state["kl"])

    def _judge_answers(self, groups: Sequence[Group], penalties: Sequence[Tensor] | None) -> list[float]:
        """One score per answer in, a KL penalty taken off it; one advantage out."""
        answers = [answer for group in groups for answer in group.completions]
        scores = [0.0 if answer.score is None else answer.score for answer in answers]
        if penalties is not None:
            lost = [penalty.sum(dtype=torch.float64).item() for penalty in penalties]
            scores = [score + penalty for score, penalty in zip(scores, lost, strict=True)]
        by_key = self._algorithm.adv_estimator == "running_baseline"
        labels = [g.prompt.task.key if by_key else g.prompt.uid for g in groups for _ in g.completions]
        found: list[float] = advantages_from_scores(
            torch.tensor(scores, dtype=torch.float64),
            labels,
            self._algorithm.adv_estimator,
            failed=[answer.score is None for answer in answers],
            **self._options(answers),
        ).tolist()
        return found

    def _options(self, answers: Sequence[Completion]) -> dict[str, Any]:
        """What the equation takes beyond scores and labels."""
        made: dict[str, Any] = {
            "lengths": torch.tensor([len(answer.token_ids) for answer in answers]),
            "baseline": self._baseline,
        }
        settings = {name: value for name, value in self._algorithm.items() if value is not None}
        options = {name: value for name, value in (settings | made).items() if name in self._takes}
        return options | self._parts(answers) if "parts" in self._takes else options

    def _parts(self, answers: Sequence[Completion]) -> dict[str, Any]:
        keys = self._algorithm.gdpo_reward_keys or ()
        missing = [key for key in keys if not any(key in answer.parts for answer in answers)]
        if missing and any(answer.score is not None for answer in answers):
            known = sorted({name for answer in answers for name in answer.parts})
            raise BadValueError(
                f"algorithm.gdpo_reward_keys names {missing[0]!r}, which the reward function does not return "
                f"({', '.join(known) or 'it returns no parts'}); return a dict with that key, or correct the name"
            )
        # An answer that failed has no parts; it is left out before they are looked at.
        parts = [[answer.parts.get(key, float("nan")) for answer in answers] for key in keys]
        return {"parts": parts, "weights": self._algorithm.gdpo_reward_weights}

    def _judge_tokens(self, groups: Sequence[Group], penalties: Sequence[Tensor] | None) -> list[Tensor]:
        """Tokens with their rewards in, an advantage for each out."""
        algorithm = self._algorithm
        baselines = self._greedy_scores(groups) if self._greedy_scores and "reward_baselines" in self._takes else None
        table = TokenTable(groups, self._decode, penalties, baselines)
        if self._policies is not None:
            made = {
                "old_log_probs": lambda policies: policies.log_probs(groups),
                "ref_log_prob": lambda policies: policies.log_probs(groups, reference=True),
                "sum_pi_squared": lambda policies: policies.sum_pi_squared(groups),
            }
            for name in made.keys() & self._takes.keys():
                table.add(name, made[name](self._policies))
        if not table.is_empty:
            compute_advantage(
                table,
                algorithm.adv_estimator,
                gamma=algorithm.gamma,
                lam=algorithm.lam,
                num_repeat=max(len(group.completions) for group in groups),
                norm_adv_by_std_in_grpo=algorithm.norm_adv_by_std_in_grpo,
                config=algorithm,
            )
        return table.take("advantages")


def check_estimator(algorithm: AlgoConfig) -> None:
    """Refuse an estimator that asks for what a run cannot make, or that a KL penalty in the reward cannot reach."""
    name = algorithm.adv_estimator
    function = get_adv_estimator_fn(name)
    setting = f"algorithm.adv_estimator={name!r}"
    if name not in OUTCOME_ESTIMATORS and "values" in inspect.signature(function).parameters:
        raise BadValueError(
            f"{setting} needs the values of a critic, and this loop has none; use one that judges answers against "
            f"their group, such as {', '.join(sorted(OUTCOME_ESTIMATORS))}"
        )
    if name == "gdpo" and not algorithm.gdpo_reward_keys:
        raise BadValueError(
            f"{setting} needs algorithm.gdpo_reward_keys: the names of the parts that the reward function returns, "
            "such as [format,accuracy]"
        )
    if algorithm.convention not in CONVENTIONS:
        raise unknown_name("algorithm.convention", algorithm.convention, CONVENTIONS)
    if algorithm.kl_in_reward and name in ("gdpo", "grpo_process"):
        raise BadValueError(
            f"algorithm.use_kl_in_reward=True reaches nothing under {setting}, which looks at parts of the reward "
            "alone; put the KL into the loss: actor.use_kl_loss=true"
        )


def _metrics(groups: Sequence[Group], advantages: Sequence[float], silent: Sequence[bool]) -> dict[str, float]:
    """silent: which answers have no advantage at all."""
    answers = [answer for group in groups for answer in group.completions]
    scores = torch.tensor([a.score for a in answers if a.score is not None] or [torch.nan], dtype=torch.float64)
    lengths = torch.tensor([len(answer.token_ids) for answer in answers], dtype=torch.float64)
    remaining = iter(silent)
    no_signal = [all(list(islice(remaining, len(group.completions)))) for group in groups]
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
