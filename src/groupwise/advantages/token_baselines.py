"""Optimal token baselines: one baseline per prompt and position, weighted by how much gradient each answer has spent.

B_t = sum_i G_it W_it / (sum_i W_it + eps) over the answers of a group, A_it = G_it - B_t, where G is the reward
to go and W_t = sum_{j <= t} (1 - 2 pi_j + sum pi^2) rho_j^2 the squared norm of the logit gradients so far
(rho: rollout importance weights, 1 without them). Names, arguments and defaults are verl 0.9.1's. An answer
alone in its group: B = 0, as it is where no answer has spent anything. The lowest return is taken off before
the weighted mean, so that equal returns give exactly 0.

handle_zero_tail: the one longest answer of a group has no company past the length of the second longest; its
baseline there is 0, not its own return.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from groupwise.advantages import kernels
from groupwise.advantages.groups import Groups
from groupwise.advantages.outcome_api import Index, Pair
from groupwise.advantages.recurrences import rewards_to_go
from groupwise.advantages.registry import AdvantageEstimator, register_adv_est
from groupwise.advantages.rows import (
    as_mask,
    check_tokens,
    count_tokens,
    empty,
    only_counted,
    result_dtype,
    rows_in_a_step,
)
from groupwise.advantages.scores import Flags, as_row_mask
from groupwise.types import Bool, Float64, Int


@dataclass(frozen=True)
class _Rules:
    """skip_gaps: position t is the t-th response token, not column t."""

    handle_zero_tail: bool
    epsilon: float
    skip_gaps: bool


@register_adv_est(AdvantageEstimator.OPTIMAL_TOKEN_BASELINE)
@torch.no_grad()
def compute_optimal_token_baseline_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    rollout_is_weights: Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
    *,
    failed: Flags | None = None,
    **kwargs: Any,
) -> Pair:
    """Position t is column t: answers meet where both have a response token in the same column."""
    inputs = (token_level_rewards, response_mask, old_log_probs, sum_pi_squared, rollout_is_weights)
    return _advantages(inputs, index, failed, _Rules(handle_zero_tail, epsilon, skip_gaps=False))


@register_adv_est(AdvantageEstimator.TIR_OPTIMAL_TOKEN_BASELINE)
@torch.no_grad()
def compute_multi_turn_optimal_token_baseline_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    old_log_probs: Tensor,
    sum_pi_squared: Tensor,
    rollout_is_weights: Tensor | None = None,
    handle_zero_tail: bool = True,
    epsilon: float = 1e-8,
    *,
    failed: Flags | None = None,
    **kwargs: Any,
) -> Pair:
    """Position t is an answer's t-th response token, tool output skipped. Empty answers are not in their group."""
    inputs = (token_level_rewards, response_mask, old_log_probs, sum_pi_squared, rollout_is_weights)
    return _advantages(inputs, index, failed, _Rules(handle_zero_tail, epsilon, skip_gaps=True))


def _advantages(inputs: kernels.TokenInputs, index: Index, failed: Flags | None, rules: _Rules) -> Pair:
    rewards, response_mask, log_probs, sum_pi_squared, rho = inputs
    others = {"old_log_probs": log_probs, "sum_pi_squared": sum_pi_squared, "rollout_is_weights": rho}
    check_tokens(rewards, response_mask, **others)
    takes_part = None if failed is None else ~as_row_mask("failed", failed, response_mask)
    groups = Groups.of(index, len(rewards), rewards.device)
    dtype = result_dtype(rewards, response_mask)
    if not rules.skip_gaps:
        tail = rules.handle_zero_tail
        fused = kernels.token_baselines(inputs, takes_part, groups, rules.epsilon, dtype, handle_zero_tail=tail)
        if fused is not None:
            return fused
    everyone = torch.ones(len(rewards), dtype=torch.bool, device=rewards.device)
    return _in_steps(inputs, everyone if takes_part is None else takes_part, groups, rules, dtype)


def _in_steps(
    inputs: kernels.TokenInputs, takes_part: Bool[Tensor, "B"], groups: Groups, rules: _Rules, dtype: torch.dtype
) -> Pair:
    rewards, response_mask, log_probs, sum_pi_squared, rho = inputs
    mask = as_mask(response_mask) & takes_part[:, None]
    advantages, finished = (empty(mask.shape, dtype, mask.device) for _ in range(2))
    for rows, few in groups.a_few_at_a_time(rows_in_a_step(mask)):
        returns = rewards_to_go(rewards[rows], mask[rows])
        energy = spent_energy(log_probs[rows], sum_pi_squared[rows], None if rho is None else rho[rows], mask[rows])
        judged = _judge(returns, energy, mask[rows], takes_part[rows], few, rules)
        advantages[rows] = only_counted(judged.to(dtype), mask[rows])
        finished[rows] = returns.to(dtype)
    return advantages, finished


