"""Attention over stretches of a flat row, forward and backward, by the kernels of the device.

FlashAttention takes stretches of any lengths in one call; `long_stretches.py` has what is faster where they are long.
On a CPU a stretch is a plain softmax, the oracle of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from groupwise.types import Int

States = tuple[Tensor, Tensor, Tensor]
"""Queries [L, H, D], keys and values [L, heads, D] of the flat row; or the gradients of some of them."""


@dataclass(frozen=True, eq=False)
class Spans:
    """Stretches of tokens one after another: where each begins and the last ends, on the host and the device."""

    bounds: list[int]
    ends: Int[Tensor, "S+1"]
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Spans:
        bounds = list(accumulate(lengths, initial=0))
        return cls(bounds, torch.tensor(bounds, dtype=torch.int32, device=device), max(lengths, default=0))

    @property
    def total(self) -> int:
        return self.bounds[-1]

    def slices(self) -> list[slice]:
        return [slice(start, stop) for start, stop in zip(self.bounds, self.bounds[1:], strict=False)]


@dataclass(frozen=True)
class Outcome:
    """What a backward pass starts from: the gradient of what was attended to [L, H, D], that itself, and its sums
    [H, L], merged."""

    grad: Tensor
    attended: Tensor
    sums: Tensor

    def of(self, queries: slice) -> Outcome:
        return Outcome(self.grad[queries], self.attended[queries], self.sums[:, queries].contiguous())


@dataclass(frozen=True)
class Call:
    """One call: where its queries and keys lie in the row, how they are cut, and whether a token sees later ones."""

    queries: slice
    keys: slice
    query_spans: Spans
    key_spans: Spans
    is_causal: bool

    def of(self, row: States) -> States:
        return row[0][self.queries], row[1][self.keys], row[2][self.keys]

    def attend(self, row: States, scale: float) -> tuple[Tensor, Tensor]:
        """Attended values [l, H, D] and the logarithms of the sums [H, l] of the call's queries."""
        query, key, value = self.of(row)
        if not query.is_cuda:
            return self._plain(query, key, value, scale)
        found = torch.ops.aten._flash_attention_forward.default(
            query, key, value, self.query_spans.ends, self.key_spans.ends,
            self.query_spans.longest, self.key_spans.longest, 0.0, self.is_causal, False, scale=scale,
        )  # fmt: skip
        return found[0], found[1]

    def attend_backward(self, row: States, outcome: Outcome, scale: float) -> States:
        """Gradients of the call's queries, and its part of those of its keys and values."""
        query, key, value = self.of(row)
        own = outcome.of(self.queries)
        if not query.is_cuda:
            return self._plain_backward(query, key, value, own, scale)
        found: States = torch.ops.aten._flash_attention_backward.default(
            own.grad, query, key, value, own.attended, own.sums, self.query_spans.ends, self.key_spans.ends,
            self.query_spans.longest, self.key_spans.longest, 0.0, self.is_causal,
            *no_random_state(query.device), scale=scale,
        )  # fmt: skip
        return found

    def _plain(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        parts, sums = [], []
        for span, seen in zip(self.query_spans.slices(), self.key_spans.slices(), strict=True):
            scores = _scores(query[span], key[seen], self.is_causal, scale)
            sums.append(scores.logsumexp(-1))
            weights = (scores - sums[-1][..., None]).exp()
            parts.append(torch.einsum("hqk,khd->qhd", weights, _repeated(value[seen], query)).to(query.dtype))
        return torch.cat(parts), torch.cat(sums, 1)

    def _plain_backward(self, query: Tensor, key: Tensor, value: Tensor, own: Outcome, scale: float) -> States:
        grad, parts = own.grad, []
        for span, seen in zip(self.query_spans.slices(), self.key_spans.slices(), strict=True):
            weights = (_scores(query[span], key[seen], self.is_causal, scale) - own.sums[:, span, None]).exp()
            by_weight = torch.einsum("qhd,khd->hqk", grad[span], _repeated(value[seen], query))
            by_score = weights * (by_weight - (grad[span] * own.attended[span]).sum(-1).t()[..., None]) * scale
            per_head = (
                torch.einsum("hqk,qhd->khd", by_score, query[span]),
                torch.einsum("hqk,qhd->khd", weights, grad[span]),
            )
            of_query = torch.einsum("hqk,khd->qhd", by_score, _repeated(key[seen], query))
            of_key, of_value = (part.view(len(part), key.shape[1], -1, part.shape[2]).sum(2) for part in per_head)
            parts.append((of_query, of_key, of_value))
        queries, keys, values = (torch.cat(column) for column in zip(*parts, strict=True))
        return queries, keys, values


@lru_cache(maxsize=8)
def no_random_state(device: torch.device) -> tuple[Tensor, Tensor]:
    """What a backward pass is given for the dropout there was none of."""
    return torch.zeros(2, dtype=torch.uint64, device=device), torch.empty(0, device=device)


def wide(states: Tensor) -> torch.dtype:
    """Of sums: float32 at least."""
    return torch.promote_types(states.dtype, torch.float32)


def _scores(query: Tensor, key: Tensor, is_causal: bool, scale: float) -> Tensor:
    """[l, H, D] and [k, heads, D] -> [H, l, k]."""
    scores = torch.einsum("qhd,khd->hqk", query, _repeated(key, query)) * scale
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return scores


def _repeated(states: Tensor, query: Tensor) -> Tensor:
    """Keys or values once per query head."""
    return states.repeat_interleave(query.shape[1] // states.shape[1], 1)
