"""One value per answer whitened over the tokens of the batch, in one launch: one program sorts the whole batch.

The sums are those of `groups.sorted_sum`, operation for operation.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from groupwise.advantages.kernels.statistics import device_constants, pairwise_sum, warps


def whiten_answers(values: Tensor, lengths: Tensor | None, variance_eps: float) -> tuple[Tensor, Tensor]:
    whitened = torch.empty_like(values)
    num_tokens = torch.empty((), dtype=torch.float64, device=values.device)
    width = max(2, 1 << (len(values) - 1).bit_length())
    _whiten[(1,)](
        values.contiguous(),
        values if lengths is None else lengths.contiguous(),
        whitened,
        num_tokens,
        device_constants(values.device, variance_eps),
        len(values),
        HAS_LENGTHS=lengths is not None,
        WIDTH=width,
        LEVELS=width.bit_length() - 1,
        num_warps=warps(width),
        enable_fp_fusion=False,
    )
    return whitened, num_tokens


@triton.jit
def _sorted_sum(values, real, LEVELS: tl.constexpr):
    ordered = tl.sort(tl.where(real, values, float("inf")))
    return pairwise_sum(tl.where(real, ordered, 0.0), LEVELS)


@triton.jit
def _whiten(
    values,
    lengths,
    whitened,
    num_tokens,
    variance_eps,
    size,
    HAS_LENGTHS: tl.constexpr,
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
):
    place = tl.arange(0, WIDTH)
    real = place < size
    value = tl.load(values + place, mask=real, other=float("nan"))
    finite = value == value
    weight = finite.to(tl.float64)
    if HAS_LENGTHS:
        weight *= tl.load(lengths + place, mask=real, other=0).to(tl.float64)
    # Whole numbers: exact in any order.
    count = tl.sum(weight)
    low = tl.min(tl.where(weight > 0, value, float("inf")))
    rise = value - low
    deviation = rise - _sorted_sum(tl.where(finite, weight * rise, 0.0), real, LEVELS) / count
    squares = _sorted_sum(tl.where(finite, weight * (deviation * deviation), 0.0), real, LEVELS)
    scale = 1.0 / tl.sqrt(squares / (count - 1) + tl.load(variance_eps))
    nothing = tl.where(finite, 0.0, float("nan"))
    tl.store(whitened + place, tl.where(count > 1, deviation * scale, nothing), mask=real)
    tl.store(num_tokens, count)
