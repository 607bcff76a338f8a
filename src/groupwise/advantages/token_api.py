"""Estimators that judge tokens: GAE, REINFORCE++, ReMax, and GRPO on the steps of an answer. verl's arguments.

`failed` marks answers that get 0 at every token and take no part in whitening. Returns, like advantages, are exactly
0 outside the mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from groupwise.advantages.conventions import get_convention, group_relative
from groupwise.advantages.groups import Groups
from groupwise.advantages.outcome_api import Index, Pair
from groupwise.advantages.recurrences import backward_scan, rewards_to_go
from groupwise.advantages.registry import AdvantageEstimator, register_adv_est
from groupwise.advantages.rows import as_mask, as_scores, check_tokens, result_dtype
from groupwise.advantages.scores import Flags, as_row_mask
from groupwise.advantages.whitening import whiten_tokens
from groupwise.config import read
from groupwise.errors import BadValueError
from groupwise.types import Shaped


def counted_tokens(response_mask: Shaped[Tensor, "B T"], failed: Flags | None) -> Shaped[Tensor, "B T"]:
    """The mask of the response tokens, without those of failed answers. As it came where none failed: no pass
    over it."""
    if failed is None:
        return response_mask
    return as_mask(response_mask) & ~as_row_mask("failed", failed, response_mask)[:, None]


@register_adv_est(AdvantageEstimator.GAE)
@torch.no_grad()
def compute_gae_advantage_return(
    token_level_rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    gamma: float,
    lam: float,
    *,
    failed: Flags | None = None,
) -> Pair:
    """GAE, https://arxiv.org/abs/1506.02438: advantages whitened over the response tokens; returns = raw
    advantage + value."""
    check_tokens(token_level_rewards, response_mask, values=values)
    mask = counted_tokens(response_mask, failed)
    dtype = result_dtype(token_level_rewards, values, response_mask)
    factors = (float(gamma), float(lam))
    raw, returns = backward_scan(token_level_rewards, values, None, mask, factors, (torch.float64, dtype))
    return whiten_tokens(raw, as_mask(mask)).to(dtype), returns


@register_adv_est(AdvantageEstimator.REINFORCE_PLUS_PLUS)
@torch.no_grad()
def compute_reinforce_plus_plus_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    config: Any = None,
    *,
    failed: Flags | None = None,
    **kwargs: Any,
) -> Pair:
    """REINFORCE++, https://arxiv.org/abs/2501.03262: returns discounted by `config.gamma` (1 without one), then
    whitened."""
    check_tokens(token_level_rewards, response_mask)
    mask = counted_tokens(response_mask, failed)
    dtype = result_dtype(token_level_rewards, response_mask)
    factors = (float(read(config, "gamma", 1.0)), 1.0)
    raw, returns = backward_scan(token_level_rewards, None, None, mask, factors, (torch.float64, dtype))
    return whiten_tokens(raw, as_mask(mask)).to(dtype), returns


@register_adv_est(AdvantageEstimator.REMAX)
@torch.no_grad()
def compute_remax_outcome_advantage(
    token_level_rewards: Tensor,
    reward_baselines: Tensor,
    response_mask: Tensor,
    config: Any = None,
    *,
    failed: Flags | None = None,
    **kwargs: Any,
) -> Pair:
    """ReMax, https://arxiv.org/abs/2310.10505: reward to go minus the score of the prompt's greedy answer."""
    check_tokens(token_level_rewards, response_mask)
    baselines = torch.as_tensor(reward_baselines, device=token_level_rewards.device)
    if baselines.shape != token_level_rewards.shape[:1]:
        raise BadValueError(
            f"reward_baselines has shape {tuple(baselines.shape)}; it must hold the score of the greedy answer "
            f"for each of {len(token_level_rewards)} answers"
        )
    mask = counted_tokens(response_mask, failed)
    dtype = result_dtype(token_level_rewards, response_mask)
    return backward_scan(token_level_rewards, None, baselines, mask, dtypes=(dtype, dtype))


@register_adv_est("grpo_process")
@torch.no_grad()
def compute_grpo_process_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    step_mask: Tensor,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    *,
    convention: str | None = None,
    failed: Flags | None = None,
    **kwargs: Any,
) -> Pair:
    """GRPO with process supervision, DeepSeekMath section 4.1.3, https://arxiv.org/abs/2402.03300.

    The reward of every step (`step_mask` marks the token at which a step ends and its reward stands) is
    normalised among all step rewards of the group; a token's advantage is the sum of the normalised rewards of
    its own step and the later ones. Rewards at other tokens, and steps outside the mask, do not count. With one
    step per answer, at its end, this is `grpo`.
    """
    check_tokens(token_level_rewards, response_mask, step_mask=step_mask)
    mask = as_mask(counted_tokens(response_mask, failed))
    groups = Groups.of(index, len(mask), mask.device)
    steps = mask & as_mask(step_mask)
    scores = as_scores(token_level_rewards[steps])
    normalised = group_relative(
        scores,
        groups.select(steps.nonzero()[:, 0]),
        get_convention(convention or read(config, "convention", "verl")),
        None if epsilon == 1e-6 else epsilon,
        norm_adv_by_std_in_grpo,
    )
    step_rewards = torch.zeros_like(mask, dtype=torch.float64)
    step_rewards[steps] = normalised
    to_go = rewards_to_go(step_rewards, mask)
    poisoned = groups.spread(groups.sum(step_rewards.isnan().any(1).double())) > 0
    advantages = torch.where(mask, torch.where(poisoned[:, None], torch.nan, to_go), 0.0)
    tokens = advantages.to(result_dtype(token_level_rewards, response_mask))
    return tokens, tokens
