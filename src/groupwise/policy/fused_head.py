"""Hidden states to log-probabilities on a GPU: the output layer, the softmax and the choice of a token in chunks.

Each chunk's logits are one matrix product, read once by a kernel that takes maximum, sum of exponentials, entropy and
the chosen logit in one pass. Backward they are computed again and turned into their own gradient where they stand. The
oracle is `groupwise.policy.log_probs`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from groupwise.types import Float, Int

# Logits that may exist at once: 1 GiB of bfloat16.
_CHUNK_ELEMENTS = 1 << 29
_BLOCK, _WARPS = 4096, 8


def log_probs_and_entropy(
    hidden: Float[Tensor, "T H"],
    weight: Float[Tensor, "V H"],
    tokens: Int[Tensor, "T"],
    temperature: float,
    *,
    entropy_gradient: bool,
) -> tuple[Float[Tensor, "T"], Float[Tensor, "T"]]:
    """Of each token the log-probability, and the entropy of the distribution it was drawn from, in float32."""
    log_probs, entropies = _LinearLogSoftmax.apply(hidden, weight, tokens, 1.0 / temperature)
    return log_probs, entropies if entropy_gradient else entropies.detach()


class _LinearLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, tokens: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
        log_probs, normalisers, entropies = torch.empty(3, len(hidden), dtype=torch.float32, device=hidden.device)
        for start, stop in _chunks(len(hidden), len(weight)):
            logits = hidden[start:stop] @ weight.t()
            _statistics[(stop - start,)](
                logits, tokens[start:stop], log_probs[start:stop], normalisers[start:stop], entropies[start:stop],
                len(weight), sharpness, BLOCK=_BLOCK, num_warps=_WARPS,
            )  # fmt: skip
        ctx.save_for_backward(hidden, weight, tokens, normalisers, entropies)
        ctx.sharpness = sharpness
        ctx.set_materialize_grads(False)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, tokens, normalisers, entropies = ctx.saved_tensors
        nothing = torch.zeros_like(normalisers)
        grad_log_probs, grad_entropies = (nothing if grad is None else grad.contiguous() for grad in grads)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for start, stop in _chunks(len(hidden), len(weight)):
            logits = hidden[start:stop] @ weight.t()
            _to_gradient[(stop - start, triton.cdiv(len(weight), _BLOCK))](
                logits, tokens[start:stop], normalisers[start:stop], entropies[start:stop],
                grad_log_probs[start:stop], grad_entropies[start:stop],
                len(weight), ctx.sharpness, HAS_ENTROPY=grads[1] is not None, BLOCK=_BLOCK, num_warps=_WARPS,
            )  # fmt: skip
            torch.matmul(logits, weight, out=grad_hidden[start:stop])
            grad_weight += logits.t() @ hidden[start:stop]
        return grad_hidden, grad_weight.to(weight.dtype), None, None


def _chunks(num_tokens: int, vocab_size: int) -> list[tuple[int, int]]:
    """Stretches of tokens about equally long, each with no more logits than may exist."""
    most = max(1, _CHUNK_ELEMENTS // vocab_size)
    size = max(1, -(-num_tokens // -(-num_tokens // most))) if num_tokens else 1
    return [(start, min(start + size, num_tokens)) for start in range(0, num_tokens, size)]


@triton.jit
def _statistics(
    logits, tokens, log_probs, normalisers, entropies, vocab_size, sharpness, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocab_size
    top = tl.full((BLOCK,), -1e30, tl.float32)
    mass = tl.zeros((BLOCK,), tl.float32)
    moment = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab_size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        logit = tl.load(logits + place, mask=place < vocab_size, other=-1e30).to(tl.float32) * sharpness
        higher = tl.maximum(top, logit)
        shrink, weight = tl.exp(top - higher), tl.exp(logit - higher)
        mass = mass * shrink + weight
        moment = moment * shrink + tl.where(place < vocab_size, logit * weight, 0.0)
        top = higher
    highest = tl.max(top, 0)
    shrink = tl.exp(top - highest)
    # A lane that saw no token holds the floor as its top; its mass counts for nothing.
    mass_of = tl.where(top > -1e29, mass * shrink, 0.0)
    total = tl.sum(mass_of, 0)
    normaliser = highest + tl.log(total)
    chosen = tl.load(logits + tl.load(tokens + row)).to(tl.float32) * sharpness
    tl.store(log_probs + row, chosen - normaliser)
    tl.store(normalisers + row, normaliser)
    tl.store(entropies + row, normaliser - tl.sum(tl.where(top > -1e29, moment * shrink, 0.0), 0) / total)


@triton.jit
def _to_gradient(
    logits, tokens, normalisers, entropies, grad_log_probs, grad_entropies, vocab_size, sharpness,
    HAS_ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """d log p_k / d logit_j = [j = k] - p_j, and d H / d logit_j = -p_j (log p_j + H); over the temperature."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < vocab_size
    logits += row * vocab_size
    logit = tl.load(logits + place, mask=inside, other=-1e30).to(tl.float32) * sharpness
    log_prob = logit - tl.load(normalisers + row)
    prob = tl.exp(log_prob)
    is_chosen = place == tl.load(tokens + row)
    gradient = tl.load(grad_log_probs + row) * (tl.where(is_chosen, 1.0, 0.0) - prob)
    if HAS_ENTROPY:
        gradient -= tl.load(grad_entropies + row) * prob * (log_prob + tl.load(entropies + row))
    tl.store(logits + place, (gradient * sharpness).to(logits.dtype.element_ty), mask=inside)
