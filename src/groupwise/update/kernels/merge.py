"""`groupwise.update.merge` in one pass."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TOKENS, _WARPS = 16, 4


def merge(parts: tuple[Tensor, Tensor], part_sums: tuple[Tensor, Tensor], attended: Tensor, sums: Tensor) -> None:
    num_tokens, heads, width = attended.shape
    _merge_parts[(triton.cdiv(num_tokens, _TOKENS), heads)](
        *(part.contiguous() for part in parts), *(of_part.contiguous() for of_part in part_sums), attended, sums,
        num_tokens, attended.stride(0), attended.stride(1), sums.stride(0),
        HEADS=heads, WIDTH=width, PADDED=triton.next_power_of_2(width), TOKENS=_TOKENS, num_warps=_WARPS,
    )  # fmt: skip


@triton.jit
def _merge_parts(
    first, second, first_sums, second_sums, attended, sums, num_tokens, token_stride, head_stride, sum_stride,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    head, column = tl.program_id(1).to(tl.int64), tl.arange(0, PADDED)
    inside = token < num_tokens
    first_sum = tl.load(first_sums + head * num_tokens + token, mask=inside, other=0.0)
    second_sum = tl.load(second_sums + head * num_tokens + token, mask=inside, other=0.0)
    higher = tl.maximum(first_sum, second_sum)
    total = higher + tl.log(tl.exp(first_sum - higher) + tl.exp(second_sum - higher))
    here = inside[:, None] & (column < WIDTH)[None]
    place = (token * HEADS + head)[:, None] * WIDTH + column[None]
    mixed = tl.load(first + place, mask=here, other=0.0).to(tl.float32) * tl.exp(first_sum - total)[:, None]
    mixed += tl.load(second + place, mask=here, other=0.0).to(tl.float32) * tl.exp(second_sum - total)[:, None]
    target = attended + token[:, None] * token_stride + head * head_stride + column[None]
    tl.store(target, mixed.to(attended.dtype.element_ty), mask=here)
    tl.store(sums + head * sum_stride + token, total, mask=inside)
