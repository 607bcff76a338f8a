"""Ctrl-C, SIGTERM and a lost terminal: the first asks the run to finish its step and save, the second ends it on
the spot."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """While entered, `exit_code` is None until a signal comes; then it is the shell's code for it, 130, 143 or 129.

    A signal that whoever started the program had ignored (nohup, a job in the background) stays ignored. say: is
    told once, inside the signal's handler.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.exit_code: int | None = None
        self._say = say
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.exit_code = 128 + number
        for other in self._before:
            signal.signal(other, signal.SIG_DFL)
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self._say(f"{name}: stopping after this step; once more to stop at once")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
