"""One prompt of a step, with its best answer and its worst: what a step teaches, in three lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from groupwise.types import Group


@dataclass(frozen=True)
class Said:
    text: str
    advantage: float


@dataclass(frozen=True)
class Example:
    prompt: str
    best: Said
    worst: Said


def most_telling(groups: Sequence[Group], advantages: Sequence[float]) -> Example | None:
    """The prompt whose answers' advantages lie furthest apart, the first of several; None where all are alike.

    advantages: one per answer, in the order of the groups and their answers.
    """
    found, widest, start = None, 0.0, 0
    for group in groups:
        judged = [
            Said(answer.text, advantage)
            for answer, advantage in zip(group.completions, advantages[start:], strict=False)
            if math.isfinite(advantage)
        ]
        start += len(group.completions)
        if not judged:
            continue
        best, worst = max(judged, key=_advantage), min(judged, key=_advantage)
        if best.advantage - worst.advantage > widest:
            widest = best.advantage - worst.advantage
            found = Example(_asked(group), best, worst)
    return found


def _advantage(said: Said) -> float:
    return said.advantage


def _asked(group: Group) -> str:
    """The text of a prompt; of a chat, its last message."""
    prompt = group.prompt.task.prompt
    return prompt if isinstance(prompt, str) else str(prompt[-1].get("content", "")) if prompt else ""
