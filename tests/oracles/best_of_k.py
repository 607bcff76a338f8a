"""Pass@k training by enumeration: every k-subset of a group, one after the other."""

import math
from itertools import combinations

from oracles.grouping import mean, per_group


def pass_at_k(scores, labels, k, divide=True):
    def judge(values):
        size = min(k, len(values))
        subsets = list(combinations(range(len(values)), size))
        rewards = [max(values[i] for i in subset) for subset in subsets]
        expected = mean(rewards)
        spread = math.sqrt(math.fsum((r - expected) ** 2 for r in rewards) / len(rewards))
        advantages = []
        for i in range(len(values)):
            with_i = [r for r, subset in zip(rewards, subsets, strict=True) if i in subset]
            gain = mean(with_i) - expected
            nothing_to_learn = all(r == rewards[0] for r in rewards)
            if nothing_to_learn:
                gain = 0.0
            advantages.append(gain / spread if divide and not nothing_to_learn else gain)
        return advantages

    return per_group(scores, labels, judge)


def pass_rate(right, n, k):
    """The unbiased pass@k of https://arxiv.org/abs/2107.03374: 1 - C(n - c, k) / C(n, k)."""
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)
