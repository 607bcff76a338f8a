"""The loss of a micro-batch: surrogate + KL - entropy, each summed with weights from the whole step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from groupwise.config import ActorConfig
from groupwise.objectives.aggregates import aggregate, token_mean
from groupwise.objectives.custom import custom_loss
from groupwise.objectives.inputs import Layout, LossInputs, LossOutputs, Totals
from groupwise.objectives.kl import kl_penalty
from groupwise.objectives.recipes import Plan, plan
from groupwise.objectives.surrogates import RATIO_LEVELS, Losses, Tokens
from groupwise.types import Bool, Float


def objective(inputs: LossInputs, config: ActorConfig, totals: Totals) -> LossOutputs:
    """The part of one micro-batch in the loss of the step: loss = policy + kl_loss_coef * KL - entropy_coeff * entropy.

    The parts of all micro-batches add up to the step's loss exactly as their gradients do; `totals` holds the counts
    of the whole step. Call `loss.backward()` for each and step once. Without a single token that counts the loss is 0
    and so is its gradient. The metrics are parts as well: `combine_metrics`.
    """
    chosen = plan(config)
    if config.loss_scale_factor is not None:
        totals = replace(totals, max_length=config.loss_scale_factor)
    if chosen.mode.function is None:
        tokens, losses = surrogate_losses(inputs, chosen, inputs.selected)
        loss = aggregate(losses.values, inputs.layout, totals, chosen.aggregate)
        found = ratio_metrics(tokens, losses, totals)
    else:
        loss, found = custom_loss(inputs, config, chosen, totals)
    metrics = {"actor/pg_loss": loss.detach(), **found}
    layout, shares = inputs.layout, token_mean(inputs.layout, totals)
    if config.kl_in_loss:
        kl = kl_penalty(inputs.tokens("log_probs"), inputs.tokens("ref_log_probs"), config.kl_loss_type)
        kl_loss = aggregate(kl, layout, totals, chosen.aggregate)
        loss = loss + config.kl_loss_coef * kl_loss
        metrics |= {"actor/kl_loss": kl_loss.detach(), "actor/kl": _share(kl, layout, shares)}
    if config.entropy_coeff != 0 or inputs.entropy is not None:
        entropy = inputs.tokens("entropy")
        if config.entropy_coeff != 0:
            loss = loss - config.entropy_coeff * aggregate(entropy, layout, totals, chosen.aggregate)
        metrics["actor/entropy"] = _share(entropy, layout, shares)
    metrics["actor/loss"] = loss.detach()
    return LossOutputs(loss, metrics)


def surrogate_losses(inputs: LossInputs, chosen: Plan, selected: Bool[Tensor, "L"] | None) -> tuple[Tokens, Losses]:
    """The surrogate's loss of every token, importance weights applied, and what it was made from."""
    layout, log_probs = inputs.layout, inputs.tokens("log_probs")
    old = log_probs.detach() if inputs.old_log_probs is None else inputs.tokens("old_log_probs").detach()
    assert chosen.mode.surrogate is not None
    log_ratio = RATIO_LEVELS[chosen.mode.ratio](log_probs, old, layout)
    tokens = Tokens(log_probs, old, log_ratio, inputs.token_advantages, layout, selected)
    losses = chosen.mode.surrogate(tokens, chosen.settings)
    if inputs.weights is not None:
        weights = chosen.mode.weigh(inputs.tokens("weights").detach(), layout)
        losses = replace(losses, values=losses.values * weights)
    return tokens, losses


def ratio_metrics(tokens: Tokens, losses: Losses, totals: Totals) -> dict[str, Tensor]:
    """What became of the ratios: parts of means over all tokens of the step, and the largest ratio."""
    layout, ratio = tokens.layout, tokens.ratio.detach()
    shares = token_mean(layout, totals)
    metrics = {
        "actor/ppo_kl": _share(tokens.old_log_probs - tokens.log_probs, layout, shares),
        "actor/ratio": _share(ratio, layout, shares),
        "actor/ratio/max": torch.cat([layout.keep(ratio), ratio.new_zeros(1)]).max(),
    }
    for name, where in (("actor/pg_clipfrac", losses.clipped), ("actor/pg_clipfrac_lower", losses.clipped_low)):
        metrics[name] = shares.new_zeros(()) if where is None else _share(where.to(ratio.dtype), layout, shares)
    return metrics


def _share(values: Float[Tensor, "L"], layout: Layout, shares: Float[Tensor, "L"]) -> Float[Tensor, ""]:
    """This micro-batch's part of the mean over all tokens of the step."""
    return (layout.keep(values.detach()) * shares).sum()


def combine_metrics(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The step's metrics from those of its micro-batches: the sum, or the largest where the name ends in `/max`."""
    names = dict.fromkeys(name for part in parts for name in part)
    stacked = {name: torch.stack([part[name] for part in parts if name in part]) for name in names}
    return {name: values.max() if name.endswith("/max") else values.sum() for name, values in stacked.items()}
