"""Between tokens and answers: rewards [B, T] to scores [B], advantages [B] to [B, T]. The rules of both ends.

A score is the plain sum of a row's rewards, masked positions included (verl), taken in float32 or better. A
mask says which tokens count: whatever is not zero counts, and a position that does not is exactly 0 in the
result. The result has the promoted dtype of rewards and mask (verl); where that is not floating, torch's
default float dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from groupwise.advantages import kernels
from groupwise.errors import BadValueError
from groupwise.types import Bool, Float64, Int, Shaped

_SAME_WIDTH = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def sum_rewards(rewards: Shaped[Tensor, "B R"]) -> Float64[Tensor, "B"]:
    """The score of each answer. Infinite scores become NaN: neither can be compared with anything."""
    summed = kernels.sum_rewards(rewards)
    if summed is None:
        summed = rewards.sum(dim=1, dtype=_accumulator(rewards.dtype))
    return as_scores(summed)


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
    bits = _SAME_WIDTH[values.dtype.itemsize]
    return as_mask(mask).view(torch.uint8).to(bits).mul_(values.view(bits)).view(values.dtype)


def as_mask(mask: Shaped[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    return mask.to(torch.bool)


def count_tokens(mask: Shaped[Tensor, "B T"]) -> Int[Tensor, "B"]:
    return as_mask(mask).sum(dim=1)


def result_dtype(*tensors: Tensor) -> torch.dtype:
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def check_rows(rewards: Tensor, mask: Tensor) -> None:
    """Rewards [B, *] and mask [B, T], or an error that says what is wrong. The two widths may differ (verl)."""
    for name, tensor in {"token_level_rewards": rewards, "response_mask": mask}.items():
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
