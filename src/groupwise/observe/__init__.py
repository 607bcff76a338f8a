"""What a user sees of a run while it goes on."""

from __future__ import annotations

from groupwise.observe.console import Console
from groupwise.observe.text import printable, sparkline

__all__ = ["Console", "printable", "sparkline"]
