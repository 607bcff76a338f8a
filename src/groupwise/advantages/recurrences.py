"""Backward recurrences over tokens: discounted returns and generalised advantages, in float64.

Tokens outside the mask (padding, tool output) are not there: nothing is read from them, the recurrence passes over
them, and the result is 0 at them. A row in which any response token is not finite is NaN at all its response tokens.
`kernels.backward_scan` is the same function as one pass on a GPU; this one is its oracle.
"""

from __future__ import annotations

import torch
from torch import Tensor

from groupwise.advantages import kernels
from groupwise.advantages.rows import as_mask
from groupwise.types import Bool, Float, Float64, Num, Shaped


def backward_scan(
    rewards: Shaped[Tensor, "B T"],
    values: Shaped[Tensor, "B T"] | None,
    baselines: Shaped[Tensor, "B"] | None,
    mask: Shaped[Tensor, "B T"],
    factors: tuple[float, float] = (1.0, 1.0),
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float64, torch.float64),
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """A_t = r_t + gamma V_next - V_t + gamma lam A_next. GAE, https://arxiv.org/abs/1506.02438; factors = (gamma, lam).

    "next" is the next response token; past the last one both are 0. Without values and with lam = 1 this is the
    discounted return: one recurrence serves GAE, REINFORCE++ and ReMax. Given back, in `dtypes`: A - baseline
    of the row, and A + V.
    """
    fused = kernels.backward_scan(rewards, values, baselines, mask, factors, dtypes)
    if fused is not None:
        return fused
    gamma, lam = factors
    is_response = as_mask(mask)
    # Tokens first: each step of the loop then reads and writes one contiguous row.
    is_token = is_response.T.contiguous()
    reward = torch.where(is_response, rewards, 0).double().T.contiguous()
    value = torch.zeros_like(reward) if values is None else torch.where(is_response, values, 0).double().T.contiguous()
    advantage = torch.zeros_like(reward)
    following = reward.new_zeros(len(mask))
    next_value = reward.new_zeros(len(mask))
    for t in reversed(range(mask.shape[1])):
        here = reward[t] + gamma * next_value - value[t] + gamma * lam * following
        advantage[t] = here
        following = torch.where(is_token[t], here, following)
        next_value = torch.where(is_token[t], value[t], next_value)
    offset = torch.zeros_like(following) if baselines is None else baselines.double()
    finite = (reward.isfinite() & value.isfinite()).all(dim=0) & offset.isfinite()
    advantage = torch.where(finite, advantage, torch.nan)
    pair = ((advantage - offset).T, (advantage + value).T)
    nothing = torch.zeros((), dtype=torch.float64, device=mask.device)
    first, second = (torch.where(is_response, x, nothing).to(dtype) for x, dtype in zip(pair, dtypes, strict=True))
    return first, second


def rewards_to_go(rewards: Num[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float64[Tensor, "B T"]:
    """G_t = sum of the rewards from token t on, tokens outside the mask left out of the sum (but not of the result)."""
    counted = torch.where(mask, rewards, 0).double()
    return counted.flip(1).cumsum(1).flip(1)
