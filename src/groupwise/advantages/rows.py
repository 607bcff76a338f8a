"""Between tokens and answers: rewards [B, T] to scores [B], advantages [B] to [B, T]. The rules of both ends.

A score is the plain sum of a row's rewards, masked positions included (verl), taken in float32 or better. A
mask says which tokens count: whatever is not zero counts, and a position that does not is exactly 0 in the
result. The result has the promoted dtype of rewards and mask (verl); where that is not floating, torch's
default float dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groupwise.advantages import kernels
from groupwise.errors import BadValueError
from groupwise.types import Bool, Float64, Int, Shaped

_TOKENS_IN_A_STEP = 1 << 18
_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def sum_rewards(rewards: Shaped[Tensor, "B R"]) -> Float64[Tensor, "B"]:
    """The score of each answer. Infinite scores become NaN: neither can be compared with anything."""
    fused = kernels.sum_rewards(rewards)
    if fused is not None:
        return fused
    return as_scores(rewards.sum(dim=1, dtype=_accumulator(rewards.dtype)))


def as_scores(scores: Shaped[Tensor, "B"]) -> Float64[Tensor, "B"]:
    scores = scores.double()
    return torch.where(scores.isfinite(), scores, torch.nan)


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    if dtype == torch.float64:
        return torch.float64
    return torch.float32 if dtype.is_floating_point else torch.int64


def spread_over_tokens(
    values: Float64[Tensor, "B"], mask: Shaped[Tensor, "B T"], dtype: torch.dtype
) -> Shaped[Tensor, "B T"]:
    """Each answer's value at each of its response tokens, exactly 0 elsewhere."""
    fused = kernels.spread_over_tokens(values, mask, dtype)
    if fused is not None:
        return fused
    return only_counted(values.to(dtype)[:, None], mask)


def only_counted(values: Shaped[Tensor, "B #T"], mask: Shaped[Tensor, "B T"]) -> Shaped[Tensor, "B T"]:
    """The values at the positions that count, exactly 0 elsewhere, whatever stands there.

    Floats are multiplied by 0 or 1 as integers of the same width: exact, deaf to NaN, and the one form that runs at the
    speed of memory on a CPU.
    """
    if not values.dtype.is_floating_point:
        return torch.where(as_mask(mask), values, 0)
    words = values.view(_WORDS[values.dtype.itemsize])
    counted = empty(mask.shape, words.dtype, words.device).copy_(as_mask(mask).view(torch.uint8))
    return counted.mul_(words).view(values.dtype)


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Shaped[Tensor, "..."]:
    """Fresh memory. On a CPU it is numpy's, which asks the kernel for huge pages: with small ones, the first touch of
    every page costs more than all the arithmetic."""
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(shape, f"i{dtype.itemsize}")).view(dtype)


def rows_in_a_step(mask: Shaped[Tensor, "B T"]) -> int:
    """So few on a CPU that the float64 temporaries of one step reuse the memory of the last; on a GPU all of them."""
    return max(1, len(mask) if mask.is_cuda else _TOKENS_IN_A_STEP // max(mask.shape[1], 1))


def rows_at_a_time(mask: Shaped[Tensor, "B T"], at_least: int = 1) -> Iterator[slice]:
    """The rows of the batch, a slice for every step."""
    step = max(at_least, rows_in_a_step(mask))
    for start in range(0, len(mask), step):
        yield slice(start, start + step)


def as_mask(mask: Shaped[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    return mask.to(torch.bool)


def count_tokens(mask: Shaped[Tensor, "B T"]) -> Int[Tensor, "B"]:
    return as_mask(mask).sum(dim=1)


def result_dtype(*tensors: Tensor) -> torch.dtype:
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def check_rows(rewards: Any, mask: Any) -> None:
    """Rewards [B, *] and mask [B, T], or an error that says what is wrong. The two widths may differ (verl)."""
    for name, tensor in {"token_level_rewards": rewards, "response_mask": mask}.items():
        if not isinstance(tensor, Tensor):
            raise BadValueError(
                f"{name} is a {type(tensor).__name__}; it must be a torch tensor, [answers, tokens] "
                "(torch.as_tensor makes one)"
            )
        if tensor.ndim != 2 or tensor.dtype.is_complex:
            raise BadValueError(
                f"{name} has shape {tuple(tensor.shape)} and dtype {tensor.dtype}; "
                "it must be real and two-dimensional, [answers, tokens]"
            )
    if len(mask) != len(rewards) or mask.device != rewards.device:
        raise BadValueError(
            f"response_mask has {len(mask)} rows on {mask.device} but token_level_rewards has {len(rewards)} "
            f"on {rewards.device}; both must describe the same answers on one device"
        )


def check_tokens(rewards: Tensor, mask: Tensor, **others: Tensor | None) -> None:
    """All of them [B, T] over the same tokens, or an error that names the odd one."""
    check_rows(rewards, mask)
    for name, tensor in {"response_mask": mask, **others}.items():
        if tensor is not None and tensor.shape != rewards.shape:
            raise BadValueError(
                f"{name} has shape {tuple(tensor.shape)} but token_level_rewards has {tuple(rewards.shape)}; "
                "both must be [answers, tokens] over the same tokens"
            )
