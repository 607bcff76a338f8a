"""The seconds before there is anything to show."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from groupwise.observe.console import can_be_live

_CLEAR_LINE = "\r\x1b[2K"


@contextmanager
def waiting(what: str, stream: TextIO | None = None) -> Iterator[None]:
    """On a terminal, a line that says what takes a moment, and that is gone when it is over; elsewhere nothing.

    with waiting("loading the model"):
        load()
    """
    shown = sys.stdout if stream is None else stream
    if not can_be_live(shown):
        yield
        return
    _write(shown, f"{what} ...")
    try:
        yield
    finally:
        _write(shown, _CLEAR_LINE)


def _write(stream: TextIO, text: str) -> None:
    with suppress(OSError):
        stream.write(text)
        stream.flush()
