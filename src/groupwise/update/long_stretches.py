"""Attention over long stretches by cuDNN, which is twice as fast there on a Hopper card as FlashAttention in torch.

cuDNN takes a stretch at a time and prepares itself for every shape anew, which takes longer than the work. So that
there are few shapes, lengths are multiples of a sixteenth to an eighth of themselves (`grain`): keys are cut to one,
and what is left of them is FlashAttention's; queries are lengthened to one by the tokens that lie beside them, whose
part nobody reads and which have no weight in the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from groupwise.update.merge import merge
from groupwise.update.stretches import Call, Outcome, Spans, States, wide

# Stretches of keys shorter than this are left to FlashAttention, neighbours in one call.
LONG = 1024
_LEAST_GRAIN = 128


@dataclass(frozen=True)
class Stretch:
    """One stretch of queries and keys, by cuDNN.

    window: the queries that cuDNN is given, of which `own` are the stretch's. given: likewise the keys; they end where
    the stretch's `keys` end, after them (nobody's own sees those), or before them: then `rest` is FlashAttention's.
    """

    window: slice
    own: slice
    given: slice
    keys: slice
    rest: Call | None
    is_causal: bool

    @property
    def queries(self) -> slice:
        """The stretch's own queries in the row."""
        return _moved(self.own, self.window.start)

    def attend(self, row: States, scale: float) -> tuple[Tensor, Tensor]:
        part, part_sums = _attend(*self._states(row), self.is_causal, scale)
        part, part_sums = part[self.own], part_sums[:, self.own]
        if self.rest is None:
            return part, part_sums
        attended, sums = part.new_empty(part.shape), part_sums.new_empty(part_sums.shape)
        rest, rest_sums = self.rest.attend(row, scale)
        merge((part, rest), (part_sums, rest_sums), attended, sums)
        return attended, sums

    def attend_backward(self, row: States, outcome: Outcome, scale: float) -> States:
        found = _attend_backward(self._states(row), self._outcome(outcome), self.is_causal, scale)
        num_keys = _size(self.keys)
        of_query, of_key, of_value = found[0][self.own], found[1][:num_keys], found[2][:num_keys]
        if self.rest is None:
            return of_query, of_key, of_value
        of_rest = self.rest.attend_backward(row, outcome, scale)
        return of_query + of_rest[0], torch.cat([of_key, of_rest[1]]), torch.cat([of_value, of_rest[2]])

    def _states(self, row: States) -> States:
        return row[0][self.window], row[1][self.given], row[2][self.given]

    def _outcome(self, outcome: Outcome) -> Outcome:
        """Of the window's queries; the sums of those that are not the stretch's are infinite, which takes all weight
        off them."""
        sums = outcome.sums.new_full((len(outcome.sums), _size(self.window)), torch.inf)
        sums[:, self.own] = outcome.sums[:, self.queries]
        return Outcome(outcome.grad[self.window], outcome.attended[self.window], sums)


@dataclass(frozen=True)
class LongCall(Call):
    """A call in pieces: long stretches by cuDNN, the short ones between them by FlashAttention."""

    pieces: tuple[Stretch | Call, ...]

    @classmethod
    def of_call(cls, call: Call, length: int) -> Call:
        """The call as it stands where all its stretches are short; in a row of this length."""
        first, second = call.queries.start, call.keys.start
        pieces: list[Stretch | Call] = []
        short: list[tuple[slice, slice]] = []
        for query_span, key_span in zip(call.query_spans.slices(), call.key_spans.slices(), strict=True):
            queries, keys = _moved(query_span, first), _moved(key_span, second)
            stretch = _stretch(queries, keys, call, length)
            if stretch is None:
                short.append((queries, keys))
            else:
                pieces += [*_in_one(short, call), stretch]
                short = []
        if not pieces:
            return call
        pieces += _in_one(short, call)
        return cls(call.queries, call.keys, call.query_spans, call.key_spans, call.is_causal, tuple(pieces))

    def attend(self, row: States, scale: float) -> tuple[Tensor, Tensor]:
        queries = row[0]
        attended = queries.new_empty(queries[self.queries].shape)
        sums = torch.empty(attended.shape[1], len(attended), dtype=wide(queries), device=queries.device)
        for piece in self.pieces:
            place = _moved(piece.queries, -self.queries.start)
            attended[place], sums[:, place] = piece.attend(row, scale)
        return attended, sums

    def attend_backward(self, row: States, outcome: Outcome, scale: float) -> States:
        grads = tuple(states.new_empty(states.shape) for states in self.of(row))
        for piece in self.pieces:
            found = piece.attend_backward(row, outcome, scale)
            grads[0][_moved(piece.queries, -self.queries.start)] = found[0]
            for grad, of_keys in zip(grads[1:], found[1:], strict=True):
                grad[_moved(piece.keys, -self.keys.start)] = of_keys
        return grads[0], grads[1], grads[2]


