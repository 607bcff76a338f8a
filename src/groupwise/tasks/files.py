"""Data files to tasks: parquet and jsonl, good rows and bad ones.

A row that cannot be used is kept aside with its file, its number and the reason. Too many of them, a missing
file, or none left: one error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from groupwise.errors import BadValueError
from groupwise.tasks.rows import as_task
from groupwise.types import Task

_CHUNK = 1 << 20
# How many bad rows an error shows.
_SHOWN = 3


@dataclass(frozen=True)
class BadRow:
    """A row that was skipped. `row` counts from 1, in a jsonl file by lines."""

    file: str
    row: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}: {self.reason}"


@dataclass(frozen=True)
class LoadedTasks:
    """What the files held. `fingerprint` is a sha256 over their contents, in their order."""

    tasks: list[Task]
    bad_rows: list[BadRow]
    fingerprint: str


def load_tasks(files: Sequence[str], max_bad_rows: float = 0.05, *, key: str = "data.train_files") -> LoadedTasks:
    """All tasks of parquet (`.parquet`) and jsonl (`.jsonl`, `.json`) files, in the files' order.

    `max_bad_rows` is the share of unusable rows from which on the whole is refused; `key` is the setting the files
    came from, for the errors.
    """
    if not 0.0 <= max_bad_rows <= 1.0:
        raise BadValueError(f"data.max_bad_rows={max_bad_rows}: it is a share of the rows; use a number from 0 to 1")
    tasks: list[Task] = []
    bad_rows: list[BadRow] = []
    digest = hashlib.sha256()
    for file in files:
        digest.update(_fingerprint(key, file))
        for number, row in _read(key, file):
            try:
                tasks.append(as_task(_usable(row), f"{file}:{number}"))
            except BadValueError as problem:
                bad_rows.append(BadRow(file, number, str(problem)))
    _refuse_too_many(key, files, tasks, bad_rows, max_bad_rows)
    return LoadedTasks(tasks, bad_rows, digest.hexdigest())


def _refuse_too_many(
    key: str, files: Sequence[str], tasks: list[Task], bad_rows: list[BadRow], max_bad_rows: float
) -> None:
    total = len(tasks) + len(bad_rows)
    examples = "; ".join(map(str, bad_rows[:_SHOWN]))
    if len(bad_rows) > max_bad_rows * total:
        raise BadValueError(
            f"{key}: {len(bad_rows)} of {total} rows are unusable, more than the share data.max_bad_rows="
            f"{max_bad_rows} ({examples}); mend them or raise data.max_bad_rows"
        )
    if not tasks:
        _refuse(key, ", ".join(files), "there is no usable row" + (f" ({examples})" if examples else ""))


def _fingerprint(key: str, file: str) -> bytes:
    path = Path(file)
    if path.suffix not in _READERS:
        _refuse(key, file, f"the ending {path.suffix!r} is not known", f"use one of {', '.join(_READERS)}")
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    except OSError as problem:
        _refuse(key, file, f"the file cannot be read ({problem.strerror})")
    return digest.digest()


def _read(key: str, file: str) -> Iterator[tuple[int, Any]]:
    """(row number, row); a row that cannot be decoded is the error that says why."""
    return _READERS[Path(file).suffix](key, file)


def _usable(row: Any) -> Any:
    if isinstance(row, BadValueError):
        raise row
    return row


def _read_jsonl(key: str, file: str) -> Iterator[tuple[int, Any]]:  # noqa: ARG001 - every line stands for itself
    with Path(file).open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield number, _decoded(line)


def _decoded(line: bytes) -> Any:
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as problem:
        return BadValueError(f"not UTF-8 (byte {problem.start})")
    except RecursionError:
        return BadValueError("not usable JSON: nested too deeply")
    except ValueError as problem:
        return BadValueError(f"not JSON: {problem}")
    return _whole(row) if b"\\u" in line else row


def _whole(row: Any) -> Any:
    """The row; or the error that an escape in it names half a character, which no tokenizer and no file takes."""
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as problem:
        return BadValueError(f"half a character, {problem.object[problem.start]!r}, stands alone in a text")
    return row


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _read_parquet(key: str, file: str) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        for batch in parquet.ParquetFile(file).iter_batches():
            for place in range(batch.num_rows):
                number += 1
                yield number, _parquet_row(batch, place)
    except (pa.ArrowException, OSError) as problem:
        _refuse(key, file, f"it is no parquet file, or a damaged one, behind row {number} ({problem})")


def _parquet_row(batch: Any, place: int) -> Any:
    try:
        return {name: column[place].as_py() for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    except UnicodeDecodeError as problem:
        return BadValueError(f"not UTF-8 (byte {problem.start} of a text)")


def _refuse(key: str, file: str, reason: str, remedy: str = "name files that hold at least one task") -> NoReturn:
    raise BadValueError(f"{key}={file}: {reason}; {remedy}")


_READERS = {".parquet": _read_parquet, ".jsonl": _read_jsonl, ".json": _read_jsonl}
