"""One run folder, one living process: a lock of the operating system's, which dies with its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from groupwise.errors import BadValueError


class RunLock:
    """Held for as long as the run works in its folder. Child processes do not inherit it."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._handle = -1

    def __enter__(self) -> Self:
        # The file means nothing, only the lock on it does. Programs started later do not inherit the handle (PEP 446).
        self._handle = os.open(self._run_dir / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._handle)
            raise BadValueError(
                f"trainer.run_dir={self._run_dir} is in use by another living process; "
                "wait for it, or give this run a folder of its own"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)
