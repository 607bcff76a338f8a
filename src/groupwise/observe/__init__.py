"""What a user sees of a run while it goes on."""

from __future__ import annotations

from groupwise.observe.console import Console
from groupwise.observe.text import printable, sparkline
from groupwise.observe.waiting import waiting
from groupwise.observe.warned import warnings_as_lines

__all__ = ["Console", "printable", "sparkline", "waiting", "warnings_as_lines"]
