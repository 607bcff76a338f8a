"""Estimators by name: verl's enum, decorator and lookup."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from torch import Tensor

from groupwise.errors import BadValueError, unknown_name

EstimatorFn = TypeVar("EstimatorFn", bound=Callable[..., tuple[Tensor, Tensor]])


class AdvantageEstimator(str, Enum):  # noqa: UP042  (verl's bases)
    """verl's names. An estimator of your own needs no member: register it under any string."""

    GAE = "gae"
    GRPO = "grpo"
    REINFORCE_PLUS_PLUS = "reinforce_plus_plus"
    REINFORCE_PLUS_PLUS_BASELINE = "reinforce_plus_plus_baseline"
    REMAX = "remax"
    RLOO = "rloo"
    OPO = "opo"
    GRPO_PASSK = "grpo_passk"
    GPG = "gpg"
    RLOO_VECTORIZED = "rloo_vectorized"
    GRPO_VECTORIZED = "grpo_vectorized"
    OPTIMAL_TOKEN_BASELINE = "optimal_token_baseline"
    TIR_OPTIMAL_TOKEN_BASELINE = "tir_optimal_token_baseline"
    GDPO = "gdpo"


ADV_ESTIMATOR_REGISTRY: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {}


def register_adv_est(name_or_enum: str | Enum) -> Callable[[EstimatorFn], EstimatorFn]:
    """Register an estimator: `(token_level_rewards, response_mask, ...) -> (advantages, returns)`, each [B, T].

        @register_adv_est("best_minus_mean")
        def best_minus_mean(token_level_rewards, response_mask, index, **kwargs): ...

    `compute_advantage` gives it the fields its signature names. The function itself is returned. Registering it
    again is fine; another function under a used name is a ValueError.
    """
    name = name_of(name_or_enum)

    def register(function: EstimatorFn) -> EstimatorFn:
        used = ADV_ESTIMATOR_REGISTRY.setdefault(name, function)
        if used != function:
            raise BadValueError(
                f"advantage estimator {name!r} is already registered as {used.__module__}."
                f"{getattr(used, '__qualname__', used)}; register yours under another name"
            )
        return function

    return register


def get_adv_estimator_fn(name_or_enum: str | Enum) -> Callable[..., tuple[Tensor, Tensor]]:
    """The function registered under a name, as it was registered."""
    name = name_of(name_or_enum)
    if name not in ADV_ESTIMATOR_REGISTRY:
        raise unknown_name("advantage estimator", name, ADV_ESTIMATOR_REGISTRY)
    return ADV_ESTIMATOR_REGISTRY[name]


def name_of(name_or_enum: str | Enum) -> str:
    return str(name_or_enum.value) if isinstance(name_or_enum, Enum) else name_or_enum
