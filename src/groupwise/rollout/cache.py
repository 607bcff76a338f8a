"""The keys and values of the answers being decoded.

All rows write at one common column, the clock. A row that joins later has its prompt laid directly before the clock,
so that writing is one slice, whatever the lengths; a mask hides the columns before a row's start. When the clock
reaches the end of the columns, the rows move to the front together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from groupwise.types import Float, Int


@dataclass
class PromptCache:
    """Prompts computed once each, their keys and values aligned to the right: the last column is the last token."""

    keys: list[Float[Tensor, "P heads t d"]]
    values: list[Float[Tensor, "P heads t d"]]
    hidden: Float[Tensor, "P width"]
    lengths: Int[Tensor, "P"]


class Recorder:
    """Attention over prompts padded on the left that keeps their keys and values."""

    def __init__(self, starts: Int[Tensor, "P"], width: int) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        columns = torch.arange(width, device=starts.device)
        causal = columns[None, :] <= columns[:, None]
        # A padding position sees itself, so that no softmax is empty.
        own = columns[None, :] == columns[:, None]
        self.mask = ((causal & (columns >= starts[:, None, None])) | own)[:, None]

    def __call__(self, _layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        self.keys.append(key)
        self.values.append(value)
        is_grouped = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(query, key, value, attn_mask=self.mask, scale=scale, enable_gqa=is_grouped)


class DecodeCache:
    """Keys and values of the rows being decoded: [rows, kv heads, columns, d] per layer. Called as an attention."""

    def __init__(self, like: PromptCache, rows: int, clock: int, columns: int) -> None:
        self.clock = clock
        self.columns = columns
        self.keys = [key.new_zeros(rows, key.shape[1], columns, key.shape[3]) for key in like.keys]
        self.values = [value.new_zeros(rows, value.shape[1], columns, value.shape[3]) for value in like.values]
        # Added to the scores: 0 where a row may look. Rows without an answer look at zeros.
        self.mask = like.hidden.new_zeros(rows, 1, 1, columns)
        self.starts = torch.full((rows,), clock, device=like.hidden.device)

    def admit(self, rows: Int[Tensor, "R"], prompts: PromptCache, which: Int[Tensor, "R"]) -> None:
        """Lay the keys and values of `prompts[which]` before the clock in `rows`."""
        width = prompts.keys[0].shape[2]
        columns = slice(self.clock - width, self.clock)
        for own, new in zip((*self.keys, *self.values), (*prompts.keys, *prompts.values), strict=True):
            own[rows, :, columns] = new[which]
        starts = self.clock - prompts.lengths[which]
        self.starts[rows] = starts
        hidden = torch.arange(self.columns, device=starts.device) < starts[:, None]
        blocked = torch.zeros_like(hidden, dtype=self.mask.dtype).masked_fill_(hidden, float("-inf"))
        self.mask[rows] = blocked[:, None, None]

    def keep(self, rows: Int[Tensor, "R"]) -> None:
        """Drop every row but these."""
        self.keys = [key[rows] for key in self.keys]
        self.values = [value[rows] for value in self.values]
        self.mask, self.starts = self.mask[rows], self.starts[rows]

    def make_room(self, live: Int[Tensor, "R"], at_least: int) -> None:
        """Move the rows to the front, as far as the `live` ones allow, the clock no lower than `at_least`."""
        shift = self.clock - at_least
        if len(live):
            shift = min(shift, int(self.starts[live].min()))
        for own in (*self.keys, *self.values):
            own[:, :, : self.clock - shift] = own[:, :, shift : self.clock].clone()
        self.mask[..., : self.clock - shift] = self.mask[..., shift : self.clock].clone()
        self.clock -= shift
        self.mask[..., self.clock :] = 0.0
        self.starts -= shift

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        now = self.clock
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, now] = key[:, :, 0]
        values[:, :, now] = value[:, :, 0]
        # The heads that share keys stand as one head's queries: nothing is repeated.
        rows, heads, _, width = query.shape
        queries = query.view(rows, key.shape[1], heads // key.shape[1], width)
        # For single queries two batched products are quicker than torch's attention, by half where rows are many.
        scores = torch.matmul(queries, keys[:, :, : now + 1].transpose(-1, -2))
        scores = scores.mul_(width**-0.5 if scale is None else scale).add_(self.mask[..., : now + 1])
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(values.dtype)
        attended = torch.matmul(weights, values[:, :, : now + 1])
        return attended.reshape(rows, heads, 1, attended.shape[-1])
