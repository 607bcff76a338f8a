"""What an update takes as advantages: a number per answer, or a number per token of each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from groupwise.errors import BadValueError
from groupwise.types import Group

Advantages = Sequence[float] | Tensor | Sequence[Tensor]
"""One number per answer; or one tensor per answer, with one number per token of it."""


def as_rows(advantages: Advantages, groups: Sequence[Group], device: torch.device) -> Tensor | list[Tensor]:
    """One number per answer as [B]; numbers per token as they are given, a tensor per answer."""
    lengths = [len(answer.token_ids) for group in groups for answer in group.completions]
    given = advantages if isinstance(advantages, Tensor) else list(advantages)
    if isinstance(given, list) and any(isinstance(row, Tensor) for row in given):
        rows = [torch.as_tensor(row, dtype=torch.float64, device=device) for row in given]
        if [row.shape for row in rows] != [(length,) for length in lengths]:
            raise BadValueError(
                f"advantages per token have lengths {[len(row) for row in rows]} for answers of {lengths} tokens; "
                "give one number per token"
            )
        return rows
    values = torch.as_tensor(given, dtype=torch.float64, device=device)
    if values.shape != (len(lengths),):
        raise BadValueError(
            f"advantages have shape {tuple(values.shape)} for {len(lengths)} answers; give one number per answer"
        )
    return values


def in_order(rows: Tensor | list[Tensor], numbers: Sequence[int]) -> Tensor:
    """Numbers per answer as they are; numbers per token as one row, the answers `numbers` one after another."""
    if isinstance(rows, Tensor):
        return rows
    return torch.cat([rows[number] for number in numbers] or [torch.zeros(0, dtype=torch.float64)])
