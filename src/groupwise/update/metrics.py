"""The metrics of a batch from those of its optimiser steps, and theirs from their micro-batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def combine(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, float]:
    """The metrics of an optimiser step from those of its micro-batches."""
    names = list(dict.fromkeys(name for part in parts for name in part))
    columns = {name: torch.stack([part[name].double() for part in parts if name in part]) for name in names}
    return {name: (values.max() if name.endswith("/max") else values.sum()).item() for name, values in columns.items()}


def average(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The metrics of a batch from its optimiser steps': means, the largest of `.../max`, the number of skips.

    What is not a finite number in any of them is left out.
    """
    found = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row and math.isfinite(row[name])]
        if name == "update/skipped":
            found[name] = sum(values)
        elif values:
            found[name] = max(values) if name.endswith("/max") else sum(values) / len(values)
    return found
