"""Exact group statistics in one launch: a program sorts one group in registers and adds neighbours pairwise.

The sums are those of `groups.pairwise_sum`, operation for operation, and fused multiply-add is switched off: the
bits are the CPU's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from groupwise.advantages.groups import Groups


def group_moments(groups: Groups, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lows, rises, squares = torch.zeros(3, groups.num_groups, dtype=torch.float64, device=values.device)
    width = _width(groups)
    _moments[(groups.num_groups,)](
        values.contiguous(),
        groups.order,
        groups.starts,
        groups.sizes,
        lows,
        rises,
        squares,
        WIDTH=width,
        LEVELS=width.bit_length() - 1,
        num_warps=_warps(width),
        enable_fp_fusion=False,
    )
    return lows, rises, squares


def group_relative(scores: Tensor, groups: Groups, ddof: int, eps: float, scaled: bool, raw_singletons: bool) -> Tensor:
    advantages = torch.empty_like(scores)
    width = _width(groups)
    _relative[(groups.num_groups,)](
        scores.contiguous(),
        groups.order,
        groups.starts,
        groups.sizes,
        advantages,
        device_constants(scores.device, eps),
        DDOF=ddof,
        SCALED=scaled,
        RAW_SINGLETONS=raw_singletons,
        WIDTH=width,
        LEVELS=width.bit_length() - 1,
        num_warps=_warps(width),
        enable_fp_fusion=False,
    )
    return advantages


@lru_cache(maxsize=64)
def device_constants(device: torch.device, *numbers: float) -> Tensor:
    """Float64 arguments of a kernel, made once: a plain Python float would reach it as float32."""
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def _width(groups: Groups) -> int:
    return max(2, int(triton.next_power_of_2(int(groups.host_sizes.max()))))


def _warps(width: int) -> int:
    return min(8, max(1, width // 128))


@triton.jit
def _pairwise_sum(values, LEVELS: tl.constexpr):
    for _ in tl.static_range(LEVELS):
        left, right = tl.split(tl.reshape(values, [values.shape[0] // 2, 2]))
        values = left + right
    return tl.sum(values)


@triton.jit
def _load_group(values, order, start, size, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    """The group's rows and values as they stand, and its lowest value, mean rise and sum of squares; NaN if any is."""
    place = tl.arange(0, WIDTH)
    real = place < size
    rows = tl.load(order + start + place, mask=real, other=0)
    value = tl.load(values + rows, mask=real, other=float("inf"))
    is_nan = tl.max((value != value).to(tl.int32)) > 0
    ordered = tl.sort(value)
    low = tl.min(value)
    rise = tl.where(real, ordered - low, 0.0)
    mean = _pairwise_sum(rise, LEVELS) / size.to(tl.float64)
    deviation = tl.where(real, rise - mean, 0.0)
    squares = _pairwise_sum(deviation * deviation, LEVELS)
    nan = float("nan")
    low, mean, squares = tl.where(is_nan, nan, low), tl.where(is_nan, nan, mean), tl.where(is_nan, nan, squares)
    return rows, value, real, low, mean, squares


@triton.jit
def _moments(values, order, starts, sizes, lows, rises, squares, WIDTH: tl.constexpr, LEVELS: tl.constexpr):
    group = tl.program_id(0)
    size = tl.load(sizes + group)
    if size > 0:
        _, _, _, low, mean, square = _load_group(values, order, tl.load(starts + group), size, WIDTH, LEVELS)
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
    rows, score, real, low, mean, squares = _load_group(scores, order, tl.load(starts + group), size, WIDTH, LEVELS)
    advantage = (score - low) - mean
    std = tl.sqrt(squares / tl.maximum(size - DDOF, 1).to(tl.float64))
    if RAW_SINGLETONS:
        advantage = tl.where(size == 1, score, advantage)
        std = tl.where(size == 1, 1.0, std)
    if SCALED:
        advantage = tl.where(std > 0, advantage / (std + tl.load(eps)), advantage)
    tl.store(advantages + rows, advantage, mask=real)
