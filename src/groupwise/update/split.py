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
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from groupwise.update.long_stretches import LongCall
from groupwise.update.merge import merge
from groupwise.update.stretches import Call, Outcome, Spans, States, wide

_numbers = count()
_layouts: WeakValueDictionary[int, Layout] = WeakValueDictionary()
# Lengths of the row, the first ones seen, for which layers are compiled apart; all others share a form.
_OWN_FORMS = 2
_lengths_with_own_form: list[int] = []
# Head widths that the kernels take are multiples of this, up to the widest.
_GRAIN, WIDEST_HEAD = 8, 256


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
        """From the places of each prompt and of each answer, and the answers' prompts."""
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

    def with_cudnn(self, length: int) -> Layout:
        """Long stretches by cuDNN, in a row of this length."""
        prompts, across = (LongCall.of_call(call, length) for call in (self.prompts, self.across))
        return Layout(prompts, across, self.own)


class SplitGroups:
    """Called with a layer's queries, keys and values of the flat row; inside compiled layers an opaque call.

    is_dynamic: the layers are not compiled for this length but for any.
    """

    def __init__(self, layout: Layout, length: int, compiles: bool, checkpoints: bool) -> None:
        self.layout, self.compiles, self.checkpoints = layout, compiles, checkpoints
        self.is_dynamic = compiles and not _has_own_form(length)
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
        length: int,
        device: torch.device,
        *,
        compiles: bool,
        checkpoints: bool,
        has_cudnn: bool = False,
    ) -> SplitGroups:
        """From the places of each prompt and of each answer, and the answers' prompts."""
        layout = Layout.build(prompts, answers, prompt_of, device)
        return cls(layout.with_cudnn(length) if has_cudnn else layout, length, compiles, checkpoints)

    def __call__(self, _layer: int | None, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        width = query.shape[-1]
        scale = width**-0.5 if scale is None else scale
        if width % _GRAIN:
            # Columns of zeros change no score and no sum.
            query, key, value = (pad(states, (0, -width % _GRAIN)) for states in (query, key, value))
        attended, _ = _attend_groups(query, key, value, self.handle, scale)
        result: Tensor = attended[..., :width].transpose(1, 2)
        return result


def _has_own_form(length: int) -> bool:
    if length not in _lengths_with_own_form and len(_lengths_with_own_form) < _OWN_FORMS:
        _lengths_with_own_form.append(length)
    return length in _lengths_with_own_form


@torch.library.custom_op("groupwise::attend_groups", mutates_args=())
def _attend_groups(query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attended values [1, L, H, D] and the logarithm of each token's sum [H, L]; 0 past the last answer."""
    layout, row = _layouts[int(handle)], _flat(query, key, value)
    attended = row[0].new_empty(row[0].shape)
    sums = torch.empty(attended.shape[1], len(attended), dtype=wide(query), device=query.device)
    prompts, answers = layout.prompts.queries, layout.own.queries
    attended[prompts], sums[:, prompts] = layout.prompts.attend(row, scale)
    if layout.own.query_spans.total:
        (across, across_sums), (own, own_sums) = (call.attend(row, scale) for call in (layout.across, layout.own))
        merge((across, own), (across_sums, own_sums), attended[answers], sums[:, answers])
    if answers.stop < len(attended):
        attended[answers.stop :] = 0
        sums[:, answers.stop :] = 0
    return attended[None], sums


@_attend_groups.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    rows, heads, length, width = query.shape
    return query.new_empty(rows, length, heads, width), query.new_empty(heads, length, dtype=wide(query))


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
    layout, row = _layouts[int(handle)], _flat(query, key, value)
    outcome = Outcome(grad[0], attended[0], sums)
    prompts, answers = layout.prompts.queries, layout.own.queries
    grads = [states.new_empty(states.shape) for states in row]
    of_prompts = layout.prompts.attend_backward(row, outcome, scale)
    if layout.own.query_spans.total:
        across, own = (call.attend_backward(row, outcome, scale) for call in (layout.across, layout.own))
        grads[0][prompts] = of_prompts[0]
        torch.add(across[0], own[0], out=grads[0][answers])
        for place in (1, 2):
            torch.add(of_prompts[place], across[place], out=grads[place][prompts])
            grads[place][answers] = own[place]
    else:
        for of_row, found in zip(grads, of_prompts, strict=True):
            of_row[prompts] = found
    if answers.stop < len(grad[0]):
        for of_row in grads:
            of_row[answers.stop :] = 0
    return grads[0][None], grads[1][None], grads[2][None]


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


def _flat(query: Tensor, key: Tensor, value: Tensor) -> States:
    """[1, heads, L, D] -> [L, heads, D], the numbers of a head side by side."""

    def flat(states: Tensor) -> Tensor:
        turned = states[0].transpose(0, 1)
        return turned if turned.stride(-1) == 1 else turned.contiguous()

    return flat(query), flat(key), flat(value)
