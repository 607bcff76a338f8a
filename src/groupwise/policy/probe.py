"""What a model can do, found out by trying it on a handful of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from groupwise.errors import GroupwiseError
from groupwise.policy.attention import ATTENTION
from groupwise.policy.siblings import join_siblings, separate_siblings

_TOKENS = 5


def takes_attend(model: Any) -> bool:
    """Whether every layer hands its attention to the caller, and positions come from the caller alone.

    Set to our attention, the model runs a row of tokens at positions 0, 1, 2, ...; then the same tokens in reverse
    order, positions reversed with them and attention looking the other way. A model that follows both gives the same
    states in reverse. Keys and values must be of the sizes that its config names, in all layers: room for them is made
    from that.
    """
    try:
        model.set_attn_implementation(ATTENTION)
    except (ValueError, NotImplementedError):
        return False
    layers: list[int] = []
    sizes: set[tuple[int, ...]] = set()

    def backwards(layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        layers.append(layer)
        sizes.add((key.shape[1], key.shape[3], value.shape[1], value.shape[3]))
        sees = torch.ones(_TOKENS, _TOKENS, dtype=torch.bool, device=query.device).triu()
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        return scaled_dot_product_attention(query, key, value, attn_mask=sees, scale=scale)

    ids, positions = _probe(model)
    try:
        with torch.no_grad():
            plain = _states(model, ids, positions)
            turned = _states(model, ids.flip(1), positions.flip(1), attend=backwards)
    except (TypeError, GroupwiseError):
        return False
    config = model.config.get_text_config()
    is_deep = len(layers) == config.num_hidden_layers
    return is_deep and sizes == {2 * heads_of(config)} and _close(plain, turned.flip(1))


def heads_of(config: Any) -> tuple[int, int]:
    """How many heads of keys a layer has, and how wide they are, by the model's config."""
    heads = config.num_attention_heads
    return (
        getattr(config, "num_key_value_heads", None) or heads,
        getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def head_is_plain(model: Any) -> bool:
    """Whether the model's logits are its output layer of the last hidden states, and nothing more."""
    ids, _ = _probe(model)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
        states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return _close(logits, model.get_output_embeddings()(states))


def joins_siblings(model: Any) -> bool:
    """Join the layers that read the same input; whether the model then computes what it did. If not they stay apart."""
    ids, positions = _probe(model)
    with torch.no_grad():
        plain = _states(model, ids, positions)
        join_siblings(model)
        try:
            agrees = _close(plain, _states(model, ids, positions))
        except IndexError:
            # They are called in another order.
            agrees = False
    if not agrees:
        separate_siblings(model)
    return agrees


def _probe(model: Any) -> tuple[Tensor, Tensor]:
    device = next(model.parameters()).device
    vocab_size = model.get_input_embeddings().weight.shape[0]
    positions = torch.arange(_TOKENS, device=device)[None]
    return (positions * 7 + 3) % vocab_size, positions


def _states(model: Any, ids: Tensor, positions: Tensor, **options: Any) -> Tensor:
    states: Tensor = model.base_model(
        input_ids=ids, position_ids=positions, use_cache=False, **options
    ).last_hidden_state
    return states


def _close(a: Tensor, b: Tensor) -> bool:
    # Loose enough for bfloat16; a model that looked the wrong way is off by orders of magnitude more.
    tolerance = 0.05 if a.dtype in (torch.bfloat16, torch.float16) else 1e-3
    return bool((a - b).abs().max() <= tolerance * a.abs().max())
