"""Attention of answers that share the keys and values of their prompt.

A micro-batch is one flat row of tokens, so that everything but attention runs without padding, or with a little of it
at the end of the row. Attention takes the row apart: prompts among themselves, then every answer over its prompt and
itself, each to its own places back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from groupwise.types import Bool, Int


@dataclass(frozen=True)
class SharedPrompts:
    """Where prompts and answers lie in the flat row; called with a layer's queries, keys and values.

    prompts: places of every prompt's tokens, padded on the right. answers: those of every answer's. prompt_of: the
    answers' prompts. visible: what an answer's tokens see of [prompt, answer], padding left out. home: where each
    place of the flat row lies among the attended [prompts, answers].
    """

    prompts: Int[Tensor, "P t"]
    answers: Int[Tensor, "B t"]
    prompt_of: Int[Tensor, "B"]
    visible: Bool[Tensor, "B 1 q k"]
    home: Int[Tensor, "L"]

    @classmethod
    def build(
        cls,
        prompts: Sequence[range],
        answers: Sequence[range],
        prompt_of: Sequence[int],
        length: int,
        device: torch.device,
    ) -> SharedPrompts:
        """From the places of each prompt and of each answer, the answers' prompts, and the length of the row with what
        pads it, whose places attend to anything."""
        prompt_places, prompt_mask = _places(prompts, device)
        answer_places, answer_mask = _places(answers, device)
        owners = torch.tensor(prompt_of, dtype=torch.long, device=device)
        width, longest = prompt_places.shape[1], answer_places.shape[1]
        causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        sees_prompt = prompt_mask[owners][:, None].expand(-1, longest, -1)
        visible = torch.cat([sees_prompt, causal.expand(len(answers), -1, -1)], -1)[:, None]
        # Where a padded place points to is written first and overwritten by the place that lies there.
        attended = torch.arange(len(prompts) * width + len(answers) * longest, device=device)
        places = torch.cat([prompt_places.flatten(), answer_places.flatten()])
        real = torch.cat([prompt_mask.flatten(), answer_mask.flatten()])
        home = torch.zeros(length, dtype=torch.long, device=device)
        home[places[real]] = attended[real]
        return cls(prompt_places, answer_places, owners, visible, home)

    def __call__(self, _layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
        is_grouped = query.shape[1] != key.shape[1]
        on_prompts = scaled_dot_product_attention(
            _rows(queries, self.prompts),
            _rows(keys, self.prompts),
            _rows(values, self.prompts),
            is_causal=True,
            scale=scale,
            enable_gqa=is_grouped,
        )
        attended = [on_prompts.transpose(1, 2).flatten(0, 1)]
        if self.answers.numel():
            seen = torch.cat([self.prompts[self.prompt_of], self.answers], 1)
            on_answers = scaled_dot_product_attention(
                _rows(queries, self.answers),
                _rows(keys, seen),
                _rows(values, seen),
                attn_mask=self.visible,
                scale=scale,
                enable_gqa=is_grouped,
            )
            attended.append(on_answers.transpose(1, 2).flatten(0, 1))
        return torch.cat(attended).index_select(0, self.home).transpose(0, 1)[None]


def _places(ranges: Sequence[range], device: torch.device) -> tuple[Tensor, Tensor]:
    """[rows, longest] places, padded with the row's first, and which are real."""
    lengths = torch.tensor([len(places) for places in ranges], dtype=torch.long, device=device)
    first = torch.tensor([places.start for places in ranges], dtype=torch.long, device=device)
    columns = torch.arange(int(lengths.max()) if len(ranges) else 0, device=device)
    real = columns < lengths[:, None]
    return torch.where(real, first[:, None] + columns, first[:, None]), real


def _rows(states: Tensor, places: Tensor) -> Tensor:
    """[L, heads, d] at [rows, t] -> [rows, heads, t, d]."""
    rows, width = places.shape
    return states.index_select(0, places.flatten()).view(rows, width, *states.shape[1:]).transpose(1, 2)
