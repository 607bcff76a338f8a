"""verl 0.9.1's own estimators, from the installed package or straight from its wheel.

The wheel form needs nothing but torch and numpy: what `core_algos.py` imports and the estimators never call
(ray, tensordict, transformers) is replaced by empty modules; every function that runs is the wheel's.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import tempfile
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

_MASKED = {"masked_sum", "masked_mean", "masked_var", "masked_whiten", "clip_by_value", "entropy_from_logits"}


def load_verl(wheel: str | None = None) -> Any:
    """The module `verl.trainer.ppo.core_algos`."""
    if wheel is None:
        return importlib.import_module("verl.trainer.ppo.core_algos")
    root = Path(tempfile.mkdtemp(prefix="verl-"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root)
    return _load_unpacked(root / "verl")


def _load_unpacked(root: Path) -> Any:
    if importlib.util.find_spec("omegaconf") is None:
        _stub("omegaconf", DictConfig=dict)
    for name in ("verl", "verl.trainer", "verl.trainer.ppo", "verl.workers"):
        _stub(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    _stub("verl.utils.device", get_device_name=lambda: device)
    _stub("verl.utils.import_utils", deprecated=lambda *_, **__: lambda function: function)
    _stub("verl.trainer.config", AlgoConfig=dict)
    _stub("verl.workers.config", ActorConfig=dict)
    utils = _stub("verl.utils")
    groupwise = _execute("verl.utils.groupwise", root / "utils/groupwise.py")
    utils.as_torch_index, utils.group_mean_std = groupwise.as_torch_index, groupwise.group_mean_std
    utils.torch_functional = _stub("verl.utils.torch_functional", torch=torch, np=np)
    tree = ast.parse((root / "utils/torch_functional.py").read_text())
    kept: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in _MASKED]
    exec(compile(ast.Module(kept, []), "torch_functional.py", "exec"), utils.torch_functional.__dict__)
    return _execute("verl.trainer.ppo.core_algos", root / "trainer/ppo/core_algos.py")


def _stub(name: str, **members: Any) -> Any:
    module: Any = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


def _execute(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
