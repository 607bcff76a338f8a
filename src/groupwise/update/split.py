"""Attention of packed groups on a GPU's own attention kernels: three plain calls instead of one with a mask.

    [prompt 1][answer 1][answer 2]...[prompt 2][answer 1]...

A prompt attends to itself, its answers attend to the whole of it, and every answer to itself; none of the three needs
a mask. What an answer's token saw in its prompt and in its answer is merged by the logarithms of their sums. Backward,
each call is given the merged output and the merged sum: with them its gradient is its part of the whole (as in ring
attention, https://arxiv.org/abs/2310.01889).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from groupwise.types import Bool, Int

_numbers = count()
_layouts: WeakValueDictionary[int, Layout] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class Layout:
    """Where things lie in the flat row.

    groups: the places of each prompt, and of all its answers together. own: the places of every answer's tokens, padded
    with its first. real: which of them are tokens. places, home: of every answer token its place in the row, and in
    `own` laid flat.
    """

    groups: list[tuple[slice, slice]]
    own: Int[Tensor, "B t"]
    real: Bool[Tensor, "B t"]
    places: Int[Tensor, "M"]
    home: Int[Tensor, "M"]

    @classmethod
    def build(
        cls, prompts: Sequence[range], answers: Sequence[range], prompt_of: Sequence[int], device: torch.device
    ) -> Layout:
        ends = [prompt.stop for prompt in prompts]
        for places, prompt in zip(answers, prompt_of, strict=True):
            ends[prompt] = max(ends[prompt], places.stop)
        groups = [(slice(p.start, p.stop), slice(p.stop, end)) for p, end in zip(prompts, ends, strict=True)]
        lengths = torch.tensor([len(places) for places in answers], dtype=torch.long)
        firsts = torch.tensor([places.start for places in answers], dtype=torch.long)
        columns = torch.arange(int(lengths.max()) if len(answers) else 0)
        real = columns < lengths[:, None]
        own = torch.where(real, firsts[:, None] + columns, firsts[:, None])
        home = real.flatten().nonzero()[:, 0]
        return cls(groups, *(t.to(device) for t in (own, real, own.flatten()[home], home)))


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
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        attended, _ = _attend_groups(query, key, value, self.handle, scale)
        result: Tensor = attended.transpose(1, 2)
        return result


@torch.library.custom_op("groupwise::attend_groups", mutates_args=())
def _attend_groups(query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attended values [1, L, H, D] and the logarithm of each token's sum [1, L, H, 1], in float32."""
    layout = _layouts[int(handle)]
    _, heads, length, width = query.shape
    attended = query.new_zeros(1, length, heads, width)
    sums = torch.zeros(1, length, heads, 1, dtype=_wide(query), device=query.device)
    for prompt, answers in layout.groups:
        own, whole = key[:, :, prompt], value[:, :, prompt]
        for places, is_causal in ((prompt, True), (answers, False)):
            if places.start < places.stop:
                part, part_sums = _attend(query[:, :, places], own, whole, is_causal, scale)
                attended[:, places], sums[:, places] = part.transpose(1, 2), part_sums.transpose(1, 2)
    if layout.places.numel():
        rows = [_rows(states, layout.own) for states in (query, key, value)]
        part, part_sums = _attend(rows[0], rows[1], rows[2], True, scale)
        part, part_sums = _tokens(part, layout.home), _tokens(part_sums, layout.home)
        prompt_sums = sums[0, layout.places]
        merged = torch.logaddexp(prompt_sums, part_sums)
        from_prompt = attended[0, layout.places] * (prompt_sums - merged).exp()
        mixed = from_prompt + part * (part_sums - merged).exp()
        attended[0].index_copy_(0, layout.places, mixed.to(attended.dtype))
        sums[0].index_copy_(0, layout.places, merged)
    return attended, sums


