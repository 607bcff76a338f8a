"""Optimal token baselines by columns, in two launches: rows are walked to returns and energy, groups judged by columns.

The returns of the first are float64 with +inf where an answer has no token, so the second reads no mask. What is not
finite is NaN there, and marks its whole row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from groupwise.advantages.kernels.rows import as_bytes, rounded, rows_contiguous
from groupwise.advantages.kernels.statistics import device_constants

if TYPE_CHECKING:
    from groupwise.advantages.groups import Groups
    from groupwise.advantages.kernels import TokenInputs

WALK_BLOCK, WALK_WARPS = 512, 4
JUDGE_BLOCK, JUDGE_WARPS = 512, 4


def token_baselines(
    tokens: TokenInputs,
    takes_part: Tensor | None,
    groups: Groups,
    epsilon: float,
    dtype: torch.dtype,
    handle_zero_tail: bool,
) -> tuple[Tensor, Tensor]:
    finished, to_go, energy, lengths, poison = _walk(tokens, takes_part, dtype)
    advantages = torch.empty_like(finished)
    num_tokens = finished.shape[1]
    block = min(JUDGE_BLOCK, max(triton.next_power_of_2(num_tokens), 16))
    _judge_columns[(groups.num_groups, triton.cdiv(num_tokens, block))](
        to_go,
        energy,
        lengths,
        poison,
        groups.order,
        groups.starts,
        groups.sizes,
        device_constants(finished.device, epsilon),
        advantages,
        num_tokens,
        ZERO_TAIL=handle_zero_tail,
        BLOCK=block,
        num_warps=JUDGE_WARPS,
        enable_fp_fusion=False,
    )
    return advantages, finished


def _walk(
    tokens: TokenInputs, takes_part: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns in `dtype` and in float64, energy; per row the number of tokens, -1 without part, and NaN if broken."""
    *given, rho = tokens
    # Without weights something stands in their place, which is not read.
    matrices = [rows_contiguous(x) for x in (*given, tokens[0] if rho is None else rho)]
    rewards = matrices[0]
    num_rows, num_tokens = rewards.shape
    finished = torch.empty(rewards.shape, dtype=dtype, device=rewards.device)
    to_go, energy = (torch.empty_like(finished, dtype=torch.float64) for _ in range(2))
    lengths, poison = (torch.empty(num_rows, dtype=torch.float64, device=rewards.device) for _ in range(2))
    _walk_row[(num_rows,)](
        *map(as_bytes, matrices),
        rewards if takes_part is None else as_bytes(takes_part.contiguous()),
        finished,
        to_go,
        energy,
        lengths,
        poison,
        num_tokens,
        *(matrix.stride(0) for matrix in matrices),
        HAS_FAILED=takes_part is not None,
        HAS_RHO=rho is not None,
        BLOCK=min(WALK_BLOCK, max(triton.next_power_of_2(num_tokens), 16)),
        num_warps=WALK_WARPS,
        enable_fp_fusion=False,
    )
    return finished, to_go, energy, lengths, poison


