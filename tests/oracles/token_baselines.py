"""Optimal token baselines, position by position and answer by answer."""

import math

from oracles.grouping import rows_by_label


def _paths(rewards, mask, log_probs, sum_pi_squared, rho):
    """Reward to go and squared gradient norm spent so far, per answer and token."""
    to_go, spent = [], []
    for b, row in enumerate(mask):
        line, energy, running = [], [], 0.0
        for t in range(len(row)):
            line.append(sum(rewards[b][j] for j in range(t, len(row)) if mask[b][j]))
            if row[t]:
                share = 1 - 2 * math.exp(log_probs[b][t]) + sum_pi_squared[b][t]
                running += share * (rho[b][t] ** 2 if rho else 1.0)
            energy.append(running)
        to_go.append(line)
        spent.append(energy)
    return to_go, spent


def _baseline(entries, epsilon):
    """sum G W / (sum W + epsilon) over the (G, W) of the answers that are there."""
    weight = sum(w for _, w in entries)
    return sum(g * w for g, w in entries) / (weight + epsilon) if weight > 0 else 0.0


def optimal_token_baseline(
    rewards, mask, labels, log_probs, sum_pi_squared, rho=None, handle_zero_tail=True, epsilon=1e-8
):
    """Answers meet column by column."""
    to_go, spent = _paths(rewards, mask, log_probs, sum_pi_squared, rho)
    width = len(mask[0])
    advantages = [[0.0] * width for _ in mask]
    for rows in rows_by_label(labels):
        lengths = sorted(sum(mask[b]) for b in rows)
        for b in rows:
            ahead = len(rows) > 1 and sum(mask[b]) == lengths[-1] > lengths[-2]
            for t in range(width):
                if not mask[b][t]:
                    continue
                there = [(to_go[i][t], spent[i][t]) for i in rows if mask[i][t]]
                baseline = 0.0 if len(rows) == 1 else _baseline(there, epsilon)
                if handle_zero_tail and ahead and t >= lengths[-2]:
                    baseline = 0.0
                advantages[b][t] = to_go[b][t] - baseline
    return advantages, [
        [g if on else 0.0 for g, on in zip(*pair, strict=True)] for pair in zip(to_go, mask, strict=True)
    ]


def multi_turn(rewards, mask, labels, log_probs, sum_pi_squared, rho=None, handle_zero_tail=True, epsilon=1e-8):
    """Squeeze the tokens outside the mask out, leave empty answers out, and it is the same thing."""
    width = len(mask[0])
    places = [[t for t in range(width) if row[t]] for row in mask]
    kept = [b for b in range(len(mask)) if places[b]]
    result = [[0.0] * width for _ in mask]
    if not kept:
        return result

    def squeeze(table):
        return [[table[b][t] for t in places[b]] + [0.0] * (width - len(places[b])) for b in kept]

    dense = [[1] * len(places[b]) + [0] * (width - len(places[b])) for b in kept]
    squeezed, _ = optimal_token_baseline(
        squeeze(rewards),
        dense,
        [labels[b] for b in kept],
        squeeze(log_probs),
        squeeze(sum_pi_squared),
        squeeze(rho) if rho else None,
        handle_zero_tail,
        epsilon,
    )
    for row, b in enumerate(kept):
        for i, t in enumerate(places[b]):
            result[b][t] = squeezed[row][i]
    return result
