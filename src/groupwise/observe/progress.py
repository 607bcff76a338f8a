"""How far a run is: the numbers behind the console, without a word on how they are shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from groupwise.observe.example import Example

REWARD, ACCURACY, NO_SIGNAL = "reward/mean", "eval/accuracy", "groups/no_signal"
LENGTH, ENTROPY, GRAD_NORM = "response_length/mean", "actor/entropy", "grad_norm"
CURVES = (REWARD, ACCURACY, NO_SIGNAL, ENTROPY)


class Progress:
    """Fed with one row of metrics a step, it knows the history, the rate and the time left.

    clock: seconds, from any start.
    """

    def __init__(self, total_steps: int, clock: Callable[[], float]) -> None:
        self.total_steps = total_steps
        self.answers_per_step = 0
        self.step = 0
        self.latest: dict[str, float] = {}
        self.curves: dict[str, list[float]] = {key: [] for key in CURVES}
        self.tokens_per_second: float | None = None
        self.doing = ""
        self.example: Example | None = None
        self._clock = clock
        self._started = clock()
        self._first: tuple[int, float] | None = None
        self._last_time = self._started

    def begin(self, answers_per_step: int) -> None:
        """The clock starts here, not where the object was made: loading a model takes a while."""
        self.answers_per_step = answers_per_step
        self._started = self._last_time = self._clock()

    def update(self, metrics: Mapping[str, Any]) -> None:
        now = self._clock()
        # What was measured at this step only: an accuracy of ten steps ago is in `curves`, not here.
        self.latest = {key: float(value) for key, value in metrics.items() if _is_number(value)}
        self.step = int(self.latest.get("step", self.step + 1))
        if self._first is None:
            # A resumed run begins at its step; step 0 is an evaluation and says nothing about the rate.
            self._first = (self.step, now) if self.step == 0 else (self.step - 1, self._last_time)
        for key, curve in self.curves.items():
            if key in self.latest:
                curve.append(self.latest[key])
        self.tokens_per_second = self._rate(now - self._last_time)
        self._last_time = now

    def recall(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """What a resumed run did before: it belongs to the history, and says nothing about the pace of today."""
        for metrics in rows:
            self.update(metrics)
        self._first, self._last_time = None, self._clock()

    @property
    def share(self) -> float:
        return min(1.0, self.step / self.total_steps) if self.total_steps > 0 else 1.0

    @property
    def elapsed(self) -> float:
        return self._clock() - self._started

    @property
    def seconds_left(self) -> float | None:
        """At the average pace so far; None before the first training step."""
        if self._first is None or self.step <= self._first[0]:
            return None
        first_step, first_time = self._first
        pace = (self._last_time - first_time) / (self.step - first_step)
        return max(0.0, pace * (self.total_steps - self.step))

    @property
    def signal(self) -> float | None:
        """Share of groups that teach something."""
        no_signal = self.latest.get(NO_SIGNAL)
        return None if no_signal is None else 1.0 - no_signal

    def _rate(self, measured: float) -> float | None:
        stated = self.latest.get("time/tokens_per_second")
        seconds = self.latest.get("time/step", measured)
        length = self.latest.get(LENGTH)
        if stated is not None or length is None or seconds <= 0 or not self.answers_per_step:
            return stated
        return length * self.answers_per_step / seconds


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
