"""(x - mean) / sqrt(variance + 1e-8) over a list of tokens, variance with n - 1."""

import math

from oracles.grouping import mean


def whiten(tokens):
    centre = mean(tokens)
    variance = math.fsum((x - centre) ** 2 for x in tokens) / (len(tokens) - 1)
    return [(x - centre) / math.sqrt(variance + 1e-8) for x in tokens]


def whiten_answers(values, lengths):
    """One value per answer, counted once for each of its tokens: write the tokens out, whiten, read one back."""
    tokens = [value for value, length in zip(values, lengths, strict=True) for _ in range(length)]
    centre = mean(tokens)
    variance = math.fsum((x - centre) ** 2 for x in tokens) / (len(tokens) - 1)
    return [(value - centre) / math.sqrt(variance + 1e-8) for value in values]


def whiten_masked(table, mask):
    """Whiten the tokens of a [B, T] table where the mask is on; 0 elsewhere."""
    places = [(b, t) for b, row in enumerate(mask) for t, on in enumerate(row) if on]
    whitened = whiten([table[b][t] for b, t in places])
    result = [[0.0] * len(row) for row in mask]
    for (b, t), value in zip(places, whitened, strict=True):
        result[b][t] = value
    return result
