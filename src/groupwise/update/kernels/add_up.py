"""Gradients of lower precision added to float32 ones, all parameters in one launch.

Torch has no such operation over lists of tensors, and a launch per parameter takes several times as long as the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _WARPS = 8192, 8
_ALIGNMENT = 16


def applies(sums: Sequence[Tensor], grads: Sequence[Tensor]) -> bool:
    """Sums in float32 and gradients in bfloat16, all in one piece on one GPU, as they lie when torch makes them."""
    device = grads[0].device
    is_known = device.type == "cuda" and all(grad.dtype == torch.bfloat16 for grad in grads)
    return is_known and all(
        tensor.device == device and tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0
        for tensor in (*sums, *grads)
    )


def add_up(sums: Sequence[Tensor], grads: Sequence[Tensor], *, is_first: bool) -> None:
    """sums += grads; where `is_first`, sums = grads."""
    pieces, sizes = _pieces(tuple(grad.numel() for grad in grads), grads[0].device)
    addresses = torch.tensor([tensor.data_ptr() for tensor in (*grads, *sums)]).pin_memory()
    _add_up[(len(pieces),)](
        addresses.to(grads[0].device, non_blocking=True), pieces, sizes, len(grads),
        IS_FIRST=is_first, BLOCK=_BLOCK, num_warps=_WARPS,
    )  # fmt: skip


@lru_cache(maxsize=8)
def _pieces(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Which tensor each program works on and where in it, [programs, 2]; and the sizes."""
    pieces = [(number, start) for number, size in enumerate(sizes) for start in range(0, size, _BLOCK)]
    return torch.tensor(pieces, device=device), torch.tensor(sizes, device=device)


@triton.jit
def _add_up(addresses, pieces, sizes, count, IS_FIRST: tl.constexpr, BLOCK: tl.constexpr):
    number = tl.load(pieces + tl.program_id(0) * 2)
    start = tl.load(pieces + tl.program_id(0) * 2 + 1)
    size = tl.load(sizes + number)
    # Tensors begin at multiples of 16 bytes: said aloud, so that accesses are as wide.
    grad = tl.multiple_of(tl.load(addresses + number).to(tl.pointer_type(tl.bfloat16)), 16)
    total = tl.multiple_of(tl.load(addresses + count + number).to(tl.pointer_type(tl.float32)), 16)
    place = tl.multiple_of(start, BLOCK) + tl.arange(0, BLOCK)
    if start + BLOCK <= size:
        value = tl.load(grad + place).to(tl.float32)
        if not IS_FIRST:
            value += tl.load(total + place)
        tl.store(total + place, value)
    else:
        inside = place < size
        value = tl.load(grad + place, mask=inside).to(tl.float32)
        if not IS_FIRST:
            value += tl.load(total + place, mask=inside)
        tl.store(total + place, value, mask=inside)
