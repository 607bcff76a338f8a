"""One token of attention for every row: over its prompt, whose keys and values are read once for all rows that share
it, and over its own answer; then the parts are merged.

A program takes a stretch of keys and a small tile of queries. Over a prompt the tile holds the queries of all heads
that share the keys, of all rows that share the prompt; over an answer those of one row. Every program keeps the
largest score, the sum of exponentials and the weighted values of its stretch, and `_merge` joins them, as in
FlashDecoding (https://arxiv.org/abs/2311.01282) and Hydragen (https://arxiv.org/abs/2402.05099).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from groupwise.rollout.slots import Slots

BLOCK, WARPS, STAGES = 64, 4, 3
_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
# Queries in a tile; 16 is the least a tensor core takes.
LEAST_TILE, LARGEST_TILE = 16, 32


def attend(slots: Slots, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """Write the new key and value of every row and attend: [R, H, 1, D] like `query`."""
    rows, heads, _, width = query.shape
    kv_heads = key.shape[1]
    shared = heads // kv_heads
    members = slots.members.shape[1]
    # Large enough for one row's queries, however many heads share the keys.
    tile = max(_power(shared), min(LARGEST_TILE, max(LEAST_TILE, int(triton.next_power_of_2(members * shared)))))
    chunks = triton.cdiv(members, tile // shared)
    # Tiles of members keep the card busy as stretches of keys do.
    prompt_splits = max(1, slots.prompt_splits // chunks)
    splits = prompt_splits + slots.own_splits
    sums = torch.empty(rows, heads, splits, width, dtype=torch.float32, device=query.device)
    marks = torch.empty(rows, heads, splits, 2, dtype=torch.float32, device=query.device)
    prompt_programs = slots.grid_slots * chunks * prompt_splits
    _attend_partly[(prompt_programs + rows * slots.own_splits, kv_heads)](
        query, key, value, slots.addresses,
        layer * slots.prompt_keys.stride(0), layer * slots.own_keys.stride(0), slots.slot_start, slots.slot_length,
        slots.members, slots.count, slots.live, sums, marks, scale,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        slots.own_keys.shape[2], prompt_programs, members,
        CHUNKS=chunks, PROMPT_SPLITS=prompt_splits, OWN_SPLITS=slots.own_splits, KV_HEADS=kv_heads,
        SHARED=shared, TILE=tile, WIDTH=width, PADDED=_power(width), BLOCK=BLOCK,
        TYPE=_TYPES[slots.own_keys.dtype], PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        num_warps=WARPS, num_stages=STAGES if query.element_size() == 2 else 1,
    )  # fmt: skip
    attended = torch.empty(rows, heads, 1, width, dtype=query.dtype, device=query.device)
    _merge[(rows, heads)](
        sums, marks, attended, SPLITS=splits, SPLITS_PADDED=_power(splits), WIDTH=width, PADDED=_power(width),
        num_warps=1,
    )  # fmt: skip
    return attended


def _power(number: int) -> int:
    return max(16, int(triton.next_power_of_2(number))) if number > 1 else 1


@triton.jit
def _layer_at(address, offset, TYPE: tl.constexpr):
    """Where a layer begins in a store: a multiple of 16 bytes, said aloud so that accesses are as wide."""
    return tl.multiple_of(tl.load(address).to(tl.pointer_type(TYPE)) + offset, 16)


@triton.jit
def _attend_partly(
    query, new_key, new_value, addresses,
    prompt_layer, own_layer, slot_start, slot_length,
    members, count, live, sums, marks, scale,
    query_row, query_head, key_row, key_head, value_row, value_head,
    own_capacity, prompt_programs, num_members,
    CHUNKS: tl.constexpr, PROMPT_SPLITS: tl.constexpr, OWN_SPLITS: tl.constexpr, KV_HEADS: tl.constexpr,
    SHARED: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
    TYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    program, head = tl.program_id(0), tl.program_id(1)
    place, column = tl.arange(0, TILE), tl.arange(0, PADDED)
    in_width = column < WIDTH
    token_stride = KV_HEADS * WIDTH
    is_prompt = program < prompt_programs
    if is_prompt:
        split = program % PROMPT_SPLITS
        item = program // PROMPT_SPLITS
        slot = item // CHUNKS
        member = (item % CHUNKS) * (TILE // SHARED) + place // SHARED
        length = tl.load(slot_length + slot)
        last_member = tl.where(length > 0, num_members, 0)
        listed = (member < last_member) & (place < TILE // SHARED * SHARED)
        row = tl.load(members + slot * num_members + member, mask=listed, other=-1).to(tl.int64)
        keys = _layer_at(addresses, prompt_layer, TYPE)
        values = _layer_at(addresses + 1, prompt_layer, TYPE)
        base = tl.load(slot_start + slot).to(tl.int64)
        stretch = tl.cdiv(tl.cdiv(length, PROMPT_SPLITS), BLOCK) * BLOCK
        part_of_row = split
    else:
        own = program - prompt_programs
        split = own % OWN_SPLITS
        owner = (own // OWN_SPLITS).to(tl.int64)
        is_live = tl.load(live + owner) != 0
        # The newest token is not in the cache yet: it comes from registers.
        length = tl.where(is_live, tl.maximum(tl.load(count + owner) - 1, 0), 0)
        row = tl.where((place < SHARED) & is_live, owner, -1)
        keys = _layer_at(addresses + 2, own_layer, TYPE)
        values = _layer_at(addresses + 3, own_layer, TYPE)
        base = owner * own_capacity
        stretch = tl.cdiv(tl.cdiv(length, OWN_SPLITS), BLOCK) * BLOCK
        part_of_row = PROMPT_SPLITS + split
    row_is_real = row >= 0
    head_of = head * SHARED + place % SHARED
    queries = tl.load(
        query + row[:, None] * query_row + head_of[:, None] * query_head + column[None],
        mask=row_is_real[:, None] & in_width[None],
        other=0.0,
    )
    largest = tl.full((TILE,), -1e30, tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    weighted = tl.zeros((TILE, PADDED), tl.float32)
    if not is_prompt:
        if split == 0:
            owner = (program - prompt_programs) // OWN_SPLITS
            k = tl.load(new_key + owner * key_row + head * key_head + column, mask=in_width, other=0.0)
            v = tl.load(new_value + owner * value_row + head * value_head + column, mask=in_width, other=0.0)
            place_in_cache = (base + length) * token_stride + head * WIDTH + column
            tl.store(keys + place_in_cache, k, mask=in_width)
            tl.store(values + place_in_cache, v, mask=in_width)
            largest = tl.sum(queries.to(tl.float32) * k[None].to(tl.float32), 1) * scale
            total += 1.0
            weighted += v[None].to(tl.float32)
    first = split * stretch
    last = tl.minimum(first + stretch, length)
    keys += base * token_stride + head * WIDTH
    values += base * token_stride + head * WIDTH
    for start in range(first, last, BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = token < last
        where = token[:, None] * token_stride + column[None]
        seen = inside[:, None] & in_width[None]
        k = tl.load(keys + where, mask=seen, other=0.0)
        scores = tl.dot(queries, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(inside[None], scores, -1e30)
        higher = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        shrink = tl.exp(largest - higher)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(values + where, mask=seen, other=0.0)
        weighted = weighted * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        largest = higher
    part = (row * (KV_HEADS * SHARED) + head_of) * (PROMPT_SPLITS + OWN_SPLITS) + part_of_row
    tl.store(sums + part[:, None] * WIDTH + column[None], weighted, mask=row_is_real[:, None] & in_width[None])
    tl.store(marks + part * 2, largest, mask=row_is_real)
    tl.store(marks + part * 2 + 1, total, mask=row_is_real)


@triton.jit
def _merge(
    sums, marks, attended,
    SPLITS: tl.constexpr, SPLITS_PADDED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    split, column = tl.arange(0, SPLITS_PADDED), tl.arange(0, PADDED)
    real, in_width = split < SPLITS, column < WIDTH
    largest = tl.load(marks + (part * SPLITS + split) * 2, mask=real, other=-1e30)
    total = tl.load(marks + (part * SPLITS + split) * 2 + 1, mask=real, other=0.0)
    weight = tl.exp(largest - tl.max(largest, 0))
    weighted = tl.load(
        sums + (part * SPLITS + split[:, None]) * WIDTH + column[None],
        mask=real[:, None] & in_width[None],
        other=0.0,
    )
    result = tl.sum(weighted * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(attended + part * WIDTH + column, result.to(attended.dtype.element_ty), mask=in_width)
