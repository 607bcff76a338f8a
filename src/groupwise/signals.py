"""Ctrl-C and SIGTERM: the first asks the run to finish its step and save, the second ends it on the spot."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """While entered, `exit_code` is None until a signal comes; then it is the shell's code for it, 130 or 143."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.exit_code = 128 + number
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_DFL)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
