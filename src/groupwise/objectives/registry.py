"""Policy losses by name: verl's decorator and lookup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from groupwise.errors import BadValueError, unknown_name

PolicyLossFn = Callable[..., tuple[Tensor, dict[str, Any]]]
Function = TypeVar("Function", bound=PolicyLossFn)

POLICY_LOSS_REGISTRY: dict[str, PolicyLossFn] = {}


def register_policy_loss(name: str) -> Callable[[Function], Function]:
    """Register a policy loss in verl's signature, padded tensors in, `(loss, metrics)` out.

        @register_policy_loss("mine")
        def mine(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None,
                 rollout_is_weights=None): ...

    The function itself is returned. Registering it again is fine; another function under a used name is a ValueError.
    """

    def register(function: Function) -> Function:
        used = POLICY_LOSS_REGISTRY.setdefault(name, function)
        if used != function:
            raise BadValueError(
                f"policy loss {name!r} is already registered as {used.__module__}."
                f"{getattr(used, '__qualname__', used)}; register yours under another name"
            )
        return function

    return register


def get_policy_loss_fn(name: str) -> PolicyLossFn:
    """The function registered under a name, as it was registered."""
    if name not in POLICY_LOSS_REGISTRY:
        raise unknown_name("policy loss", name, POLICY_LOSS_REGISTRY)
    return POLICY_LOSS_REGISTRY[name]
