"""One run folder, one living process: a lock of the operating system's, which dies with its holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from groupwise.errors import BadValueError, os_reason

LOCK = ".lock"
_held: set[int] = set()


class RunLock:
    """Held for as long as the run works in its folder. Child processes do not inherit it."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._handle = -1

    def __enter__(self) -> Self:
        # The file means nothing, only the lock on it does. Programs started later do not inherit the handle (PEP 446).
        try:
            self._handle = os.open(self._run_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadValueError(
                f"trainer.run_dir={self._run_dir} cannot be written: {os_reason(error)}; make it writable, or choose "
                "another folder"
            ) from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            raise self._refusal(error) from error
        _held.add(self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle in _held:
            _held.remove(self._handle)
            os.close(self._handle)

    def _refusal(self, error: OSError) -> BadValueError:
        if isinstance(error, BlockingIOError):
            return BadValueError(
                f"trainer.run_dir={self._run_dir} is in use by another living process; "
                "wait for it, or give this run a folder of its own"
            )
        return BadValueError(
            f"trainer.run_dir={self._run_dir} cannot be locked: {os_reason(error)}; choose a folder on a local disk"
        )


def _let_go() -> None:
    """A forked child shares the lock until it closes the handle: a worker that outlives its run would keep it."""
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
