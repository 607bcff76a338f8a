"""One token per row through the layers of a Llama or a Qwen, in as few operations as a CPU can do it in.

Decoding a small model on a CPU is hardly arithmetic: most of the time goes into calling modules and into operations on
a handful of numbers. Here the layers' steps are written out: a norm is one operation, queries, keys and values are one
product, queries and keys are normalised and rotated together, a sum with the residual is part of the matrix product.
Attention stays with the cache. Which models are of this kind is found out by looking at their modules and by trying.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm

from groupwise.types import Float, Int

Attend = Callable[[int, Tensor, Tensor, Tensor, float | None], Tensor]

_EPSILON_NAMES = ("variance_epsilon", "eps")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_PROBE_ROWS = 3


class PlainLayers:
    """`layers(tokens, positions, attend)`: the last hidden states [rows, width] of one token per row."""

    def __init__(self, base: Any) -> None:
        self._embedding = base.embed_tokens.weight
        self._rotary = base.rotary_emb
        self._layers = [_Layer(layer) for layer in base.layers]
        self._norm = _Norm(base.norm)

    def __call__(self, tokens: Int[Tensor, "B"], positions: Int[Tensor, "B"], attend: Attend) -> Float[Tensor, "B H"]:
        hidden = embedding(tokens, self._embedding)
        cos, sin = self._rotary(hidden, positions[:, None])
        # Rotating by half a head swaps its halves; the sign that goes with it is in the sine.
        first, second = sin.chunk(2, -1)
        sin = torch.cat([-first, second], -1)
        for number, layer in enumerate(self._layers):
            hidden = layer(number, hidden, cos, sin, attend)
        return self._norm(hidden)


class _Norm:
    def __init__(self, norm: Any) -> None:
        self.weight = norm.weight
        self.shape = tuple(norm.weight.shape)
        self.epsilon = next(getattr(norm, name) for name in _EPSILON_NAMES if hasattr(norm, name))

    def __call__(self, states: Tensor) -> Tensor:
        return rms_norm(states, self.shape, self.weight, self.epsilon)


class _Layer:
    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.before, self.between = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        *projections, output = (getattr(attention, name) for name in _PROJECTIONS)
        self.entry, self.output = _side_by_side(projections), (output.weight, output.bias)
        self.width, self.scale = attention.head_dim, attention.scaling
        self.heads, self.both = (sum(p.out_features for p in projections[:n]) // self.width for n in (1, 2))
        self.norm = _HeadNorms(attention, self.heads, self.both) if hasattr(attention, "q_norm") else None
        self.gate, self.up, self.down = ((p.weight, p.bias) for p in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
        self.activation = mlp.act_fn

    def __call__(self, number: int, hidden: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        rows = len(hidden)
        heads = linear(self.before(hidden), *self.entry).view(rows, -1, self.width)
        both, value = heads[:, : self.both], heads[:, self.both :, None]
        if self.norm is not None:
            both = self.norm(both)
        both = torch.addcmul(both * cos, both.roll(self.width // 2, -1), sin)[:, :, None]
        attended = attend(number, both[:, : self.heads], both[:, self.heads :], value, self.scale)
        hidden = _added(hidden, attended.reshape(rows, -1), self.output)
        states = self.between(hidden)
        return _added(hidden, self.activation(linear(states, *self.gate)).mul_(linear(states, *self.up)), self.down)


class _HeadNorms:
    """The norms of queries and of keys, which differ in their weights alone, at once."""

    def __init__(self, attention: Any, heads: int, both: int) -> None:
        query, key = _Norm(attention.q_norm), _Norm(attention.k_norm)
        self.weight = torch.stack([query.weight] * heads + [key.weight] * (both - heads))
        self.shape, self.epsilon = query.shape, query.epsilon

    def __call__(self, states: Tensor) -> Tensor:
        return rms_norm(states, self.shape, None, self.epsilon).mul_(self.weight)


def _side_by_side(projections: list[Any]) -> tuple[Tensor, Tensor | None]:
    """Weights and biases of linear layers that read the same, as those of one; all of them have biases, or none."""
    has_biases = projections[0].bias is not None
    bias = torch.cat([projection.bias for projection in projections]) if has_biases else None
    return torch.cat([projection.weight for projection in projections]), bias


def _added(residual: Tensor, states: Tensor, projection: tuple[Tensor, Tensor | None]) -> Tensor:
    weight, bias = projection
    total = torch.addmm(residual, states, weight.t())
    return total if bias is None else total.add_(bias)


def has_plain_layers(policy: Any) -> bool:
    """Whether `PlainLayers` computes what the policy's model does, in float32 or float64 on a CPU."""
    if policy.device.type != "cpu" or policy.dtype not in (torch.float32, torch.float64):
        return False
    base = policy.model.base_model
    if not _looks_plain(base):
        return False
    positions = torch.arange(_PROBE_ROWS) * 5
    tokens = (positions * 7 + 3) % policy.vocab_size

    def to_itself(_layer: Any, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        # Wrong queries, keys, values or a wrong scale all show in what comes out.
        key, value = (states.repeat_interleave(query.shape[1] // key.shape[1], 1) for states in (key, value))
        weight = ((query * key).sum(-1, keepdim=True) * (1.0 if scale is None else scale)).tanh()
        return weight * value

    with torch.no_grad():
        expected = policy.hidden_states(tokens[:, None], positions[:, None], attend=to_itself)[:, 0]
        found = PlainLayers(base)(tokens, positions, to_itself)
    tolerance = 1e-4 if policy.dtype == torch.float32 else 1e-10
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())


def _looks_plain(base: Any) -> bool:
    """The modules are there, the linear ones are exactly that, and nothing hooks into them."""
    layers = getattr(base, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not all(
        hasattr(base, n) for n in ("embed_tokens", "rotary_emb", "norm")
    ):
        return False
    if any(module._forward_hooks or module._forward_pre_hooks for module in base.modules()):
        return False
    return type(base.embed_tokens) is nn.Embedding and _is_norm(base.norm) and all(map(_layer_looks_plain, layers))


def _layer_looks_plain(layer: Any) -> bool:
    attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    linears = [getattr(attention, name, None) for name in _PROJECTIONS]
    linears += [getattr(mlp, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    norms = [getattr(layer, name, None) for name in ("input_layernorm", "post_attention_layernorm")]
    norms += [getattr(attention, name) for name in ("q_norm", "k_norm") if hasattr(attention, name)]
    biases = {getattr(projection, "bias", None) is None for projection in linears[:3]}
    named = (
        len(biases) == 1
        and all(hasattr(attention, name) for name in ("head_dim", "scaling"))
        and hasattr(mlp, "act_fn")
    )
    return named and all(type(module) is nn.Linear for module in linears) and all(map(_is_norm, norms))


def _is_norm(norm: Any) -> bool:
    return isinstance(getattr(norm, "weight", None), Tensor) and any(hasattr(norm, name) for name in _EPSILON_NAMES)
