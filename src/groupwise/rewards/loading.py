"""A user's function by its place: `path/to/my_reward.py:score`; a user's file run as a module."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from groupwise.errors import BadValueError, unknown_name


def load_function(place: str) -> Callable[..., Any]:
    """The function `place` names; its file is run once, as a module of its own."""
    setting = f"reward.function={place}"
    file, colon, name = place.rpartition(":")
    if not colon or not file.endswith(".py") or not name:
        _refuse(setting, "it does not name a file and a function", "write path/to/my_reward.py:score")
    module = run_file(file, setting)
    function = getattr(module, name, None)
    if function is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown_name(f"reward.function={place!r}: {Path(file).name} has no function", name, known)
    if not callable(function):
        _refuse(setting, f"{name} is a {type(function).__name__}", "name a function")
    return function  # type: ignore[no-any-return]  # callable() does not narrow Any


def run_file(file: str, setting: str) -> ModuleType:
    """The module that a .py file makes. The same file with the same contents is run once in a process, whoever asks.

    setting: as it was given, for the errors.
    """
    path = Path(file).expanduser()
    if not path.is_file():
        _refuse(setting, f"there is no file {path.resolve()}", "correct the path; it counts from the current folder")
    # A name made from the path: two files called reward.py are two modules, and pickle finds either again.
    digest = hashlib.sha256(str(path.resolve()).encode() + b"\0" + path.read_bytes())
    name = f"groupwise_user_{digest.hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        _refuse(setting, "Python cannot load the file", "name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:  # the user's code may raise whatever it likes
        del sys.modules[name]
        raise BadValueError(
            f"{setting}: running the file raised {type(problem).__name__}: {problem}; see that `python {path}` runs"
        ) from problem
    return module


def _refuse(setting: str, reason: str, remedy: str) -> NoReturn:
    raise BadValueError(f"{setting}: {reason}; {remedy}")
