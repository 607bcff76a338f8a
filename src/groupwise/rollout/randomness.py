"""Random numbers that belong to a token, not to the order of computation.

Philox4x32-10 (https://doi.org/10.1145/2063384.2063405): a counter through ten rounds of multiplication under a key.
The key comes from the run's seed and the step; the counter is (token, answer, prompt). Every number can be had alone
and in any order, so that answers do not depend on which others were sampled beside them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from groupwise.types import Float64, Int

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Four random 32-bit words per counter, as int64 tensors of the counters' common shape."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The products wrap around in int64; shifting and masking brings the right 32 bits back.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _WORD) ^ c1 ^ k0,
            product1 & _WORD,
            ((product0 >> 32) & _WORD) ^ c3 ^ k1,
            product0 & _WORD,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def uniforms(
    prompts: Int[Tensor, "B"], answers: Int[Tensor, "B"], num_tokens: int, seed: int, step: int
) -> Float64[Tensor, "B T"]:
    """One number in [0, 1) per token of each answer: answer `answers[b]` of the prompt in place `prompts[b]`.

    Multiples of 2**-52, so that a number times a sum stays below that sum in float64.
    """
    pairs = torch.arange((num_tokens + 1) // 2, device=prompts.device)
    nothing = torch.zeros_like(pairs)
    words = philox((pairs[None], answers[:, None], prompts[:, None], nothing[None]), _step_key(seed, step))
    even, odd = ((high << 20 | low >> 12).double() * 2.0**-52 for high, low in (words[:2], words[2:]))
    return torch.stack([even, odd], -1).flatten(1)[:, :num_tokens]


def _step_key(seed: int, step: int) -> tuple[int, int]:
    """A key per step: the step as a counter under the seed, apart from the counters of tokens by its last word."""
    counter = (torch.tensor(step & _WORD), torch.tensor((step >> 32) & _WORD), torch.tensor(0), torch.tensor(1))
    low, high, _, _ = philox(counter, (seed & _WORD, (seed >> 32) & _WORD))
    return int(low), int(high)