def _judge(
    returns: Float64[Tensor, "B T"],
    energy: Float64[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    takes_part: Bool[Tensor, "B"],
    groups: Groups,
    rules: _Rules,
) -> Float64[Tensor, "B T"]:
    """Each return minus the baseline its group shares at that position. What stands outside the mask means nothing."""
    broken = ~(returns + energy).sum(1).isfinite()
    # Answers as they meet: column by column, or response token by response token.
    position = mask.cumsum(1) - 1 if rules.skip_gaps else None
    met = mask, returns, energy
    present, met_returns, met_energy = met if position is None else (_line_up(x, position, mask) for x in met)
    baseline = shared_baseline(met_returns, met_energy, present, groups, rules.epsilon)[groups.ids]
    if rules.skip_gaps:
        takes_part = mask.any(1)
    if rules.handle_zero_tail:
        baseline[_without_company(takes_part, count_tokens(mask), groups, mask.shape[1])] = 0.0
    baseline[groups.spread(groups.sum(takes_part.double()) < 2)] = 0.0
    advantages = returns - (baseline if position is None else baseline.gather(1, position.clamp_min(0)))
    advantages[groups.spread(groups.sum(broken.double()) > 0)] = torch.nan
    return advantages


def spent_energy(
    log_probs: Tensor, sum_pi_squared: Tensor, rho: Tensor | None, mask: Bool[Tensor, "B T"]
) -> Float64[Tensor, "B T"]:
    """W_t, 0 outside the mask. A token's share, 1 - 2 pi + sum pi^2, is a squared norm: below 0 it is rounding."""
    pi = only_counted(log_probs, mask).double().exp_()
    share = pi.mul_(-2).add_(1).add_(only_counted(sum_pi_squared, mask)).clamp_min_(0.0)
    if rho is not None:
        share.mul_(only_counted(rho, mask).double().square())
    return only_counted(only_counted(share, mask).cumsum(1), mask)


def shared_baseline(
    returns: Float64[Tensor, "B T"],
    energy: Float64[Tensor, "B T"],
    present: Bool[Tensor, "B T"],
    groups: Groups,
    epsilon: float,
) -> Float64[Tensor, "G T"]:
    """The energy-weighted mean return of the answers present at each position; the inputs are 0 where one is absent."""
    baseline = returns.new_zeros(groups.num_groups, returns.shape[1])
    value_or_inf = torch.where(present, returns, torch.inf)
    for numbers, rows, real in groups.layout:
        # Places past the end of a group repeat some answer, without weight.
        row = rows.clamp_max(groups.num_rows - 1)
        weight = energy[row] * real[:, :, None]
        low = torch.where(real[:, :, None], value_or_inf[row], torch.inf).amin(1)
        total = weight.sum(1)
        mean = weight.mul_(returns[row] - low[:, None]).sum(1) / (total + epsilon)
        baseline[numbers] = torch.where(total > 0, low + mean, 0.0)
    return baseline


def _line_up(values: Tensor, position: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Tensor:
    """The value of each response token at its position; 0 where there is none."""
    # Everything that is no response token goes to one spare column, which is cut off.
    spare = values.new_zeros(values.shape[0], values.shape[1] + 1)
    return spare.scatter(1, torch.where(mask, position, values.shape[1]), values)[:, :-1]


def _without_company(
    takes_part: Bool[Tensor, "B"], lengths: Int[Tensor, "B"], groups: Groups, num_positions: int
) -> Bool[Tensor, "B T"]:
    """True at the positions of each group's one longest answer from the length of the second longest on."""
    ranked = torch.where(takes_part, lengths, -1).double()
    second, longest = ranked.new_zeros(2, groups.num_groups)
    for table in groups.tables(ranked):
        last = table.sizes[:, None] - 1
        longest[table.numbers] = table.values.gather(1, last)[:, 0]
        second[table.numbers] = table.values.gather(1, (last - 1).clamp_min(0))[:, 0]
    alone_in_front = takes_part & (ranked == groups.spread(longest)) & groups.spread(longest > second)
    positions = torch.arange(num_positions, device=lengths.device)
    return alone_in_front[:, None] & (positions >= groups.spread(second)[:, None])
