"""One name, nine formulas: what each system computes when it says GRPO.

A convention is a row of `CONVENTIONS`: what is subtracted, what is divided by, what a group of one gets.
The formula they parametrise is `group_relative`. Sources: the released code of each system (November 2026).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.advantages import kernels
from groupwise.advantages.groups import Groups, Moments, pairwise_sum, square_root
from groupwise.errors import unknown_name
from groupwise.types import Float64

# Pairs of (answer left out, peer) laid out at a time: bounds the memory of leave-one-out in very large groups.
_MAX_PAIRS = 1 << 22


@dataclass(frozen=True)
class Convention:
    """How one system turns the scores of a group into advantages.

    centre: subtract the mean of the whole group ("group") or of the other answers only ("peers").
    scale: divide by the standard deviation of those same scores plus eps ("std"), or not at all ("none").
    ddof: the divisor of the variance is the number of those scores minus ddof.
    singleton: an answer alone in its group gets its raw "score" (over 1 + eps where there is a scale), or "zero".
    """

    centre: str = "group"
    scale: str = "std"
    ddof: int = 1
    eps: float = 1e-6
    singleton: str = "zero"
    source: str = ""


CONVENTIONS: dict[str, Convention] = {
    "verl": Convention(singleton="score", source="verl 0.9.1, core_algos.compute_grpo_outcome_advantage"),
    "skyrl": Convention(singleton="score", source="SkyRL 0.3.0, ppo_utils.py"),
    "trl": Convention(eps=1e-4, source="TRL 1.16.0, GRPOTrainer with scale_rewards='group'"),
    "openrlhf": Convention(eps=1e-9, source="OpenRLHF 0.11.2, group_norm"),
    "nemo_rl": Convention(centre="peers", source="NeMo RL, GRPOAdvantageEstimator with leave-one-out"),
    "slime": Convention(source="slime, grpo"),
    "prime_rl": Convention(scale="none", source="prime-rl, algo/grpo.py"),
    "dr_grpo": Convention(scale="none", source="Dr. GRPO, https://arxiv.org/abs/2503.20783"),
    "deepseekmath": Convention(ddof=0, eps=0.0, source="DeepSeekMath, https://arxiv.org/abs/2402.03300"),
}


def get_convention(name: str) -> Convention:
    if name not in CONVENTIONS:
        raise unknown_name("convention", name, CONVENTIONS)
    return CONVENTIONS[name]


def group_relative(
    scores: Float64[Tensor, "B"],
    groups: Groups,
    convention: Convention,
    epsilon: float | None = None,
    divide_by_std: bool = True,
) -> Float64[Tensor, "B"]:
    """A_i = (s_i - centre_i) / (std_i + eps), with the rules of one convention.

    `epsilon` replaces the convention's eps. Where the standard deviation is 0 nothing is divided, so that equal
    scores give exactly 0 under every convention, eps 0 included, and an answer whose peers all agree keeps its
    plain distance from them (NeMo RL's rule; anything else explodes).
    """
    eps = convention.eps if epsilon is None else epsilon
    scaled = divide_by_std and convention.scale == "std"
    by_peers = convention.centre == "peers"
    if not by_peers:
        raw_singletons = convention.singleton == "score"
        fused = kernels.group_relative(
            scores, groups, convention.ddof, eps, scaled=scaled, raw_singletons=raw_singletons
        )
        if fused is not None:
            return fused
    moments = groups.moments(scores)
    deviations = peer_deviations(moments) if by_peers else moments.deviations
    alone = groups.spread(groups.sizes == 1)
    if convention.singleton == "score":
        deviations = torch.where(alone, scores, deviations)
    if not scaled:
        return deviations
    ddof = convention.ddof
    stds = peer_stds(scores, groups, ddof) if by_peers else groups.spread(moments.stds(ddof))
    if convention.singleton == "score":
        stds = torch.where(alone, 1.0, stds)
    return torch.where(stds > 0, deviations / (stds + eps), deviations)


def peer_deviations(moments: Moments) -> Float64[Tensor, "B"]:
    """Each score minus the mean of the group's other scores: the deviation from the group's mean, times n / (n - 1).

    RLOO, https://arxiv.org/abs/2402.14740. An answer without peers gets 0.
    """
    sizes = moments.groups.spread(moments.groups.sizes)
    return moments.deviations * (sizes.double() / (sizes - 1).clamp_min(1))


def peer_stds(scores: Float64[Tensor, "B"], groups: Groups, ddof: int) -> Float64[Tensor, "B"]:
    """The standard deviation of the group's other scores, two passes over the n - 1 of them; 0 where n - 1 <= ddof.

    The short cut through the group's total, S - d^2 n / (n - 1), loses every digit when one answer stands far
    from peers that agree, and 0 turns into a divisor of 1e-8: hence the long way.
    """
    result = torch.zeros_like(scores)
    for table in groups.tables(scores):
        width = table.values.shape[1]
        if width == 1:
            continue
        table_rows, left_out = table.is_real.nonzero(as_tuple=True)
        at_a_time = max(1, _MAX_PAIRS // width)
        for start in range(0, len(left_out), at_a_time):
            row, out = table_rows[start : start + at_a_time], left_out[start : start + at_a_time]
            # Closing the gap keeps the peers sorted, so that tied answers add their peers in the same order.
            place = torch.arange(width, device=scores.device)
            peers = table.values[row[:, None], (place + (place >= out[:, None])).clamp_max(width - 1)]
            num_peers = table.sizes[row] - 1
            is_peer = place < num_peers[:, None]
            rise = torch.where(is_peer, peers - peers[:, :1], 0.0)
            mean = pairwise_sum(rise) / num_peers
            deviation = torch.where(is_peer, rise - mean[:, None], 0.0)
            variance = pairwise_sum(deviation * deviation) / (num_peers - ddof).clamp_min(1)
            result[table.rows[row, out]] = square_root(variance)
    return result
