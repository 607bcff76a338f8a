"""Exact group statistics in one launch: a program sorts one group in registers and adds neighbours pairwise.

The sums are those of `groups.pairwise_sum`, operation for operation, and fused multiply-add is switched off: the
bits are the CPU's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from groupwise.advantages.groups import Groups


def group_moments(groups: Groups, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lows, rises, squares = torch.zeros(3, groups.num_groups, dtype=torch.float64, device=values.device)
    _launch(_moments, groups, values, lows, rises, squares)
    return lows, rises, squares


def group_relative(scores: Tensor, groups: Groups, ddof: int, eps: float, scaled: bool, raw_singletons: bool) -> Tensor:
    advantages = torch.empty_like(scores)
    constants = device_constants(scores.device, eps)
    flags = {"DDOF": ddof, "SCALED": scaled, "RAW_SINGLETONS": raw_singletons}
    _launch(_relative, groups, scores, advantages, constants, **flags)
    return advantages


def best_over_second(scores: Tensor, groups: Groups, eps: float, scaled: bool) -> Tensor:
    advantages = torch.empty_like(scores)
    _launch(_lead, groups, scores, advantages, device_constants(scores.device, eps), SCALED=scaled)
    return advantages


def _launch(kernel: Any, groups: Groups, values: Tensor, *others: Tensor, **flags: int) -> None:
    """One program per group, as wide as the largest."""
    width = max(2, 1 << (groups.largest - 1).bit_length())
    kernel[(groups.num_groups,)](
        values.contiguous(),
        groups.order,
        groups.starts,
        groups.sizes,
        *others,
        **flags,
        WIDTH=width,
        LEVELS=width.bit_length() - 1,
        num_warps=warps(width),
        enable_fp_fusion=False,
    )


@lru_cache(maxsize=64)
def device_constants(device: torch.device, *numbers: float) -> Tensor:
    """Float64 arguments of a kernel, made once: a plain Python float would reach it as float32."""
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def warps(width: int) -> int:
    return min(8, max(1, width // 128))


@triton.jit
def pairwise_sum(values, LEVELS: tl.constexpr):
    for _ in tl.static_range(LEVELS):
        left, right = tl.split(tl.reshape(values, [values.shape[0] // 2, 2]))
        values = left + right
    return tl.sum(values)


@triton.jit
def _load_group(values, order, start, size, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """The group's rows and values as they stand and its values ascending; then its lowest value, mean rise and sum of
    squares, NaN if any value is."""
    place = tl.arange(0, WIDTH)
    real = place < size
    rows = tl.load(order + start + place, mask=real, other=0)
    value = tl.load(values + rows, mask=real, other=float("inf"))
    is_nan = tl.max((value != value).to(tl.int32)) > 0
    ordered = tl.sort(value)
    low = tl.min(value)
    rise = tl.where(real, ordered - low, 0.0)
    mean = pairwise_sum(rise, LEVELS) / size.to(tl.float64)
    deviation = tl.where(real, rise - mean, 0.0)
    squares = pairwise_sum(deviation * deviation, LEVELS)
    nan = float("nan")
    low, mean, squares = tl.where(is_nan, nan, low), tl.where(is_nan, nan, mean), tl.where(is_nan, nan, squares)
    return rows, value, ordered, real, low, mean, squares


@triton.jit
def _moments(values, order, starts, sizes, lows, rises, squares, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    group = tl.program_id(0)
    size = tl.load(sizes + group)
    if size > 0:
        _, _, _, _, low, mean, square = _load_group(values, order, tl.load(starts + group), size, WIDTH, LEVELS)
        tl.store(lows + group, low)
        tl.store(rises + group, mean)
        tl.store(squares + group, square)


@triton.jit
def _relative(
    scores,
    order,
    starts,
    sizes,
    advantages,
    eps,
    DDOF: tl.constexpr,
    SCALED: tl.constexpr,
    RAW_SINGLETONS: tl.constexpr,
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
):
    group = tl.program_id(0)
    size = tl.load(sizes + group)
    start = tl.load(starts + group)
    rows, score, _, real, low, mean, squares = _load_group(scores, order, start, size, WIDTH, LEVELS)
    advantage = (score - low) - mean
    std = tl.sqrt(squares / tl.maximum(size - DDOF, 1).to(tl.float64))
    if RAW_SINGLETONS:
        advantage = tl.where(size == 1, score, advantage)
        std = tl.where(size == 1, 1.0, std)
    if SCALED:
        advantage = tl.where(std > 0, advantage / (std + tl.load(eps)), advantage)
    tl.store(advantages + rows, advantage, mask=real)


@triton.jit
def _lead(
    scores, order, starts, sizes, advantages, eps, SCALED: tl.constexpr, WIDTH: tl.constexpr, LEVELS: tl.constexpr
):
    group = tl.program_id(0)
    size = tl.load(sizes + group)
    start = tl.load(starts + group)
    rows, score, ordered, real, low, _, squares = _load_group(scores, order, start, size, WIDTH, LEVELS)
    place = tl.arange(0, WIDTH)
    best = tl.sum(tl.where(place == size - 1, ordered, 0.0))
    second = tl.sum(tl.where(place == size - 2, ordered, 0.0))
    lead = tl.where(size > 1, best - second, 0.0)
    if SCALED:
        std = tl.sqrt(squares / tl.maximum(size - 1, 1).to(tl.float64))
        lead = tl.where(lead > 0, lead / (std + tl.load(eps)), lead)
    # Of several that are best, none leads: the lead is 0.
    advantage = tl.where(score == best, lead, 0.0)
    tl.store(advantages + rows, tl.where(low == low, advantage, float("nan")), mask=real)
