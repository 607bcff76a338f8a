"""The run folder as a whole: is it a run, has it finished, what belongs to it."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from groupwise.store.files import TEMPORARY, disk_errors, sync
from groupwise.store.lock import LOCK

OURS = ("metrics.jsonl", "rollouts", "checkpoints", "model", "report.html")


def is_run(folder: Path) -> bool:
    """A folder is a run from the moment its settings are written."""
    return (folder / "config.yaml").is_file()


def has_finished(folder: Path) -> bool:
    """The model is the last thing a run writes, and appears whole."""
    return (folder / "model").is_dir()


def fresh_folder(parent: Path, name: str) -> Path:
    """Makes `runs/sums-20261118-213000`, or one with a number behind it where another run was faster."""
    parent.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{dt.datetime.now():%Y%m%d-%H%M%S}"
    folder, number = parent / stem, 1
    while True:
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
            folder = parent / f"{stem}-{number}"
        else:
            return folder


def abandon(folder: Path) -> None:
    """Remove a folder in which nothing was written but the lock, by the lock's holder."""
    if [path.name for path in folder.iterdir()] == [LOCK]:
        shutil.rmtree(folder, ignore_errors=True)


def set_aside(folder: Path) -> Path | None:
    """Move whatever lies where a run writes into a folder of its own, and say which; None where nothing does.

    The caller holds the lock and knows that the folder is no run: these may be somebody's files, and are not removed.
    """
    found = [folder / name for name in OURS if (folder / name).exists() or (folder / name).is_symlink()]
    if not found:
        return None
    aside = fresh_folder(folder, "earlier")
    for path in found:
        path.rename(aside / path.name)
    return aside


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """`fill` writes a temporary folder, which then takes its name in one step and reaches the disk."""
    building = folder.with_name(f"{TEMPORARY}{os.getpid()}-{folder.name}")
    try:
        building.mkdir()
        with disk_errors():
            fill(building)
        for path in [*building.rglob("*"), building]:
            sync(path)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    sync(folder.parent)
