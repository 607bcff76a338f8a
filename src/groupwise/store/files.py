"""Files that are either whole or not there."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

TEMPORARY = ".tmp-"
_OS_ERROR = re.compile(r"\(os error (\d+)\)")


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """`write` fills a temporary file beside `path`, which then takes its name in one step and reaches the disk."""
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        write(temporary)
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    write_whole(path, lambda temporary: _write_bytes(temporary, text.encode()))


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


@contextmanager
def disk_errors() -> Iterator[None]:
    """safetensors says of a full disk "... (os error 28)" in an exception of its own; here it is an OSError."""
    try:
        yield
    except SafetensorError as error:
        found = _OS_ERROR.search(str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def make_folder(path: Path) -> None:
    """A folder whose name is on the disk, as far as its parent goes."""
    if not path.is_dir():
        path.mkdir()
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's contents, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove_litter(folder: Path) -> None:
    """Temporary files and folders that a killed process left behind. Only for the holder of the run's lock."""
    for litter in list(folder.rglob(f"{TEMPORARY}*")):
        if litter.is_dir():
            shutil.rmtree(litter)
        else:
            litter.unlink(missing_ok=True)
