"""The prompts of a run, one batch after another: a sequence of tasks and a position in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Protocol

from groupwise.errors import BadValueError
from groupwise.types import Task


class TaskSequence(Protocol):
    """`tasks[position]` for every position from 0 on, without end."""

    @property
    def fingerprint(self) -> str: ...

    def __getitem__(self, position: int, /) -> Task: ...


class EpochTasks:
    """A finite set of tasks without end: once through all of them per epoch, each epoch in an order of its own."""

    def __init__(self, tasks: Sequence[Task], seed: int, *, shuffle: bool = True, fingerprint: str = "") -> None:
        if not tasks:
            raise BadValueError("no tasks to draw from; data.train_files must hold at least one usable row")
        self._tasks, self._seed, self._shuffle = list(tasks), seed, shuffle
        self.fingerprint = fingerprint or hashlib.sha256(repr(self._tasks).encode()).hexdigest()
        self._epoch = -1
        self._order: list[int] = []

    def __getitem__(self, position: int) -> Task:
        epoch, place = divmod(position, len(self._tasks))
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._order_of(epoch)
        return self._tasks[self._order[place]]

    def _order_of(self, epoch: int) -> list[int]:
        order = list(range(len(self._tasks)))
        if self._shuffle:
            Random(f"{self._seed}/{epoch}").shuffle(order)  # noqa: S311 - repeatable, not secret
        return order


class PromptSource:
    """Batches of tasks. What comes next depends on the seed, the data and the position, so that a run resumed
    from `state()` sees the prompts it would have seen.

    A batch may begin in one epoch and end in the next: nothing is dropped at the border.
    """

    def __init__(self, tasks: TaskSequence) -> None:
        self._tasks = tasks
        self.position = 0

    @property
    def fingerprint(self) -> str:
        return self._tasks.fingerprint

    def next_batch(self, size: int) -> list[Task]:
        """The next `size` tasks."""
        if size < 1:
            raise BadValueError(f"data.train_batch_size={size}: a batch needs at least one prompt; use 1 or more")
        batch = [self._tasks[self.position + offset] for offset in range(size)]
        self.position += size
        return batch

    def state(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"position": self.position, "fingerprint": self.fingerprint}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; refused on other data, where the position means nothing."""
        if state["fingerprint"] != self.fingerprint:
            raise BadValueError(
                f"the data has fingerprint {self.fingerprint[:12]}, but the saved position belongs to "
                f"{state['fingerprint'][:12]}: the files or the task changed; bring them back or start a new run"
            )
        self.position = int(state["position"])
