"""`compute_advantage`: names to functions, fields to arguments, switches, and refusals that name what is wrong."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from groupwise.advantages import (
    ADV_ESTIMATOR_REGISTRY,
    AdvantageEstimator,
    AlgoConfig,
    RunningBaseline,
    compute_advantage,
    compute_gae_advantage_return,
    compute_grpo_outcome_advantage,
    compute_grpo_process_advantage,
    compute_pass_at_k_outcome_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
    compute_remax_outcome_advantage,
    compute_response_mask,
    get_adv_estimator_fn,
    register_adv_est,
)
from groupwise.errors import BadValueError, MissingFieldError, NonFiniteScoreError, UnknownNameError
from samples import Data, KeysOnly, at_the_end, same_bits

UIDS = np.array(["a", "a", "a", "b", "b"], dtype=object)
SCORES = [1.0, 2.0, 6.0, 0.5, 1.0]
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0]])


def fields(**more):
    torch.manual_seed(1)
    return {
        "token_level_rewards": at_the_end(SCORES),
        "response_mask": MASK,
        "values": torch.rand(5, 3),
        "reward_baselines": torch.rand(5),
        "old_log_probs": torch.rand(5, 3).log(),
        "sum_pi_squared": torch.rand(5, 3),
        "rollout_is_weights": torch.rand(5, 3),
        "step_mask": torch.tensor([[0, 1, 1]] * 5),
        **more,
    }


def data(kind=dict, uid=UIDS, meta=None, **more):
    return Data(kind(fields(**more)), {} if uid is None else {"uid": uid}, {} if meta is None else meta)


@pytest.fixture
def registry():
    before = dict(ADV_ESTIMATOR_REGISTRY)
    yield
    ADV_ESTIMATOR_REGISTRY.clear()
    ADV_ESTIMATOR_REGISTRY.update(before)


@pytest.fixture
def spy(registry):
    """An estimator that remembers what it was given, registered as "spy"."""

    def install(function):
        calls = []

        def remember(given):
            calls.append(given)
            return torch.zeros(5, 3), torch.ones(5, 3)

        register_adv_est("spy")(function(remember))
        return calls

    return install


# Verl's own arguments for every estimator, spelt out.
def by_hand(name, f):
    common = {"token_level_rewards": f["token_level_rewards"], "response_mask": f["response_mask"]}
    more = {
        "gae": {"values": f["values"], "gamma": 0.9, "lam": 0.8},
        "reinforce_plus_plus": {"config": None},
        "remax": {"reward_baselines": f["reward_baselines"]},
        "grpo_process": {"step_mask": f["step_mask"], "index": UIDS},
        "running_baseline": {"baseline": RunningBaseline(), "index": UIDS},
    }
    otb = {
        "index": UIDS,
        "old_log_probs": f["old_log_probs"],
        "sum_pi_squared": f["sum_pi_squared"],
        "rollout_is_weights": f["rollout_is_weights"],
    }
    more |= {"optimal_token_baseline": otb, "tir_optimal_token_baseline": otb}
    return get_adv_estimator_fn(name)(**common, **more.get(name, {"index": UIDS}))


@pytest.mark.parametrize("name", sorted(ADV_ESTIMATOR_REGISTRY))
@pytest.mark.parametrize("kind", [dict, KeysOnly])
def test_every_estimator_gets_its_fields_from_a_dict_and_from_a_tensordict(name, kind):
    if name == "gdpo":
        given = data(kind)
        given.non_tensor_batch["accuracy"] = SCORES
        config = {"gdpo_reward_keys": ["accuracy"]}
    else:
        given, config = data(kind, meta={"baseline": RunningBaseline()}), None
    assert compute_advantage(given, name, gamma=0.9, lam=0.8, config=config) is given
    advantages, returns = by_hand(name, fields())
    assert same_bits(given.batch["advantages"], advantages)
    assert same_bits(given.batch["returns"], returns)


@pytest.mark.parametrize("name", ["grpo", AdvantageEstimator.GRPO, "grpo_vectorized"])
def test_the_name_is_a_string_or_a_member(name):
    given = compute_advantage(data(), name)
    assert given.batch["returns"] is given.batch["advantages"]
    assert same_bits(given.batch["advantages"], by_hand("grpo", fields())[0])


def test_every_name_goes_through_the_registry_grpo_too(registry):
    def mine(token_level_rewards, response_mask, index):
        return token_level_rewards * 2, token_level_rewards * 3

    ADV_ESTIMATOR_REGISTRY["grpo"] = mine
    ADV_ESTIMATOR_REGISTRY["gae"] = mine
    for name in ("grpo", AdvantageEstimator.GAE):
        given = compute_advantage(data(), name)
        assert torch.equal(given.batch["advantages"], at_the_end(SCORES) * 2)
        assert torch.equal(given.batch["returns"], at_the_end(SCORES) * 3)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(UnknownNameError, match=r"unknown advantage estimator 'grppo'; the nearest is 'grpo'"):
        compute_advantage(data(), "grppo")


def test_index_is_the_uid_as_it_stands(spy):
    calls = spy(lambda remember: lambda token_level_rewards, response_mask, index: remember({"index": index}))
    compute_advantage(data(), "spy")
    assert calls[0]["index"] is UIDS


def test_a_signature_gets_what_it_names_from_every_place(spy):
    def make(remember):
        def function(
            token_level_rewards, response_mask, values, difficulty, seen, k, batch, non_tensor_batch, config,
            gamma, lam, num_repeat, norm_adv_by_std_in_grpo, untouched="mine",
        ):  # fmt: skip
            return remember(locals())

        return function

    calls = spy(make)
    given = data(meta={"seen": 7})
    given.non_tensor_batch["difficulty"] = [1, 2, 3, 4, 5]
    config = {"k": 9}
    compute_advantage(given, "spy", 0.5, 0.25, 3, False, config)
    (got,) = calls
    assert got["values"] is given.batch["values"]
    assert got["difficulty"] is given.non_tensor_batch["difficulty"]
    assert got["seen"] == 7
    assert got["k"] == 9
    assert got["batch"] is given.batch
    assert got["non_tensor_batch"] is given.non_tensor_batch
    assert got["config"] is config
    assert (got["gamma"], got["lam"], got["num_repeat"], got["norm_adv_by_std_in_grpo"]) == (0.5, 0.25, 3, False)
    assert got["untouched"] == "mine"


def test_kwargs_get_exactly_verls_fields(spy):
    calls = spy(lambda remember: lambda **kwargs: remember(kwargs))
    compute_advantage(data(), "spy", config={"k": 9})
    assert set(calls[0]) == {"token_level_rewards", "response_mask", "config", "index", "reward_baselines"}
    bare = Data({"token_level_rewards": at_the_end(SCORES), "response_mask": MASK})
    compute_advantage(bare, "spy")
    assert set(calls[1]) == {"token_level_rewards", "response_mask", "config"}
    assert calls[1]["config"] is None


def test_kwargs_beside_named_parameters_get_both(spy):
    calls = spy(lambda remember: lambda values, **kwargs: remember({"values": values, **kwargs}))
    compute_advantage(data(), "spy")
    expected = {"values", "token_level_rewards", "response_mask", "config", "index", "reward_baselines"}
    assert set(calls[0]) == expected


def test_a_positional_catch_all_gets_nothing(spy):
    calls = spy(lambda remember: lambda token_level_rewards, *args: remember({"args": args}))
    compute_advantage(data(), "spy")
    assert calls[0]["args"] == ()


# --- settings ---


def struct_node(**values):
    node = OmegaConf.create(values)
    OmegaConf.set_struct(node, True)
    return node


class Plain:
    """A settings object that is no mapping."""

    def __init__(self, **values):
        vars(self).update(values)


CONFIGS = {
    "an AlgoConfig": AlgoConfig,
    "a dict": dict,
    "an OmegaConf node": lambda **values: OmegaConf.create(values),
    "a struct node": struct_node,
    "a namespace": SimpleNamespace,
    "an object": Plain,
}
ROW = {"token_level_rewards": at_the_end([0.0, 2.0, 4.0], 1), "response_mask": torch.ones(3, 1)}


def three(name, config, norm=True, **more):
    given = Data({**ROW, **more}, {"uid": ["a"] * 3, "accuracy": [0.0, 2.0, 4.0]})
    compute_advantage(given, name, norm_adv_by_std_in_grpo=norm, config=config)
    return given.batch["advantages"][:, 0].tolist()


# 0, 2, 4: mean 2, std 2.  grpo_passk: the lead 2 over the std 2.  pass@2: pairs' maxima 2, 4, 4, mean 10/3, std
# sqrt(8)/3; given 4 the mean is 4, so 2/3 over that std.  grpo_process: as grpo.
WITH = {"grpo": 1.0, "grpo_vectorized": 1.0, "grpo_passk": 1.0, "grpo_process": 1.0, "pass_at_k": 2 / math.sqrt(8)}
WITHOUT = {"grpo": 2.0, "grpo_vectorized": 2.0, "grpo_passk": 2.0, "grpo_process": 2.0, "pass_at_k": 2 / 3}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("name", WITH)
@pytest.mark.parametrize("argument", [True, False])
@pytest.mark.parametrize("field", [True, False, None])
def test_the_std_is_switched_off_by_the_argument_or_by_the_config(kind, name, argument, field):
    config = CONFIGS[kind](**({} if field is None else {"norm_adv_by_std_in_grpo": field}))
    expected = WITHOUT if not argument or field is False else WITH
    best = three(name, config, argument, step_mask=torch.ones(3, 1))[2]
    assert best == pytest.approx(expected[name], rel=2e-6)


@pytest.mark.parametrize("name", WITH)
@pytest.mark.parametrize("argument", [True, False])
def test_without_a_config_the_argument_decides(name, argument):
    best = three(name, None, argument, step_mask=torch.ones(3, 1))[2]
    assert best == pytest.approx((WITH if argument else WITHOUT)[name], rel=2e-6)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("argument", [True, False])
@pytest.mark.parametrize("field", [True, False])
def test_the_std_is_switched_off_in_gdpo_too(kind, argument, field):
    config = CONFIGS[kind](norm_adv_by_std_in_grpo=field, gdpo_reward_keys=["accuracy"])
    # One part, so whitening undoes the scale; only a second group of another scale shows it.
    given = Data(
        {"token_level_rewards": torch.zeros(4, 1), "response_mask": torch.ones(4, 1)},
        {"uid": list("aabb"), "accuracy": [0.0, 10.0, 0.0, 1.0]},
    )
    compute_advantage(given, "gdpo", norm_adv_by_std_in_grpo=argument, config=config)
    a, b = given.batch["advantages"][[1, 3], 0].tolist()
    assert a / b == pytest.approx(1.0 if argument and field else 10.0, rel=1e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_epsilon_convention_and_the_like_reach_the_estimator_from_the_config(kind):
    make = CONFIGS[kind]
    assert three("grpo", make(epsilon=2.0))[2] == 0.5
    assert three("grpo", make(convention="trl"))[2] == pytest.approx(2 / 2.0001, rel=1e-7)
    assert three("grpo_vectorized", make(convention="dr_grpo"))[2] == 2.0
    assert three("pass_at_k", make(k=1))[2] == pytest.approx(2 / math.sqrt(8 / 3), rel=1e-6)
    assert three("pass_at_k", make(k=1, epsilon=1.0))[2] == pytest.approx(2 / (math.sqrt(8 / 3) + 1), rel=1e-6)
    assert three("grpo_passk", make(epsilon=2.0))[2] == 0.5
    empty = torch.tensor([[1], [1], [0]])
    assert three("dr_grpo", make(exclude_empty=True), response_mask=empty) == [-1.0, 1.0, 0.0]
    assert three("dr_grpo", make(exclude_empty=False), response_mask=empty) == [-2.0, 0.0, 0.0]


@pytest.mark.parametrize("config", [{"f_norm": 4.0, "alpha": 1.0}, OmegaConf.create({"f_norm": 4.0, "alpha": 1.0})])
def test_the_factors_of_gpg_reach_it_from_the_config(config):
    assert three("gpg", config) == [-0.5, 0.0, 0.5]
    # Two of three scores are not zero: 3/2.
    assert three("gpg", None) == [-3.0, 0.0, 3.0]


@pytest.mark.parametrize("kind", CONFIGS)
def test_gamma_of_reinforce_plus_plus_is_the_configs_and_of_gae_the_arguments(kind):
    given = data()
    compute_advantage(given, "reinforce_plus_plus", gamma=0.1, config=CONFIGS[kind](gamma=0.5))
    expected = compute_reinforce_plus_plus_outcome_advantage(at_the_end(SCORES), MASK, {"gamma": 0.5})
    assert same_bits(given.batch["returns"], expected[1])
    compute_advantage(given, "gae", gamma=0.1, lam=0.2, config=CONFIGS[kind](gamma=0.5, lam=0.5))
    expected = compute_gae_advantage_return(at_the_end(SCORES), fields()["values"], MASK, 0.1, 0.2)
    assert same_bits(given.batch["returns"], expected[1])


def test_pf_ppo_is_refused():
    for config in (AlgoConfig(use_pf_ppo=True), {"use_pf_ppo": True}):
        with pytest.raises(BadValueError, match=r"use_pf_ppo=True is not offered: it resamples.*use_pf_ppo=False"):
            compute_advantage(data(), "gae", config=config)


# --- the response mask ---


def test_a_missing_response_mask_is_the_end_of_the_attention_mask():
    for kind in (dict, KeysOnly):
        batch = fields(responses=torch.zeros(5, 3), attention_mask=torch.cat([torch.ones(5, 2), MASK], dim=1))
        del batch["response_mask"]
        given = Data(kind(batch), {"uid": UIDS})
        compute_advantage(given, "grpo")
        assert torch.equal(given.batch["response_mask"], MASK.float())
        assert torch.equal(given.batch["advantages"], by_hand("grpo", fields())[0])


def test_responses_of_no_tokens_have_no_mask():
    mask = compute_response_mask(Data({"responses": torch.zeros(2, 0), "attention_mask": torch.ones(2, 4)}))
    assert mask.shape == (2, 0)


@pytest.mark.parametrize("field", ["responses", "attention_mask"])
def test_a_mask_that_cannot_be_made_is_asked_for(field):
    batch = {
        "token_level_rewards": torch.zeros(2, 3),
        "responses": torch.zeros(2, 3),
        "attention_mask": torch.ones(2, 5),
    }
    del batch[field]
    with pytest.raises(MissingFieldError, match=rf"the batch has no 'response_mask' and no '{field}' to make it from"):
        compute_advantage(Data(batch, {"uid": ["a", "a"]}), "grpo")


# --- missing fields ---


@pytest.mark.parametrize(
    ("name", "field", "origin"),
    [
        ("gae", "values", r"batch\['values'\], the critic's value of every token"),
        ("remax", "reward_baselines", r"batch\['reward_baselines'\], the score of the greedy answer"),
        ("optimal_token_baseline", "old_log_probs", r"batch\['old_log_probs'\], the policy's log-probability"),
        ("tir_optimal_token_baseline", "sum_pi_squared", r"batch\['sum_pi_squared'\], .*calculate_sum_pi_squared=True"),
        ("grpo_process", "step_mask", r"batch\['step_mask'\], 1 at the last token of every step"),
        ("grpo", "token_level_rewards", r"batch\['token_level_rewards'\], the reward of every token"),
    ],
)
def test_an_estimator_says_which_field_it_lacks_and_where_it_comes_from(name, field, origin):
    given = data()
    del given.batch[field]
    with pytest.raises(MissingFieldError, match=rf"estimator '{name}' needs '{field}': {origin}"):
        compute_advantage(given, name)


def test_labels_and_a_baseline_are_asked_for():
    with pytest.raises(
        MissingFieldError, match=r"'grpo' needs 'index': non_tensor_batch\['uid'\], one label per answer"
    ):
        compute_advantage(data(uid=None), "grpo")
    with pytest.raises(
        MissingFieldError, match=r"'running_baseline' needs 'baseline': meta_info\['baseline'\], a Runn"
    ):
        compute_advantage(data(), "running_baseline")


def test_a_field_nobody_has_heard_of_is_asked_for(spy):
    spy(lambda remember: lambda token_level_rewards, response_mask, mystery: remember({}))
    with pytest.raises(MissingFieldError, match=r"'spy' needs 'mystery': a field 'mystery' of the batch, of non_"):
        compute_advantage(data(), "spy")


def test_rewards_are_asked_for_even_where_the_signature_does_not_name_them(spy):
    spy(lambda remember: lambda response_mask: remember({}))
    with pytest.raises(MissingFieldError, match=r"the batch has no batch\['token_level_rewards'\]"):
        compute_advantage(Data({"response_mask": MASK}), "spy")


def test_a_batch_without_meta_info_is_fine():
    given = SimpleNamespace(batch=fields(), non_tensor_batch={"uid": UIDS})
    assert compute_advantage(given, "grpo").batch["advantages"].shape == (5, 3)


# --- scores that are not finite ---


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["grpo", "gae", "remax", "reinforce_plus_plus", "optimal_token_baseline"])
def test_a_score_that_is_not_finite_is_refused_by_row_and_label(name, bad):
    given = data()
    given.batch["token_level_rewards"][3, 0] = bad
    with pytest.raises(
        NonFiniteScoreError, match=r"1 of 5 answers have a NaN or infinite score: row 3 \(uid 'b'\); mend the reward"
    ):
        compute_advantage(given, name)
    assert "advantages" not in given.batch


@pytest.mark.parametrize(
    ("uid", "named"),
    [
        (np.array([7, 7, 7, 8, 8]), r"row 1 \(uid 7\), row 4 \(uid 8\);"),
        (np.array(list("aaabb")), r"row 1 \(uid 'a'\), row 4 \(uid 'b'\);"),
        (torch.tensor([7, 7, 7, 8, 8]), r"row 1 \(uid 7\), row 4 \(uid 8\);"),
        (list("aaabb"), r"row 1 \(uid 'a'\), row 4 \(uid 'b'\);"),
        (["a", "a"], r"row 1 \(uid 'a'\), row 4;"),
    ],
)
def test_rows_are_named_with_labels_of_any_container(uid, named):
    given = data(uid=uid)
    given.batch["token_level_rewards"][1, 0] = math.nan
    given.batch["token_level_rewards"][4, 0] = math.nan
    with pytest.raises(NonFiniteScoreError, match=r"2 of 5 answers .*: " + named):
        compute_advantage(given, "grpo")


def test_only_the_first_five_rows_are_named():
    rewards = torch.full((7, 1), math.nan)
    given = Data({"token_level_rewards": rewards, "response_mask": torch.ones(7, 1)}, {})
    with pytest.raises(NonFiniteScoreError, match=r"7 of 7 .*: row 0, row 1, row 2, row 3, row 4, \.\.\.; mend"):
        compute_advantage(given, "reinforce_plus_plus")


FAILED = [False, True, False, False, False]


@pytest.mark.parametrize("flags", [FAILED, np.array(FAILED), np.array(FAILED, dtype=object), torch.tensor(FAILED)])
@pytest.mark.parametrize("place", ["batch", "non_tensor_batch"])
@pytest.mark.parametrize(
    "name", ["grpo", "rloo", "gae", "remax", "reinforce_plus_plus", "optimal_token_baseline", "gpg"]
)
def test_failed_answers_may_have_any_score_and_get_zero(flags, place, name):
    given = data()
    getattr(given, place)["failed"] = flags
    clean = compute_advantage(copy.deepcopy(given), name)
    given.batch["token_level_rewards"][1, 0] = math.nan
    compute_advantage(given, name)
    assert same_bits(given.batch["advantages"], clean.batch["advantages"])
    assert given.batch["advantages"][1].eq(0).all()


def test_a_finite_batch_with_failed_marks_of_another_length_is_refused():
    given = data()
    given.non_tensor_batch["failed"] = [True]
    with pytest.raises(BadValueError, match=r"failed has shape \(1,\); it must hold one value for each of 5 answers"):
        compute_advantage(given, "grpo")


def test_the_batch_gains_its_two_fields_and_loses_none():
    given = data()
    before = {key: value.clone() for key, value in given.batch.items()}
    compute_advantage(given, "grpo")
    assert set(given.batch) == {*before, "advantages", "returns"}
    for key, value in before.items():
        assert torch.equal(given.batch[key], value)


def test_an_empty_batch_is_an_empty_result():
    empty = {"token_level_rewards": torch.zeros(0, 3), "response_mask": torch.zeros(0, 3)}
    given = compute_advantage(Data(empty, {"uid": np.array([])}), "grpo")
    assert given.batch["advantages"].shape == (0, 3)


def test_the_verl_functions_of_this_file_are_what_the_registry_holds():
    assert get_adv_estimator_fn("grpo") is compute_grpo_outcome_advantage
    assert get_adv_estimator_fn("remax") is compute_remax_outcome_advantage
    assert get_adv_estimator_fn("grpo_process") is compute_grpo_process_advantage
    assert get_adv_estimator_fn("pass_at_k") is compute_pass_at_k_outcome_advantage
