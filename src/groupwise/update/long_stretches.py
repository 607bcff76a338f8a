"""Attention over long stretches by cuDNN, which is twice as fast there on a Hopper card as FlashAttention in torch.

cuDNN takes a stretch at a time and prepares itself for every shape anew, which takes longer than the work. So that
there are few shapes, lengths are multiples of a sixteenth to an eighth of themselves (`grain`): keys are cut to one,
and what is left of them is FlashAttention's; queries are lengthened to one by the tokens that lie beside them, whose
part nobody reads and which have no weight in the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from groupwise.update.merge import merge
from groupwise.update.stretches import Call, Outcome, Spans, States, wide

# Stretches of keys shorter than this are left to FlashAttention, all in one call.
LONG = 1024
_LEAST_GRAIN = 128


@dataclass(frozen=True)
class Stretch:
    """window: the queries that are given, of which `own` are the stretch's. keys: those that are given, of which
    `num_keys` are the stretch's. rest: the other keys of the stretch, by FlashAttention."""

    window: slice
    own: slice
    keys: slice
    num_keys: int
    rest: Call | None

    @property
    def queries(self) -> slice:
        """The stretch's own queries in the row."""
        return slice(self.window.start + self.own.start, self.window.start + self.own.stop)


@dataclass(frozen=True)
class LongCall(Call):
    """A call whose stretches go to cuDNN, one by one."""

    stretches: tuple[Stretch, ...]

    @classmethod
    def of_call(cls, call: Call, length: int) -> Call:
        """The call as it stands where a stretch of its keys is short, or does not fit into a row of this length."""
        first, second = call.queries.start, call.keys.start
        pairs = zip(call.query_spans.slices(), call.key_spans.slices(), strict=True)
        found = [_stretch(_moved(q, first), _moved(k, second), call, length) for q, k in pairs]
        stretches = tuple(stretch for stretch in found if stretch is not None)
        if len(stretches) < len(found):
            return call
        return cls(call.queries, call.keys, call.query_spans, call.key_spans, call.is_causal, stretches)

    def attend(self, row: States, scale: float) -> tuple[Tensor, Tensor]:
        queries, keys, values = row
        attended = queries.new_empty(queries[self.queries].shape)
        sums = torch.empty(attended.shape[1], len(attended), dtype=wide(queries), device=queries.device)
        for stretch in self.stretches:
            part, part_sums = _attend(queries[stretch.window], keys[stretch.keys], values[stretch.keys], self, scale)
            place = _moved(stretch.queries, -self.queries.start)
            part, part_sums = part[stretch.own], part_sums[:, stretch.own]
            if stretch.rest is None:
                attended[place], sums[:, place] = part, part_sums
            else:
                rest, rest_sums = stretch.rest.attend(row, scale)
                merge((part, rest), (part_sums, rest_sums), attended[place], sums[:, place])
        return attended, sums

    def attend_backward(self, row: States, outcome: Outcome, scale: float) -> States:
        queries, keys, values = row
        grads = tuple(states.new_empty(states.shape) for states in self.of(row))
        for stretch in self.stretches:
            given = queries[stretch.window], keys[stretch.keys], values[stretch.keys]
            found = _attend_backward(given, _of_window(outcome, stretch), self, scale)
            place = _moved(stretch.queries, -self.queries.start)
            seen = slice(stretch.keys.start - self.keys.start, stretch.keys.start - self.keys.start + stretch.num_keys)
            grads[0][place] = found[0][stretch.own]
            for grad, of_keys in zip(grads[1:], found[1:], strict=True):
                grad[seen] = of_keys[: stretch.num_keys]
            if stretch.rest is not None:
                of_query, *of_rest = stretch.rest.attend_backward(row, outcome, scale)
                grads[0][place] += of_query
                for grad, of_keys in zip(grads[1:], of_rest, strict=True):
                    grad[_moved(stretch.rest.keys, -self.keys.start)] = of_keys
        return grads[0], grads[1], grads[2]


def grain(number: int) -> int:
    """The lengths that cuDNN is given around this number are multiples of it."""
    return max(_LEAST_GRAIN, (1 << number.bit_length() - 1) // 8)


def _stretch(queries: slice, keys: slice, call: Call, length: int) -> Stretch | None:
    num_queries, num_keys = queries.stop - queries.start, keys.stop - keys.start
    if num_queries == 0 or num_keys < LONG:
        return None
    width = -(-num_queries // grain(num_queries)) * grain(num_queries)
    if width > length:
        return None
    if call.is_causal:
        # What lies behind the stretch is seen by no query of its own.
        window = slice(queries.start, queries.start + width)
        return Stretch(window, slice(0, num_queries), window, num_keys, None) if window.stop <= length else None
    start = min(queries.start, length - width)
    num_given = num_keys // grain(num_keys) * grain(num_keys)
    given, others = slice(keys.start, keys.start + num_given), slice(keys.start + num_given, keys.stop)
    rest = None
    if num_given < num_keys:
        device = call.query_spans.ends.device
        spans = Spans.of([num_queries], device), Spans.of([num_keys - num_given], device)
        rest = Call(queries, others, *spans, is_causal=False)
    return Stretch(slice(start, start + width), _moved(queries, -start), given, num_given, rest)


@lru_cache(maxsize=8)
def has_cudnn_attention(device: torch.device, width: int) -> bool:
    """Whether cuDNN takes heads of this width on this card, found out by trying; FlashAttention in torch is as fast on
    cards before Hopper."""
    if torch.cuda.get_device_capability(device) < (9, 0) or not torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
        return False
    query, key, value, grad = torch.randn(4, _LEAST_GRAIN, 2, width, dtype=torch.bfloat16, device=device)
    spans = Spans.of([_LEAST_GRAIN], device)
    everything = slice(0, _LEAST_GRAIN)
    call = Call(everything, everything, spans, spans, is_causal=True)
    try:
        attended, sums = _attend(query, key, value, call, 1.0)
        _attend_backward((query, key, value), Outcome(grad, attended, sums.contiguous()), call, 1.0)
    except RuntimeError:
        return False
    return True


def _moved(places: slice, by: int) -> slice:
    return slice(places.start + by, places.stop + by)


def _of_window(outcome: Outcome, stretch: Stretch) -> Outcome:
    """Of the window's queries; the sums of those that are not the stretch's are infinite, which takes all weight off
    them."""
    width = stretch.window.stop - stretch.window.start
    sums = outcome.sums.new_full((len(outcome.sums), width), torch.inf)
    sums[:, stretch.own] = outcome.sums[:, stretch.queries]
    return Outcome(outcome.grad[stretch.window], outcome.attended[stretch.window], sums)


def _attend(query: Tensor, key: Tensor, value: Tensor, call: Call, scale: float) -> tuple[Tensor, Tensor]:
    """[l, H, D] and [H, l] by cuDNN."""
    found = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        *_batch_of_one(query, key, value), None, True, 0.0, call.is_causal, False, scale=scale
    )
    return found[0][0].transpose(0, 1), found[1][0, :, :, 0]


def _attend_backward(states: States, outcome: Outcome, call: Call, scale: float) -> States:
    query, key, value = states
    nothing: Any = None
    random_state = _no_random_state(query.device)
    found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default(
        *_batch_of_one(outcome.grad, query, key, value, outcome.attended), outcome.sums[None, :, :, None],
        random_state, random_state, nothing, nothing, nothing, len(query), len(key), 0.0, call.is_causal, scale=scale,
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
