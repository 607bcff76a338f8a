"""The package's warnings as lines for whoever watches, each said once; other people's stay as they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from groupwise.errors import GroupwiseWarning


@contextmanager
def warnings_as_lines(say: Callable[[str], None]) -> Iterator[None]:
    """A program's user has no use for the file and line that a warning came from.

    with warnings_as_lines(console.note):
        train()
    """
    said: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, GroupwiseWarning):
            before(message, category, filename, lineno, file, line)
        elif str(message) not in said:
            said.add(str(message))
            say(str(message))

    before = warnings.showwarning
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before
