"""Outcome estimators: one score per answer in, one advantage per answer out.

Each function is one equation on `scores[B]` (float64) and `Groups`. The conventions all of them share:
a NaN score makes its whole group NaN and no other; equal scores in a group give exactly 0; 0/0 is 0;
`lengths[B]`, where asked for, is the number of response tokens of each answer, and None counts answers alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from groupwise.advantages.conventions import CONVENTIONS, get_convention, group_relative, peer_deviations
from groupwise.advantages.groups import Groups
from groupwise.advantages.whitening import whiten_answers
from groupwise.errors import BadValueError
from groupwise.types import Float64, Num


def grpo(
    scores: Float64[Tensor, "B"],
    groups: Groups,
    *,
    epsilon: float | None = None,
    norm_adv_by_std_in_grpo: bool = True,
    convention: str = "verl",
) -> Float64[Tensor, "B"]:
    """A = (s - mean) / (std + eps) within the group. GRPO, https://arxiv.org/abs/2402.03300.

    ddof, eps and the rule for an answer alone in its group are the convention's; `epsilon` replaces its eps.
    """
    return group_relative(scores, groups, get_convention(convention), epsilon, norm_adv_by_std_in_grpo)


def dr_grpo(scores: Float64[Tensor, "B"], groups: Groups) -> Float64[Tensor, "B"]:
    """A = s - mean. Dr. GRPO, https://arxiv.org/abs/2503.20783: no division by the std. Alone: 0."""
    return group_relative(scores, groups, CONVENTIONS["dr_grpo"])


def maxrl(scores: Float64[Tensor, "B"], groups: Groups) -> Float64[Tensor, "B"]:
    """A = (s - mean) / mean. MaxRL, https://arxiv.org/abs/2602.02710, for scores that are never negative.

    Rare successes weigh more, as under maximum likelihood. Where the group's mean is 0 or less: 0. Alone: 0.
    """
    moments = groups.moments(scores)
    means = groups.spread(moments.means)
    return torch.where(means <= 0, 0.0, moments.deviations / means)


def rloo(scores: Float64[Tensor, "B"], groups: Groups) -> Float64[Tensor, "B"]:
    """A = s - mean of the group's other scores. RLOO, https://arxiv.org/abs/2402.14740. Alone: the raw score (verl)."""
    alone = groups.spread(groups.sizes == 1)
    return torch.where(alone, scores, peer_deviations(groups.moments(scores)))


def opo(
    scores: Float64[Tensor, "B"], groups: Groups, *, lengths: Num[Tensor, "B"] | None = None
) -> Float64[Tensor, "B"]:
    """A = s - sum(length * s) / sum(length) over the group. OPO, https://arxiv.org/abs/2505.23585.

    Alone, or in a group without a single token: the baseline is 0 and the raw score passes through (verl; 0/0 is 0).
    """
    weights = torch.ones_like(scores) if lengths is None else lengths.double()
    rises = groups.moments(scores).rises
    total = groups.sum(weights)
    baseline = groups.spread(groups.sum(weights * rises) / total)
    no_baseline = groups.spread((groups.sizes == 1) | (total == 0))
    return torch.where(no_baseline & ~rises.isnan(), scores, rises - baseline)


def gpg(
    scores: Float64[Tensor, "B"], groups: Groups, *, f_norm: float = 1.0, alpha: float | None = None
) -> Float64[Tensor, "B"]:
    """A = alpha * (s - mean) / f_norm. GPG, https://arxiv.org/abs/2504.02546. Alone: the mean counts as 0 (verl).

    alpha None is verl's batch factor, the number of answers over the number of nonzero scores (at least 1); answers
    of a group with a NaN score count in neither. A number, 1.0 included, is taken as it is.
    """
    if f_norm == 0:
        raise BadValueError("f_norm=0 would divide every advantage by zero; use 1.0 for no normalisation")
    deviations = group_relative(scores, groups, CONVENTIONS["verl"], divide_by_std=False)
    counted = ~deviations.isnan()
    num_informative = (counted & (scores != 0)).sum().clamp_min(1)
    factor = counted.sum().double() / num_informative if alpha is None else alpha
    return factor * deviations / f_norm


def reinforce_plus_plus_baseline(
    scores: Float64[Tensor, "B"], groups: Groups, *, lengths: Num[Tensor, "B"] | None = None
) -> Float64[Tensor, "B"]:
    """A = whiten(s - mean of the group) over all tokens. REINFORCE++-baseline, https://arxiv.org/abs/2501.03262.

    Every answer weighs as many tokens as it has. Alone: the mean counts as 0 (verl).
    """
    deviations = group_relative(scores, groups, CONVENTIONS["verl"], divide_by_std=False)
    return whiten_answers(deviations, lengths)


def gdpo(
    scores: Float64[Tensor, "B"],
    groups: Groups,
    *,
    parts: Sequence[Float64[Tensor, "B"]] | None = None,
    weights: Sequence[float] | None = None,
    lengths: Num[Tensor, "B"] | None = None,
    epsilon: float | None = None,
    norm_adv_by_std_in_grpo: bool = True,
) -> Float64[Tensor, "B"]:
    """A = whiten(sum_k w_k * GRPO(part_k)) over all tokens. GDPO, https://arxiv.org/abs/2601.05242.

    Each part of the reward is normalised in its group before they are added, so that a large part cannot drown a
    small one. Without `parts` the score is the only part. A NaN in any part makes the group NaN.
    """
    columns = [scores] if parts is None else list(parts)
    factors = [1.0] * len(columns) if weights is None else list(weights)
    if len(factors) != len(columns):
        raise BadValueError(
            f"gdpo got {len(factors)} weights ({factors}) for {len(columns)} reward parts; "
            "give algorithm.gdpo_reward_weights one number per name in algorithm.gdpo_reward_keys"
        )
    total = torch.zeros_like(scores)
    for factor, column in zip(factors, columns, strict=True):
        normalised = grpo(column, groups, epsilon=epsilon, norm_adv_by_std_in_grpo=norm_adv_by_std_in_grpo)
        total = total + factor * normalised
    return whiten_answers(total, lengths)
