"""Hidden states to log-probabilities of given tokens, without the logits of a whole batch.

The logits of one chunk of positions exist at a time; where there is more than one chunk they are computed again in
the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from groupwise.types import Float, Int

# Logits that may exist at once: 64 MiB of float32.
CHUNK_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class TokenStatistics:
    """What one forward pass says of given tokens, one number per token."""

    log_probs: Float[Tensor, "T"]
    entropy: Float[Tensor, "T"] | None = None
    sum_pi_squared: Float[Tensor, "T"] | None = None


def token_statistics(
    head: Callable[[Tensor], Tensor],
    hidden: Float[Tensor, "T H"],
    tokens: Int[Tensor, "T"],
    vocab_size: int,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    entropy_gradient: bool = True,
    sum_pi_squared: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> TokenStatistics:
    """log pi(token | what came before) at `temperature`, and on request the entropy and the sum of pi squared.

    hidden[t] is the state that predicts tokens[t]. In float32 at least, whatever the model's own precision.
    """

    def statistics(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        logits = head(states)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if temperature != 1.0:
            logits = logits / temperature
        log_normaliser = logits.logsumexp(-1)
        log_probs = logits.gather(-1, targets[:, None])[:, 0] - log_normaliser
        if not (entropy or sum_pi_squared):
            return log_probs, None, None
        if not entropy_gradient:
            logits, log_normaliser = logits.detach(), log_normaliser.detach()
        probs = (logits - log_normaliser[:, None]).exp()
        spread = log_normaliser - (probs * logits).sum(-1) if entropy else None
        squares = probs.detach().square().sum(-1) if sum_pi_squared else None
        return log_probs, spread, squares

    size = max(1, chunk_elements // vocab_size)
    chunks = list(zip(torch.split(hidden, size), torch.split(tokens, size), strict=True))
    if len(chunks) == 1 or not torch.is_grad_enabled():
        parts = [statistics(*chunk) for chunk in chunks]
    else:
        parts = [checkpoint(statistics, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
    log_probs, entropies, squares = zip(*parts, strict=True)
    return TokenStatistics(
        torch.cat(log_probs),
        torch.cat(entropies) if entropy else None,
        torch.cat(squares) if sum_pi_squared else None,
    )
