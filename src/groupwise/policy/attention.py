"""An attention for transformers models that asks its caller how to attend.

Decoding and packing differ from a plain forward pass in one place only: which keys a query sees. So the model runs
with the attention `ATTENTION`; a caller who gives the forward pass an `attend` gets every layer's queries, keys and
values and answers with what was attended to. Without one the layer attends as under SDPA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from groupwise.errors import BadValueError
from groupwise.policy.compiled import is_opaque, opaque_attend

Attend = Callable[[Any, Tensor, Tensor, Tensor, float | None], Tensor]
"""(layer, queries [b, heads, t, d], keys and values [b, kv heads, t, d], scale) -> attended [b, heads, t, d]. The layer
is its number, or None in compiled layers."""

ATTENTION = "groupwise"

# Ways of attending that come as an argument of the layer's call and that `attend` knows nothing of.
_UNKNOWN_TO_ATTEND = ("softcap", "s_aux", "position_bias")


def register() -> None:
    """Make `ATTENTION` a name that transformers models can be set to."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        attend: Attend | None = options.pop("attend", None)
        if attend is None:
            attended, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
            return attended, None
        for name in _UNKNOWN_TO_ATTEND:
            if options.get(name) is not None:
                raise BadValueError(f"{type(module).__name__} attends with {name}, which packing does not know")
        if is_opaque(attend):
            return opaque_attend(query, key, value, options.get("scaling")), None
        # In compiled layers nothing may depend on which of them it is.
        layer = None if getattr(attend, "compiles", False) else module.layer_idx
        attended = attend(layer, query, key, value, options.get("scaling"))
        return attended.transpose(1, 2), None

    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
