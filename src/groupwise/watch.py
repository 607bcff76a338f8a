"""An eye on a run: what is off in a step is said in one line, and a run that cannot recover is ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from groupwise.config import RunConfig
from groupwise.types import Group

LONG_WITHOUT_SIGNAL = 5
"""Steps in a row without a single group that teaches something, before a line says so."""


class Watch:
    """Called after every step with its row of metrics and its answers. say: takes a line.

    hopeless: why the run cannot go on, or None. is_sound: False from a step that went wrong until the next that did
    not; nothing is saved meanwhile, so that the last good checkpoint stays.
    """

    def __init__(self, config: RunConfig, say: Callable[[str], None]) -> None:
        self._config, self._say = config, say
        self.hopeless: str | None = None
        self._skipped = self._unscored = self._silent = 0
        self._has_failed = self._is_cut_off = False

    @property
    def is_sound(self) -> bool:
        return not (self.hopeless or self._skipped or self._unscored)

    def __call__(self, row: Mapping[str, Any], groups: Sequence[Group], *, weights_are_finite: bool) -> None:
        self._look_at_the_update(row)
        self._look_at_the_rewards(row, groups)
        self._look_at_the_signal(row)
        if not weights_are_finite:
            self.hopeless = (
                f"the weights are not finite after step {row['step']}, and were not saved; lower actor.optim.lr"
            )

    def _look_at_the_update(self, row: Mapping[str, Any]) -> None:
        step, most = row["step"], self._config.trainer.max_bad_steps
        self._skipped = self._skipped + 1 if row["update/skipped"] else 0
        if self._skipped:
            count = f"{self._skipped} of at most {most} in a row"
            self._say(f"step {step}: the loss or gradient was not finite, nothing was learned ({count})")
        if self._skipped >= most:
            self.hopeless = (
                f"the loss or gradient was not finite in {most} steps in a row, the last of them step {step}; lower "
                "actor.optim.lr, or look at the last rollouts for answers that break the reward"
            )

    def _look_at_the_rewards(self, row: Mapping[str, Any], groups: Sequence[Group]) -> None:
        step, most = row["step"], self._config.trainer.max_bad_steps
        failures = [a.failure or "no reason given" for group in groups for a in group.completions if a.score is None]
        if failures and not self._has_failed:
            self._has_failed = True
            count = f"{len(failures)} of {sum(len(group.completions) for group in groups)}"
            self._say(f"step {step}: the reward failed for {count} answers, which take no part: {failures[0]}")
        self._unscored = self._unscored + 1 if row["reward/failed"] == 1 else 0
        if self._unscored >= most:
            self.hopeless = (
                f"the reward failed for every answer in {most} steps in a row, the last of them step {step}: "
                f"{failures[0]}; mend reward.function"
            )

    def _look_at_the_signal(self, row: Mapping[str, Any]) -> None:
        step = row["step"]
        if row["response_length/cut_off"] == 1 and not self._is_cut_off:
            self._is_cut_off = True
            length = self._config.data.max_response_length
            self._say(f"step {step}: every answer was cut off at data.max_response_length={length}; raise it")
        self._silent = self._silent + 1 if row["groups/no_signal"] == 1 else 0
        if self._silent == LONG_WITHOUT_SIGNAL:
            self._say(
                f"step {step}: for {self._silent} steps all answers to a prompt scored alike, which teaches nothing: "
                "the task is too easy or too hard, or the reward does not tell answers apart"
            )
