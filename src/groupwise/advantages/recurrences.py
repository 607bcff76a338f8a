"""Backward recurrences over tokens: discounted returns and generalised advantages, in float64.

Tokens outside the mask (padding, tool output) are not there: nothing is read from them, the recurrence passes over
them, and the result is 0 at them. A row in which any response token is not finite is NaN at all its response tokens.
`kernels.generalised_advantages` is the same function as one pass on a GPU; this one is its oracle.
"""

from __future__ import annotations

import torch
from torch import Tensor

from groupwise.advantages import kernels
from groupwise.types import Bool, Float64, Num


def generalised_advantages(
    rewards: Num[Tensor, "B T"],
    values: Num[Tensor, "B T"] | None,
    mask: Bool[Tensor, "B T"],
    gamma: float,
    lam: float,
) -> Float64[Tensor, "B T"]:
    """A_t = delta_t + gamma lam A_next, delta_t = r_t + gamma V_next - V_t. GAE, https://arxiv.org/abs/1506.02438.

    "next" is the next response token, past the last one both are 0. Without values this is the discounted return for
    lam = 1: one recurrence serves GAE, REINFORCE++ and ReMax.
    """
    fused = kernels.generalised_advantages(rewards, values, mask, gamma, lam)
    if fused is not None:
        return fused
    # Tokens first: each step of the loop then reads and writes one contiguous row.
    is_token = mask.T.contiguous()
    reward = torch.where(mask, rewards, 0).double().T.contiguous()
    value = torch.zeros_like(reward) if values is None else torch.where(mask, values, 0).double().T.contiguous()
    advantage = torch.zeros_like(reward)
    following = torch.zeros_like(reward[:1].sum(dim=0))
    next_value = following.clone()
    for t in reversed(range(mask.shape[1])):
        here = reward[t] + gamma * next_value - value[t] + gamma * lam * following
        advantage[t] = here
        following = torch.where(is_token[t], here, following)
        next_value = torch.where(is_token[t], value[t], next_value)
    finite = (reward.isfinite() & value.isfinite()).all(dim=0)
    advantage = torch.where(finite, advantage, torch.nan)
    return torch.where(mask, advantage.T, 0.0)


def rewards_to_go(rewards: Num[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float64[Tensor, "B T"]:
    """G_t = sum of the rewards from token t on, tokens outside the mask left out of the sum (but not of the result)."""
    counted = torch.where(mask, rewards, 0).double()
    return counted.flip(1).cumsum(1).flip(1)
