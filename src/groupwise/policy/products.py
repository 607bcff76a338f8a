"""Linear layers on a CPU, by the faster of the two libraries that come with torch.

torch multiplies float32 matrices with MKL, which keeps its AVX-512 kernels for Intel's processors; on others that have
AVX-512, oneDNN is about twice as fast from a few hundred rows on, forward and for the input's gradient, and no slower
for the weight's (benchmarks/products_cpu.py). Which library computes depends on the processor and the number of rows
alone, so that runs repeat bit for bit.
"""

from __future__ import annotations

import types
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from groupwise.types import Float

# Below this oneDNN spends more on the call than it gains.
FEWEST_ROWS = 256
_ABOUT_THE_PROCESSOR = Path("/proc/cpuinfo")


def take_faster_products(model: nn.Module) -> bool:
    """Let the plain float32 linear layers of a model on a CPU use oneDNN, where that is the faster library; whether
    there are any. oneDNN prepares itself for every number of rows anew: it is faster where there are few of them."""
    if not onednn_is_faster():
        return False
    found = [module for module in model.modules() if type(module) is nn.Linear and _is_ordinary(module.weight)]
    for module in found:
        module.forward = types.MethodType(_forward, module)  # type: ignore[method-assign]
    return bool(found)


def _is_ordinary(weight: Tensor) -> bool:
    return weight.is_cpu and weight.dtype == torch.float32


@lru_cache(maxsize=1)
def onednn_is_faster() -> bool:
    """Whether MKL leaves this processor's AVX-512 unused, and torch has oneDNN's product."""
    backends: Any = torch.backends
    has_both = backends.mkl.is_available() and backends.mkldnn.is_available()
    has_avx512 = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return has_both and has_avx512 and not _is_intel() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _is_intel() -> bool:
    # Where nobody says whose processor it is, torch's own choice stands.
    about = _ABOUT_THE_PROCESSOR
    return not about.exists() or "GenuineIntel" in about.read_text(encoding="utf-8", errors="replace")


def _forward(self: nn.Linear, states: Tensor) -> Tensor:
    rows = states.numel() // states.shape[-1]
    if rows < FEWEST_ROWS or states.dtype != torch.float32:
        return linear(states, self.weight, self.bias)
    apply: Any = Product.apply
    product: Tensor = apply(states.reshape(rows, -1), self.weight, self.bias)
    return product.view(*states.shape[:-1], -1)


class Product(torch.autograd.Function):
    """`linear(states, weight, bias)`, its three products computed by oneDNN."""

    @staticmethod
    def forward(
        ctx: Any, states: Float[Tensor, "L H"], weight: Float[Tensor, "W H"], bias: Float[Tensor, "W"] | None
    ) -> Float[Tensor, "L W"]:
        ctx.save_for_backward(states, weight)
        return _times_transposed(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (gradient,) = gradients
        states, weight = ctx.saved_tensors
        of_states, of_weight, of_bias = ctx.needs_input_grad
        return (
            _times_transposed(gradient, weight.t()) if of_states else None,
            _times_transposed(gradient.t(), states.t()) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


def _times_transposed(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return product
