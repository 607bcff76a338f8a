"""How far the policy is from the reference: estimators of the KL divergence, and the coefficient in front of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from groupwise.config import read
from groupwise.errors import BadValueError, unknown_name
from groupwise.objectives.inputs import Layout
from groupwise.types import Float, Int

# exp(20) is 5e8: a log-ratio beyond this says no more than that the policies have nothing in common.
MAX_LOG_RATIO = 20.0
_MAX_K3 = 10.0


def k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """lp - ref. Unbiased; its own gradient is 0 in expectation, so that in a loss it teaches nothing: see `k1+`."""
    return log_probs - ref_log_probs


def absolute(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """|lp - ref|."""
    return (log_probs - ref_log_probs).abs()


def k2(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """(lp - ref)^2 / 2. Biased, but on-policy its gradient is an unbiased one of KL(policy, reference)."""
    return 0.5 * (log_probs - ref_log_probs).square()


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """exp(ref - lp) - (ref - lp) - 1: unbiased, never negative. Its own gradient is one of KL(reference, policy).

    http://joschu.net/blog/kl-approx.html. As in verl the exponent is held within ±20 and the value within ±10, and
    beyond either the gradient is 0: a token that has run far away is not pulled back. `k3+` has no such gap.
    """
    difference = (ref_log_probs - log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return (difference.exp() - difference - 1).clamp(-_MAX_K3, _MAX_K3)


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": k1,
    "k1": k1,
    "abs": absolute,
    "mse": k2,
    "k2": k2,
    "low_var_kl": k3,
    "k3": k3,
}


def get_kl_estimator(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The estimator under a name, with or without the "+" behind it."""
    if name.removesuffix("+") not in KL_ESTIMATORS:
        raise unknown_name("KL penalty", name, [*KL_ESTIMATORS, *(f"{known}+" for known in KL_ESTIMATORS)])
    return KL_ESTIMATORS[name.removesuffix("+")]


def kl_penalty(
    logprob: Float[Tensor, "..."], ref_logprob: Float[Tensor, "..."], kl_penalty: str
) -> Float[Tensor, "..."]:
    """The estimator by verl's name, elementwise. A "+" behind it keeps its value and takes the gradient of k2.

    The value of k1 and k3 is right in expectation, their gradient is not; that of k2 is. Only differences are
    taken: where the two agree, value and gradient are 0 (k1 alone has gradient 1).
    """
    value = get_kl_estimator(kl_penalty)(logprob, ref_logprob)
    if not kl_penalty.endswith("+"):
        return value
    carrier = k2(logprob, ref_logprob)
    return carrier - carrier.detach() + value.detach()


@torch.no_grad()
def kl_in_reward(
    log_probs: Float[Tensor, "L"],
    ref_log_probs: Float[Tensor, "L"],
    sequence_ids: Int[Tensor, "L"],
    num_answers: int,
    coefficient: float,
    kind: str = "kl",
) -> tuple[Float[Tensor, "L"], Float[Tensor, ""]]:
    """-coefficient * KL of every token, to be added to its reward, and the KL that a controller's `update` asks for.

    The latter is the mean over answers of the mean over their tokens; without a token, 0. `log_probs` are those of the
    policy that sampled. Summed over an answer's tokens the first is what its score loses. https://arxiv.org/abs/1909.08593.
    """
    answers = torch.arange(num_answers, device=sequence_ids.device)
    dtype = torch.promote_types(log_probs.dtype, torch.float32)
    layout = Layout(sequence_ids, answers, None, dtype)
    kl = kl_penalty(log_probs.to(dtype), ref_log_probs.to(dtype), kind)
    return -coefficient * kl, layout.mean(kl).sum() / (layout.lengths > 0).sum().clamp_min(1)


class FixedKLController:
    """A coefficient that stays. `value` is what to multiply the KL with."""

    def __init__(self, kl_coef: float) -> None:
        self.value = kl_coef

    def update(self, current_kl: float, n_steps: int) -> None:
        """Nothing to do."""

    def state(self) -> dict[str, float]:
        return {"kl_coef": self.value}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> FixedKLController:
        """The controller whose `state` this was."""
        return cls(**state)


class AdaptiveKLController(FixedKLController):
    """value *= 1 + clip(kl / target - 1, ±0.2) * n_steps / horizon. https://arxiv.org/abs/1909.08593, section 2.2."""

    def __init__(self, init_kl_coef: float, target_kl: float, horizon: int) -> None:
        if horizon <= 0 or target_kl <= 0:
            raise BadValueError(
                f"kl_ctrl.horizon={horizon}, kl_ctrl.target_kl={target_kl}: both divide and must be above 0"
            )
        super().__init__(init_kl_coef)
        self.target, self.horizon = target_kl, horizon

    def update(self, current_kl: float, n_steps: int) -> None:
        error = min(max(current_kl / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * n_steps / self.horizon

    def state(self) -> dict[str, float]:
        return {"init_kl_coef": self.value, "target_kl": self.target, "horizon": self.horizon}


def get_kl_controller(kl_ctrl: Any) -> FixedKLController:
    """By the `type` of a `KLControlConfig`: "fixed" or "adaptive"."""
    kind, coefficient = read(kl_ctrl, "type", "fixed"), read(kl_ctrl, "kl_coef", 0.001)
    if kind == "fixed":
        return FixedKLController(coefficient)
    if kind == "adaptive":
        return AdaptiveKLController(coefficient, read(kl_ctrl, "target_kl", 0.1), read(kl_ctrl, "horizon", 10000))
    raise unknown_name("kl_ctrl.type", kind, ["fixed", "adaptive"])
