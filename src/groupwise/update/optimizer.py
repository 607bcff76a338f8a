"""AdamW with clipping, a guard against numbers that are not finite, and a state that is plain tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from groupwise.config import OptimConfig

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW over named parameters. `step` takes the gradients as they are, and leaves none behind."""

    def __init__(
        self, parameters: Sequence[tuple[str, torch.nn.Parameter]], config: OptimConfig, grad_clip: float
    ) -> None:
        self._parameters = dict(parameters)
        self._grad_clip = grad_clip
        self.stepped = False
        self._adamw = torch.optim.AdamW(
            list(self._parameters.values()),
            lr=config.lr,
            betas=(config.betas[0], config.betas[1]),
            weight_decay=config.weight_decay,
            fused=True,
        )

    def step(self, rate: float, is_sound: bool = True) -> float:
        """One step at this rate, after clipping the gradient's norm; the norm before clipping.

        Where the loss (`is_sound`) or the norm is not finite, weights and moments stay as they are.
        """
        parameters = list(self._parameters.values())
        grads = [p.grad for p in parameters if p.grad is not None]
        norm = get_total_norm(grads)
        self.stepped = is_sound and math.isfinite(norm)
        if self.stepped:
            if self._grad_clip > 0:
                clip_grads_with_norm_(parameters, self._grad_clip, norm)
            for group in self._adamw.param_groups:
                group["lr"] = rate
            self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        return float(norm)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Moments by parameter name, and the number of steps behind them; before the first step there are none."""
        tensors: dict[str, Tensor] = {}
        num_updates: dict[str, int] = {}
        for name, parameter in self._parameters.items():
            held = self._adamw.state.get(parameter)
            if held:
                tensors |= {f"{moment}.{name}": held[moment] for moment in _MOMENTS}
                num_updates[name] = int(held["step"])
        return tensors, {"num_updates": num_updates}

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Moments and counts from another optimiser's `state`; parameters it had none for begin anew."""
        self._adamw.state.clear()
        for name, count in numbers["num_updates"].items():
            parameter = self._parameters[name]
            held: dict[str, Tensor] = {"step": torch.tensor(float(count), device=parameter.device)}
            for moment in _MOMENTS:
                held[moment] = tensors[f"{moment}.{name}"].to(parameter, copy=True)
            self._adamw.state[parameter] = held
