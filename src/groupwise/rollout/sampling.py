"""Logits to tokens: one uniform number per token, through the inverse of the cumulative distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from groupwise.types import Bool, Float, Float64, Int, Sampling

# Probabilities that may exist at once in float64: 128 MiB.
CHUNK_ELEMENTS = 1 << 24


def draw(
    logits: Float[Tensor, "B V"], numbers: Float64[Tensor, "B"], sampling: Sampling
) -> tuple[Int[Tensor, "B"], Float64[Tensor, "B"]]:
    """A token per row and its log-probability under the distribution it was drawn from.

    That is softmax(logits / temperature), renormalised over what top_k and top_p keep. Temperature 0 takes the
    likeliest token and gives its log-probability at temperature 1.
    """
    rows = max(1, CHUNK_ELEMENTS // logits.shape[1])
    if len(logits) <= rows:
        return _draw(logits, numbers, sampling)
    parts = [
        _draw(*chunk, sampling) for chunk in zip(torch.split(logits, rows), torch.split(numbers, rows), strict=True)
    ]
    tokens, log_probs = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(log_probs)


def _draw(logits: Tensor, numbers: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    logits = logits.double()
    if sampling.temperature == 0:
        tokens = logits.argmax(-1)
        return tokens, logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    probs = (logits / sampling.temperature).softmax(-1)
    if sampling.top_k or sampling.top_p < 1:
        probs = torch.where(kept(probs, sampling.top_p, sampling.top_k), probs, 0.0)
    sums = probs.cumsum(-1)
    total = sums[:, -1:]
    # The first token whose cumulative sum exceeds the number: never one of probability 0.
    tokens = torch.searchsorted(sums, numbers[:, None] * total, right=True)
    return tokens[:, 0], (probs.gather(-1, tokens) / total).log()[:, 0]


def kept(probs: Float64[Tensor, "B V"], top_p: float, top_k: int) -> Bool[Tensor, "B V"]:
    """The `top_k` likeliest tokens (0: all), and of those the fewest that make up `top_p` of their sum.

    The likeliest token is always kept; of equal ones the lower id goes first.
    """
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    if top_k:
        ordered[:, top_k:] = 0.0
    before = ordered.cumsum(-1) - ordered
    keep = (before < top_p * ordered.sum(-1, keepdim=True)) & (ordered > 0)
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter(-1, order, keep)
