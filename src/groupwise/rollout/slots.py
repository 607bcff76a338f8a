"""What decoding keeps on the device: rows that answer, slots that hold prompts, and their keys and values.

    slot 0: prompt tokens ────┬── row 0: its answer
                              ├── row 3: its answer
                              └── row 5: its answer
    slot 1: prompt tokens ────┬── row 1 ...

A prompt's keys and values lie once in a pool, however many rows answer it; a row holds those of its own answer only.
All other tensors stay where they are for as long as the shape fits, so that a captured CUDA graph finds them again.
Keys and values are by far the largest; between two batches their memory is given back, for the update to use, and a
graph looks up where they lie now.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from groupwise.types import Bool, Float, Float64, Int

# The tensors that hold keys and values, in the order of their addresses.
_STORES = ("prompt_keys", "prompt_values", "own_keys", "own_values")
# Programs of a decoding step that keep every multiprocessor of a large GPU busy.
_PROGRAMS = 1024
# Keys that one program reads at least; below that splitting costs more than it saves.
_LEAST_STRETCH = 128


@dataclass(frozen=True)
class Shape:
    """How much room there is. rows: answers decoded at the same time. capacity: tokens of one answer. members: answers
    to one prompt. pool: prompt tokens held at the same time."""

    rows: int
    capacity: int
    members: int
    pool: int

    def joined(self, other: Shape) -> Shape:
        """Room for what either holds."""
        return Shape(*(max(mine, theirs) for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def serves(self, other: Shape, longest: int) -> bool:
        """Whether what `other` is for fits in here, prompts of `longest` tokens too, with half its room or more."""
        is_wide = self.capacity >= other.capacity and self.members >= other.members
        return is_wide and 2 * self.rows >= other.rows and self.pool >= max(longest, other.pool // 2)


@dataclass(frozen=True)
class Dimensions:
    """What a token's keys and values take."""

    layers: int
    kv_heads: int
    width: int
    hidden: int
    dtype: torch.dtype

    @classmethod
    def of(cls, policy: Any) -> Dimensions:
        config = policy.model.config.get_text_config()
        kv_heads, width = policy.heads
        return cls(config.num_hidden_layers, kv_heads, width, config.hidden_size, policy.dtype)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.width * self.dtype.itemsize


def cache_bytes(dimensions: Dimensions, shape: Shape) -> int:
    """Bytes of keys and values that decoding in this shape takes."""
    return dimensions.token_bytes * (shape.pool + shape.rows * shape.capacity)


class Slots:
    """The state of every row and slot.

    Of a row: `live`, is it answering; `count`, tokens sampled so far; `token` and `position`, the newest; `hidden`,
    the state that predicts the next; `tokens`, `log_probs` and `numbers`, the answer and its random numbers.
    Of a slot: where its prompt lies in the pool, how long it is (0: none), which rows answer it (-1: none), and the
    state that predicts the first token.
    Keys and values, [layers, places, kv heads, width], are there between `hold` and `release`; `addresses` says where.
    """

    prompt_keys: Tensor
    prompt_values: Tensor
    own_keys: Tensor
    own_values: Tensor

    def __init__(self, dimensions: Dimensions, shape: Shape, is_eos: Bool[Tensor, "V"]) -> None:
        self.dimensions, self.shape, self.is_eos = dimensions, shape, is_eos
        device = is_eos.device
        rows, capacity = shape.rows, shape.capacity

        def zeros(*sizes: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(sizes, dtype=dtype, device=device)

        dtype = dimensions.dtype
        self.addresses = zeros(len(_STORES))
        self.is_held = False

        self.slot_start, self.slot_length = zeros(rows, dtype=torch.int32), zeros(rows, dtype=torch.int32)
        self.members = torch.full((rows, shape.members), -1, dtype=torch.int32, device=device)
        self.prompt_hidden = zeros(rows, dimensions.hidden, dtype=dtype)
        self.grid_slots = rows

        self.live, self.count = zeros(rows, dtype=torch.int32), zeros(rows, dtype=torch.int32)
        self.token, self.position = zeros(rows), zeros(rows)
        self.prompt_length = zeros(rows)
        self.hidden: Float[Tensor, "R width"] = zeros(rows, dimensions.hidden, dtype=dtype)
        self.tokens: Int[Tensor, "R T"] = zeros(rows, capacity, dtype=torch.int32)
        self.log_probs: Float64[Tensor, "R T"] = zeros(rows, capacity, dtype=torch.float64)
        self.numbers: Float64[Tensor, "R T"] = zeros(rows, capacity, dtype=torch.float64)
        self.temperature = zeros(1, dtype=torch.float32)
        self.limit = zeros(1, dtype=torch.int32)

        self.prompt_splits = 1
        self.own_splits = _splits(rows * dimensions.kv_heads, capacity)

    def hold(self) -> None:
        """Take the memory of keys and values, and note where it lies."""
        if self.is_held:
            return
        dimensions, shape, device = self.dimensions, self.shape, self.is_eos.device
        prompts, own = (shape.pool,), (shape.rows, shape.capacity)
        for name, places in zip(_STORES, (prompts, prompts, own, own), strict=True):
            sizes = dimensions.layers, *places, dimensions.kv_heads, dimensions.width
            setattr(self, name, torch.zeros(sizes, dtype=dimensions.dtype, device=device))
        self.addresses.copy_(torch.tensor([getattr(self, name).data_ptr() for name in _STORES]))
        self.is_held = True

    def release(self) -> None:
        """Give the memory of keys and values back."""
        for name in _STORES:
            delattr(self, name)
        self.is_held = False

    def plan_prompts(self, num_slots: int, longest: int) -> None:
        """Set how many slots a step looks at, and into how many stretches it cuts a prompt: powers of two, so that
        few forms of the step are ever captured."""
        self.grid_slots = min(self.shape.rows, _power_of_two(num_slots))
        splits = _splits(self.grid_slots * self.dimensions.kv_heads, longest)
        self.prompt_splits = max(1, _power_of_two(splits + 1) // 2)

    def clear(self) -> None:
        """No row answers, no slot holds a prompt."""
        self.live.zero_()
        self.count.zero_()
        self.slot_length.zero_()
        self.members.fill_(-1)


def _splits(programs: int, tokens: int) -> int:
    return max(1, min(-(-_PROGRAMS // programs), tokens // _LEAST_STRETCH))


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()
