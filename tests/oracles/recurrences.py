"""Discounted sums over the response tokens of one answer, written as sums, not as recurrences."""

from oracles.whitening import whiten_masked


def discounted_returns(rewards, mask, gamma):
    """G_t = sum over later response tokens of gamma^distance * reward; tokens outside the mask are not there."""
    result = []
    for row, on in zip(rewards, mask, strict=True):
        tokens = [t for t, here in enumerate(on) if here]
        line = [0.0] * len(row)
        for i, t in enumerate(tokens):
            line[t] = sum(gamma ** (j - i) * row[tokens[j]] for j in range(i, len(tokens)))
        result.append(line)
    return result


def gae(rewards, values, mask, gamma, lam):
    """A_t = sum_l (gamma lam)^l delta_{t+l}. Advantages before whitening, and advantage + value."""
    raw, returns = [], []
    for reward, value, on in zip(rewards, values, mask, strict=True):
        tokens = [t for t, here in enumerate(on) if here]
        deltas = []
        for i, t in enumerate(tokens):
            following = value[tokens[i + 1]] if i + 1 < len(tokens) else 0.0
            deltas.append(reward[t] + gamma * following - value[t])
        line, total = [0.0] * len(reward), [0.0] * len(reward)
        for i, t in enumerate(tokens):
            line[t] = sum((gamma * lam) ** (j - i) * deltas[j] for j in range(i, len(tokens)))
            total[t] = line[t] + value[t]
        raw.append(line)
        returns.append(total)
    return raw, returns


def whitened_gae(rewards, values, mask, gamma, lam):
    raw, returns = gae(rewards, values, mask, gamma, lam)
    return whiten_masked(raw, mask), returns


def reinforce_plus_plus(rewards, mask, gamma):
    returns = discounted_returns(rewards, mask, gamma)
    return whiten_masked(returns, mask), returns


def remax(rewards, greedy_scores, mask):
    """The reward still to come minus the score of the greedy answer."""
    returns = discounted_returns(rewards, mask, 1.0)
    advantages = [
        [g - greedy if on else 0.0 for g, on in zip(line, row, strict=True)]
        for line, row, greedy in zip(returns, mask, greedy_scores, strict=True)
    ]
    return advantages, returns
