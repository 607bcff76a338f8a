"""From one loss per token to one number: a mode is a weight per token, made from the counts of the whole step.

Because no weight depends on the rest of the micro-batch, the sums over micro-batches add up to the loss of the
whole step. An answer without tokens, and a prompt without any, are not in the counts; 0/0 is 0.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from groupwise.errors import BadValueError, MissingFieldError, unknown_name
from groupwise.objectives.inputs import Layout, Totals
from groupwise.types import Float

Weight = Callable[[Layout, Totals], Tensor]


def token_mean(layout: Layout, totals: Totals) -> Tensor:
    """1 / tokens of the step: every token alike, long answers weigh more. DAPO's code, 2503.14476."""
    return layout.counted / _at_least_one(totals.num_tokens)


def token_sum(layout: Layout, totals: Totals) -> Tensor:  # noqa: ARG001  (every mode has the same signature)
    """1: the plain sum."""
    return layout.counted


def seq_mean_token_sum(layout: Layout, totals: Totals) -> Tensor:
    """1 / answers of the step: the policy gradient of whole answers, as in RLOO, 2402.14740."""
    return layout.counted / _at_least_one(totals.num_sequences)


def seq_mean_token_sum_norm(layout: Layout, totals: Totals) -> Tensor:
    """1 / (answers of the step * the longest answer allowed). Dr. GRPO, 2503.20783: a constant, never a width."""
    if totals.max_length is None:
        raise MissingFieldError(
            "loss_agg_mode 'seq-mean-token-sum-norm' divides by a constant length: set actor.loss_scale_factor, or "
            "Totals.max_length to the longest answer the run allows"
        )
    if totals.max_length < 1:
        raise BadValueError(f"a length of {totals.max_length} cannot divide a loss; give 1 or more")
    return seq_mean_token_sum(layout, totals) / totals.max_length


def seq_mean_token_mean(layout: Layout, totals: Totals) -> Tensor:
    """1 / (answers of the step * tokens of this answer): every answer alike. GRPO, 2402.03300."""
    per_answer = 1 / (layout.lengths.clamp_min(1) * _at_least_one(totals.num_sequences))
    return layout.counted * layout.spread(per_answer)


def prompt_mean(layout: Layout, totals: Totals) -> Tensor:
    """1 / (prompts of the step * tokens of all answers to this prompt): every prompt alike.

    The formula of the DAPO paper, 2503.14476 (its code takes token-mean).
    """
    if totals.prompt_tokens is None:
        raise MissingFieldError(
            "loss_agg_mode 'prompt-mean' needs Totals.prompt_tokens, the response tokens of every prompt of the step"
        )
    tokens = totals.prompt_tokens.to(layout.sequence_ids.device).index_select(0, layout.prompt_ids)
    per_answer = 1 / (tokens.clamp_min(1).to(layout.dtype) * _at_least_one(totals.num_prompts))
    return layout.counted * layout.spread(per_answer)


AGGREGATES: dict[str, Weight] = {
    "token-mean": token_mean,
    "token-sum": token_sum,
    "seq-mean-token-sum": seq_mean_token_sum,
    "seq-mean-token-sum-norm": seq_mean_token_sum_norm,
    "seq-mean-token-mean": seq_mean_token_mean,
    "prompt-mean": prompt_mean,
}


def aggregate(losses: Float[Tensor, "L"], layout: Layout, totals: Totals, mode: str) -> Float[Tensor, ""]:
    """sum_t weight_t * loss_t: this micro-batch's part of the step's loss."""
    if mode not in AGGREGATES:
        raise unknown_name("loss_agg_mode", mode, AGGREGATES)
    return (layout.keep(losses) * AGGREGATES[mode](layout, totals)).sum()


def _at_least_one(count: int | Tensor) -> int | Tensor:
    return count.clamp_min(1) if isinstance(count, Tensor) else max(count, 1)
