"""Where a fused GPU kernel takes over from torch. Each function returns None where none applies.

Triton is imported on the first call with a CUDA tensor, never before; without it the torch form is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from groupwise.advantages.groups import Groups


def group_moments(groups: Groups, values: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    return None


def sum_rewards(rewards: Tensor) -> Tensor | None:
    return None


def spread_over_tokens(values: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor | None:
    return None


def generalised_advantages(
    rewards: Tensor, values: Tensor | None, mask: Tensor, gamma: float, lam: float
) -> Tensor | None:
    return None
