"""AdamW with clipping, a guard against numbers that are not finite, and a state that is plain tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from groupwise.config import OptimConfig
from groupwise.update.kernels import has_triton

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW over named parameters: `gather` after every backward pass, then `step`, which leaves no gradient behind.

    A parameter of lower precision has a float32 master (`config.master_weights`): gradients add up and moments are kept
    in float32, and the parameter is the master, rounded.
    """

    def __init__(
        self, parameters: Sequence[tuple[str, torch.nn.Parameter]], config: OptimConfig, grad_clip: float
    ) -> None:
        self._parameters = dict(parameters)
        self._learned = {name: _master(p) if config.master_weights else p for name, p in parameters}
        self._rounded = [name for name, p in parameters if self._learned[name] is not p]
        self._grad_clip = grad_clip
        self.stepped = False
        self._adamw = torch.optim.AdamW(
            list(self._learned.values()),
            lr=config.lr,
            betas=(config.betas[0], config.betas[1]),
            weight_decay=config.weight_decay,
            fused=True,
        )
        # What stays must not come to lie where sampling will want large pieces of a GPU's memory again.
        for name in self._rounded:
            self._adamw.state[self._learned[name]] = _no_moments(self._learned[name])

    def gather(self) -> None:
        """Add the gradients of a backward pass to those of the masters."""
        with_grad = [name for name in self._rounded if self._parameters[name].grad is not None]
        fresh = [name for name in with_grad if self._learned[name].grad is None]
        begun = [name for name in with_grad if self._learned[name].grad is not None]
        for names, is_first in ((fresh, True), (begun, False)):
            if names:
                self._add_up(names, is_first)
        for name in with_grad:
            self._parameters[name].grad = None

    def _add_up(self, names: Sequence[str], is_first: bool) -> None:
        grads = [_gradient(self._parameters[name]) for name in names]
        if is_first:
            for name in names:
                self._learned[name].grad = torch.empty_like(self._learned[name])
        sums = [_gradient(self._learned[name]) for name in names]
        if grads[0].is_cuda and has_triton():
            from groupwise.update.kernels import add_up as kernel

            if kernel.applies(sums, grads):
                kernel.add_up(sums, grads, is_first=is_first)
                return
        for total, grad in zip(sums, grads, strict=True):
            total.copy_(grad) if is_first else total.add_(grad)

    def step(self, rate: float, is_sound: bool = True) -> float:
        """One step at this rate, after clipping the gradient's norm; the norm before clipping.

        Where the loss (`is_sound`) or the norm is not finite, weights and moments stay as they are.
        """
        parameters = list(self._learned.values())
        grads = [p.grad for p in parameters if p.grad is not None]
        norm = get_total_norm(grads)
        self.stepped = is_sound and math.isfinite(norm)
        if self.stepped:
            if self._grad_clip > 0:
                clip_grads_with_norm_(parameters, self._grad_clip, norm)
            for group in self._adamw.param_groups:
                group["lr"] = rate
            self._adamw.step()
            self._round()
        self._adamw.zero_grad(set_to_none=True)
        return float(norm)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Masters, moments by parameter name, and the number of steps behind them; before the first step no moments."""
        tensors: dict[str, Tensor] = {f"master.{name}": self._learned[name].detach() for name in self._rounded}
        num_updates: dict[str, int] = {}
        for name, parameter in self._learned.items():
            held = self._adamw.state.get(parameter)
            if held and (count := int(held["step"])):
                tensors |= {f"{moment}.{name}": held[moment] for moment in _MOMENTS}
                num_updates[name] = count
        return tensors, {"num_updates": num_updates}

    def load_state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Moments and counts from another optimiser's `state`; parameters it had none for begin anew."""
        self._adamw.state.clear()
        with torch.no_grad():
            for name in self._rounded:
                self._learned[name].copy_(tensors[f"master.{name}"])
        for name, count in numbers["num_updates"].items():
            parameter = self._learned[name]
            held: dict[str, Tensor] = {"step": torch.tensor(float(count), device=parameter.device)}
            for moment in _MOMENTS:
                held[moment] = tensors[f"{moment}.{name}"].to(parameter, copy=True)
            self._adamw.state[parameter] = held

    @torch.no_grad()
    def _round(self) -> None:
        if self._rounded:
            targets = [self._parameters[name].detach() for name in self._rounded]
            torch._foreach_copy_(targets, [self._learned[name].detach() for name in self._rounded])


def _no_moments(parameter: torch.nn.Parameter) -> dict[str, Tensor]:
    """What AdamW begins with."""
    moments = {name: torch.zeros_like(parameter) for name in _MOMENTS}
    return {"step": torch.zeros((), device=parameter.device), **moments}


def _gradient(parameter: torch.nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _master(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """The parameter itself, or a float32 copy of one that is less precise."""
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return torch.nn.Parameter(parameter.detach().float(), requires_grad=parameter.requires_grad)
