"""Estimators that reward the best of several answers instead of the average one."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from groupwise.advantages import kernels
from groupwise.advantages.groups import Groups, Table, pairwise_sum, square_root, sums_above
from groupwise.errors import BadValueError
from groupwise.types import Float64


def grpo_passk(
    scores: Float64[Tensor, "B"],
    groups: Groups,
    *,
    epsilon: float | None = None,
    norm_adv_by_std_in_grpo: bool = True,
) -> Float64[Tensor, "B"]:
    """The best answer gets (best - second best) / (std + eps), all others 0. https://arxiv.org/abs/2503.19595.

    std has ddof 1, eps is 1e-6 unless given. A tie for the best gives 0 to all. A label with one answer is an
    error (verl); an answer that is alone because the others failed has no runner-up and gets 0.
    """
    if (groups.labelled_sizes == 1).any():
        label = groups.labels[int((groups.labelled_sizes == 1).argmax())]
        raise BadValueError(
            f"grpo_passk needs at least 2 answers per prompt, but {label!r} has 1; "
            "sample more (rollout.n) or use another estimator"
        )
    eps = 1e-6 if epsilon is None else epsilon
    fused = kernels.best_over_second(scores, groups, eps, scaled=norm_adv_by_std_in_grpo)
    if fused is not None:
        return fused
    moments = groups.moments(scores)
    stds = moments.stds()
    advantages = torch.where(moments.deviations.isnan(), scores.new_tensor(torch.nan), 0.0)
    for table in groups.tables(scores):
        if table.values.shape[1] == 1:
            continue
        last = table.sizes[:, None] - 1
        best, second = table.values.gather(1, last), table.values.gather(1, last - 1)
        lead = (best - second)[:, 0]
        if norm_adv_by_std_in_grpo:
            lead = torch.where(lead > 0, lead / (stds[table.numbers] + eps), lead)
        winners = table.rows.gather(1, last)[:, 0]
        advantages[winners] = lead
    return advantages


def pass_at_k(
    scores: Float64[Tensor, "B"],
    groups: Groups,
    *,
    k: int = 2,
    epsilon: float | None = None,
    norm_adv_by_std_in_grpo: bool = True,
) -> Float64[Tensor, "B"]:
    """A_i = (E[max over k-subsets with i] - E[max over all k-subsets]) / std of that max over all k-subsets.

    The analytic advantage of Pass@k training, https://arxiv.org/abs/2508.10751: every one of the C(n, k)
    subsets counts, none is sampled, so E[max] is the unbiased pass@k, 1 - C(n - c, k) / C(n, k) for c right
    answers of n. Written on sorted scores as in https://arxiv.org/abs/2505.15201 it takes any real score. k = 1
    is GRPO with ddof 0 and eps 0. The std is that of the population of subsets (ddof 0), eps is 0 unless given.
    A group of k answers or fewer has one subset and gets 0; where that is so for every prompt nothing could be
    learnt, and it is an error.
    """
    if k < 1:
        raise BadValueError(f"k={k}: pass@k is the best of k answers, so k must be at least 1")
    if groups.num_groups and groups.labelled_sizes.max() <= k and k > 1:
        raise BadValueError(
            f"k={k}, but no prompt has more than {groups.labelled_sizes.max()} answers: every advantage would be 0; "
            "lower k (algorithm.k) or sample more answers per prompt (rollout.n)"
        )
    advantages = torch.zeros_like(scores)
    for table in groups.tables(scores):
        expected, with_answer, std = _best_of_subsets(table, k)
        gain = with_answer - expected[:, None]
        if norm_adv_by_std_in_grpo:
            divisor = (std + (epsilon or 0.0))[:, None]
            gain = torch.where(std[:, None] > 0, gain / divisor, gain)
        real = table.is_real
        advantages[table.rows[real]] = gain[real]
    return advantages


def _best_of_subsets(table: Table, k: int) -> tuple[Float64[Tensor, "G"], Float64[Tensor, "G N"], Float64[Tensor, "G"]]:
    """Over the k-subsets of each group: mean of the maximum, that mean given each answer, std of the maximum.

    The three are differences from the k-th lowest score, which the best of k never falls below: subsets that all have
    the same maximum then give exactly 0 (the std is the same either way).
    """
    width = table.values.shape[1]
    weights = torch.from_numpy(
        np.stack([_subset_weights(int(size), width, min(k, int(size))) for size in table.sizes.tolist()], axis=1)
    )
    is_best, is_best_with, others_best = weights.to(table.values.device)
    real = table.is_real
    lowest = table.values.gather(1, table.sizes[:, None].clamp_max(k) - 1)
    rise = torch.where(real, (table.values - lowest).clamp_min(0.0), 0.0)
    expected = pairwise_sum(is_best * rise)
    spread = torch.where(real, rise - expected[:, None], 0.0)
    std = square_root(pairwise_sum(is_best * spread.square()))
    # Tied answers share the place of the first of them: equal by Pascal's rule, and now equal in every bit.
    # The padding counts as above everything: a NaN would end the search in the wrong half.
    ascending = torch.where(real, table.values, torch.inf)
    place = torch.searchsorted(ascending, ascending)
    above = sums_above(others_best * rise)
    with_answer = (is_best_with * rise + above).gather(1, place.clamp_max(width - 1))
    return expected, with_answer, std


@lru_cache(maxsize=256)
def _subset_weights(size: int, width: int, k: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """For the answer at each place of `size` sorted ones: the share of k-subsets in which it is the best, ...

    row 0: ... of all subsets,            C(place, k - 1) / C(size, k),         place counted from 0;
    row 1: ... of the subsets with it,    C(place, k - 1) / C(size - 1, k - 1);
    row 2: ... of the subsets that also hold one given answer below it, C(place - 1, k - 2) / C(size - 1, k - 1).
    Products of ratios from the top place down: no factorial, no overflow.
    """
    weights = np.zeros((3, width))
    share = 1.0
    for place in range(size - 1, -1, -1):
        weights[0, place] = share * k / size
        weights[1, place] = share
        weights[2, place] = share * (k - 1) / place if place else 0.0
        share *= max(place - (k - 1), 0) / place if place else 0.0
    return weights
