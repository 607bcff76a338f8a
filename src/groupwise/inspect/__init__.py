"""What a user sees of a run afterwards."""

from __future__ import annotations

from groupwise.inspect.report import write_report

__all__ = ["write_report"]
