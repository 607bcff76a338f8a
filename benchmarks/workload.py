"""The batch of the advantage benchmarks: groups of eight, a reward on the last token, uuid-like labels."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

GROUP = 8


class Settings(dict[str, Any]):
    """A config both sides read: by attribute, by key and by `.get`; an absent field is None."""

    def __getattr__(self, name: str) -> Any:
        return self.get(name)


def labels(rows: int) -> np.ndarray[Any, Any]:
    """One uuid string per group, the same object for each of its answers, as verl's trainer makes them."""
    return np.repeat(np.array([str(uuid.uuid4()) for _ in range(rows // GROUP)], dtype=object), GROUP)


def tokens(rows: int, width: int, mask_dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    lengths = torch.randint(width // 4, width, (rows,), device=device)
    mask = torch.arange(width, device=device) < lengths[:, None]
    rewards = torch.zeros(rows, width, device=device)
    rewards[torch.arange(rows, device=device), lengths - 1] = torch.randn(rows, device=device)
    return {"token_level_rewards": rewards, "response_mask": mask.to(mask_dtype)}


def token_fields(rows: int, width: int, device: str) -> dict[str, Any]:
    """What the estimators beyond GRPO ask for."""
    return {
        "reward_baselines": torch.zeros(rows, device=device),
        "old_log_probs": -torch.rand(rows, width, device=device),
        "sum_pi_squared": torch.rand(rows, width, device=device),
        "values": torch.randn(rows, width, device=device),
        "gamma": 1.0,
        "lam": 0.95,
        "config": Settings(gamma=1.0, norm_adv_by_std_in_grpo=True),
    }


def call(function: Callable[..., Any], fields: dict[str, Any]) -> Callable[[], Any]:
    """The function with the fields that its signature names."""
    names = inspect.signature(function).parameters
    chosen = {name: value for name, value in fields.items() if name in names}
    return lambda: function(**chosen)
