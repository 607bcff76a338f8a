"""Estimators by name."""

from enum import StrEnum
from functools import partial

import pytest

from groupwise.advantages import (
    ADV_ESTIMATOR_REGISTRY,
    AdvantageEstimator,
    compute_grpo_outcome_advantage,
    compute_rloo_outcome_advantage,
    get_adv_estimator_fn,
    outcome_api,
    register_adv_est,
    token_api,
    token_baselines,
)
from groupwise.advantages.registry import name_of
from groupwise.errors import BadValueError, UnknownNameError

# verl 0.9.1's enum, member by member, and the function each stands for here.
VERL = {
    "GAE": ("gae", token_api.compute_gae_advantage_return),
    "GRPO": ("grpo", outcome_api.compute_grpo_outcome_advantage),
    "REINFORCE_PLUS_PLUS": ("reinforce_plus_plus", token_api.compute_reinforce_plus_plus_outcome_advantage),
    "REINFORCE_PLUS_PLUS_BASELINE": (
        "reinforce_plus_plus_baseline",
        outcome_api.compute_reinforce_plus_plus_baseline_outcome_advantage,
    ),
    "REMAX": ("remax", token_api.compute_remax_outcome_advantage),
    "RLOO": ("rloo", outcome_api.compute_rloo_outcome_advantage),
    "OPO": ("opo", outcome_api.compute_opo_outcome_advantage),
    "GRPO_PASSK": ("grpo_passk", outcome_api.compute_grpo_passk_outcome_advantage),
    "GPG": ("gpg", outcome_api.compute_gpg_outcome_advantage),
    "RLOO_VECTORIZED": ("rloo_vectorized", outcome_api.compute_rloo_vectorized_outcome_advantage),
    "GRPO_VECTORIZED": ("grpo_vectorized", outcome_api.compute_grpo_vectorized_outcome_advantage),
    "OPTIMAL_TOKEN_BASELINE": (
        "optimal_token_baseline",
        token_baselines.compute_optimal_token_baseline_advantage,
    ),
    "TIR_OPTIMAL_TOKEN_BASELINE": (
        "tir_optimal_token_baseline",
        token_baselines.compute_multi_turn_optimal_token_baseline_advantage,
    ),
    "GDPO": ("gdpo", outcome_api.compute_gdpo_outcome_advantage),
}
OURS = ["dr_grpo", "grpo_process", "maxrl", "pass_at_k", "running_baseline", "shrinkage"]


@pytest.fixture
def registry():
    before = dict(ADV_ESTIMATOR_REGISTRY)
    yield ADV_ESTIMATOR_REGISTRY
    ADV_ESTIMATOR_REGISTRY.clear()
    ADV_ESTIMATOR_REGISTRY.update(before)


def mine(token_level_rewards, response_mask, **kwargs):
    return token_level_rewards, token_level_rewards


def another(token_level_rewards, response_mask, **kwargs):
    return response_mask, response_mask


def test_the_enum_is_verls_member_by_member():
    assert {member.name: member.value for member in AdvantageEstimator} == {name: row[0] for name, row in VERL.items()}
    assert AdvantageEstimator.GRPO == "grpo"


def test_the_registry_holds_verls_names_and_ours_and_no_other():
    assert sorted(ADV_ESTIMATOR_REGISTRY) == sorted([*OURS, *(row[0] for row in VERL.values())])


@pytest.mark.parametrize("member", VERL)
def test_a_name_and_its_member_find_the_same_function(member):
    name, function = VERL[member]
    assert get_adv_estimator_fn(name) is function
    assert get_adv_estimator_fn(AdvantageEstimator[member]) is function


@pytest.mark.parametrize("name", OURS)
def test_our_own_estimators_stand_under_their_names(name):
    kind = "advantage" if name == "grpo_process" else "outcome_advantage"
    assert get_adv_estimator_fn(name).__name__ == f"compute_{name}_{kind}"


def test_vectorized_is_another_name_for_the_same_function():
    assert get_adv_estimator_fn("grpo_vectorized") is compute_grpo_outcome_advantage
    assert get_adv_estimator_fn("rloo_vectorized") is compute_rloo_outcome_advantage


def test_the_decorator_returns_the_function_and_the_lookup_that_same_object(registry):
    assert register_adv_est("mine")(mine) is mine
    assert get_adv_estimator_fn("mine") is mine


def test_registering_the_same_function_again_is_fine(registry):
    register_adv_est("mine")(mine)
    assert register_adv_est("mine")(mine) is mine
    assert register_adv_est("mine_too")(mine) is mine


def test_another_function_under_a_used_name_is_refused_and_the_first_one_stays(registry):
    register_adv_est("mine")(mine)
    with pytest.raises(BadValueError, match=r"'mine' is already registered as .*test_registry\.mine; register yours"):
        register_adv_est("mine")(another)
    assert get_adv_estimator_fn("mine") is mine
    with pytest.raises(ValueError, match=r"'grpo' is already registered as .*compute_grpo_outcome_advantage"):
        register_adv_est(AdvantageEstimator.GRPO)(mine)


def test_a_function_without_a_name_can_be_registered_and_is_described_when_in_the_way(registry):
    first = partial(mine)
    assert register_adv_est("mine")(first) is first
    with pytest.raises(BadValueError, match=r"already registered as .*partial.*mine"):
        register_adv_est("mine")(another)


def test_a_member_of_another_enum_stands_for_its_value(registry):
    class Theirs(StrEnum):
        GRPO = "grpo"

    assert get_adv_estimator_fn(Theirs.GRPO) is compute_grpo_outcome_advantage
    assert name_of(Theirs.GRPO) == name_of("grpo") == "grpo"


@pytest.mark.parametrize(("name", "nearest"), [("grpoo", "grpo"), ("rlooo", "rloo"), ("maxlr", "maxrl")])
def test_an_unknown_name_is_refused_with_the_nearest(name, nearest):
    with pytest.raises(
        UnknownNameError, match=rf"unknown advantage estimator '{name}'; the nearest is '{nearest}'; known: dr_grpo, "
    ):
        get_adv_estimator_fn(name)


def test_an_unknown_name_is_a_value_error_and_a_key_error():
    with pytest.raises(ValueError, match=r"unknown advantage estimator"):
        get_adv_estimator_fn("x")
    with pytest.raises(KeyError):
        get_adv_estimator_fn("x")
