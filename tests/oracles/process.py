"""Process supervision, DeepSeekMath section 4.1.3: normalise every step's reward in its group, then add up."""

from oracles.conventions import ORACLES


def grpo_process(rewards, mask, labels, step_mask, convention="verl"):
    steps = [(b, t) for b, row in enumerate(mask) for t in range(len(row)) if row[t] and step_mask[b][t]]
    normalised = ORACLES[convention]([rewards[b][t] for b, t in steps], [labels[b] for b, _ in steps])
    advantages = []
    for b, row in enumerate(mask):
        line = []
        for t in range(len(row)):
            later = [a for a, (i, j) in zip(normalised, steps, strict=True) if i == b and j >= t]
            line.append(sum(later) if row[t] else 0.0)
        advantages.append(line)
    return advantages
