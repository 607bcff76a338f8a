"""The two passes over [B, T]: rewards summed to scores, advantages spread over the mask. Both bound by memory alone."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Wide enough that every thread has several 16-byte accesses in flight.
SUM_BLOCK, SUM_WARPS = 4096, 8
SPREAD_BLOCK, SPREAD_WARPS = 2048, 8


def sum_rewards(rewards: Tensor) -> Tensor:
    """One program per row. Integers add as int64, all else as float64; what is not finite becomes NaN."""
    rewards = rows_contiguous(rewards)
    scores = torch.empty(rewards.shape[0], dtype=torch.float64, device=rewards.device)
    block = min(SUM_BLOCK, max(triton.next_power_of_2(rewards.shape[1]), 16))
    _sum_rows[(rewards.shape[0],)](
        as_bytes(rewards),
        scores,
        rewards.shape[1],
        rewards.stride(0),
        INTEGER=not rewards.dtype.is_floating_point,
        BLOCK=block,
        num_warps=SUM_WARPS,
        enable_fp_fusion=False,
    )
    return scores


def spread_over_tokens(values: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """One program per row and block of tokens: reads the mask once, writes the result once."""
    mask = rows_contiguous(mask)
    result = torch.empty(mask.shape, dtype=dtype, device=mask.device)
    grid = (mask.shape[0], triton.cdiv(mask.shape[1], SPREAD_BLOCK))
    _spread_rows[grid](
        values.contiguous(),
        as_bytes(mask),
        result,
        mask.shape[1],
        mask.stride(0),
        BLOCK=SPREAD_BLOCK,
        num_warps=SPREAD_WARPS,
        enable_fp_fusion=False,
    )
    return result


def rows_contiguous(matrix: Tensor) -> Tensor:
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()


def as_bytes(matrix: Tensor) -> Tensor:
    return matrix.view(torch.uint8) if matrix.dtype == torch.bool else matrix


@triton.jit
def rounded(value, dtype: tl.constexpr):
    """float64 to the dtype of the result; to 16 bits by way of float32, as torch does."""
    if dtype == tl.float64:
        return value
    return value.to(tl.float32).to(dtype)


@triton.jit
def _sum_rows(rewards, scores, num_tokens, stride, INTEGER: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    if INTEGER:
        total = tl.zeros((BLOCK,), tl.int64)
    else:
        total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, num_tokens, BLOCK):
        token = start + tl.arange(0, BLOCK)
        reward = tl.load(rewards + row * stride + token, mask=token < num_tokens, other=0)
        total += reward.to(total.dtype)
    score = tl.sum(total).to(tl.float64)
    is_finite = tl.abs(score) < float("inf")
    tl.store(scores + row, tl.where(is_finite, score, float("nan")))


@triton.jit
def _spread_rows(values, mask, result, num_tokens, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < num_tokens
    counts = tl.load(mask + row * stride + token, mask=inside, other=0) != 0
    value = rounded(tl.load(values + row), result.dtype.element_ty)
    tl.store(result + row * num_tokens + token, tl.where(counts, value, 0.0), mask=inside)
