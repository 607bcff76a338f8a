"""Where a fused GPU kernel takes over from torch. Each function returns None where none applies.

The torch form stands beside every call and is the oracle of the kernel: the two give the same numbers, the
group statistics bit for bit. Triton is imported on the first call with a CUDA tensor, never before; where it is
missing the torch form runs.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from groupwise.advantages.groups import Groups

# A group is sorted by one block of threads, in registers. Larger groups are rare, and torch sorts them well.
LARGEST_GROUP = 2048
# Likewise a whole batch, for whitening; the kernel for a larger one takes longer to compile than it will ever save.
LARGEST_BATCH = 1024
# Rewards, mask, log-probabilities, sums of squared probabilities, rollout weights: all [B, T].
TokenInputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]


def sum_rewards(rewards: Tensor) -> Tensor | None:
    """Float64 sums of the rows, NaN where not finite: `rows.sum_rewards`."""
    fused = _kernels("rows", rewards)
    return fused.sum_rewards(rewards) if fused else None


def spread_over_tokens(values: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor | None:
    """`rows.spread_over_tokens`."""
    fused = _kernels("rows", mask)
    return fused.spread_over_tokens(values, mask, dtype) if fused else None


def group_moments(groups: Groups, values: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Lowest value, mean rise above it and sum of squared deviations per group: `Groups.moments`."""
    fused = _kernels("statistics", values, groups)
    return fused.group_moments(groups, values) if fused else None


def group_relative(
    scores: Tensor, groups: Groups, ddof: int, eps: float, *, scaled: bool, raw_singletons: bool
) -> Tensor | None:
    """`conventions.group_relative` for the conventions that subtract the mean of the whole group."""
    fused = _kernels("statistics", scores, groups)
    return fused.group_relative(scores, groups, ddof, eps, scaled, raw_singletons) if fused else None


def best_over_second(scores: Tensor, groups: Groups, eps: float, *, scaled: bool) -> Tensor | None:
    """`best_of_k.grpo_passk`."""
    fused = _kernels("statistics", scores, groups)
    return fused.best_over_second(scores, groups, eps, scaled) if fused else None


def whiten_answers(values: Tensor, lengths: Tensor | None, variance_eps: float) -> tuple[Tensor, Tensor] | None:
    """`whitening.whiten_answers`, and the number of tokens it was over; for batches that one program can sort."""
    fused = _kernels("whitening", values) if len(values) <= LARGEST_BATCH else None
    return fused.whiten_answers(values, lengths, variance_eps) if fused else None


def token_baselines(
    tokens: TokenInputs,
    takes_part: Tensor | None,
    groups: Groups,
    epsilon: float,
    dtype: torch.dtype,
    *,
    handle_zero_tail: bool,
) -> tuple[Tensor, Tensor] | None:
    """`token_baselines` where position t is column t: advantages and returns."""
    fused = _kernels("columns", tokens[0])
    return fused.token_baselines(tokens, takes_part, groups, epsilon, dtype, handle_zero_tail) if fused else None


def backward_scan(
    rewards: Tensor,
    values: Tensor | None,
    baselines: Tensor | None,
    mask: Tensor,
    factors: tuple[float, float],
    dtypes: tuple[torch.dtype, torch.dtype],
) -> tuple[Tensor, Tensor] | None:
    """`recurrences.backward_scan`."""
    fused = _kernels("scan", rewards)
    return fused.backward_scan(rewards, values, baselines, mask, factors, dtypes) if fused else None


def _kernels(name: str, like: Tensor, groups: Groups | None = None) -> Any:
    if not like.is_cuda or not like.numel() or not _has_triton():
        return None
    # Triton launches on the current GPU.
    if like.device.index != torch.cuda.current_device():
        return None
    if groups is not None and groups.largest > LARGEST_GROUP:
        return None
    return _module(name)


@lru_cache
def _module(name: str) -> Any:
    return import_module(f"groupwise.advantages.kernels.{name}")


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return find_spec("triton") is not None
