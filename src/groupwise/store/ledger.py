"""`metrics.jsonl` and `rollouts/`: what happened, step by step, in files that grow.

A checkpoint remembers how long the metrics file was; on resume what stands past that is cut off and written
again by the steps that are repeated, so rows are neither lost nor doubled.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from groupwise.errors import BadValueError
from groupwise.store.files import write_whole
from groupwise.types import Group

_COLUMNS = pa.schema(
    [
        ("step", pa.int64()),
        ("uid", pa.string()),
        ("key", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("score", pa.float64()),
        ("advantage", pa.float64()),
        ("finish_reason", pa.string()),
        ("num_tokens", pa.int64()),
        ("parts", pa.string()),
        ("failure", pa.string()),
    ]
)


class Metrics:
    """Append-only rows of strict JSON: no NaN, `null` where a value is not defined."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def append(self, row: Mapping[str, Any]) -> None:
        defined = {key: _json_number(value) for key, value in row.items()}
        line = json.dumps(defined, allow_nan=False) + "\n"
        with self._path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())

    def cut_back(self, size: int) -> None:
        """Forget what was written past `size`."""
        if self._path.exists():
            os.truncate(self._path, min(size, self.size))

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()] if self._path.exists() else []


def write_rollouts(folder: Path, step: int, groups: Sequence[Group], advantages: Sequence[float]) -> None:
    """Every answer of a step with its score, the parts of it, and its advantage."""
    num_answers = sum(len(group.completions) for group in groups)
    if len(advantages) != num_answers:
        raise BadValueError(f"{len(advantages)} advantages for {num_answers} answers of step {step}")
    folder.mkdir(exist_ok=True)
    judged = iter(advantages)
    rows = [
        {
            "step": step,
            "uid": group.prompt.uid,
            "key": group.prompt.task.key,
            "prompt": _as_text(group.prompt.task.prompt),
            "response": answer.text,
            "score": answer.score,
            "advantage": next(judged),
            "finish_reason": answer.finish_reason,
            "num_tokens": len(answer.token_ids),
            "parts": json.dumps(dict(answer.parts), sort_keys=True),
            "failure": answer.failure,
        }
        for group in groups
        for answer in group.completions
    ]
    table = pa.Table.from_pylist(rows, schema=_COLUMNS)
    write_whole(folder / f"step_{step:06d}.parquet", lambda path: pq.write_table(table, path))


def forget_rollouts(folder: Path, after: int) -> None:
    """Remove the rollouts of steps that will be repeated."""
    for path in folder.glob("step_*.parquet"):
        if path.stem[5:].isdigit() and int(path.stem[5:]) > after:
            path.unlink()


def _as_text(prompt: str | Sequence[Mapping[str, str]]) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(list(prompt), ensure_ascii=False)


def _json_number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
