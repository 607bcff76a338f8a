"""The border between answers and whoever judges them: plain items out, verdicts in.

A judge sees text and ground truth and nothing of the model, so that it may as well live in another process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from groupwise.types import Completion, Group, RewardFunction, Task


@dataclass(frozen=True)
class Item:
    """One answer to judge: the question, the text of the answer, and its tokens (the end of sequence included)."""

    task: Task
    response: str
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """A score with its named parts, or the reason why there is none."""

    score: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None


class Judge(Protocol):
    """One verdict per item, in their order. A judge answers for every item: what goes wrong is a verdict too."""

    def judge(self, items: Sequence[Item]) -> list[Verdict]: ...


def judged_by(judge: Judge) -> RewardFunction:
    """The reward function that asks `judge` about all answers of a batch at once."""

    def reward(groups: Sequence[Group]) -> list[Group]:
        items = [Item(g.prompt.task, c.text, c.token_ids) for g in groups for c in g.completions]
        verdicts = iter(judge.judge(items) if items else [])
        return [replace(g, completions=tuple(_judged(c, next(verdicts)) for c in g.completions)) for g in groups]

    return reward


def _judged(completion: Completion, verdict: Verdict) -> Completion:
    return completion.judged(verdict.score, verdict.parts, verdict.failure)
