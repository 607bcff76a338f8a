"""`metrics.jsonl` and `rollouts/`: what happened, step by step, in files that grow.

A checkpoint remembers how long the metrics file was; on resume what stands past that is cut off and written
again by the steps that are repeated, so rows are neither lost nor doubled.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from io import RawIOBase
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from groupwise.errors import BadValueError
from groupwise.store.files import make_folder, sync, write_whole
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
    """Append-only rows of strict JSON: no NaN, `null` where a value is not defined.

    A row that the disk does not take waits for the next attempt: the file has every row once, in order, or ends
    before the first that could not be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[bytes] = []

    @property
    def size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def append(self, row: Mapping[str, Any]) -> None:
        defined = {key: _json_number(value) for key, value in row.items()}
        self._waiting.append(json.dumps(defined, allow_nan=False).encode() + b"\n")
        self.flush()

    def flush(self) -> None:
        """Every row to the disk. An OSError leaves the file as it was, and the rows waiting."""
        if not self._waiting:
            return
        is_new, size = not self._path.exists(), self.size
        try:
            with self._path.open("ab", buffering=0) as file:
                for line in self._waiting:
                    _write_all(file, line)
                os.fsync(file.fileno())
        except OSError:
            if self._path.exists():
                os.truncate(self._path, size)
            raise
        self._waiting.clear()
        if is_new:
            sync(self._path.parent)

    def cut_back(self, size: int) -> bool:
        """Forget what was written past `size`, and a line that was not finished; whether `size` bytes are left."""
        if not self._path.exists():
            return size == 0
        kept = self._path.read_bytes()[:size]
        whole = kept.rfind(b"\n") + 1
        os.truncate(self._path, whole)
        return whole == size

    def rows(self) -> list[dict[str, Any]]:
        """The rows that can be read."""
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        return [row for line in lines if isinstance(row := _read_row(line), dict)]


def write_rollouts(folder: Path, step: int, groups: Sequence[Group], advantages: Sequence[float]) -> None:
    """Every answer of a step with its score, the parts of it, and its advantage."""
    num_answers = sum(len(group.completions) for group in groups)
    if len(advantages) != num_answers:
        raise BadValueError(f"{len(advantages)} advantages for {num_answers} answers of step {step}")
    make_folder(folder)
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


def _write_all(file: RawIOBase, content: bytes) -> None:
    while content:
        content = content[file.write(content) or 0 :]


def _read_row(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
