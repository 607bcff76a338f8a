"""The backward recurrence over tokens as one pass: a program walks one row from its end, a block of tokens at a time.

Without values the recurrence is A_t = r_t + gamma lam A_next: an associative scan over a block of tokens, and blocks
are joined by one number. With values, S the discounted sum over the later response tokens, GAE is A_t = r_t - V_t +
S_t and S_t = c_next + gamma lam S_next, c = gamma lam r + gamma (1 - lam) V: again a linear recurrence whose terms
need no value from another token.

Rewards are loaded whether they count or not, and what does not count is dropped after: a load that waits for no mask
is wide, and all loads of a block are in flight together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from groupwise.advantages.kernels.rows import as_bytes, rounded, rows_contiguous
from groupwise.advantages.kernels.statistics import device_constants

BLOCK, WARPS = 1024, 4


def backward_scan(
    rewards: Tensor,
    values: Tensor | None,
    baselines: Tensor | None,
    mask: Tensor,
    factors: tuple[float, float],
    dtypes: tuple[torch.dtype, torch.dtype],
) -> tuple[Tensor, Tensor]:
    rewards, mask = rows_contiguous(rewards), rows_contiguous(mask)
    values = None if values is None else rows_contiguous(values)
    num_rows, num_tokens = rewards.shape
    advantages, returns = (torch.empty(rewards.shape, dtype=dtype, device=rewards.device) for dtype in dtypes)
    gamma, lam = factors
    _scan_row[(num_rows,)](
        as_bytes(rewards),
        rewards if values is None else values,
        rewards if baselines is None else baselines.contiguous(),
        as_bytes(mask),
        advantages,
        returns,
        device_constants(rewards.device, gamma * lam, gamma * (1 - lam)),
        num_tokens,
        rewards.stride(0),
        0 if values is None else values.stride(0),
        mask.stride(0),
        HAS_VALUES=values is not None,
        HAS_BASELINE=baselines is not None,
        PLAIN_SUM=values is None and gamma == 1 and lam == 1,
        BLOCK=min(BLOCK, max(triton.next_power_of_2(num_tokens), 16)),
        num_warps=WARPS,
        enable_fp_fusion=False,
    )
    return advantages, returns


@triton.jit
def _join(decay_late, sum_late, decay_early, sum_early):
    return decay_late * decay_early, sum_early + decay_early * sum_late


@triton.jit
def _scan_row(
    rewards,
    values,
    baselines,
    mask,
    advantages,
    returns,
    constants,
    num_tokens,
    reward_stride,
    value_stride,
    mask_stride,
    HAS_VALUES: tl.constexpr,
    HAS_BASELINE: tl.constexpr,
    PLAIN_SUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    rewards += row * reward_stride
    values += row * value_stride
    mask += row * mask_stride
    advantages += row * num_tokens
    returns += row * num_tokens
    decay = tl.load(constants)
    value_share = tl.load(constants + 1)
    later = tl.full((), 0.0, tl.float64)
    baseline = later
    if HAS_BASELINE:
        baseline = tl.load(baselines + row).to(tl.float64)
    # Not finite anywhere among the response tokens: x - x is then NaN.
    poison = baseline - baseline
    num_blocks = tl.cdiv(num_tokens, BLOCK)
    for done in range(num_blocks):
        first = (num_blocks - 1 - done) * BLOCK
        token = first + tl.arange(0, BLOCK)
        inside = token < num_tokens
        here = tl.load(mask + token, mask=inside, other=0) != 0
        reward = tl.where(here, tl.load(rewards + token, mask=inside, other=0), 0).to(tl.float64)
        if HAS_VALUES:
            value = tl.where(here, tl.load(values + token, mask=inside, other=0), 0).to(tl.float64)
            poison += tl.sum((reward - reward) + (value - value))
            is_next = tl.load(mask + token + 1, mask=token + 1 < num_tokens, other=0) != 0
            next_term = decay * tl.load(rewards + token + 1, mask=is_next, other=0).to(tl.float64)
            next_term += value_share * tl.load(values + token + 1, mask=is_next, other=0).to(tl.float64)
            decays, sums = tl.associative_scan((tl.where(is_next, decay, 1.0), next_term), 0, _join, reverse=True)
            sums += decays * later
            raw = (reward - value) + sums
            result = raw + value
        else:
            if PLAIN_SUM:
                sums = tl.cumsum(reward, reverse=True) + later
            else:
                decays, sums = tl.associative_scan((tl.where(here, decay, 1.0), reward), 0, _join, reverse=True)
                sums += decays * later
            raw, result = sums, sums
        later = tl.sum(tl.where(token == first, sums, 0.0))
        judged = rounded(tl.where(here, raw - baseline, 0.0), advantages.dtype.element_ty)
        returned = rounded(tl.where(here, result, 0.0), returns.dtype.element_ty)
        tl.store(advantages + token, judged, mask=inside)
        tl.store(returns + token, returned, mask=inside)
    if not HAS_VALUES:
        # The sum to go of the first token has met every reward, and what is not finite stays so.
        poison += later - later
    if poison != 0:
        for done in range(num_blocks):
            token = done * BLOCK + tl.arange(0, BLOCK)
            inside = token < num_tokens
            here = tl.load(mask + token, mask=inside, other=0) != 0
            nothing = tl.where(here, float("nan"), 0.0)
            tl.store(advantages + token, nothing, mask=inside)
            tl.store(returns + token, nothing, mask=inside)