def grain(number: int) -> int:
    """The lengths that cuDNN is given around this number are multiples of it."""
    return max(_LEAST_GRAIN, (1 << number.bit_length() - 1) // 8)


def _in_one(stretches: Sequence[tuple[slice, slice]], call: Call) -> list[Call]:
    """Neighbouring stretches of queries and keys as one call; none where there is none."""
    if not stretches:
        return []
    device, (first, last) = call.query_spans.ends.device, (stretches[0], stretches[-1])
    queries, keys = slice(first[0].start, last[0].stop), slice(first[1].start, last[1].stop)
    query_spans = Spans.of([_size(span) for span, _ in stretches], device)
    key_spans = Spans.of([_size(span) for _, span in stretches], device)
    return [Call(queries, keys, query_spans, key_spans, call.is_causal)]


def _stretch(queries: slice, keys: slice, call: Call, length: int) -> Stretch | None:
    """None where it is short, or does not fit into a row of this length."""
    num_queries, num_keys = _size(queries), _size(keys)
    if num_queries == 0 or num_keys < LONG:
        return None
    width = -(-num_queries // grain(num_queries)) * grain(num_queries)
    if width > length:
        return None
    if call.is_causal:
        # What lies behind the stretch is seen by no query of its own.
        window = slice(queries.start, queries.start + width)
        own = slice(0, num_queries)
        return Stretch(window, own, window, keys, None, is_causal=True) if window.stop <= length else None
    start = min(queries.start, length - width)
    given = slice(keys.start, keys.start + num_keys // grain(num_keys) * grain(num_keys))
    rest = None
    if given.stop < keys.stop:
        (rest,) = _in_one([(queries, slice(given.stop, keys.stop))], call)
    return Stretch(slice(start, start + width), _moved(queries, -start), given, keys, rest, is_causal=False)


@lru_cache(maxsize=8)
def has_cudnn_attention(device: torch.device, width: int) -> bool:
    """Whether cuDNN takes heads of this width on this card, found out by trying; FlashAttention in torch is as fast on
    cards before Hopper."""
    if torch.cuda.get_device_capability(device) < (9, 0) or not torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
        return False
    query, key, value, grad = torch.ones(4, _LEAST_GRAIN, 2, width, dtype=torch.bfloat16, device=device)
    try:
        for is_causal in (True, False):
            attended, sums = _attend(query, key, value, is_causal, 1.0)
            _attend_backward((query, key, value), Outcome(grad, attended, sums.contiguous()), is_causal, 1.0)
    except RuntimeError:
        return False
    return True


def _moved(places: slice, by: int) -> slice:
    return slice(places.start + by, places.stop + by)


def _size(places: slice) -> int:
    size: int = places.stop - places.start
    return size


def _attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """[l, H, D] and [H, l] by cuDNN."""
    found = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        *_batch_of_one(query, key, value), None, True, 0.0, is_causal, False, scale=scale
    )
    return found[0][0].transpose(0, 1), found[1][0, :, :, 0]


def _attend_backward(states: States, outcome: Outcome, is_causal: bool, scale: float) -> States:
    query, key, value = states
    nothing: Any = None
    random_state = _no_random_state(query.device)
    found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default(
        *_batch_of_one(outcome.grad, query, key, value, outcome.attended), outcome.sums[None, :, :, None],
        random_state, random_state, nothing, nothing, nothing, len(query), len(key), 0.0, is_causal, scale=scale,
    )  # fmt: skip
    of_query, of_key, of_value = (grad[0].transpose(0, 1) for grad in found)
    return of_query, of_key, of_value


@lru_cache(maxsize=8)
def _no_random_state(device: torch.device) -> Tensor:
    """What a backward pass is given for the dropout there was none of."""
    return torch.zeros((), dtype=torch.long, device=device)


def _batch_of_one(*states: Tensor) -> list[Tensor]:
    """[l, heads, D] -> [1, heads, l, D]."""
    return [state.transpose(0, 1)[None] for state in states]
