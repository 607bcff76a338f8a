"""Logits to one token per row, and what follows from it, in two launches without a word to the host.

The token is the one `groupwise.rollout.sampling.draw` takes for the same number: the first whose cumulative
probability exceeds it. Blocks of the vocabulary are summed first; then each row finds the block, and the token in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from groupwise.rollout.slots import Slots

LARGEST_BLOCK = 4096


def sample(slots: Slots, logits: Tensor) -> None:
    """One more token for every live row; rows that end are live no more."""
    rows, vocab_size = logits.shape
    block = min(LARGEST_BLOCK, max(16, int(triton.next_power_of_2(vocab_size))))
    blocks = triton.cdiv(vocab_size, block)
    tops, sums = torch.empty(2, rows, blocks, dtype=torch.float32, device=logits.device)
    _sum_blocks[(rows, blocks)](
        logits, slots.temperature, slots.live, tops, sums, vocab_size, logits.stride(0), BLOCK=block, num_warps=8
    )
    _choose[(rows,)](
        logits, slots.temperature, slots.limit, slots.is_eos, slots.numbers, slots.prompt_length, tops, sums,
        slots.live, slots.count, slots.token, slots.position, slots.tokens, slots.log_probs,
        vocab_size, logits.stride(0), blocks, slots.tokens.shape[1],
        BLOCK=block, BLOCKS=max(2, int(triton.next_power_of_2(blocks))), num_warps=8,
    )  # fmt: skip


@triton.jit
def _sharpness(temperature):
    """1 / temperature; greedy answers are judged at temperature 1."""
    heat = tl.load(temperature)
    return 1.0 / tl.where(heat > 0, heat, 1.0)


@triton.jit
def _sum_blocks(logits, temperature, live, tops, sums, vocab_size, stride, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(live + row) != 0:
        token = block * BLOCK + tl.arange(0, BLOCK)
        logit = tl.load(logits + row * stride + token, mask=token < vocab_size, other=-float("inf")).to(tl.float32)
        logit *= _sharpness(temperature)
        top = tl.max(logit, 0)
        mass = tl.where(logit > -float("inf"), tl.exp(logit - top), 0.0)
        tl.store(tops + row * tl.num_programs(1) + block, top)
        tl.store(sums + row * tl.num_programs(1) + block, tl.sum(mass, 0))


@triton.jit
def _choose(
    logits, temperature, limit, is_eos, numbers, prompt_length, tops, sums,
    live, counts, tokens_in, positions, tokens, log_probs,
    vocab_size, stride, num_blocks, capacity,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if tl.load(live + row) != 0:
        count = tl.load(counts + row)
        number = tl.load(numbers + row * capacity + count)
        block = tl.arange(0, BLOCKS)
        real = block < num_blocks
        top_of = tl.load(tops + row * num_blocks + block, mask=real, other=-float("inf"))
        top = tl.max(top_of, 0)
        share = tl.load(sums + row * num_blocks + block, mask=real, other=0.0)
        mass = tl.where(share > 0, share.to(tl.float64) * tl.exp(top_of - top).to(tl.float64), 0.0)
        total = tl.sum(mass, 0)
        target = number * total
        is_greedy = tl.load(temperature) == 0
        reached = tl.sum((real & (tl.cumsum(mass, 0) <= target)).to(tl.int32), 0)
        heaviest = tl.min(tl.where(real & (top_of == top), block, BLOCKS), 0)
        chosen = tl.where(is_greedy, heaviest, tl.minimum(reached, num_blocks - 1))
        before = tl.sum(tl.where(block < chosen, mass, 0.0), 0)

        place = tl.arange(0, BLOCK)
        inside = chosen * BLOCK + place < vocab_size
        source = logits + row * stride + chosen * BLOCK + place
        logit = tl.load(source, mask=inside, other=-float("inf")).to(tl.float32) * _sharpness(temperature)
        mass_of = tl.where(logit > -float("inf"), tl.exp(logit - top), 0.0).to(tl.float64)
        passed = tl.sum((before + tl.cumsum(mass_of, 0) <= target).to(tl.int32), 0)
        # Rounding may leave the number beyond the last token of the block: then it is that one.
        last = tl.max(tl.where(mass_of > 0, place, 0), 0)
        best = tl.min(tl.where(inside & (logit == top), place, BLOCK - 1), 0)
        found = tl.where(is_greedy, best, tl.minimum(passed, last))
        token = tl.minimum(chosen * BLOCK + found, vocab_size - 1)
        picked = tl.sum(tl.where(place == found, logit, 0.0), 0)
        log_prob = (picked - top).to(tl.float64) - tl.log(total)

        tl.store(tokens + row * capacity + count, token)
        tl.store(log_probs + row * capacity + count, log_prob)
        tl.store(tokens_in + row, token.to(tl.int64))
        tl.store(positions + row, tl.load(prompt_length + row) + count)
        tl.store(counts + row, count + 1)
        ends = (tl.load(is_eos + token) != 0) | (count + 1 >= tl.load(limit))
        tl.store(live + row, tl.where(ends, 0, 1))
