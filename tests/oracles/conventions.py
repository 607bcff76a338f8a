"""What nine systems compute when they say GRPO, each written out from its own formula.

Where a system divides a rounding error by a small number (all scores equal), the formula's exact value, 0, stands.
"""

import math

from oracles.grouping import mean, per_group, std


def _all_equal(values):
    return all(v == values[0] for v in values)


def verl(scores, labels):
    def judge(values):
        if len(values) == 1:
            centre, scale = 0.0, 1.0
        else:
            centre, scale = mean(values), std(values, 1)
        if len(values) > 1 and _all_equal(values):
            return [0.0] * len(values)
        return [(v - centre) / (scale + 1e-6) for v in values]

    return per_group(scores, labels, judge)


def skyrl(scores, labels):
    return verl(scores, labels)


def trl(scores, labels):
    """scale_rewards="group": nanstd with ddof 1, and 0 where one answer has no std."""

    def judge(values):
        if len(values) == 1 or _all_equal(values):
            return [0.0] * len(values)
        return [(v - mean(values)) / (std(values, 1) + 1e-4) for v in values]

    return per_group(scores, labels, judge)


def openrlhf(scores, labels):
    """group_norm: eps 1e-9."""

    def judge(values):
        if len(values) == 1 or _all_equal(values):
            return [0.0] * len(values)
        return [(v - mean(values)) / (std(values, 1) + 1e-9) for v in values]

    return per_group(scores, labels, judge)


def nemo_rl(scores, labels):
    """Leave-one-out: mean and std (ddof 1) of the n - 1 peers; divided only where that std is above 0."""

    def judge(values):
        advantages = []
        for i, value in enumerate(values):
            peers = values[:i] + values[i + 1 :]
            if not peers:
                advantages.append(0.0)
                continue
            distance = 0.0 if _all_equal(values) else value - mean(peers)
            spread = 0.0 if len(peers) == 1 or _all_equal(peers) else std(peers, 1)
            advantages.append(distance / (spread + 1e-6) if spread > 0 else distance)
        return advantages

    return per_group(scores, labels, judge)


def slime(scores, labels):
    """The mean is taken off, and then the std of the centred scores divides."""

    def judge(values):
        if len(values) == 1 or _all_equal(values):
            return [0.0] * len(values)
        centred = [v - mean(values) for v in values]
        spread = math.sqrt(math.fsum(c * c for c in centred) / (len(values) - 1))
        return [c / (spread + 1e-6) for c in centred]

    return per_group(scores, labels, judge)


def prime_rl(scores, labels):
    return per_group(scores, labels, lambda values: [v - mean(values) for v in values])


def dr_grpo(scores, labels):
    return per_group(scores, labels, lambda values: [v - sum(values) / len(values) for v in values])


def deepseekmath(scores, labels):
    """(r - mean(r)) / std(r), the std of the group itself (ddof 0), no eps."""

    def judge(values):
        if _all_equal(values):
            return [0.0] * len(values)
        return [(v - mean(values)) / std(values, 0) for v in values]

    return per_group(scores, labels, judge)


ORACLES = {
    "verl": verl,
    "skyrl": skyrl,
    "trl": trl,
    "openrlhf": openrlhf,
    "nemo_rl": nemo_rl,
    "slime": slime,
    "prime_rl": prime_rl,
    "dr_grpo": dr_grpo,
    "deepseekmath": deepseekmath,
}
