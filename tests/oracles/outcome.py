"""One advantage per answer, from the papers, in loops."""

from oracles.conventions import verl
from oracles.grouping import mean, per_group, rows_by_label, std
from oracles.whitening import whiten_answers


def grpo(scores, labels):
    return verl(scores, labels)


def dr_grpo(scores, labels):
    return per_group(scores, labels, lambda values: [v - mean(values) for v in values])


def maxrl(scores, labels):
    def judge(values):
        centre = mean(values)
        return [(v - centre) / centre if centre > 0 else 0.0 for v in values]

    return per_group(scores, labels, judge)


def rloo(scores, labels):
    """The baseline of an answer is the mean of the others; alone it has none."""

    def judge(values):
        advantages = []
        for i, value in enumerate(values):
            total, count = 0.0, 0
            for j, other in enumerate(values):
                if j != i:
                    total += other
                    count += 1
            advantages.append(value - total / count if count else value)
        return advantages

    return per_group(scores, labels, judge)


def opo(scores, labels, lengths):
    """The optimal baseline, sum of length * score over sum of lengths; alone, or without a token, 0."""
    advantages = [None] * len(scores)
    for rows in rows_by_label(labels):
        total = sum(lengths[i] for i in rows)
        baseline = 0.0 if len(rows) == 1 or total == 0 else sum(lengths[i] * scores[i] for i in rows) / total
        for i in rows:
            advantages[i] = scores[i] - baseline
    return advantages


def gpg(scores, labels, f_norm=1.0, alpha=None):
    informative = sum(1 for s in scores if s != 0)
    factor = len(scores) / max(1, informative) if alpha is None else alpha
    centred = per_group(scores, labels, lambda v: v if len(v) == 1 else [x - mean(v) for x in v])
    return [factor * c / f_norm for c in centred]


def reinforce_plus_plus_baseline(scores, labels, lengths):
    centred = per_group(scores, labels, lambda v: v if len(v) == 1 else [x - mean(v) for x in v])
    return whiten_answers(centred, lengths)


def gdpo(parts, labels, weights, lengths):
    total = [0.0] * len(labels)
    for part, weight in zip(parts, weights, strict=True):
        for row, advantage in enumerate(verl(part, labels)):
            total[row] += weight * advantage
    return whiten_answers(total, lengths)


def grpo_passk(scores, labels, divide=True):
    """Only the best answer learns, by its lead over the second best."""

    def judge(values):
        best = max(range(len(values)), key=lambda i: values[i])
        second = max(v for i, v in enumerate(values) if i != best)
        lead = values[best] - second
        if divide:
            lead /= std(values, 1) + 1e-6
        return [lead if i == best else 0.0 for i in range(len(values))]

    return per_group(scores, labels, judge)
