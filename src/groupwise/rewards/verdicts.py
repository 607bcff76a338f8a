"""The border between answers and what scores them: plain items out, verdicts in.

A scorer sees questions and texts and nothing of the model, so that it may as well live in another process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from groupwise.types import Completion, Group, RewardFunction, Task


@dataclass(frozen=True)
class Item:
    """One answer to score: the question, the text of the answer, and its tokens (the end of sequence included)."""

    task: Task
    response: str
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """A score with its named parts and the rewards of its steps, or the reason why there is none."""

    score: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None
    step_rewards: tuple[tuple[int, float], ...] = ()

    @classmethod
    def failed(cls, reason: str) -> Verdict:
        return cls(score=None, failure=reason)


class Scorer(Protocol):
    """One verdict per item, in their order. It answers for every item: what goes wrong is a verdict too."""

    def judge(self, items: Sequence[Item]) -> list[Verdict]: ...


def scored_by(scorer: Scorer) -> RewardFunction:
    """The reward function that asks `scorer` about all answers of a batch at once."""

    def reward(groups: Sequence[Group]) -> list[Group]:
        items = [Item(g.prompt.task, c.text, c.token_ids) for g in groups for c in g.completions]
        verdicts = scorer.judge(items) if items else []
        assert len(verdicts) == len(items), f"{len(verdicts)} verdicts for {len(items)} answers"
        rest = iter(verdicts)
        return [replace(g, completions=tuple(_judged(c, next(rest)) for c in g.completions)) for g in groups]

    return reward


def requiring(reward: RewardFunction, names: Sequence[str]) -> RewardFunction:
    """The same, but an answer whose score comes without one of these parts has failed.

    A name that no answer of the batch has is left alone: it is mistyped, and refused by who looks for it.
    """

    def complete(groups: Sequence[Group]) -> list[Group]:
        judged = reward(groups)
        there = {name for group in judged for answer in group.completions for name in answer.parts}
        needed = [name for name in names if name in there]
        return [replace(g, completions=tuple(_complete(answer, needed) for answer in g.completions)) for g in judged]

    return complete if names else reward


def _complete(completion: Completion, names: Sequence[str]) -> Completion:
    missing = [name for name in names if name not in completion.parts]
    if completion.score is None or not missing:
        return completion
    said = f"the reward function returned no part {missing[0]!r}, which it returned for other answers"
    return completion.judged(None, completion.parts, f"{said} and algorithm.gdpo_reward_keys names")


def _judged(completion: Completion, verdict: Verdict) -> Completion:
    ends = [end for end, _ in verdict.step_rewards]
    if ends != sorted(set(ends)) or any(not 0 < end <= len(completion.text) for end in ends):
        wrong = f"the reward function returned 'step_rewards' that end at {ends} in a text of {len(completion.text)}"
        verdict = Verdict.failed(f"{wrong} characters; they must ascend and lie inside it")
    return completion.judged(verdict.score, verdict.parts, verdict.failure, verdict.step_rewards)
