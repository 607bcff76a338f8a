"""A model's layers, compiled once for all of them.

    number_layers(model)
    model.base_model(..., attend=attend)    # compiled where `attend.compiles` is true, as written elsewhere

All layers of a model run the same code. It is compiled as one function that takes the layer as an argument, and
nothing in it may depend on which layer that is: an `attend` that must know is opaque (`is_opaque`), a call the compiler
does not look into, and is told the layer from outside. One form serves every length where the `attend` is dynamic
(`is_dynamic`), else each has its own.
"""

from __future__ import annotations

import types
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# Forms of the layers that may be compiled: decoding, and one per length of the packed rows.
_MOST_FORMS = 64


class _Calling:
    """The opaque `attend` in use and the layer that is calling it."""

    attend: Any = None
    layer: int = 0


_calling = _Calling()


def is_opaque(attend: Any) -> bool:
    return bool(getattr(attend, "is_opaque", False))


@torch.library.custom_op("groupwise::attend", mutates_args=())
def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    attended: Tensor = _calling.attend(_calling.layer, query, key, value, scale)
    return attended.transpose(1, 2).contiguous()


@_attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:  # noqa: ARG001
    rows, heads, tokens, width = query.shape
    return query.new_empty(rows, tokens, heads, width)


def opaque_attend(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    """What the `attend` in use makes of this layer's queries, keys and values, [b, t, heads, d]."""
    attended: Tensor = _attend(query, key, value, scale)
    return attended


def decoder_layers(model: Any) -> list[nn.Module]:
    """The model's layers in order; empty where they are not one list."""
    depth = model.config.get_text_config().num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == depth]
    kinds = [{type(layer) for layer in found} for found in lists]
    return list(lists[0]) if len(lists) == 1 and len(kinds[0]) == 1 else []


def number_layers(model: Any) -> bool:
    """Let an `attend` be opaque, compiled, and computed again; False where the layers are not one list of a kind."""
    layers = decoder_layers(model)
    if not layers:
        return False
    plain = type(layers[0]).forward
    for number, layer in enumerate(layers):
        layer.forward = types.MethodType(_numbered(number, plain), layer)
    return True


def num_compiled() -> int:
    """Graphs that torch has compiled so far in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


@lru_cache(maxsize=8)
def _compiled(plain: Any, is_dynamic: bool) -> Any:
    import torch._dynamo as dynamo

    dynamo.config.recompile_limit = max(dynamo.config.recompile_limit, _MOST_FORMS)
    return torch.compile(_twin(plain) if is_dynamic else plain, dynamic=is_dynamic)


def _twin(plain: Any) -> Any:
    """The same function with code of its own. What is compiled is kept with the code: where both forms fit, the one of
    every length must not take the place of the one made for this length."""
    code = plain.__code__.replace(co_name=f"{plain.__code__.co_name}_of_any_length")
    twin = types.FunctionType(code, plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__)
    twin.__kwdefaults__ = plain.__kwdefaults__
    return twin


def _numbered(number: int, plain: Any) -> Any:
    """A forward pass that says which layer it is of; bound to that layer, so that a copy of the model has its own."""

    def forward(self: nn.Module, *arguments: Any, attend: Any = None, **options: Any) -> Any:
        if attend is None:
            return plain(self, *arguments, **options)
        _calling.attend, _calling.layer = attend, number
        is_dynamic = getattr(attend, "is_dynamic", False)
        form = _compiled(plain, is_dynamic) if getattr(attend, "compiles", False) else plain
        if getattr(attend, "checkpoints", False) and torch.is_grad_enabled():
            return checkpoint(form, self, *arguments, attend=attend, use_reentrant=False, **options)
        return form(self, *arguments, attend=attend, **options)

    return forward
