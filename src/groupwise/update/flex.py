"""Attention of packed groups in one kernel: flex attention with a mask made from where prompts and answers lie.

    [prompt 1][prompt 2]...[answer 1 to 1][answer 2 to 1]...[answer 1 to 2]...

A token sees what stands before it in its own prompt and, in an answer, what stands before it in that answer. The mask
is never laid out: pairs of blocks are empty, full, or looked at token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from groupwise.types import Bool, Int

BLOCK = 128
# The flat row is padded to a multiple of this many tokens, so that few lengths are ever compiled.
GRAIN = 1024
_NO_ANSWER = -1


class FlexGroups:
    """Called with a layer's queries, keys and values of the flat row. compiles: inside layers that are compiled."""

    def __init__(self, mask: Any, compiles: bool, checkpoints: bool) -> None:
        self.block_mask, self.compiles, self.checkpoints = mask, compiles, checkpoints

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
    ) -> FlexGroups:
        """From the places of each prompt and of each answer, and the answers' prompts."""
        prompt_at, answer_at = owners(prompts, answers, prompt_of, length)
        return cls(block_mask(prompt_at.to(device), answer_at.to(device)), compiles, checkpoints)

    def __call__(self, _layer: int | None, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        attention: Any = flex_attention if self.compiles else _compiled_flex_attention()
        is_grouped = query.shape[1] != key.shape[1]
        attended: Tensor = attention(query, key, value, block_mask=self.block_mask, scale=scale, enable_gqa=is_grouped)
        return attended


def padded_length(num_tokens: int) -> int:
    return -(-num_tokens // GRAIN) * GRAIN


def owners(
    prompts: Sequence[range], answers: Sequence[range], prompt_of: Sequence[int], length: int
) -> tuple[Int[Tensor, "L"], Int[Tensor, "L"]]:
    """Of every place in the flat row its prompt and its answer (-1: none); what is past the end is a prompt apart."""
    stretches = [(p.start, len(p), number, _NO_ANSWER) for number, p in enumerate(prompts)]
    stretches += [(a.start, len(a), prompt_of[number], number) for number, a in enumerate(answers)]
    end = sum(size for _, size, _, _ in stretches)
    stretches.append((end, length - end, len(prompts), _NO_ANSWER))
    _, lengths, prompt_at, answer_at = torch.tensor(sorted(stretches)).T
    return torch.repeat_interleave(prompt_at, lengths), torch.repeat_interleave(answer_at, lengths)


def block_mask(prompt_of: Int[Tensor, "L"], answer_of: Int[Tensor, "L"]) -> Any:
    """The mask of flex attention: which blocks to skip, to take whole, or to look at."""

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same_answer = (answer_of[key] == _NO_ANSWER) | (answer_of[key] == answer_of[query])
        return (query >= key) & (prompt_of[query] == prompt_of[key]) & same_answer

    partial, full = block_pairs(prompt_of, answer_of)
    return BlockMask.from_kv_blocks(
        *_listed(partial), *_listed(full), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(len(prompt_of),) * 2
    )


def block_pairs(
    prompt_of: Int[Tensor, "L"], answer_of: Int[Tensor, "L"]
) -> tuple[Bool[Tensor, "Q K"], Bool[Tensor, "Q K"]]:
    """Pairs of a block of queries and a block of keys that are to be looked at, and that see each other entirely.

    Prompts and answers are numbered in the order they lie in, so a block holds a range of either.
    """
    prompts, answers = prompt_of.view(-1, BLOCK), answer_of.view(-1, BLOCK)
    first_prompt, last_prompt = prompts.min(1).values, prompts.max(1).values
    in_answer = answers != _NO_ANSWER
    first_answer = torch.where(in_answer, answers, len(prompt_of)).min(1).values
    last_answer = answers.max(1).values
    has_prompt, is_prompt = (~in_answer).any(1), (~in_answer).all(1)
    number = torch.arange(len(prompts), device=prompts.device)

    def meet(first: Tensor, last: Tensor) -> Tensor:
        return (first[:, None] <= last[None]) & (last[:, None] >= first[None])

    reaches = number[:, None] >= number[None]
    may_see = reaches & meet(first_prompt, last_prompt) & (has_prompt[None] | meet(first_answer, last_answer))
    one_prompt = (first_prompt == last_prompt)[:, None] & (first_prompt[:, None] == prompts.min(1).values[None])
    one_prompt &= (first_prompt == last_prompt)[None]
    one_answer = (in_answer.all(1) & (first_answer == last_answer))[:, None] & in_answer.all(1)[None]
    one_answer &= (first_answer[:, None] == first_answer[None]) & (first_answer == last_answer)[None]
    full = (number[:, None] > number[None]) & one_prompt & (is_prompt[None] | one_answer)
    return may_see & ~full, full


def _listed(pairs: Bool[Tensor, "Q K"]) -> tuple[Tensor, Tensor]:
    """How many keys' blocks each block of queries has, and which; [batch, head, ...] as flex attention takes them."""
    counts = pairs.sum(1).int()
    order = pairs.int().argsort(dim=1, descending=True, stable=True).int()
    return counts[None, None], order[None, None]


@lru_cache(maxsize=1)
def _compiled_flex_attention() -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    return compiled
