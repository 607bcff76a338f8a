"""Backward recurrences over tokens: discounted returns and generalised advantages, in float64.

Tokens outside the mask (padding, tool output) are not there: nothing is read from them, the recurrence passes over
them, and the result is 0 at them. A row in which any response token is not finite is NaN at all its response tokens.
`kernels.backward_scan` is the same function as one pass on a GPU; this one is its oracle.
"""

from __future__ import annotations

import torch
from torch import Tensor

from groupwise.advantages import kernels
from groupwise.advantages.rows import as_mask, empty, only_counted, rows_at_a_time
from groupwise.types import Bool, Float, Float64, Shaped

# A walk over the tokens costs its number of steps, however few rows walk together.
_ROWS_OF_A_WALK = 1024


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
    advantages, returns = (empty(mask.shape, dtype, mask.device) for dtype in dtypes)
    plain_sum = values is None and factors == (1.0, 1.0)
    for rows in rows_at_a_time(mask, at_least=1 if plain_sum else _ROWS_OF_A_WALK):
        counts = as_mask(mask[rows])
        reward = only_counted(rewards[rows], counts).double()
        value = None if values is None else only_counted(values[rows], counts).double()
        advantage = _sum_back(reward) if plain_sum else _walk_back(reward, value, counts, *factors)
        result = advantage if value is None else advantage + value
        finite = (reward if value is None else reward + value).sum(1).isfinite()
        if baselines is not None:
            finite &= baselines[rows].isfinite()
            advantage = advantage - baselines[rows].double()[:, None]
        if not finite.all():
            advantage, result = (torch.where(finite[:, None], x, torch.nan) for x in (advantage, result))
        advantages[rows] = only_counted(advantage.to(dtypes[0]), counts)
        returns[rows] = only_counted(result.to(dtypes[1]), counts)
    return advantages, returns


def rewards_to_go(rewards: Shaped[Tensor, "B T"], mask: Shaped[Tensor, "B T"]) -> Float64[Tensor, "B T"]:
    """G_t = sum of the rewards from token t on; tokens outside the mask are left out of it, and 0 themselves."""
    return only_counted(_sum_back(only_counted(rewards, mask).double()), mask)


def _sum_back(terms: Float64[Tensor, "B T"]) -> Float64[Tensor, "B T"]:
    return terms.flip(1).cumsum(1).flip(1)


def _walk_back(
    reward: Float64[Tensor, "B T"],
    value: Float64[Tensor, "B T"] | None,
    counts: Bool[Tensor, "B T"],
    gamma: float,
    lam: float,
) -> Float64[Tensor, "B T"]:
    """The recurrence as a loop over tokens, last one first. What it gives at tokens that do not count means nothing."""
    # Tokens first in memory: each step then reads and writes contiguous rows.
    by_token = (reward if value is None else reward - value).T.contiguous()
    is_token = counts.T.contiguous()
    values = None if value is None else value.T.contiguous()
    following = reward.new_zeros(len(reward))
    next_value = reward.new_zeros(len(reward))
    for t in reversed(range(len(by_token))):
        here = by_token[t].add_(following, alpha=gamma * lam)
        if values is not None:
            here.add_(next_value, alpha=gamma)
            next_value = torch.where(is_token[t], values[t], next_value)
        following = torch.where(is_token[t], here, following)
    return by_token.T