@triton.jit
def _walk_row(
    rewards,
    mask,
    log_probs,
    squares,
    weights,
    takes_part,
    finished,
    to_go,
    energy,
    lengths,
    poison,
    num_tokens,
    reward_stride,
    mask_stride,
    log_prob_stride,
    square_stride,
    weight_stride,
    HAS_FAILED: tl.constexpr,
    HAS_RHO: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    place = row * num_tokens
    # A row that takes no part has no token.
    width = num_tokens
    if HAS_FAILED:
        width = tl.where(tl.load(takes_part + row) != 0, num_tokens, 0)
    later = tl.full((), 0.0, tl.float64)
    spent = tl.full((), 0.0, tl.float64)
    length = tl.full((), 0, tl.int32)
    num_blocks = tl.cdiv(num_tokens, BLOCK)
    for done in range(num_blocks):
        first = (num_blocks - 1 - done) * BLOCK
        token = first + tl.arange(0, BLOCK)
        inside = token < num_tokens
        here = (tl.load(mask + row * mask_stride + token, mask=inside, other=0) != 0) & (token < width)
        reward = tl.load(rewards + row * reward_stride + token, mask=inside, other=0)
        sums = tl.cumsum(tl.where(here, reward, 0).to(tl.float64), reverse=True) + later
        later = tl.sum(tl.where(token == first, sums, 0.0))
        length += tl.sum(here.to(tl.int32))
        returned = rounded(tl.where(here, sums, 0.0), finished.dtype.element_ty)
        tl.store(finished + place + token, returned, mask=inside)
        sums = tl.where(tl.abs(sums) < float("inf"), sums, float("nan"))
        tl.store(to_go + place + token, tl.where(here, sums, float("inf")), mask=inside)
    for first in range(0, num_tokens, BLOCK):
        token = first + tl.arange(0, BLOCK)
        inside = token < num_tokens
        here = (tl.load(mask + row * mask_stride + token, mask=inside, other=0) != 0) & (token < width)
        log_prob = tl.load(log_probs + row * log_prob_stride + token, mask=inside, other=0).to(tl.float64)
        square = tl.load(squares + row * square_stride + token, mask=inside, other=0).to(tl.float64)
        share = (tl.exp(log_prob) * -2.0 + 1.0) + square
        # Not a maximum: NaN has to stay.
        share = tl.where(share < 0, 0.0, share)
        if HAS_RHO:
            weight = tl.load(weights + row * weight_stride + token, mask=inside, other=0).to(tl.float64)
            share *= weight * weight
        sums = tl.cumsum(tl.where(here, share, 0.0)) + spent
        spent = tl.sum(tl.where(token == first + BLOCK - 1, sums, 0.0))
        tl.store(energy + place + token, tl.where(here, sums, 0.0), mask=inside)
    # The two totals have met every token: x - x is NaN where either is not finite.
    tl.store(poison + row, (later - later) + (spent - spent))
    tl.store(lengths + row, tl.where(width < num_tokens, -1.0, length.to(tl.float64)))


@triton.jit
def _judge_columns(
    to_go,
    energy,
    lengths,
    poison,
    order,
    starts,
    sizes,
    epsilon,
    advantages,
    num_tokens,
    ZERO_TAIL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    group = tl.program_id(0)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < num_tokens
    members = order + tl.load(starts + group)
    size = tl.load(sizes + group)
    low = tl.full((BLOCK,), float("inf"), tl.float64)
    longest = tl.full((), -1.0, tl.float64)
    second = tl.full((), -1.0, tl.float64)
    broken = tl.full((), 0.0, tl.float64)
    count = 0
    for member in range(size):
        row = tl.load(members + member)
        low = tl.minimum(low, tl.load(to_go + row * num_tokens + token, mask=inside, other=float("inf")))
        length = tl.load(lengths + row)
        second = tl.maximum(second, tl.minimum(length, longest))
        longest = tl.maximum(longest, length)
        count += (length >= 0).to(tl.int32)
        broken += tl.load(poison + row)
    weighted = tl.zeros((BLOCK,), tl.float64)
    total = tl.zeros((BLOCK,), tl.float64)
    for member in range(size):
        row = tl.load(members + member)
        value = tl.load(to_go + row * num_tokens + token, mask=inside, other=float("inf"))
        weight = tl.load(energy + row * num_tokens + token, mask=inside, other=0)
        weighted += weight * tl.where(value < float("inf"), value - low, 0.0)
        total += weight
    has_baseline = (total > 0) & (count > 1)
    baseline = tl.where(has_baseline, low + weighted / (total + tl.load(epsilon)), 0.0)
    for member in range(size):
        row = tl.load(members + member)
        value = tl.load(to_go + row * num_tokens + token, mask=inside, other=float("inf"))
        advantage = value - baseline
        if ZERO_TAIL:
            in_front = (tl.load(lengths + row) == longest) & (longest > second)
            advantage = tl.where(token >= tl.where(in_front, second, num_tokens), value, advantage)
        advantage = tl.where(value == float("inf"), 0.0, advantage + broken)
        judged = rounded(advantage, advantages.dtype.element_ty)
        tl.store(advantages + row * num_tokens + token, judged, mask=inside)
