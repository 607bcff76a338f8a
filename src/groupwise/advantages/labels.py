"""Prompt labels (uids) to group numbers 0, 1, 2, ... in order of first appearance.

Two labels are the same group when Python says that the keys are equal: `'007'` is not `'7'`, `1` is `1.0`, a
uuid costs what an integer costs. A dict does this in one pass; sorting the labels, as `np.unique` does, costs
more than all the arithmetic that follows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from itertools import count
from typing import Any

import numpy as np
import torch

from groupwise.errors import BadValueError


def number_labels(index: Any) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[Hashable]]:
    """The group number of each row, and the label of each group.

    `index` is a torch tensor, a numpy array of any dtype, anything else with `.tolist()`, or a sequence.
    Raises BadValueError where a label cannot name a group: NaN (it equals nothing, not even itself), an
    unhashable value, or a row of a two-dimensional index.
    """
    given = index.tolist() if hasattr(index, "tolist") else index
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise BadValueError(
            f"index is a single value ({given!r}); it must hold one label per answer, the uid of its prompt"
        )
    labels = list(given)
    # A label not seen before gets the next number.
    numbers: defaultdict[Hashable, int] = defaultdict(count().__next__)
    try:
        ids = np.fromiter(map(numbers.__getitem__, labels), dtype=np.int64, count=len(labels))
    except TypeError as error:
        raise _unhashable(labels) from error
    if any(isinstance(label, torch.Tensor) for label in numbers):
        # Tensors hash by identity, so every row would be a group of its own.
        return number_labels([label.tolist() if isinstance(label, torch.Tensor) else label for label in labels])
    for label in numbers:
        if label != label:  # noqa: PLR0124  (NaN, in any type)
            raise BadValueError(
                f"index[{_first(labels, label)}] is {label!r}, which is not equal to itself and so names no group; "
                "give every answer the uid of its prompt"
            )
    return ids, list(numbers)


def _first(labels: list[Any], label: object) -> int:
    return next(row for row, other in enumerate(labels) if other is label)


def _unhashable(labels: list[Any]) -> BadValueError:
    row, label = next((row, label) for row, label in enumerate(labels) if not _is_hashable(label))
    return BadValueError(
        f"index[{row}] is the {type(label).__name__} {label!r}, which cannot name a group; "
        "index must be one-dimensional, with one hashable label per answer"
    )


def _is_hashable(label: object) -> bool:
    """A tuple says it is hashable whatever it holds; only hashing tells."""
    try:
        hash(label)
    except TypeError:
        return False
    return True
