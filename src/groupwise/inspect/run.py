"""A run's folder, read with forgiveness: what is missing is absent, what is damaged becomes a note."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groupwise.errors import BadValueError

_LARGEST = 1e150
"""A larger number would overflow the arithmetic of a drawing; it is a fault and treated as absent."""


@dataclass(frozen=True)
class Run:
    """rows: of metrics.jsonl, numbers only, in step order, one a step. settings: of config.yaml, nested. rollouts:
    the files in step order. notes: what could not be read, for people."""

    name: str
    rows: tuple[dict[str, float], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    rollouts: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    def curve(self, key: str) -> list[tuple[float, float]]:
        """(step, value) wherever the value was recorded."""
        return [(row["step"], row[key]) for row in self.rows if key in row]


def read_run(run_dir: Path) -> Run:
    if not run_dir.is_dir():
        raise BadValueError(f"{run_dir} is not a folder; give the folder of a run, such as runs/first")
    notes: list[str] = []
    rows = _read_rows(run_dir / "metrics.jsonl", notes)
    settings = _read_settings(run_dir / "config.yaml", notes)
    rollouts = tuple(sorted((run_dir / "rollouts").glob("step_*.parquet")))
    return Run(run_dir.resolve().name, tuple(rows), settings, rollouts, tuple(notes))


def _read_rows(path: Path, notes: list[str]) -> list[dict[str, float]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        notes.append("there is no metrics.jsonl in this folder yet")
        return []
    except OSError as error:
        notes.append(f"metrics.jsonl cannot be read: {error.strerror}")
        return []
    by_step: dict[float, dict[str, float]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _read_row(line)
        if row is None:
            torn = " (cut off while it was written)" if number == len(lines) else ""
            notes.append(f"metrics.jsonl line {number} is not a row of metrics{torn} and is left out")
            continue
        row.setdefault("step", len(by_step))
        by_step[row["step"]] = row
    return [by_step[step] for step in sorted(by_step)]


def _read_row(line: str) -> dict[str, float] | None:
    try:
        # A whole number of many thousand digits is read as a float, infinite, and so left out below.
        row = json.loads(line, parse_int=float)
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    return {key: value for key, value in row.items() if is_number(value)}


def is_number(value: object) -> bool:
    """A number that can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def _read_settings(path: Path, notes: list[str]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if not path.exists():
        return {}
    try:
        # resolve=False: a setting such as ${oc.env:HOME} is shown as it is written, never looked up.
        loaded = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, ValueError, AttributeError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        # AttributeError: the YAML library's own, at a tag whose value does not fit it.
        notes.append(f"config.yaml cannot be read: {type(error).__name__}")
        return {}
    return {str(key): value for key, value in loaded.items()} if isinstance(loaded, dict) else {}
