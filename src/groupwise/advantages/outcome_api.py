"""The outcome estimators as verl calls them: rewards [B, T] in, the same advantages [B, T] out twice.

Every function sums the rewards, calls its equation on the scores, and spreads the result over the mask. Names,
arguments and defaults are verl 0.9.1's (`trainer/ppo/core_algos.py`); keyword-only arguments are ours:

    failed          answers that take no part in their group's statistics and get 0 ([B], nonzero is failed)
    exclude_empty   treat answers without a response token as failed; None asks `config`, whose default is False (verl)
    convention      whose GRPO, see `CONVENTIONS`; None asks `config`, whose default is "verl"

`index` takes one label per answer, or a `Groups` made beforehand. What `**kwargs` takes is ignored, as in verl.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from groupwise.advantages import baselines, best_of_k, outcome
from groupwise.advantages.groups import Groups
from groupwise.advantages.registry import AdvantageEstimator, register_adv_est
from groupwise.advantages.rows import as_scores, check_rows, count_tokens, result_dtype, spread_over_tokens, sum_rewards
from groupwise.advantages.scores import (
    OUTCOME_ESTIMATORS,
    Flags,
    OutcomeEquation,
    as_row_mask,
    exactly,
    outcome_advantages,
)
from groupwise.config import read
from groupwise.errors import BadValueError, MissingFieldError

Index = Groups | Iterable[Any]
Pair = tuple[Tensor, Tensor]
VERL_EPSILON = 1e-6


@torch.no_grad()
def estimate(
    equation: OutcomeEquation,
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    config: Any = None,
    failed: Flags | None = None,
    exclude_empty: bool | None = None,
    **options: Any,
) -> Pair:
    """Sum, judge, spread: what all the functions below share. `lengths=True` hands the equation the token counts."""
    check_rows(token_level_rewards, response_mask)
    # The sum first: a GPU works on it while the labels are numbered here.
    scores = sum_rewards(token_level_rewards)
    groups = Groups.of(index, len(scores), scores.device)
    left_out = None if failed is None else as_row_mask("failed", failed, scores)
    if read(config, "exclude_empty", False) if exclude_empty is None else exclude_empty:
        empty = count_tokens(response_mask) == 0
        left_out = empty if left_out is None else left_out | empty
    if options.get("lengths") is True:
        options["lengths"] = count_tokens(response_mask)
    advantages = outcome_advantages(equation, scores, groups, left_out, **options)
    tokens = spread_over_tokens(advantages, response_mask, result_dtype(token_level_rewards, response_mask))
    return tokens, tokens


def _own_epsilon(epsilon: float) -> float | None:
    """verl's default, which nobody typed, leaves the choice to the equation."""
    return None if epsilon == VERL_EPSILON else epsilon


def verl_shaped(name: str, equation: OutcomeEquation) -> Callable[..., Pair]:
    """An equation as verl calls it: `(token_level_rewards, response_mask, index, epsilon=1e-6, config=None, **kwargs)`.

    The options of the equation become keyword-only arguments. One that is not given is read from the config
    under its own name; `lengths` are the token counts of the mask; `epsilon` is taken and, unless the equation
    has one, ignored, as in verl.
    """
    options = [p for p in inspect.signature(equation).parameters.values() if p.kind is p.KEYWORD_ONLY]

    def compute(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Index,
        epsilon: float = VERL_EPSILON,
        config: Any = None,
        *,
        failed: Flags | None = None,
        exclude_empty: bool | None = None,
        **kwargs: Any,
    ) -> Pair:
        given = {"epsilon": _own_epsilon(epsilon), "lengths": True, **kwargs}
        chosen = {o.name: given.get(o.name, read(config, o.name, o.default)) for o in options}
        missing = [option for option, value in chosen.items() if value is inspect.Parameter.empty]
        if missing:
            raise MissingFieldError(f"estimator {name!r} needs {missing[0]}=, as an argument or in the batch")
        return estimate(equation, token_level_rewards, response_mask, index, config, failed, exclude_empty, **chosen)

    signature = inspect.signature(compute)
    own = [o for o in options if o.name not in ("epsilon", "lengths")]
    *positional, rest = signature.parameters.values()
    compute.__signature__ = signature.replace(parameters=[*positional, *own, rest])  # type: ignore[attr-defined]
    compute.__name__ = compute.__qualname__ = f"compute_{name}_outcome_advantage"
    compute.__doc__ = equation.__doc__
    return register_adv_est(name)(compute)


def register_outcome_estimator(name: str) -> Callable[[OutcomeEquation], OutcomeEquation]:
    """Register an equation `(scores[B], groups, *, options...) -> [B]` as an estimator, for both paths at once.

        @register_outcome_estimator("median_baseline")
        def median_baseline(scores, groups):
            medians = [scores[groups.ids == g].median() for g in range(groups.num_groups)]
            return scores - groups.spread(torch.stack(medians))

    Its scores are float64, and NaN where the caller's were not finite. Options are found as `verl_shaped` says.
    """

    def register(equation: OutcomeEquation) -> OutcomeEquation:
        if OUTCOME_ESTIMATORS.get(name) is not equation:
            verl_shaped(name, equation)
            OUTCOME_ESTIMATORS[name] = equation
        return equation

    return register


