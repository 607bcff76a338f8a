"""Two attentions of the same queries over different keys, made one by the logarithms of their sums."""

from __future__ import annotations

import torch
from torch import Tensor

from groupwise.update.kernels import has_triton

Pair = tuple[Tensor, Tensor]


def merge(parts: Pair, part_sums: Pair, attended: Tensor, sums: Tensor) -> None:
    """Write into `attended` [l, H, D] and `sums` [H, l] what both parts, of the same shapes, say together."""
    if attended.is_cuda and has_triton():
        from groupwise.update.kernels import merge as kernel

        kernel.merge(parts, part_sums, attended, sums)
        return
    merged = torch.logaddexp(*part_sums)
    first, second = ((of_part - merged).exp().t()[..., None] for of_part in part_sums)
    attended.copy_(parts[0] * first + parts[1] * second)
    sums.copy_(merged)
