"""verl 0.9.1's names and signatures around the same equations: padded tensors [B, T] and a mask.

A config is an `ActorConfig`, verl's own, an OmegaConf node, a mapping or None; a number it lacks is verl's default.
Without `global_batch_info` in it the loss is normalised over the tensors given, as in verl.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from groupwise.config import read
from groupwise.errors import BadValueError
from groupwise.objectives.aggregates import aggregate
from groupwise.objectives.covariance import choose
from groupwise.objectives.inputs import Layout, LossInputs, Totals
from groupwise.objectives.loss import ratio_metrics, surrogate_losses
from groupwise.objectives.recipes import LOSS_MODES, LossMode, Plan, settings_from
from groupwise.objectives.registry import PolicyLossFn, register_policy_loss
from groupwise.types import Float, Shaped


def agg_loss(
    loss_mat: Float[Tensor, "B T"],
    loss_mask: Shaped[Tensor, "B T"],
    loss_agg_mode: str,
    dp_size: int = 1,
    batch_num_tokens: int | Tensor | None = None,
    global_batch_size: int | Tensor | None = None,
    loss_scale_factor: int | None = None,
) -> Float[Tensor, ""]:
    """One number from a matrix of losses. Masked positions count nowhere, whatever stands there.

    batch_num_tokens, global_batch_size: tokens and answers of the whole step; None counts those given. dp_size:
    the number of processes whose gradients are averaged. loss_scale_factor: the constant length of
    seq-mean-token-sum-norm; None is the width of the matrix, as in verl: a constant of your own is better, the width
    changes from batch to batch. Nothing but masked positions: 0 (verl: NaN).
    """
    layout = _layout(loss_mask, torch.promote_types(loss_mat.dtype, torch.float32))
    if dp_size > 1 and loss_agg_mode == "token-mean" and batch_num_tokens is None:
        raise BadValueError("batch_num_tokens, the tokens of all processes, is required when dp_size > 1")
    if dp_size > 1 and loss_agg_mode.startswith("seq-mean") and global_batch_size is None:
        raise BadValueError("global_batch_size, the answers of all processes, is required when dp_size > 1")
    totals = Totals(
        num_tokens=layout.counted.sum() if batch_num_tokens is None else batch_num_tokens,
        num_sequences=(layout.lengths > 0).sum() if global_batch_size is None else global_batch_size,
        max_length=loss_mask.shape[-1] if loss_scale_factor is None else loss_scale_factor,
    )
    return aggregate(loss_mat.flatten().to(layout.dtype), layout, totals, loss_agg_mode) * dp_size


def padded_inputs(
    old_log_prob: Float[Tensor, "B T"],
    log_prob: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    response_mask: Shaped[Tensor, "B T"],
    rollout_is_weights: Float[Tensor, "B T"] | None = None,
) -> LossInputs:
    """Padded tensors as loss inputs: the rows one after the other, pads and all, under their mask."""
    layout = _layout(response_mask, log_prob.dtype)
    return LossInputs(
        log_probs=log_prob.flatten(),
        old_log_probs=old_log_prob.flatten(),
        advantages=advantages.flatten(),
        sequence_ids=layout.sequence_ids,
        prompt_ids=layout.prompt_ids,
        weights=None if rollout_is_weights is None else rollout_is_weights.flatten(),
        mask=layout.mask,
        per_token=True,
    )


def _layout(mask: Shaped[Tensor, "B T"], dtype: torch.dtype) -> Layout:
    rows = torch.arange(mask.shape[0], device=mask.device)
    return Layout(rows.repeat_interleave(mask.shape[1]), rows, (mask != 0).flatten(), dtype)


def _padded(name: str, mode: LossMode) -> PolicyLossFn:
    """A loss mode as verl's function of that name."""

    def policy_loss(
        old_log_prob: Float[Tensor, "B T"],
        log_prob: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        response_mask: Shaped[Tensor, "B T"],
        loss_agg_mode: str = mode.aggregate,
        config: Any = None,
        rollout_is_weights: Float[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, ""], dict[str, Any]]:
        inputs = padded_inputs(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights)
        chosen = Plan(
            name, mode, mode.aggregate if mode.forced else loss_agg_mode, settings_from(config, mode.defaults)
        )
        selected = choose(inputs, chosen) if mode.needs_selection else None
        tokens, losses = surrogate_losses(inputs, chosen, selected)
        info = {"loss_scale_factor": read(config, "loss_scale_factor"), **read(config, "global_batch_info", {})}
        loss = agg_loss(losses.values.view(response_mask.shape), response_mask, chosen.aggregate, **info)
        num_tokens = inputs.layout.counted.sum()
        found = ratio_metrics(tokens, losses, Totals(num_tokens, num_sequences=len(response_mask)))
        # One wait for the device and not one per number.
        return loss, dict(zip(found, torch.stack(list(found.values())).tolist(), strict=True))

    policy_loss.__name__ = policy_loss.__qualname__ = f"compute_policy_loss_{name}"
    policy_loss.__doc__ = mode.surrogate.__doc__
    return policy_loss


for _name, _mode in LOSS_MODES.items():
    register_policy_loss(_name)(_padded(_name, _mode))
