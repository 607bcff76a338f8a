"""Prompt labels (uids) to group numbers 0, 1, 2, ... in order of first appearance.

Two labels are the same group when Python says that the keys are equal: `'007'` is not `'7'`, `1` is `1.0`, a
uuid costs what an integer costs. A dict does this in one pass; sorting the labels, as `np.unique` does, costs
more than all the arithmetic that follows. The answers to a prompt mostly stand together under one object: the dict
sees every such run once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import torch

from groupwise.errors import BadValueError

_IntArray = np.ndarray[Any, np.dtype[np.int64]]
# Arrays whose neighbours can be compared as they stand: booleans, integers, bytes and text.
_PLAIN_KINDS = "biuSU"


def number_labels(index: Any) -> tuple[_IntArray, list[Hashable]]:
    """The group number of each row, and the label of each group.

    `index` is a torch tensor, a numpy array of any dtype, anything else with `.tolist()`, or a sequence.
    Raises BadValueError where a label cannot name a group: NaN (it equals nothing, not even itself), an
    unhashable value, or a row of a two-dimensional index.
    """
    labels = _as_array(index)
    firsts = _firsts_of_runs(labels)
    ids, names = _number(labels[firsts].tolist(), firsts)
    return np.repeat(ids, np.diff(firsts, append=len(labels))), names


def _as_array(index: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """The labels in an array of objects, or as they are where neighbours in their array can be compared."""
    # A subclass may compare in a way of its own: masked arrays, arrays of padded text.
    is_plain = type(index) is np.ndarray and index.ndim == 1
    if is_plain and (index.dtype == object or index.dtype.kind in _PLAIN_KINDS):
        found: np.ndarray[Any, np.dtype[Any]] = index
        return found
    given = index.tolist() if hasattr(index, "tolist") else index
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise BadValueError(
            f"index is a single value ({given!r}); it must hold one label per answer, the uid of its prompt"
        )
    labels = list(given)
    return np.fromiter(labels, dtype=object, count=len(labels))


def _firsts_of_runs(labels: np.ndarray[Any, np.dtype[Any]]) -> _IntArray:
    """The rows at which another label begins than the one before; of objects, another object."""
    if not len(labels):
        return np.arange(0)
    # An array of objects holds their addresses.
    keys = np.frombuffer(np.ascontiguousarray(labels), np.intp) if labels.dtype == object else labels
    return np.append(0, np.flatnonzero(keys[1:] != keys[:-1]) + 1)


def _number(labels: list[Any], rows: _IntArray) -> tuple[_IntArray, list[Hashable]]:
    """`rows`: where the labels stand, for messages."""
    try:
        names: list[Any] = list(dict.fromkeys(labels))
    except TypeError as error:
        raise _unhashable(labels, rows) from error
    kinds = set(map(type, names))
    if any(issubclass(kind, torch.Tensor) for kind in kinds):
        # Tensors hash by identity, so every row would be a group of its own.
        return _number([label.tolist() if isinstance(label, torch.Tensor) else label for label in labels], rows)
    if kinds != {str}:
        _refuse_nan(names, labels, rows)
    if len(names) == len(labels):
        return np.arange(len(labels)), names
    numbers = dict(zip(names, range(len(names)), strict=True))
    return np.fromiter(map(numbers.__getitem__, labels), dtype=np.int64, count=len(labels)), names


def _refuse_nan(names: list[Any], labels: list[Any], rows: _IntArray) -> None:
    for name in names:
        if name != name:  # noqa: PLR0124  (NaN, in any type)
            row = next(row for row, label in zip(rows, labels, strict=True) if label is name)
            raise BadValueError(
                f"index[{row}] is {name!r}, which is not equal to itself and so names no group; "
                "give every answer the uid of its prompt"
            )


def _unhashable(labels: list[Any], rows: _IntArray) -> BadValueError:
    row, label = next((row, label) for row, label in zip(rows, labels, strict=True) if not _is_hashable(label))
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
