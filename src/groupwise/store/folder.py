"""The run folder as a whole: is it a run, has it finished, what belongs to it."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from groupwise.store.checkpoint import load_newest
from groupwise.store.files import TEMPORARY, sync

_OURS = ("metrics.jsonl", "rollouts", "checkpoints", "model", "report.html")


def is_run(folder: Path) -> bool:
    """A folder is a run from the moment its settings are written."""
    return (folder / "config.yaml").is_file()


def has_finished(folder: Path, total_steps: int) -> bool:
    """The model is written last, after a checkpoint of the last step."""
    checkpoint, _ = load_newest(folder / "checkpoints")
    return (folder / "model").is_dir() and checkpoint is not None and checkpoint.step >= total_steps


def fresh_folder(parent: Path, name: str) -> Path:
    """`runs/sums-20261118-213000`, or with a number behind it where that is taken."""
    stem = f"{name}-{dt.datetime.now():%Y%m%d-%H%M%S}"
    candidates = [parent / stem, *(parent / f"{stem}-{number}" for number in range(2, 1000))]
    return next(folder for folder in candidates if not folder.exists())


def clear(folder: Path) -> None:
    """Remove what a run would write. The caller holds the lock and knows that the folder is no run."""
    for path in [folder / name for name in _OURS] + list(folder.glob(f"{TEMPORARY}*")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def replace_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """`fill` writes a temporary folder, which then takes the place of `folder`."""
    building = folder.with_name(f"{TEMPORARY}{os.getpid()}-{folder.name}")
    building.mkdir()
    try:
        fill(building)
        for path in building.rglob("*"):
            sync(path)
        if folder.exists():
            shutil.rmtree(folder)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    sync(folder.parent)
