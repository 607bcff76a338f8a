"""What a loss is made from: the tokens of a micro-batch, and the counts of the whole optimiser step.

Tokens are packed: every per-token tensor is [L], the response tokens of all answers one after the other in any
order, and `sequence_ids` says whose each of them is. No padding is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from groupwise.errors import BadValueError, MissingFieldError
from groupwise.types import Bool, Float, Int


@dataclass(frozen=True)
class Layout:
    """Which token belongs to which answer, and which tokens count: sums over answers and back."""

    sequence_ids: Int[Tensor, "L"]
    prompt_ids: Int[Tensor, "B"]
    mask: Bool[Tensor, "L"] | None
    dtype: torch.dtype

    def keep(self, values: Float[Tensor, "L"]) -> Float[Tensor, "L"]:
        """The values where the mask is on, 0 elsewhere; NaN and infinity there reach no result and no gradient."""
        return values if self.mask is None else torch.where(self.mask, values, 0.0)

    def sum(self, values: Float[Tensor, "L"]) -> Float[Tensor, "B"]:
        """Per answer; an answer without tokens gets 0."""
        return values.new_zeros(len(self.prompt_ids)).index_add(0, self.sequence_ids, self.keep(values))

    def mean(self, values: Float[Tensor, "L"]) -> Float[Tensor, "B"]:
        """Per answer; an answer without tokens gets 0."""
        return self.sum(values) / self.lengths.clamp_min(1)

    def spread(self, values: Float[Tensor, "B"]) -> Float[Tensor, "L"]:
        return values.index_select(0, self.sequence_ids)

    @cached_property
    def counted(self) -> Float[Tensor, "L"]:
        """1 for every token that counts, 0 elsewhere."""
        ones = torch.ones(self.sequence_ids.shape, dtype=self.dtype, device=self.sequence_ids.device)
        return self.keep(ones)

    @cached_property
    def lengths(self) -> Float[Tensor, "B"]:
        return self.sum(self.counted)


@dataclass(frozen=True)
class LossInputs:
    """The response tokens of one micro-batch. An answer's tokens all stand in the same micro-batch.

    old_log_probs: under the policy that the ratio is against; None is the present one (the ratio is exactly 1).
    advantages: one per answer [B], or one per token [L] with `per_token=True`.
    sequence_ids: which answer a token belongs to, 0 to B - 1.
    prompt_ids: which prompt an answer belongs to, numbered over the whole step as in `Totals.prompt_tokens`.
    ref_log_probs: under the reference policy, where there is a KL term. entropy: of the policy at each token.
    weights: importance weights against the sampler, multiplied into the policy's loss; no gradient through them.
    mask: False leaves a token out of everything, whatever stands there; None counts all of them.
    selected: the tokens `select_by_covariance` picked over the whole step, for clip_cov and kl_cov.
    """

    # The underscore leaves a shape to the refusals below, which say more than a shape check.
    log_probs: Float[Tensor, "L"]
    old_log_probs: Float[Tensor, "_L"] | None
    advantages: Float[Tensor, "_B_or_L"]
    sequence_ids: Int[Tensor, "_L"]
    prompt_ids: Int[Tensor, "B"]
    ref_log_probs: Float[Tensor, "_L"] | None = None
    entropy: Float[Tensor, "_L"] | None = None
    weights: Float[Tensor, "_L"] | None = None
    mask: Bool[Tensor, "_L"] | None = None
    selected: Bool[Tensor, "_L"] | None = None
    per_token: bool = False

    def __post_init__(self) -> None:
        tokens, answers = len(self.log_probs), len(self.prompt_ids)
        for name in ("old_log_probs", "sequence_ids", "ref_log_probs", "entropy", "weights", "mask", "selected"):
            given = getattr(self, name)
            if given is not None and given.shape != (tokens,):
                raise BadValueError(
                    f"{name} has shape {tuple(given.shape)} for {tokens} tokens; give one value per response token"
                )
        expected = tokens if self.per_token else answers
        if self.advantages.shape != (expected,):
            raise BadValueError(
                f"advantages have shape {tuple(self.advantages.shape)} for {tokens} tokens of {answers} answers; give "
                "one per answer, or one per token with per_token=True"
            )

    @cached_property
    def layout(self) -> Layout:
        # Sums over a long batch need more digits than bfloat16 and float16 have.
        dtype = torch.promote_types(self.log_probs.dtype, torch.float32)
        return Layout(self.sequence_ids, self.prompt_ids, self.mask, dtype)

    def tokens(self, name: str) -> Float[Tensor, "L"]:
        """A per-token field in float32 or better, 0 wherever the mask is off, before any arithmetic touches it."""
        value = getattr(self, name)
        if value is None:
            raise MissingFieldError(f"the loss needs {name!r}, one value per response token, and was given None")
        return self.layout.keep(value.to(self.layout.dtype))

    @cached_property
    def token_advantages(self) -> Float[Tensor, "L"]:
        advantages = self.advantages.detach().to(self.layout.dtype)
        return self.layout.keep(advantages if self.per_token else self.layout.spread(advantages))


@dataclass(frozen=True)
class Totals:
    """What the whole optimiser step holds, all its micro-batches (and processes) together.

    A loss divides by these and never by what its own micro-batch holds: the partial losses then add up to the whole
    loss, and their gradients to its gradient, however the step is cut into micro-batches.

    num_tokens: response tokens that count. num_sequences, num_prompts: those with at least one of them.
    prompt_tokens: such tokens per prompt, for the mode prompt-mean. max_length: the longest answer the run allows,
    the constant of seq-mean-token-sum-norm.
    """

    num_tokens: int | Tensor
    num_sequences: int | Tensor
    num_prompts: int | Tensor = 0
    prompt_tokens: Int[Tensor, "G"] | None = None
    max_length: int | None = None

    @classmethod
    def count(
        cls, lengths: Tensor | Sequence[int], prompt_ids: Tensor | Sequence[int], max_length: int | None = None
    ) -> Totals:
        """From the number of response tokens and the prompt of every answer of the step."""
        lengths, prompt_ids = torch.as_tensor(lengths).long(), torch.as_tensor(prompt_ids).long()
        num_prompts = int(prompt_ids.max()) + 1 if len(prompt_ids) else 0
        per_prompt = lengths.new_zeros(num_prompts).index_add(0, prompt_ids, lengths)
        return cls(int(lengths.sum()), int((lengths > 0).sum()), int((per_prompt > 0).sum()), per_prompt, max_length)

    @classmethod
    def of(cls, inputs: LossInputs, max_length: int | None = None) -> Totals:
        """From the inputs of a step that is one micro-batch."""
        return cls.count(inputs.layout.lengths, inputs.prompt_ids, max_length)


@dataclass(frozen=True)
class LossOutputs:
    """loss: this micro-batch's part of the step's loss; the parts of all micro-batches add up to the whole.

    metrics: detached scalars, on the device. Parts too: they add up over the micro-batches, except that of a name
    that ends in `/max` the largest counts (`combine_metrics`).
    """

    loss: Float[Tensor, ""]
    metrics: Mapping[str, Tensor]