@register_adv_est(AdvantageEstimator.GRPO_VECTORIZED)
@register_adv_est(AdvantageEstimator.GRPO)
def compute_grpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = VERL_EPSILON,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    *,
    convention: str | None = None,
    failed: Flags | None = None,
    exclude_empty: bool | None = None,
) -> Pair:
    """GRPO: (score - group mean) / (group std + epsilon). See `outcome.grpo`.

    An `epsilon` other than the default replaces the eps of the convention.
    """
    return estimate(
        outcome.grpo,
        token_level_rewards,
        response_mask,
        index,
        config,
        failed,
        exclude_empty,
        epsilon=_own_epsilon(epsilon),
        norm_adv_by_std_in_grpo=norm_adv_by_std_in_grpo,
        convention=convention or read(config, "convention", "verl"),
    )


compute_grpo_vectorized_outcome_advantage = compute_grpo_outcome_advantage


@register_adv_est(AdvantageEstimator.GDPO)
def compute_gdpo_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = VERL_EPSILON,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    non_tensor_batch: Mapping[str, Any] | None = None,
    batch: Any = None,
    *,
    failed: Flags | None = None,
    exclude_empty: bool | None = None,
    **kwargs: Any,
) -> Pair:
    """GDPO: GRPO on each part of the reward, weighted sum, whitened over the tokens. See `outcome.gdpo`.

    The parts are `config.gdpo_reward_keys` of `non_tensor_batch`. Without a config or a batch to take them
    from, the summed reward is the only part (verl).
    """
    options: dict[str, Any] = {}
    if config is not None and non_tensor_batch is not None and batch is not None:
        options = {
            "parts": reward_parts(config, non_tensor_batch, token_level_rewards),
            "weights": read(config, "gdpo_reward_weights"),
        }
    return estimate(
        outcome.gdpo,
        token_level_rewards,
        response_mask,
        index,
        config,
        failed,
        exclude_empty,
        epsilon=epsilon,
        norm_adv_by_std_in_grpo=norm_adv_by_std_in_grpo,
        lengths=True,
        **options,
    )


def reward_parts(config: Any, columns: Mapping[str, Any], like: Tensor) -> list[Tensor]:
    """The columns named by `gdpo_reward_keys`, each a list, an array or a tensor with one number per answer."""
    keys = read(config, "gdpo_reward_keys")
    if not keys:
        raise MissingFieldError(
            "gdpo needs algorithm.gdpo_reward_keys: the names of the reward parts that compute_score returns, "
            "such as ['format', 'accuracy']"
        )
    parts = []
    for key in keys:
        if key not in columns:
            raise MissingFieldError(
                f"gdpo_reward_keys names {key!r}, which is not in non_tensor_batch ({', '.join(map(str, columns))}); "
                "compute_score must return a dict with that key"
            )
        values = exactly(columns[key], like)
        if values.shape != like.shape[:1]:
            raise BadValueError(
                f"reward part {key!r} has shape {tuple(values.shape)}; "
                f"it needs one number for each of {len(like)} answers"
            )
        parts.append(as_scores(values))
    return parts


@register_adv_est(AdvantageEstimator.GRPO_PASSK)
def compute_grpo_passk_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = VERL_EPSILON,
    norm_adv_by_std_in_grpo: bool = True,
    config: Any = None,
    *,
    failed: Flags | None = None,
    exclude_empty: bool | None = None,
    **kwargs: Any,
) -> Pair:
    """Only the best answer gets its lead over the second. See `best_of_k.grpo_passk`.

    A config that has `norm_adv_by_std_in_grpo` decides over the argument (verl).
    """
    return estimate(
        best_of_k.grpo_passk,
        token_level_rewards,
        response_mask,
        index,
        config,
        failed,
        exclude_empty,
        epsilon=epsilon,
        norm_adv_by_std_in_grpo=read(config, "norm_adv_by_std_in_grpo", norm_adv_by_std_in_grpo),
    )


@register_adv_est(AdvantageEstimator.GPG)
def compute_gpg_outcome_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    index: Index,
    epsilon: float = VERL_EPSILON,
    f_norm: float = 1.0,
    alpha: float | None = None,
    config: Any = None,
    *,
    failed: Flags | None = None,
    exclude_empty: bool | None = None,
    **kwargs: Any,
) -> Pair:
    """alpha * (score - group mean) / f_norm; alpha None is verl's batch factor. See `outcome.gpg`."""
    return estimate(
        outcome.gpg,
        token_level_rewards,
        response_mask,
        index,
        config,
        failed,
        exclude_empty,
        f_norm=f_norm,
        alpha=alpha,
    )


compute_reinforce_plus_plus_baseline_outcome_advantage = verl_shaped(
    "reinforce_plus_plus_baseline", outcome.reinforce_plus_plus_baseline
)
compute_rloo_outcome_advantage = verl_shaped("rloo", outcome.rloo)
compute_rloo_vectorized_outcome_advantage = register_adv_est("rloo_vectorized")(compute_rloo_outcome_advantage)
compute_opo_outcome_advantage = verl_shaped("opo", outcome.opo)
compute_dr_grpo_outcome_advantage = verl_shaped("dr_grpo", outcome.dr_grpo)
compute_maxrl_outcome_advantage = verl_shaped("maxrl", outcome.maxrl)
compute_pass_at_k_outcome_advantage = verl_shaped("pass_at_k", best_of_k.pass_at_k)
compute_shrinkage_outcome_advantage = verl_shaped("shrinkage", baselines.shrinkage)
compute_running_baseline_outcome_advantage = verl_shaped("running_baseline", baselines.running_baseline)
