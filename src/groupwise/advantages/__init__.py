"""Scores to advantages: who did better than their siblings.

    labels -> groups -> outcome equations -> verl's functions -> registry -> compute_advantage
                     \\-> advantages_from_scores

`outcome`, `best_of_k` and `baselines` hold the equations on one score per answer; `recurrences` and
`token_baselines` those on tokens; `conventions` the nine formulas that all call themselves GRPO; `outcome_api` and
`token_api` dress them in verl 0.9.1's names and signatures. Importing this loads torch and numpy, nothing else.
"""

from groupwise.advantages.baselines import RunningBaseline
from groupwise.advantages.conventions import CONVENTIONS, Convention, group_relative
from groupwise.advantages.groups import Groups, Moments, Table
from groupwise.advantages.health import GroupHealth, check_groups
from groupwise.advantages.orchestrator import compute_advantage, compute_response_mask
from groupwise.advantages.outcome_api import (
    compute_dr_grpo_outcome_advantage,
    compute_gdpo_outcome_advantage,
    compute_gpg_outcome_advantage,
    compute_grpo_outcome_advantage,
    compute_grpo_passk_outcome_advantage,
    compute_grpo_vectorized_outcome_advantage,
    compute_maxrl_outcome_advantage,
    compute_opo_outcome_advantage,
    compute_pass_at_k_outcome_advantage,
    compute_reinforce_plus_plus_baseline_outcome_advantage,
    compute_rloo_outcome_advantage,
    compute_rloo_vectorized_outcome_advantage,
    compute_running_baseline_outcome_advantage,
    compute_shrinkage_outcome_advantage,
    register_outcome_estimator,
)
from groupwise.advantages.registry import (
    ADV_ESTIMATOR_REGISTRY,
    AdvantageEstimator,
    get_adv_estimator_fn,
    register_adv_est,
)
from groupwise.advantages.scores import OUTCOME_ESTIMATORS, advantages_from_scores
from groupwise.advantages.token_api import (
    compute_gae_advantage_return,
    compute_grpo_process_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
    compute_remax_outcome_advantage,
)
from groupwise.advantages.token_baselines import (
    compute_multi_turn_optimal_token_baseline_advantage,
    compute_optimal_token_baseline_advantage,
)
from groupwise.config import AlgoConfig

__all__ = [
    "ADV_ESTIMATOR_REGISTRY",
    "CONVENTIONS",
    "OUTCOME_ESTIMATORS",
    "AdvantageEstimator",
    "AlgoConfig",
    "Convention",
    "GroupHealth",
    "Groups",
    "Moments",
    "RunningBaseline",
    "Table",
    "advantages_from_scores",
    "check_groups",
    "compute_advantage",
    "compute_dr_grpo_outcome_advantage",
    "compute_gae_advantage_return",
    "compute_gdpo_outcome_advantage",
    "compute_gpg_outcome_advantage",
    "compute_grpo_outcome_advantage",
    "compute_grpo_passk_outcome_advantage",
    "compute_grpo_process_advantage",
    "compute_grpo_vectorized_outcome_advantage",
    "compute_maxrl_outcome_advantage",
    "compute_multi_turn_optimal_token_baseline_advantage",
    "compute_opo_outcome_advantage",
    "compute_optimal_token_baseline_advantage",
    "compute_pass_at_k_outcome_advantage",
    "compute_reinforce_plus_plus_baseline_outcome_advantage",
    "compute_reinforce_plus_plus_outcome_advantage",
    "compute_remax_outcome_advantage",
    "compute_response_mask",
    "compute_rloo_outcome_advantage",
    "compute_rloo_vectorized_outcome_advantage",
    "compute_running_baseline_outcome_advantage",
    "compute_shrinkage_outcome_advantage",
    "get_adv_estimator_fn",
    "group_relative",
    "register_adv_est",
    "register_outcome_estimator",
]
