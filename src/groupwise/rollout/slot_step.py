"""One decoding step over the slots: a token for every live row, in torch, and in Triton on a GPU.

The torch forms are the oracles of the kernels, and what runs where Triton is missing.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from groupwise.rollout.sampling import CHUNK_ELEMENTS, draw, kept
from groupwise.rollout.slots import Slots
from groupwise.types import Sampling


class SlotAttention:
    """Attention of one new token per row over its prompt and its answer so far. Where layers are compiled it is opaque:
    the compiler does not look into it."""

    def __init__(self, slots: Slots, compiles: bool = False) -> None:
        self.slots = slots
        self.compiles = self.is_opaque = compiles

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        fused = _kernels("attention", query.dtype, query)
        form = fused.attend if fused else attend
        attended: Tensor = form(self.slots, layer, query, key, value, scale)
        return attended


def attend(slots: Slots, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Write the new key and value of every row and attend: [R, H, 1, D] like `query`. Float32 or better."""
    rows = torch.arange(len(query), device=query.device)
    own = (slots.count.long() - 1).clamp_min(0)
    slots.own_keys[layer, rows, own] = key[:, :, 0]
    slots.own_values[layer, rows, own] = value[:, :, 0]
    places, is_prompt = _prompt_places(slots)
    keys, values = (
        torch.cat([pool[layer][places], answers[layer]], 1)
        for pool, answers in ((slots.prompt_keys, slots.own_keys), (slots.prompt_values, slots.own_values))
    )
    is_own = torch.arange(slots.shape.capacity, device=query.device) <= own[:, None]
    visible = torch.cat([is_prompt, is_own], 1)
    shared = query.shape[1] // key.shape[1]
    wide = torch.promote_types(query.dtype, torch.float32)
    queries = query[:, :, 0].view(len(query), key.shape[1], shared, -1).to(wide)
    scores = torch.einsum("rhgd,rthd->rhgt", queries, keys.to(wide)) * scale
    weights = scores.masked_fill(~visible[:, None, None], float("-inf")).softmax(-1)
    attended = torch.einsum("rhgt,rthd->rhgd", weights, values.to(wide))
    return attended.reshape(query.shape).to(query.dtype)


def _prompt_places(slots: Slots) -> tuple[Tensor, Tensor]:
    """[R, longest]: where each row's prompt tokens lie in the pool, and which are real."""
    slot_of = torch.full((slots.shape.rows + 1,), -1, device=slots.members.device)
    numbers = torch.arange(len(slots.members), device=slots.members.device)[:, None].expand_as(slots.members)
    slot_of[slots.members.long()] = numbers
    slot_of = slot_of[:-1]
    # A row that has no prompt any more remembers how long the last one was.
    lengths = slots.prompt_length.where(slot_of >= 0, 0)
    columns = torch.arange(int(lengths.max()), device=lengths.device)
    real = columns < lengths[:, None]
    return torch.where(real, slots.slot_start.long()[slot_of][:, None] + columns, 0), real


def sample(slots: Slots, logits: Tensor, sampling: Sampling) -> None:
    """One more token for every live row; rows that end are live no more."""
    fused = _kernels("sampling", logits.dtype, logits)
    if fused:
        fused.sample(slots, keep_likely(logits, sampling))
    else:
        draw_live(slots, logits, sampling)


def draw_live(slots: Slots, logits: Tensor, sampling: Sampling) -> None:
    """`sample` in torch."""
    live = slots.live.nonzero()[:, 0]
    count = slots.count[live].long()
    tokens, log_probs = draw(logits[live], slots.numbers[live, count], sampling)
    slots.tokens[live, count] = tokens.int()
    slots.log_probs[live, count] = log_probs
    slots.token[live] = tokens
    slots.position[live] = slots.prompt_length[live] + count
    slots.count[live] += 1
    slots.live[live] = (~(slots.is_eos[tokens] | (count + 1 >= slots.limit))).int()


def attends_fused(slots: Slots) -> bool:
    """Whether attention is a kernel, which looks up where keys and values lie."""
    return _kernels("attention", slots.dimensions.dtype, slots.live) is not None


def samples_fused(slots: Slots) -> bool:
    """Whether `sample` is a kernel, which reads the temperature from the slots."""
    return _kernels("sampling", slots.dimensions.dtype, slots.live) is not None


def keep_likely(logits: Tensor, sampling: Sampling) -> Tensor:
    """The logits, minus infinity wherever top_k and top_p cut off."""
    if sampling.temperature == 0 or not (sampling.top_k or sampling.top_p < 1):
        return logits
    # In parts: sorted in float64, the whole of a large vocabulary would take more memory than the model.
    parts = []
    for part in torch.split(logits, max(1, CHUNK_ELEMENTS // logits.shape[1])):
        probs = (part.double() / sampling.temperature).softmax(-1)
        parts.append(part.masked_fill(~kept(probs, sampling.top_p, sampling.top_k), float("-inf")))
    return torch.cat(parts)


def _kernels(name: str, dtype: torch.dtype, like: Tensor) -> Any:
    """The kernels where they know the model's precision, on a GPU with Triton."""
    if dtype == torch.float64 or not like.is_cuda or not _has_triton():
        return None
    return import_module(f"groupwise.rollout.kernels.{name}")


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return find_spec("triton") is not None
