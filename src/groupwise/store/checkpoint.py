"""Checkpoints: a folder that names every file in it with size and sha256, and appears only when it is complete.

    checkpoints/step_000020/state.safetensors   tensors, by name
                            state.json          everything else
                            manifest.json       written last: step, files, sizes, sums

A new one is written beside, synced and renamed; only then are old ones removed. The reader takes the newest
whose manifest verifies and says why it passed over the others. There is no "latest" pointer that could lie.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from groupwise.errors import BadValueError
from groupwise.store.files import TEMPORARY, disk_errors, make_folder, sha256, sync, write_text

_NAME = re.compile(r"step_(\d{6,})")
_SCHEMA = 1
_TENSORS, _NUMBERS, _MANIFEST = "state.safetensors", "state.json", "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on after `step` as if it had never stopped."""

    step: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write, sync, rename, then rotate. An OSError (a full disk) leaves the folder as it was."""
    make_folder(folder)
    final = folder / f"step_{checkpoint.step:06d}"
    building = folder / f"{TEMPORARY}{os.getpid()}-{final.name}"
    try:
        building.mkdir()
        with disk_errors():
            save_file(_apart(checkpoint.tensors), building / _TENSORS)
        sync(building / _TENSORS)
        write_text(building / _NUMBERS, json.dumps(checkpoint.numbers, sort_keys=True))
        write_text(building / _MANIFEST, json.dumps(_manifest(building, checkpoint.step), indent=1))
        if final.exists():
            shutil.rmtree(final)
        building.rename(final)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    sync(folder)
    rotate(folder, checkpoint.step, keep)
    return final


def rotate(folder: Path, newest: int, keep: int) -> None:
    """Keep the `keep` checkpoints up to step `newest`, which must be one that verifies."""
    for _, old in [found for found in _folders(folder) if found[0] <= newest][:-keep]:
        if old.is_symlink():
            old.unlink()
        else:
            # What cannot be removed now is tried again after the next checkpoint.
            shutil.rmtree(old, ignore_errors=True)


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that verifies, and one line for each newer one that does not."""
    reasons: list[str] = []
    for step, path in reversed(_folders(folder)):
        try:
            return _load(path, step), reasons
        except (
            BadValueError,
            OSError,
            SafetensorError,
            json.JSONDecodeError,
            UnicodeDecodeError,
            RecursionError,
        ) as error:
            reasons.append(f"checkpoint {path.name} is damaged and passed over: {error}")
    return None, reasons


def _load(path: Path, step: int) -> Checkpoint:
    for name in (_MANIFEST, _TENSORS, _NUMBERS):
        # A link or a device could be endless, or lead elsewhere.
        if (path / name).is_symlink() or not (path / name).is_file():
            raise BadValueError(f"it has no file {name}")
    manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict) or manifest.get("schema") != _SCHEMA or manifest.get("step") != step:
        raise BadValueError(f"its manifest is not one of schema {_SCHEMA} for step {step}")
    files = manifest.get("files")
    if not isinstance(files, dict) or set(files) != {_TENSORS, _NUMBERS}:
        raise BadValueError("its manifest does not name the files of a checkpoint")
    for name, expected in files.items():
        if _fingerprint(path / name) != expected:
            raise BadValueError(f"{name} is not the file that was written (size or sha256 differs)")
    return Checkpoint(step, load_file(path / _TENSORS), json.loads((path / _NUMBERS).read_text(encoding="utf-8")))


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, each in a storage of its own: the format does not know tensors that share one."""
    found: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        alone = tensor.detach().cpu().contiguous()
        if alone.untyped_storage().data_ptr() in storages:
            alone = alone.clone()
        storages.add(alone.untyped_storage().data_ptr())
        found[name] = alone
    return found


def _manifest(path: Path, step: int) -> Mapping[str, Any]:
    return {"schema": _SCHEMA, "step": step, "files": {n: _fingerprint(path / n) for n in (_TENSORS, _NUMBERS)}}


def _fingerprint(path: Path) -> dict[str, Any]:
    return {"size": path.stat().st_size, "sha256": sha256(path)}


def _folders(folder: Path) -> list[tuple[int, Path]]:
    """Everything named like a checkpoint, oldest first."""
    found = [(match, path) for path in folder.glob("step_*") if (match := _NAME.fullmatch(path.name)) and path.is_dir()]
    return sorted((int(match[1]), path) for match, path in found)
