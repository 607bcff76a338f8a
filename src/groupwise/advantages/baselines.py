"""Baselines that look beyond the answers of one group: the other prompts of the batch, or the prompt's own past."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from groupwise.advantages.groups import Groups, sorted_sum
from groupwise.errors import BadValueError
from groupwise.types import Float64

# James and Stein's divisor of the scatter of the group means, groups - 3, needs one more than three.
_MIN_GROUPS = 4


def shrinkage(scores: Float64[Tensor, "B"], groups: Groups) -> Float64[Tensor, "B"]:
    """A = s - (w * group mean + (1 - w) * batch mean), w = between / (between + within / n).

    Empirical Bayes: with n = 2..4 answers a group's mean is mostly noise, and pulling it toward the batch by as much as
    the batch itself says lowers the error of the baseline (`benchmarks/shrinkage.py`; the idea for RL with verifiable
    rewards: https://arxiv.org/abs/2511.03710). `within` is the pooled variance inside groups (ddof 1), `between` the
    scatter of the G group means less the share of it that `within` explains, never below 0. The scatter is divided by
    G - 3, not G - 1 (James and Stein; Efron and Morris 1973): w is a ratio, and with few groups the unbiased variance
    pulls too far. Without two answers in some group, or with fewer than four groups, w is 1 and this is `dr_grpo`. A
    group of equal scores keeps a signal, its distance from the batch, unless no group varies inside: then exactly 0.
    NaN groups take no part.
    """
    moments = groups.moments(scores)
    finite = ~moments.means.isnan()
    count = int(finite.sum())
    freedom = torch.where(finite, groups.sizes - 1, 0).sum()
    if count < _MIN_GROUPS or freedom == 0:
        return moments.deviations
    sizes = groups.sizes.double()
    within = sorted_sum(torch.where(finite, moments.square_sums, 0.0)) / freedom
    low = torch.where(finite, moments.lows, torch.inf).min()
    rises = (moments.lows - low) + moments.mean_rises
    noise = within / sizes
    mean_of_means = sorted_sum(torch.where(finite, rises, 0.0)) / count
    scatter = sorted_sum(torch.where(finite, rises - mean_of_means, 0.0).square()) / (count - 3)
    between = (scatter - sorted_sum(torch.where(finite, noise, 0.0)) / count).clamp_min(0.0)
    precision = torch.where(finite & (between + noise > 0), 1 / (between + noise), 0.0)
    total = sorted_sum(precision)
    centre = torch.where(total > 0, sorted_sum(precision * torch.where(finite, rises, 0.0)) / total, mean_of_means)
    trust = torch.where(between + noise > 0, between / (between + noise), 1.0)
    pull = (1 - trust) * (rises - centre)
    return moments.deviations + groups.spread(pull)


@dataclass
class RunningBaseline:
    """What each prompt has scored so far, across steps: a baseline that works with one answer per prompt.

    The advantage is the score minus the prompt's mean before this batch, so the baseline never saw the answer
    it judges. A prompt seen for the first time is compared with its own group's mean, and if it is alone, with
    the batch's. Means follow the policy: the average of all scores at first, then a moving average that keeps
    `decay` of its past per answer. `state()` is plain JSON data.
    """

    decay: float = 0.9
    means: dict[Hashable, float] = field(default_factory=dict)
    counts: dict[Hashable, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise BadValueError(
                f"decay={self.decay} must be in [0, 1): 0 remembers the last batch, 0.9 about ten answers"
            )

    def advantages(self, scores: Float64[Tensor, "B"], groups: Groups) -> Float64[Tensor, "B"]:
        """Judge the answers, then remember them. NaN scores are not remembered."""
        moments = groups.moments(scores)
        means, sizes = moments.means.tolist(), groups.host_sizes.tolist()
        finite = scores[~moments.deviations.isnan()]
        batch_mean = float(sorted_sum(finite) / max(finite.numel(), 1))
        first = [mean if size > 1 else batch_mean for mean, size in zip(means, sizes, strict=True)]
        known = [self.means.get(label, start) for label, start in zip(groups.labels, first, strict=True)]
        baseline = groups.spread(torch.tensor(known, dtype=torch.float64, device=scores.device))
        for label, mean, size in zip(groups.labels, means, sizes, strict=True):
            if not math.isnan(mean):
                self._remember(label, mean, size)
        return torch.where(moments.deviations.isnan(), moments.deviations, scores - baseline)

    def _remember(self, label: Hashable, mean: float, size: int) -> None:
        count = self.counts.get(label, 0)
        past = self.means.get(label, mean)
        step = max(size / (count + size), 1.0 - self.decay**size)
        self.means[label] = past + step * (mean - past)
        self.counts[label] = count + size

    def state(self) -> dict[str, Any]:
        """Everything needed to go on later, as JSON types (labels must be strings or numbers for that)."""
        rows = [[label, mean, self.counts[label]] for label, mean in self.means.items()]
        return {"decay": self.decay, "prompts": rows}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> RunningBaseline:
        rows = state["prompts"]
        return cls(state["decay"], {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows})


def running_baseline(
    scores: Float64[Tensor, "B"], groups: Groups, *, baseline: RunningBaseline
) -> Float64[Tensor, "B"]:
    """A = s - the prompt's mean before this batch; updates `baseline`. The labels must name prompts across steps."""
    return baseline.advantages(scores, groups)
