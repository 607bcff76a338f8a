"""Triton kernels of the update, for a GPU. The torch forms beside their calls are their oracles."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec


@lru_cache(maxsize=1)
def has_triton() -> bool:
    return find_spec("triton") is not None
