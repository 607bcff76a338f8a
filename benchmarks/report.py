"""A dated result: one JSON and one Markdown file with the table, the command and the machine."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, str]:
    names = {"python": platform.python_version(), "torch": torch.__version__, "cores": str(os.cpu_count())}
    if torch.cuda.is_available():
        names["gpu"] = torch.cuda.get_device_name()
    if commit := _commit():
        names["commit"] = commit
    return names


def _commit() -> str:
    """The commit that was measured, with a + where files differ from it; nothing outside a checkout."""
    words = ("git", "-C", str(RESULTS), "describe", "--always", "--dirty=+", "--abbrev=8", "--exclude=*")
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return found.stdout.strip()


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table; columns in order of first appearance."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cell(row.get(column, "")) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def publish(
    name: str,
    title: str,
    tables: dict[str, list[dict[str, Any]]],
    folder: Path = RESULTS,
    date: str | None = None,
    notes: str = "",
) -> None:
    """Print the tables and write `<date>-<name>.md` and `.json`."""
    day = date or dt.datetime.now(tz=dt.UTC).date().isoformat()
    command = f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip()
    parts = [f"# {title}", f"{day}, `{command}`, {', '.join(f'{k} {v}' for k, v in machine().items())}."]
    parts += [notes] if notes else []
    for heading, rows in tables.items():
        parts += [f"## {heading}", markdown(rows)]
    text = "\n\n".join(parts) + "\n"
    print(text)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{day}-{name}.md").write_text(text)
    record = {"date": day, "command": command, "machine": machine(), "notes": notes, "tables": tables}
    (folder / f"{day}-{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)
