"""Advantages and log-probabilities to a loss.

    from groupwise.objectives import LossInputs, Totals, objective

    totals = Totals.count(lengths, prompt_ids)      # over the whole optimiser step
    for inputs in micro_batches:                    # LossInputs, packed
        outputs = objective(inputs, config, totals)
        outputs.loss.backward()                     # the gradients add up to the step's, however it is cut

ratio (token, sequence) x surrogate x aggregate x KL x entropy; a named recipe is a row of `RECIPES`.
"""

from groupwise.objectives.aggregates import AGGREGATES, aggregate
from groupwise.objectives.covariance import select_by_covariance
from groupwise.objectives.inputs import LossInputs, LossOutputs, Totals
from groupwise.objectives.kl import (
    KL_ESTIMATORS,
    AdaptiveKLController,
    FixedKLController,
    get_kl_controller,
    kl_in_reward,
    kl_penalty,
)
from groupwise.objectives.loss import combine_metrics, objective
from groupwise.objectives.recipes import LOSS_MODES, RECIPES, LossMode, Plan, Recipe, plan
from groupwise.objectives.registry import POLICY_LOSS_REGISTRY, get_policy_loss_fn, register_policy_loss
from groupwise.objectives.surrogates import Losses, Settings, Tokens
from groupwise.objectives.verl_api import agg_loss

__all__ = [
    "AGGREGATES",
    "KL_ESTIMATORS",
    "LOSS_MODES",
    "POLICY_LOSS_REGISTRY",
    "RECIPES",
    "AdaptiveKLController",
    "FixedKLController",
    "LossInputs",
    "LossMode",
    "LossOutputs",
    "Losses",
    "Plan",
    "Recipe",
    "Settings",
    "Tokens",
    "Totals",
    "agg_loss",
    "aggregate",
    "combine_metrics",
    "get_kl_controller",
    "get_policy_loss_fn",
    "kl_in_reward",
    "kl_penalty",
    "objective",
    "plan",
    "register_policy_loss",
    "select_by_covariance",
]
