"""A user's function by its place: `path/to/my_reward.py:score`."""

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
    file, colon, name = place.rpartition(":")
    if not colon or not file.endswith(".py") or not name:
        _refuse(place, "it does not name a file and a function", "write path/to/my_reward.py:score")
    path = Path(file).expanduser()
    if not path.is_file():
        _refuse(place, f"there is no file {path.resolve()}", "correct the path; it counts from the current folder")
    module = _run(path, place)
    function = getattr(module, name, None)
    if function is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown_name(f"reward.function={place!r}: {path.name} has no function", name, known)
    if not callable(function):
        _refuse(place, f"{name} is a {type(function).__name__}", "name a function")
    return function  # type: ignore[no-any-return]  # callable() does not narrow Any


def _run(path: Path, place: str) -> ModuleType:
    # A name made from the path: two files called reward.py are two modules, and pickle finds either again.
    name = f"groupwise_user_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        _refuse(place, "Python cannot load the file", "name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:  # the user's code may raise whatever it likes
        del sys.modules[name]
        raise BadValueError(
            f"reward.function={place}: running the file raised {type(problem).__name__}: {problem}; "
            f"see that `python {path}` runs"
        ) from problem
    return module


def _refuse(place: str, reason: str, remedy: str) -> NoReturn:
    raise BadValueError(f"reward.function={place}: {reason}; {remedy}")
