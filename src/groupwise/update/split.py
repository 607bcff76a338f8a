"""Attention of packed groups on a GPU's own attention kernels: three plain calls instead of one with a mask.

    [prompt 1][prompt 2]...[answers to prompt 1][answers to prompt 2]...

Prompts attend to themselves, the answers to a prompt attend to the whole of it, and every answer to itself; none of
the three needs a mask, and each is one call over stretches of any lengths. What an answer's token saw in its prompt and
in its answer is merged by the logarithms of their sums. Backward, each call is given the merged output and the merged
sums: with them its gradient is its part of the whole (as in ring attention, https://arxiv.org/abs/2310.01889).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from groupwise.types import Int

_numbers = count()
_layouts: WeakValueDictionary[int, Layout] = WeakValueDictionary()
# Head widths that the kernels take are multiples of this, up to the widest.
_GRAIN, WIDEST_HEAD = 8, 256


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
class Call:
    """One call: where its queries and keys lie in the row, how they are cut, and whether a token sees later ones."""

    queries: slice
    keys: slice
    query_spans: Spans
    key_spans: Spans
    is_causal: bool


@dataclass(frozen=True, eq=False)
class Layout:
    """The calls over a row. prompts, own: of prompts and of answers on themselves. across: of answers on prompts."""

    prompts: Call
    across: Call
    own: Call

    @classmethod
    def build(
        cls, prompts: Sequence[range], answers: Sequence[range], prompt_of: Sequence[int], device: torch.device
    ) -> Layout:
        in_prompts = Spans.of([len(places) for places in prompts], device)
        in_answers = Spans.of([len(places) for places in answers], device)
        num_tokens = [0] * len(prompts)
        for places, prompt in zip(answers, prompt_of, strict=True):
            num_tokens[prompt] += len(places)
        in_groups = Spans.of(num_tokens, device)
        first = slice(0, in_prompts.total)
        second = slice(first.stop, first.stop + in_answers.total)
        return cls(
            Call(first, first, in_prompts, in_prompts, is_causal=True),
            Call(second, first, in_groups, in_prompts, is_causal=False),
            Call(second, second, in_answers, in_answers, is_causal=True),
        )


class SplitGroups:
    """Called with a layer's queries, keys and values of the flat row; inside compiled layers an opaque call."""

    def __init__(self, layout: Layout, compiles: bool, checkpoints: bool) -> None:
        self.layout, self.compiles, self.checkpoints = layout, compiles, checkpoints
        # A compiled layer takes tensors only: the layout travels as a number.
        number = next(_numbers)
        self.handle = torch.tensor(number)
        _layouts[number] = layout

    @classmethod
    def build(
        cls,
        prompts: Sequence[range],
        answers: Sequence[range],
        prompt_of: Sequence[int],
        _length: int,
        device: torch.device,
        *,
        compiles: bool,
        checkpoints: bool,
    ) -> SplitGroups:
        """From the places of each prompt and of each answer, and the answers' prompts."""
        return cls(Layout.build(prompts, answers, prompt_of, device), compiles, checkpoints)

    def __call__(self, _layer: int | None, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        width = query.shape[-1]
        scale = width**-0.5 if scale is None else scale
        if width % _GRAIN:
            # Columns of zeros change no score and no sum.
            query, key, value = (pad(states, (0, -width % _GRAIN)) for states in (query, key, value))
        attended, _ = _attend_groups(query, key, value, self.handle, scale)
        result: Tensor = attended[..., :width].transpose(1, 2)
        return result


@torch.library.custom_op("groupwise::attend_groups", mutates_args=())
def _attend_groups(query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attended values [1, L, H, D] and the logarithm of each token's sum [H, L]; 0 past the last answer."""
    layout = _layouts[int(handle)]
    queries, keys, values = _flat(query, key, value)
    of_prompts, prompt_sums = _attend(queries, keys, values, layout.prompts, scale)
    parts, sums = [of_prompts], [prompt_sums]
    if layout.own.query_spans.total:
        (across, across_sums), (own, own_sums) = (
            _attend(queries, keys, values, call, scale) for call in (layout.across, layout.own)
        )
        merged = torch.logaddexp(across_sums, own_sums)
        from_prompt, from_own = ((part - merged).exp().t()[..., None] for part in (across_sums, own_sums))
        mixed = across * from_prompt + own * from_own
        parts.append(mixed.to(across.dtype))
        sums.append(merged)
    return _filled(parts, len(queries))[None], _filled(sums, len(queries), dim=1)


@_attend_groups.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    rows, heads, length, width = query.shape
    return query.new_empty(rows, length, heads, width), query.new_empty(heads, length, dtype=_wide(query))


@torch.library.custom_op("groupwise::attend_groups_backward", mutates_args=())
def _attend_groups_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attended: Tensor,
    sums: Tensor,
    handle: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, each [1, L, heads, D]."""
    layout = _layouts[int(handle)]
    states = (*_flat(query, key, value), grad[0], attended[0], sums)
    of_prompts = _attend_backward(states, layout.prompts, scale)
    parts: list[tuple[Tensor, ...]] = [(part,) for part in of_prompts]
    if layout.own.query_spans.total:
        across, own = (_attend_backward(states, call, scale) for call in (layout.across, layout.own))
        parts = [
            (of_prompts[0], across[0].add_(own[0])),
            (of_prompts[1].add_(across[1]), own[1]),
            (of_prompts[2].add_(across[2]), own[2]),
        ]
    query_grad, key_grad, value_grad = (_filled(part, query.shape[2])[None] for part in parts)
    return query_grad, key_grad, value_grad


@_attend_groups_backward.register_fake
def _(
    grad: Tensor,  # noqa: ARG001
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *_others: Any,
) -> tuple[Tensor, ...]:
    return tuple(s.new_empty(1, s.shape[2], s.shape[1], s.shape[3]) for s in (query, key, value))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, handle, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, *output, handle)


def _backward(ctx: Any, grad: Tensor, _grad_sums: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, attended, sums, handle = ctx.saved_tensors
    grads = _attend_groups_backward(grad.contiguous(), query, key, value, attended, sums, handle, ctx.scale)
    return (*(g.transpose(1, 2) for g in grads), None, None)


_attend_groups.register_autograd(_backward, setup_context=_keep)


def _wide(states: Tensor) -> torch.dtype:
    return torch.promote_types(states.dtype, torch.float32)


def _flat(*states: Tensor) -> tuple[Tensor, ...]:
    """[1, heads, L, D] -> [L, heads, D], the numbers of a head side by side."""
    flat = (state[0].transpose(0, 1) for state in states)
    return tuple(state if state.stride(-1) == 1 else state.contiguous() for state in flat)


def _filled(parts: Sequence[Tensor], length: int, dim: int = 0) -> Tensor:
    """The parts one after another, and zeros up to `length`."""
    shape = list(parts[0].shape)
    shape[dim] = length - sum(part.shape[dim] for part in parts)
    return torch.cat([*parts, parts[0].new_zeros(shape)], dim)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, call: Call, scale: float) -> tuple[Tensor, Tensor]:
    """Attended values [l, H, D] and the logarithms of the sums [H, l] of the call's queries."""
    query, key, value = queries[call.queries], keys[call.keys], values[call.keys]
    if query.is_cuda:
        found = torch.ops.aten._flash_attention_forward(
            query, key, value, call.query_spans.ends, call.key_spans.ends,
            call.query_spans.longest, call.key_spans.longest, 0.0, call.is_causal, False, scale=scale,
        )  # fmt: skip
        return found[0], found[1]
    parts, sums = [], []
    for span, seen in zip(call.query_spans.slices(), call.key_spans.slices(), strict=True):
        scores = _scores(query[span], key[seen], call.is_causal, scale)
        sums.append(scores.logsumexp(-1))
        weights = (scores - sums[-1][..., None]).exp()
        parts.append(torch.einsum("hqk,khd->qhd", weights, _repeated(value[seen], query)).to(query.dtype))
    return torch.cat(parts), torch.cat(sums, 1)


def _attend_backward(states: Sequence[Tensor], call: Call, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the call's queries, and its part of those of its keys and values. `states`: queries, keys, values,
    the gradient of what was attended to, that itself, and its sums."""
    query, grad, attended = (states[place][call.queries] for place in (0, 3, 4))
    key, value = states[1][call.keys], states[2][call.keys]
    sums = states[5][:, call.queries].contiguous()
    if query.is_cuda:
        # Without dropout there is no random state to go back to.
        random_state = torch.zeros(2, dtype=torch.uint64, device=query.device)
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
            grad, query, key, value, attended, sums, call.query_spans.ends, call.key_spans.ends,
            call.query_spans.longest, call.key_spans.longest, 0.0, call.is_causal,
            random_state, torch.empty(0, device=query.device), scale=scale,
        )  # fmt: skip
        return found
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for span, seen in zip(call.query_spans.slices(), call.key_spans.slices(), strict=True):
        weights = (_scores(query[span], key[seen], call.is_causal, scale) - sums[:, span, None]).exp()
        by_weight = torch.einsum("qhd,khd->hqk", grad[span], _repeated(value[seen], query))
        by_score = weights * (by_weight - (grad[span] * attended[span]).sum(-1).t()[..., None]) * scale
        of_keys = torch.einsum("hqk,qhd->khd", by_score, query[span]), torch.einsum("hqk,qhd->khd", weights, grad[span])
        of_query = torch.einsum("hqk,khd->qhd", by_score, _repeated(key[seen], query))
        of_key, of_value = (part.view(len(part), key.shape[1], -1, part.shape[2]).sum(2) for part in of_keys)
        parts.append((of_query, of_key, of_value))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]


def _scores(query: Tensor, key: Tensor, is_causal: bool, scale: float) -> Tensor:
    """[l, H, D] and [k, heads, D] -> [H, l, k]."""
    scores = torch.einsum("qhd,khd->hqk", query, _repeated(key, query)) * scale
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return scores


def _repeated(states: Tensor, query: Tensor) -> Tensor:
    """Keys or values once per query head."""
    return states.repeat_interleave(query.shape[1] // states.shape[1], 1)
