"""What the model answered: the groups of a rollout worth a look, and how all answers ended."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from groupwise.inspect.run import is_number

_LIGHT = ("uid", "score", "advantage", "failure", "finish_reason")
_HEAVY = ("prompt", "response")
MOST_FILES = 200
"""Rollout files looked through for the reasons of failures; of a longer run, so many evenly spread."""


@dataclass(frozen=True)
class Answer:
    """One answer, or `count` identical ones."""

    text: str
    score: float | None
    advantage: float | None
    finish_reason: str
    failure: str | None
    count: int = 1


@dataclass(frozen=True)
class AnswerGroup:
    """A prompt and its answers, best first."""

    prompt: str
    answers: tuple[Answer, ...]

    @property
    def scores(self) -> list[float]:
        return [answer.score for answer in self.answers if answer.score is not None for _ in range(answer.count)]


@dataclass(frozen=True)
class Rollout:
    """The groups of one step worth a look."""

    step: str
    learned_most: tuple[AnswerGroup, ...] = ()
    worst: tuple[AnswerGroup, ...] = ()
    num_groups: int = 0


@dataclass
class Endings:
    """How answers ended, over `num_files` of `num_all` rollouts."""

    num_files: int = 0
    num_all: int = 0
    num_answers: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    finishes: Counter[str] = field(default_factory=Counter)


def read_rollout(path: Path, shown: int, notes: list[str]) -> Rollout:
    """Scores decide which groups are shown; only their texts are then read."""
    step = path.stem.removeprefix("step_").lstrip("0") or "0"
    light = _columns(path, _LIGHT, notes)
    members: dict[str, list[int]] = defaultdict(list)
    for row, uid in enumerate(light.get("uid", ())):
        members[str(uid)].append(row)
    scores = _numbers(light, "score")
    spread = {uid: _deviation([scores[row] for row in rows]) for uid, rows in members.items()}
    best = {uid: _best([scores[row] for row in rows]) for uid, rows in members.items()}
    by_spread = sorted((uid for uid in members if spread[uid] > 0), key=lambda uid: -spread[uid])[:shown]
    # The worst did less well at their best than the others; where all are as good, there is no worst.
    highest = max(best.values(), default=-math.inf)
    by_best = sorted((uid for uid in members if best[uid] < highest or best[uid] == -math.inf), key=best.__getitem__)
    worst = [uid for uid in by_best if uid not in by_spread][:shown]
    wanted = sorted(row for uid in (*by_spread, *worst) for row in members[uid])
    texts = _texts(path, wanted, notes)
    groups = {uid: _group(members[uid], light, texts) for uid in (*by_spread, *worst)}
    return Rollout(step, tuple(groups[uid] for uid in by_spread), tuple(groups[uid] for uid in worst), len(members))


def count_endings(paths: Sequence[Path], notes: list[str]) -> Endings:
    endings = Endings(num_all=len(paths))
    for path in evenly(paths, MOST_FILES):
        columns = _columns(path, ("failure", "finish_reason"), notes)
        endings.num_files += bool(columns)
        endings.num_answers += max((len(values) for values in columns.values()), default=0)
        endings.failures.update(str(reason) for reason in columns.get("failure", ()) if reason is not None)
        endings.finishes.update(str(reason) for reason in columns.get("finish_reason", ()) if reason is not None)
    return endings


def evenly(items: Sequence[Path], count: int) -> list[Path]:
    """`count` of them from the first to the last, or all."""
    if len(items) <= count:
        return list(items)
    return [items[place * (len(items) - 1) // (count - 1)] for place in range(count)]


def _columns(
    path: Path, wanted: Sequence[str], notes: list[str], rows: Sequence[int] | None = None
) -> dict[str, list[Any]]:
    """The columns that are there; a file that cannot be read has none and leaves one note."""
    try:
        with pq.ParquetFile(path) as file:
            present = [name for name in wanted if name in file.schema_arrow.names]
            if not present:
                return {}
            table = file.read(columns=present)
        chosen = table if rows is None else table.take(list(rows))
        return {name: chosen.column(name).to_pylist() for name in present}
    except (OSError, ValueError, pa.ArrowException) as error:
        note = f"rollouts/{path.name} cannot be read ({type(error).__name__}) and is left out"
        if note not in notes:
            notes.append(note)
        return {}


def _texts(path: Path, rows: list[int], notes: list[str]) -> dict[str, dict[int, str]]:
    found = _columns(path, _HEAVY, notes, rows) if rows else {}
    return {
        name: {row: "" if text is None else str(text) for row, text in zip(rows, found.get(name, ()), strict=False)}
        for name in _HEAVY
    }


def _group(rows: list[int], light: dict[str, list[Any]], texts: dict[str, dict[int, str]]) -> AnswerGroup:
    counted = Counter(_answers(rows, light, texts["response"]))
    answers = [
        Answer(text, score, advantage, finish, failure, count)
        for (text, score, advantage, finish, failure), count in counted.items()
    ]
    answers.sort(key=lambda answer: -math.inf if answer.score is None else answer.score, reverse=True)
    return AnswerGroup(texts["prompt"].get(rows[0], ""), tuple(answers))


def _answers(
    rows: list[int], light: dict[str, list[Any]], responses: dict[int, str]
) -> Iterator[tuple[str, float | None, float | None, str, str | None]]:
    scores, advantages = _numbers(light, "score"), _numbers(light, "advantage")
    failures, finishes = light.get("failure", []), light.get("finish_reason", [])
    for row in rows:
        failure = failures[row] if row < len(failures) else None
        finish = finishes[row] if row < len(finishes) else None
        yield (
            responses.get(row, ""),
            scores[row],
            advantages[row],
            "" if finish is None else str(finish),
            None if failure is None else str(failure),
        )


def _numbers(light: dict[str, list[Any]], name: str) -> list[float | None]:
    length = max((len(values) for values in light.values()), default=0)
    return [float(value) if is_number(value) else None for value in light.get(name, [None] * length)]


def _deviation(scores: Sequence[float | None]) -> float:
    known = [score for score in scores if score is not None]
    if len(known) < 2 or max(known) == min(known):
        return 0.0
    centre = math.fsum(known) / len(known)
    return math.sqrt(math.fsum((score - centre) ** 2 for score in known) / len(known))


def _best(scores: Sequence[float | None]) -> float:
    return max((score for score in scores if score is not None), default=-math.inf)
