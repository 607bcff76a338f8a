"""Tasks of a built-in family: the n-th one of a seed, in the training split or the held-out one."""

from __future__ import annotations

import hashlib
from random import Random

from groupwise.tasks.families import Question, get_family
from groupwise.types import Task

# One question in so many is held out.
_HELD_OUT_ONE_IN = 5
# Draws per question asked for, before a small family counts as exhausted.
_PATIENCE = 50


class GeneratedTasks:
    """An unbounded sequence: `tasks[17]` depends on the seed and on 17 only."""

    def __init__(self, name: str, difficulty: int, seed: int, *, held_out: bool = False) -> None:
        self._family = get_family(name, difficulty)
        self._name, self._difficulty, self._seed, self._held_out = name, difficulty, seed, held_out

    def __getitem__(self, position: int) -> Task:
        # A text seeds Random through sha512, the same in every process; hash() is salted.
        rng = Random(f"{self._name}/{self._difficulty}/{self._held_out}/{self._seed}/{position}")  # noqa: S311 - repeatable, not secret
        while True:
            question = self._family.make(rng, self._difficulty)
            if is_held_out(question) == self._held_out:
                return self._task(question)

    def _task(self, question: Question) -> Task:
        key = f"{self._name}/{self._difficulty}/{question.prompt}"
        return Task(key, question.prompt, question.answer, self._name, dict(question.extra_info))

    @property
    def fingerprint(self) -> str:
        """Of the settings and of what the family makes of them: it changes when the family's code does."""
        first = GeneratedTasks(self._name, self._difficulty, seed=0, held_out=self._held_out)
        sample = [(task.key, task.answer) for task in (first[position] for position in range(64))]
        return hashlib.sha256(repr(sample).encode()).hexdigest()


def is_held_out(question: Question) -> bool:
    """Decided by the question's kin alone, so that the splits are disjoint and drawn alike."""
    digest = hashlib.sha256(question.kin.encode()).digest()
    return int.from_bytes(digest[:8], "big") % _HELD_OUT_ONE_IN == 0


def held_out_sample(name: str, difficulty: int, size: int) -> list[Task]:
    """Up to `size` different held-out tasks, the same in every run; fewer where the family has no more."""
    tasks = GeneratedTasks(name, difficulty, seed=0, held_out=True)
    found: dict[str, Task] = {}
    for position in range(_PATIENCE * size):
        if len(found) == size:
            break
        task = tasks[position]
        found.setdefault(task.key, task)
    return list(found.values())
