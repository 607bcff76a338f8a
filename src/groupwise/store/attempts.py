"""Writes that a run can do without for a while: a full disk costs what could not be written, not the run."""

from __future__ import annotations

from collections.abc import Callable

from groupwise.errors import os_reason


class Attempts:
    """Runs a write and goes on where the disk refuses it; the first refusal and the recovery are one line each.

    attempt = Attempts(console.note)
    attempt("a checkpoint", step, save)
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._missed: dict[str, int] = {}

    def __call__(self, what: str, step: int, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            if what not in self._missed:
                self._say(f"step {step}: {what} could not be written ({os_reason(error)}); the run goes on")
            self._missed[what] = self._missed.get(what, 0) + 1
        else:
            if missed := self._missed.pop(what, 0):
                self._say(f"step {step}: {what} could be written again (missed {missed} times)")
