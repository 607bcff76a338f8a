"""RMS norms in the precision of the model.

Models written out in Python take their norms in float32 whatever they are given. A float64 model then has gradients
good to eight digits only; torch's own norm keeps its precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_EPSILON_NAMES = ("variance_epsilon", "eps", "epsilon")


def widen_rms_norms(model: Any) -> int:
    """In a float64 model, `torch.nn.RMSNorm` with the same weight wherever a module computes just that; how many."""
    if next(model.parameters()).dtype != torch.float64:
        return 0
    replaced = 0
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            wide = _widened(norm)
            if wide is not None:
                setattr(parent, name, wide)
                replaced += 1
    return replaced


def _widened(norm: nn.Module) -> nn.RMSNorm | None:
    """The same norm in torch's own form, or None where it is something else."""
    epsilon = next((getattr(norm, name) for name in _EPSILON_NAMES if hasattr(norm, name)), None)
    parameters = dict(norm.named_parameters())
    is_candidate = "RMSNorm" in type(norm).__name__ and list(parameters) == ["weight"] and epsilon is not None
    if not is_candidate or isinstance(norm, nn.RMSNorm):
        return None
    weight = parameters["weight"]
    wide = nn.RMSNorm(tuple(weight.shape), eps=epsilon, device="meta")
    wide.weight = weight
    trial = torch.linspace(-2, 3, weight.numel(), dtype=weight.dtype, device=weight.device).view(1, *weight.shape)
    with torch.no_grad():
        agrees = torch.allclose(norm(trial), wide(trial), rtol=1e-5, atol=1e-6)
    return wide if agrees else None
