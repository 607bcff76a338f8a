"""The least time that a GRPO step can take on a device: its bytes over the copy bandwidth, its operations over the rate
of a matrix product, both measured in the run.

P prompts of p tokens, n answers of T tokens each. N: parameters of the layers' matrices, V: of the output layer, K:
bytes of one token's keys and values, A: attention heads times their width, L: layers.

Rollout. The prompts' own pass, by operations:

    2 N P p + 2 V P + 4 L A P p (p + 1) / 2

It gives the first token. For each of the T - 1 others (t = 1 .. T - 1) the larger of two times. Bytes: all weights
once, every prompt's keys and values once, every answer's own so far once. Operations: of P n rows.

    bytes       (N + V) bytes each + K P p + K P n t
    operations  2 (N + V) P n + 4 L A P n (p + t)

Update. One forward and one backward pass, three times the operations of the forward pass, the prompt once per group; an
answer's last token predicts nothing and is not computed. Nothing is computed twice (no checkpoints), and AdamW's bytes,
which are few, are left out.

    tokens      P (p + n (T - 1))
    pairs       P (p (p + 1) / 2 + n ((T - 1) p + (T - 1) T / 2))
    operations  3 (2 N tokens + 2 V P n T + 4 L A pairs)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from random_model import Shape
from timing import copy_bandwidth, device_ms, wall_ms

GPU_SIDE, CPU_SIDE = 8192, 512
CPU_BYTES = 1 << 26


@dataclass(frozen=True)
class Rates:
    """What a device reaches: bytes (read and written) and operations per second."""

    bytes: float
    operations: float

    @classmethod
    def measure(cls, device: str) -> Rates:
        """A copy of some gigabytes, and a product of two square matrices of random numbers in bfloat16; on a CPU
        smaller ones and float32."""
        if device == "cuda":
            return cls(copy_bandwidth() * 1e3, _product_rate(GPU_SIDE, torch.bfloat16, device, device_ms))
        source = torch.ones(CPU_BYTES, dtype=torch.uint8)
        target = torch.empty_like(source)
        copy_ms = wall_ms(lambda: target.copy_(source))
        return cls(2 * CPU_BYTES / copy_ms * 1e3, _product_rate(CPU_SIDE, torch.float32, device, wall_ms))

    def __str__(self) -> str:
        return f"{self.bytes / 1e12:.3g} TB/s copied, {self.operations / 1e12:.3g} TFLOP/s"


@dataclass(frozen=True)
class Work:
    """A step: P prompts of p tokens, n answers of T tokens each."""

    prompts: int
    n: int
    prompt_tokens: int
    answer_tokens: int


def rollout_seconds(shape: Shape, work: Work, rates: Rates, itemsize: int) -> float:
    rows, width = work.prompts * work.n, work.prompt_tokens
    layers, head = shape.layers * shape.layer_parameters, shape.head_parameters
    pair = 4 * shape.layers * shape.attention_width
    token_bytes = shape.token_elements * itemsize
    prompt_pass = work.prompts * (2 * layers * width + 2 * head + pair * width * (width + 1) / 2)
    seconds = prompt_pass / rates.operations
    for own in range(1, work.answer_tokens):
        num_bytes = (layers + head) * itemsize + token_bytes * (work.prompts * width + rows * own)
        operations = rows * (2 * (layers + head) + pair * (width + own))
        seconds += max(num_bytes / rates.bytes, operations / rates.operations)
    return seconds


def update_seconds(shape: Shape, work: Work, rates: Rates) -> float:
    width, own = work.prompt_tokens, work.answer_tokens - 1
    tokens = work.prompts * (width + work.n * own)
    pairs = work.prompts * (width * (width + 1) / 2 + work.n * (own * width + own * (own + 1) / 2))
    answer_tokens = work.prompts * work.n * work.answer_tokens
    forward = (
        2 * shape.layers * shape.layer_parameters * tokens
        + 2 * shape.head_parameters * answer_tokens
        + 4 * shape.layers * shape.attention_width * pairs
    )
    return 3 * forward / rates.operations


def _product_rate(side: int, dtype: torch.dtype, device: str, clock: Any) -> float:
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * side**3 / (clock(lambda: torch.mm(a, b, out=out)) / 1e3)
