"""Linear layers that read the same input, as one matrix product while nothing is trained.

Decoding multiplies a few rows with every weight of the model, and each product costs a launch. The weights of
queries, keys and values (and of an MLP's gate and up) are laid side by side in memory; each layer keeps its own
parameter, a view of its part, so training and saving see nothing of it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

# Layers by the names that transformers gives them, in the order in which they are called.
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Family:
    """Siblings' weights (and biases) in one piece; `waiting` holds the parts that the first has computed for others."""

    def __init__(self, members: list[nn.Linear]) -> None:
        self.sizes = [member.out_features for member in members]
        self.weight = _side_by_side([member.weight for member in members])
        self.bias = _side_by_side([m.bias for m in members]) if members[0].bias is not None else None
        self.waiting: list[Tensor] = []


class Sibling(nn.Linear):
    """A linear layer with siblings. Under `no_grad` the first computes for all, and the others take what is theirs."""

    family: Family
    is_first: bool

    def forward(self, states: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return linear(states, self.weight, self.bias)
        waiting = self.family.waiting
        if self.is_first:
            waiting.clear()
            waiting.extend(linear(states, self.family.weight, self.family.bias).split_with_sizes(self.family.sizes, -1))
        return waiting.pop(0)


def separate_siblings(model: Any) -> None:
    """Every layer computes for itself again."""
    for module in model.modules():
        if type(module) is Sibling:
            module.__class__ = nn.Linear  # type: ignore[assignment]


def join_siblings(model: Any) -> int:
    """Join all siblings of the model, or join them anew in a copy of it; how many families there are now."""
    families = 0
    for module in model.modules():
        for names in SIBLINGS:
            members = [getattr(module, name, None) for name in names]
            if not all(type(member) in (nn.Linear, Sibling) for member in members):
                continue
            linears = [member for member in members if isinstance(member, nn.Linear)]
            if len({(m.in_features, m.bias is None, m.weight.dtype) for m in linears}) != 1:
                continue
            family = Family(linears)
            for place, member in enumerate(linears):
                sibling = cast("Sibling", member)
                sibling.__class__ = Sibling
                sibling.family, sibling.is_first = family, place == 0
            families += 1
    return families


@torch.no_grad()
def _side_by_side(parameters: list[Tensor]) -> Tensor:
    """One tensor that holds them all; each parameter becomes a view of its part."""
    joined = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, joined.split_with_sizes([len(p) for p in parameters]), strict=True):
        parameter.data = part
    return joined