@_attend_groups.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, handle: Tensor, scale: float) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    rows, heads, length, width = query.shape
    sums = torch.empty(rows, length, heads, 1, dtype=_wide(query), device=query.device)
    return query.new_empty(rows, length, heads, width), sums


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
    grads = tuple(s.new_zeros(1, s.shape[2], s.shape[1], s.shape[3]) for s in (query, key, value))
    by_head = [states.transpose(1, 2) for states in (grad, attended, sums)]
    for prompt, answers in layout.groups:
        for places, is_causal in ((prompt, True), (answers, False)):
            if places.start < places.stop:
                of_places = [states[:, :, places] for states in (query, *by_head)]
                parts = _attend_backward(of_places, key[:, :, prompt], value[:, :, prompt], is_causal, scale)
                for whole, part, where in zip(grads, parts, (places, prompt, prompt), strict=True):
                    whole[:, where] += part.transpose(1, 2)
    if layout.places.numel():
        q, k, v, d, a, s = (_rows(states, layout.own) for states in (query, key, value, *by_head))
        # Padding repeats a token, whose gradient must not count twice.
        d = d * layout.real[:, None, :, None]
        for whole, part in zip(grads, _attend_backward([q, d, a, s], k, v, True, scale), strict=True):
            whole[0].index_add_(0, layout.places, _tokens(part, layout.home))
    return grads[0], grads[1], grads[2]


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


def _rows(states: Tensor, own: Int[Tensor, "B t"]) -> Tensor:
    """[1, H, L, d] -> the answers' tokens, [B, H, t, d]."""
    rows, width = own.shape
    flat = states[0].transpose(0, 1).index_select(0, own.flatten())
    return flat.view(rows, width, *flat.shape[1:]).transpose(1, 2)


def _tokens(rows: Tensor, home: Int[Tensor, "M"]) -> Tensor:
    """[B, H, t, d] -> the tokens that are no padding, [M, H, d]."""
    return rows.transpose(1, 2).flatten(0, 1).index_select(0, home)


def _attend(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attended values [b, H, t, D] and the logarithms of the sums [b, H, t, 1]."""
    if query.is_cuda:
        found = torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, value, None, True, 0.0, is_causal, False, scale=scale
        )
        return found[0], found[1].view(*query.shape[:3], 1)
    scores = _scores(query, key, is_causal, scale)
    sums = scores.logsumexp(-1, keepdim=True)
    return ((scores - sums).exp() @ _repeated(value, query)).to(query.dtype), sums


def _attend_backward(
    of_queries: Sequence[Tensor], key: Tensor, value: Tensor, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the queries, and this call's part of those of keys and values. `of_queries`: the queries, the
    gradient of what they attended to, that itself, and its sums."""
    query, grad, attended, sums = of_queries
    if query.is_cuda:
        seed = torch.zeros((), dtype=torch.long, device=query.device)
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            grad, query, key, value, attended, sums, seed, seed, None, None, None,
            query.shape[2], key.shape[2], 0.0, is_causal, scale=scale,
        )  # fmt: skip
        return found
    weights = (_scores(query, key, is_causal, scale) - sums).exp()
    grad_weights = grad @ _repeated(value, query).transpose(-1, -2)
    grad_scores = weights * (grad_weights - (grad * attended).sum(-1, keepdim=True)) * scale
    grad_query = grad_scores @ _repeated(key, query)
    grad_key, grad_value = (
        part.view(len(part), key.shape[1], -1, *part.shape[2:]).sum(2)
        for part in (grad_scores.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ grad)
    )
    return grad_query, grad_key, grad_value


def _scores(query: Tensor, key: Tensor, is_causal: bool, scale: float) -> Tensor:
    scores = query @ _repeated(key, query).transpose(-1, -2) * scale
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    return scores


def _repeated(states: Tensor, query: Tensor) -> Tensor:
    """Keys or values once per query head."""
    return states.repeat_interleave(query.shape[1] // states.shape[1], 1)
