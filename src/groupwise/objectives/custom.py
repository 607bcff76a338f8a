"""A policy loss of the user's own: verl's padded tensors from packed tokens, and its numbers back.

The function sees one micro-batch. As in verl it divides by the counts of the whole step if it ends in
`agg_loss(..., **config.global_batch_info)`; one that takes a plain mean changes with the size of the micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from groupwise.config import ActorConfig, Section
from groupwise.errors import BadValueError
from groupwise.objectives.inputs import LossInputs, Totals
from groupwise.objectives.recipes import Plan
from groupwise.types import Float, Int


@dataclass(frozen=True)
class PolicyLossConfig(Section):
    """verl's section of this name."""

    loss_mode: str
    clip_cov_ratio: float
    clip_cov_lb: float
    clip_cov_ub: float
    kl_cov_ratio: float
    ppo_kl_coef: float
    dro_beta: float | None


@dataclass(frozen=True)
class LossConfig(ActorConfig):
    """The actor's settings as verl's functions read them: every number filled in, and the counts of the step."""

    policy_loss: PolicyLossConfig | None = None
    global_batch_info: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: ActorConfig, chosen: Plan, totals: Totals) -> LossConfig:
        numbers = chosen.settings
        beneath = {f.name: getattr(numbers, f.name) for f in fields(PolicyLossConfig) if f.name != "loss_mode"}
        filled = {
            **config,
            **beneath,
            "loss_mode": chosen.name,
            "loss_agg_mode": chosen.aggregate,
            "clip_ratio": 0.2 if config.clip_ratio is None else config.clip_ratio,
            "clip_ratio_low": numbers.clip_low,
            "clip_ratio_high": numbers.clip_high,
            "clip_ratio_c": numbers.clip_c,
            "tau_pos": numbers.tau_pos,
            "tau_neg": numbers.tau_neg,
        }
        counts = {
            "dp_size": 1,
            "batch_num_tokens": totals.num_tokens,
            "global_batch_size": totals.num_sequences,
            "loss_scale_factor": totals.max_length,
        }
        return cls(**filled, policy_loss=PolicyLossConfig(chosen.name, **beneath), global_batch_info=counts)


def custom_loss(
    inputs: LossInputs, config: ActorConfig, chosen: Plan, totals: Totals
) -> tuple[Float[Tensor, ""], dict[str, Tensor]]:
    """The function's loss, and its metrics as this micro-batch's part of their mean over the tokens of the step."""
    assert chosen.mode.function is not None
    rows, columns, mask = _places(inputs)
    log_probs = inputs.tokens("log_probs")
    old = log_probs.detach() if inputs.old_log_probs is None else inputs.tokens("old_log_probs")

    def padded(values: Float[Tensor, "L"]) -> Float[Tensor, "B T"]:
        return torch.zeros_like(mask, dtype=values.dtype).index_put((rows, columns), values)

    loss, found = chosen.mode.function(
        old_log_prob=padded(old),
        log_prob=padded(log_probs),
        advantages=padded(inputs.token_advantages),
        response_mask=mask,
        loss_agg_mode=chosen.aggregate,
        config=LossConfig.of(config, chosen, totals),
        rollout_is_weights=None if inputs.weights is None else padded(inputs.tokens("weights")),
    )
    if not isinstance(loss, Tensor) or loss.ndim:
        raise BadValueError(
            f"policy loss {chosen.name!r} returned a {type(loss).__name__} where a tensor without dimensions is due"
        )
    share = inputs.layout.counted.sum() / max(1, int(totals.num_tokens))
    return loss, {
        name: torch.as_tensor(value, device=loss.device).detach() * (1 if name.endswith("/max") else share)
        for name, value in found.items()
    }


def _places(inputs: LossInputs) -> tuple[Int[Tensor, "L"], Int[Tensor, "L"], Int[Tensor, "B T"]]:
    """The row and the column of every token, and the mask."""
    rows = inputs.sequence_ids
    order = rows.argsort(stable=True)
    counts = rows.bincount(minlength=len(inputs.prompt_ids))
    starts = counts.cumsum(0) - counts
    columns = torch.empty_like(rows)
    columns[order] = torch.arange(len(rows), device=rows.device) - starts.repeat_interleave(counts)
    mask = rows.new_zeros(len(counts), int(counts.max()) if len(counts) else 0)
    mask[rows, columns] = inputs.layout.counted.long()
    return rows, columns, mask
