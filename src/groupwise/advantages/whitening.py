"""Whitening: mean 0 and standard deviation 1 over the response tokens of the whole batch.

(x - mean) / sqrt(var + 1e-8), with the unbiased variance (n - 1), as in verl's `masked_whiten`, in float64 and
two passes. Tokens whose value is NaN take no part and stay NaN. Equal values give exactly 0. Over no token or
one there is no spread to divide by: the result is 0, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from groupwise.advantages import kernels
from groupwise.advantages.groups import sorted_sum
from groupwise.advantages.rows import empty, rows_at_a_time
from groupwise.errors import GroupwiseWarning
from groupwise.types import Bool, Float64, Num

_VARIANCE_EPS = 1e-8


def whiten_answers(values: Float64[Tensor, "B"], lengths: Num[Tensor, "B"] | None = None) -> Float64[Tensor, "B"]:
    """Whiten one value per answer as if it stood at each of the answer's `lengths` tokens (None: one token each)."""
    fused = kernels.whiten_answers(values, lengths, _VARIANCE_EPS)
    if fused is not None:
        whitened, num_tokens = fused
        # Too few are zeros already; what is left is the warning.
        _too_few(num_tokens)
        return whitened
    finite = ~values.isnan()
    weights = finite.double() if lengths is None else lengths * finite.double()
    # Whole numbers: exact in any order.
    num_tokens = weights.sum()
    if _too_few(num_tokens):
        return torch.where(finite, 0.0, values)
    rises = values - _lowest(values, weights > 0)
    deviations = rises - sorted_sum(weights * torch.where(finite, rises, 0.0)) / num_tokens
    squares = torch.where(finite, deviations, 0.0).square()
    return deviations * _inverse_std(sorted_sum(weights * squares), num_tokens)


def whiten_tokens(values: Float64[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float64[Tensor, "B T"]:
    """Whiten one value per token over the tokens in `mask`; 0 outside it."""
    counted = mask & ~values.isnan()
    num_tokens = counted.sum().double()
    if _too_few(num_tokens):
        return torch.where(mask & values.isnan(), values, 0.0)
    low = _lowest(values, counted)
    mean_rise = _sum_tokens(lambda rows: values[rows] - low, counted) / num_tokens
    square_sum = _sum_tokens(lambda rows: ((values[rows] - low) - mean_rise).square(), counted)
    scale = _inverse_std(square_sum, num_tokens)
    whitened = empty(values.shape, values.dtype, values.device)
    for rows in rows_at_a_time(mask):
        whitened[rows] = torch.where(mask[rows], ((values[rows] - low) - mean_rise) * scale, 0.0)
    return whitened


def _sum_tokens(terms: Callable[[slice], Float64[Tensor, "_ T"]], mask: Bool[Tensor, "B T"]) -> Float64[Tensor, ""]:
    """The sum over the tokens in `mask`; `terms` gives those of a slice of rows."""
    return sorted_sum(torch.cat([torch.where(mask[rows], terms(rows), 0.0).sum(1) for rows in rows_at_a_time(mask)]))


def _lowest(values: Float64[Tensor, "..."], counted: Bool[Tensor, "..."]) -> Float64[Tensor, ""]:
    """The lowest counted value. Taken off first, it makes equal values exactly 0 once their mean is taken off too."""
    return torch.where(counted, values, torch.inf).min()


def _inverse_std(square_sum: Float64[Tensor, ""], num_tokens: Float64[Tensor, ""]) -> Float64[Tensor, ""]:
    return torch.rsqrt(square_sum / (num_tokens - 1) + _VARIANCE_EPS)


def _too_few(num_tokens: Float64[Tensor, ""]) -> bool:
    if num_tokens > 1:
        return False
    warnings.warn(
        f"whitening over {int(num_tokens)} response tokens: there is no spread to normalise by, so every advantage "
        "is 0; look for masks that are empty or a batch that was filtered away",
        GroupwiseWarning,
        stacklevel=4,
    )
    return True
