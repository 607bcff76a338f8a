"""Baselines over several prompts, in loops."""

from oracles.grouping import mean, rows_by_label


def shrinkage(scores, labels):
    """Empirical Bayes (James and Stein): group means pulled toward the precision-weighted mean of all groups."""
    groups = [[scores[i] for i in rows] for rows in rows_by_label(labels)]
    means = [mean(g) for g in groups]
    freedom = sum(len(g) - 1 for g in groups)
    if len(groups) < 4 or freedom == 0:
        baselines = means
    else:
        within = sum((s - m) ** 2 for g, m in zip(groups, means, strict=True) for s in g) / freedom
        noises = [within / len(g) for g in groups]
        grand = mean(means)
        scatter = sum((m - grand) ** 2 for m in means) / (len(means) - 3)  # James and Stein
        between = max(0.0, scatter - mean(noises))
        precisions = [1 / (between + noise) if between + noise > 0 else 0.0 for noise in noises]
        total = sum(precisions)
        centre = sum(p * m for p, m in zip(precisions, means, strict=True)) / total if total else grand
        baselines = []
        for m, noise in zip(means, noises, strict=True):
            trust = between / (between + noise) if between + noise > 0 else 1.0
            baselines.append(trust * m + (1 - trust) * centre)
    advantages = [0.0] * len(scores)
    for rows, baseline in zip(rows_by_label(labels), baselines, strict=True):
        for i in rows:
            advantages[i] = scores[i] - baseline
    return advantages


class Running:
    """Each prompt's past mean; a new prompt starts from its own group, or, alone, from the batch."""

    def __init__(self, decay):
        self.decay = decay
        self.past = {}

    def step(self, scores, labels):
        advantages = [0.0] * len(scores)
        learnt = {}
        for rows in rows_by_label(labels):
            label, group = labels[rows[0]], [scores[i] for i in rows]
            first = mean(group) if len(group) > 1 else mean(scores)
            baseline = self.past[label][0] if label in self.past else first
            for i in rows:
                advantages[i] = scores[i] - baseline
            learnt[label] = self._blend(self.past.get(label), group)
        self.past.update(learnt)
        return advantages

    def _blend(self, past, group):
        """The mean of all answers while that forgets faster, else one step of the moving average per answer."""
        fresh = mean(group)
        if past is None:
            return fresh, len(group)
        old, count = past
        kept = 1.0
        for _ in group:
            kept *= self.decay
        kept_by_counting = count / (count + len(group))
        kept = min(kept, kept_by_counting)
        return kept * old + (1 - kept) * fresh, count + len(group)
