"""The letters in every shape annotation, defined once.

    B   answers in the batch (rows), whatever group they are in
    G   groups in the batch, one per prompt label
    N   answers in one group, where the groups of one size are laid out as a table
    T   tokens of an answer, padding included
    K   parts of a reward (format, accuracy, ...)
    S   steps of all answers together, in process-level estimators

`Float[Tensor, "B T"]` is read by people and by the type checker. It costs nothing at run time: without
GROUPWISE_CHECK_SHAPES the names below are plain shims and jaxtyping is never imported. The tests set the
variable and check every annotated call.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or os.environ.get("GROUPWISE_CHECK_SHAPES"):
    from jaxtyping import Bool, Float, Float64, Int, Num, Shaped
else:

    class _Unchecked:
        """`Float[Tensor, "B T"]` without jaxtyping is just `Tensor`."""

        def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
            return item[0]

    Bool = Float = Float64 = Int = Num = Shaped = _Unchecked

__all__ = ["Bool", "Float", "Float64", "Int", "Num", "Shaped"]
