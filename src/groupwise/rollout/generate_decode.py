"""Decoding by transformers' own `generate`, for models that keep their attention or their state to themselves.

It is slow: a prompt is computed once per answer, and a batch runs until its longest answer has ended. What is sampled
is what the other decoders sample: in place of the model's choice stands the token that the place's own random number
picks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from groupwise.rollout.randomness import uniforms
from groupwise.rollout.sampling import draw
from groupwise.types import Float64, Sampling

Answer = tuple[tuple[int, ...], tuple[float, ...]]


def decode_by_generate(
    policy: Any, prompts: Sequence[tuple[int, ...]], n: int, sampling: Sampling, max_rows: int
) -> Iterator[Answer]:
    """Tokens and log-probabilities of `n` answers to each prompt, in order, `max_rows` at a time."""
    numbers = torch.arange(len(prompts) * n, device=policy.device)
    for chosen in torch.split(numbers, max_rows):
        drawn = uniforms(chosen // n, chosen % n, sampling.max_tokens, sampling.seed, sampling.step)
        rows = [prompts[place] for place in (chosen // n).tolist()]
        yield from _batch(policy, rows, _Chooser(drawn, sampling))


class _Chooser:
    """A logits processor that leaves one token to choose, and notes its log-probability."""

    def __init__(self, numbers: Float64[Tensor, "B T"], sampling: Sampling) -> None:
        self.numbers, self.sampling = numbers, sampling
        self.tokens: list[Tensor] = []
        self.log_probs: list[Tensor] = []

    def __call__(self, _ids: Tensor, logits: Tensor) -> Tensor:
        tokens, log_probs = draw(logits, self.numbers[:, len(self.tokens)], self.sampling)
        self.tokens.append(tokens)
        self.log_probs.append(log_probs)
        return torch.full_like(logits, -torch.inf).scatter_(1, tokens[:, None], 0.0)


def _batch(policy: Any, rows: Sequence[tuple[int, ...]], chooser: _Chooser) -> Iterator[Answer]:
    from transformers import GenerationConfig

    width = max(map(len, rows))
    ids = torch.tensor([(policy.pad_id,) * (width - len(row)) + row for row in rows], device=policy.device)
    lengths = torch.tensor([len(row) for row in rows], device=policy.device)
    is_token = torch.arange(width, device=policy.device) >= width - lengths[:, None]
    own = policy.model.generation_config
    # What the model's own settings do not say is filled in from them: penalties and the like would change the logits.
    policy.model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=chooser.sampling.max_tokens,
        do_sample=False,
        eos_token_id=sorted(policy.eos_ids),
        pad_token_id=policy.pad_id,
    )
    try:
        policy.model.generate(ids, attention_mask=is_token.long(), logits_processor=[chooser])
    finally:
        policy.model.generation_config = own
    tokens = torch.stack(chooser.tokens, 1).tolist()
    log_probs = torch.stack(chooser.log_probs, 1).tolist()
    for row, values in zip(tokens, log_probs, strict=True):
        ends = (place for place, token in enumerate(row, 1) if token in policy.eos_ids)
        length = next(ends, len(row))
        yield tuple(row[:length]), tuple(values[:length])
