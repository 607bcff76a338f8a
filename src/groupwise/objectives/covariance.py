"""Which tokens clip_cov and kl_cov treat: a choice over the whole step, made before it is cut into micro-batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from groupwise.errors import BadValueError
from groupwise.objectives.inputs import LossInputs
from groupwise.objectives.recipes import LOSS_MODES, Plan, plan
from groupwise.objectives.surrogates import Settings, Tokens, clip, token_log_ratio
from groupwise.types import Bool, Float


@torch.no_grad()
def select_by_covariance(
    inputs: LossInputs, config: Any, *, generator: torch.Generator | None = None
) -> Bool[Tensor, "L"]:
    """The tokens that `LossInputs.selected` asks for, by cov_t = (A_t - mean A) (lp_t - mean lp) over the step.

    kl_cov takes the `kl_cov_ratio` of the tokens with the highest covariance. clip_cov draws `clip_cov_ratio` of them
    at random from those with a covariance between lb and ub that PPO's clip leaves alone; the draw is the CPU
    `generator`'s, torch's own where None. At least one token (of those there are), in both.
    https://arxiv.org/abs/2505.22617.

    `inputs` holds the whole step, its `log_probs` those of the policy at the start of it: before the first update
    that is `old_log_probs`. verl takes the covariance within each micro-batch, so that its choice, and with it the
    loss, changes with their size; over one micro-batch the two agree.
    """
    return choose(inputs, plan(config), generator)


def choose(inputs: LossInputs, chosen: Plan, generator: torch.Generator | None = None) -> Bool[Tensor, "L"]:
    """`select_by_covariance` for a plan already made."""
    layout, log_probs, advantages = inputs.layout, inputs.tokens("log_probs"), inputs.token_advantages
    num_tokens = layout.counted.sum()
    centred = [values - layout.keep(values).sum() / num_tokens.clamp_min(1) for values in (advantages, log_probs)]
    covariance = centred[0] * centred[1]
    counted = layout.counted > 0
    if chosen.mode is LOSS_MODES["kl_cov"]:
        return _highest(covariance, counted, chosen.settings.kl_cov_ratio)
    if chosen.mode is LOSS_MODES["clip_cov"]:
        old = log_probs if inputs.old_log_probs is None else inputs.tokens("old_log_probs")
        tokens = Tokens(log_probs, old, token_log_ratio(log_probs, old, layout), advantages, layout)
        clipped = clip(tokens, chosen.settings).clipped
        assert clipped is not None
        return _between(covariance, counted & ~clipped, int(num_tokens), chosen.settings, generator)
    raise BadValueError("tokens are selected by covariance for the loss modes 'clip_cov' and 'kl_cov' only")


def _highest(covariance: Float[Tensor, "L"], counted: Bool[Tensor, "L"], ratio: float) -> Bool[Tensor, "L"]:
    num_tokens = int(counted.sum())
    selected = torch.zeros_like(counted)
    if num_tokens:
        ranked = covariance.masked_fill(~counted, -torch.inf)
        selected[ranked.topk(max(1, int(num_tokens * ratio))).indices] = True
    return selected


def _between(
    covariance: Float[Tensor, "L"],
    allowed: Bool[Tensor, "L"],
    num_tokens: int,
    settings: Settings,
    generator: torch.Generator | None,
) -> Bool[Tensor, "L"]:
    inside = allowed & (covariance > settings.clip_cov_lb) & (covariance < settings.clip_cov_ub)
    candidates = inside.nonzero()[:, 0]
    order = torch.randperm(len(candidates), generator=generator)
    drawn = order[: max(1, int(settings.clip_cov_ratio * num_tokens))].to(candidates.device)
    selected = torch.zeros_like(allowed)
    selected[candidates[drawn]] = True
    return selected
