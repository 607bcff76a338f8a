"""verl's outcome functions: signatures, arguments, config, masks, dtypes, NaN and empty answers."""

import inspect
import math

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import groupwise.advantages as adv
from groupwise.advantages import (
    ADV_ESTIMATOR_REGISTRY,
    OUTCOME_ESTIMATORS,
    AlgoConfig,
    Groups,
    RunningBaseline,
    advantages_from_scores,
    compute_dr_grpo_outcome_advantage,
    compute_gdpo_outcome_advantage,
    compute_gpg_outcome_advantage,
    compute_grpo_outcome_advantage,
    compute_grpo_passk_outcome_advantage,
    compute_opo_outcome_advantage,
    compute_pass_at_k_outcome_advantage,
    compute_reinforce_plus_plus_baseline_outcome_advantage,
    compute_rloo_outcome_advantage,
    compute_running_baseline_outcome_advantage,
    get_adv_estimator_fn,
    register_outcome_estimator,
)
from groupwise.errors import BadValueError, MissingFieldError
from samples import at_the_end, f64, same_bits

NONE = inspect.Parameter.empty
GRPO = {
    "token_level_rewards": NONE,
    "response_mask": NONE,
    "index": NONE,
    "epsilon": 1e-6,
    "norm_adv_by_std_in_grpo": True,
    "config": None,
}
PLAIN = {"token_level_rewards": NONE, "response_mask": NONE, "index": NONE, "epsilon": 1e-6, "config": None}
OTB = {
    "token_level_rewards": NONE,
    "response_mask": NONE,
    "index": NONE,
    "old_log_probs": NONE,
    "sum_pi_squared": NONE,
    "rollout_is_weights": None,
    "handle_zero_tail": True,
    "epsilon": 1e-8,
}
# verl 0.9.1: the positional parameters with their defaults, and whether **kwargs follows.
VERL_SIGNATURES = {
    "compute_gae_advantage_return": (
        dict.fromkeys(["token_level_rewards", "values", "response_mask", "gamma", "lam"], NONE),
        False,
    ),
    "compute_grpo_outcome_advantage": (GRPO, False),
    "compute_grpo_vectorized_outcome_advantage": (GRPO, False),
    "compute_gdpo_outcome_advantage": ({**GRPO, "non_tensor_batch": None, "batch": None}, True),
    "compute_grpo_passk_outcome_advantage": (GRPO, True),
    "compute_reinforce_plus_plus_baseline_outcome_advantage": (PLAIN, True),
    "compute_rloo_outcome_advantage": (PLAIN, True),
    "compute_rloo_vectorized_outcome_advantage": (PLAIN, True),
    "compute_opo_outcome_advantage": (PLAIN, True),
    "compute_reinforce_plus_plus_outcome_advantage": (
        {"token_level_rewards": NONE, "response_mask": NONE, "config": None},
        True,
    ),
    "compute_remax_outcome_advantage": (
        {"token_level_rewards": NONE, "reward_baselines": NONE, "response_mask": NONE, "config": None},
        True,
    ),
    # verl's alpha defaults to 1.0 and is overwritten; ours says so with None.
    "compute_gpg_outcome_advantage": (
        {
            "token_level_rewards": NONE,
            "response_mask": NONE,
            "index": NONE,
            "epsilon": 1e-6,
            "f_norm": 1.0,
            "alpha": None,
            "config": None,
        },
        True,
    ),
    "compute_optimal_token_baseline_advantage": (OTB, True),
    "compute_multi_turn_optimal_token_baseline_advantage": (OTB, True),
}
LABELS = ["a", "a", "a", "b", "b"]
SCORES = [1.0, 2.0, 6.0, 0.5, 1.0]
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("name", VERL_SIGNATURES)
def test_the_signature_is_verls(name):
    expected, takes_more = VERL_SIGNATURES[name]
    parameters = list(inspect.signature(getattr(adv, name)).parameters.values())
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [(p.name, p.default) for p in positional] == list(expected.items())
    assert any(p.kind is p.VAR_KEYWORD for p in parameters) == takes_more
    # What is ours can only be given by name, and none of it has to be.
    ours = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    assert all(p.default is None for p in ours if p.name in ("failed", "exclude_empty", "convention"))
    assert "failed" in {p.name for p in ours}


def as_verl_calls_it(name, **more):
    given = {
        "token_level_rewards": at_the_end(SCORES),
        "response_mask": MASK,
        "index": np.array(LABELS, dtype=object),
        **more,
    }
    if name == "running_baseline":
        given["baseline"] = RunningBaseline()
    return get_adv_estimator_fn(name)(**given)


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
def test_the_verl_shape_is_the_scores_path_plus_a_sum_and_a_spread(name):
    options = {"lengths": MASK.sum(1)} if name in ("opo", "gdpo", "reinforce_plus_plus_baseline") else {}
    if name == "running_baseline":
        options["baseline"] = RunningBaseline()
    scores = advantages_from_scores(f64(SCORES), LABELS, name, **options)
    advantages, returns = as_verl_calls_it(name)
    assert returns is advantages
    assert same_bits(advantages, torch.where(MASK.bool(), scores[:, None], 0.0).float())


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
def test_a_score_is_the_sum_of_all_rewards_wherever_they_stand(name):
    spread = torch.tensor([[1.0, 0, 0], [0.5, 1.0, 0.5], [2, 2, 2], [0.25, 0, 0.25], [0, 0, 1.0]])
    expected, _ = as_verl_calls_it(name)
    advantages, _ = as_verl_calls_it(name, token_level_rewards=spread)
    assert same_bits(advantages, expected)


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
@pytest.mark.parametrize(
    "rewards", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("mask", [torch.bool, torch.int32, torch.float16, torch.float32])
def test_every_dtype_of_rewards_and_mask_gives_the_same_numbers_in_the_promoted_dtype(name, rewards, mask):
    scores = [1, 0, 1, 0, 1]
    exact, _ = as_verl_calls_it(name, token_level_rewards=at_the_end(scores, dtype=torch.float64))
    given, _ = as_verl_calls_it(
        name, token_level_rewards=at_the_end(scores, dtype=rewards), response_mask=MASK.to(mask)
    )
    promoted = torch.promote_types(rewards, mask)
    assert given.dtype == (promoted if promoted.is_floating_point else torch.float32)
    assert torch.equal(given, exact.to(given.dtype))


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 2])
def test_a_score_that_is_not_finite_makes_its_own_group_nan_where_the_mask_is_on(name, bad, column):
    # Column 2 of row 1 is masked; a score is the plain sum, so it counts all the same.
    labels, mask = [*"aaa", *"bbb"], torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]])
    rewards = at_the_end([1.0, 2.0, 6.0, 0.5, 1.0, 3.0])
    rewards[1, column] = bad
    advantages, _ = as_verl_calls_it(name, token_level_rewards=rewards, response_mask=mask, index=labels)
    assert advantages[:3][mask[:3] == 1].isnan().all()
    assert advantages[mask == 0].eq(0).all()
    alone, _ = as_verl_calls_it(name, token_level_rewards=rewards[3:], response_mask=mask[3:], index=labels[3:])
    torch.testing.assert_close(advantages[3:], alone, rtol=1e-6, atol=0)
    assert alone.abs().max() > 0


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
def test_failed_answers_are_zero_and_as_good_as_absent(name):
    rewards = at_the_end([1.0, math.nan, 2.0, 6.0, math.inf, 0.5, 1.0, 4.0])
    labels = [*"aaaab", *"bbb"]
    mask = torch.ones(8, 3)
    failed = torch.tensor([0, 1, 0, 0, 1, 0, 0, 0])
    advantages, _ = as_verl_calls_it(name, token_level_rewards=rewards, response_mask=mask, index=labels, failed=failed)
    kept = failed == 0
    expected, _ = as_verl_calls_it(
        name,
        token_level_rewards=rewards[kept],
        response_mask=mask[kept],
        index=[label for label, keep in zip(labels, kept, strict=True) if keep],
    )
    assert same_bits(advantages[kept], expected)
    assert advantages[~kept].eq(0).all()


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
def test_an_empty_answer_counts_unless_it_is_left_out(name):
    rewards, labels = at_the_end([1.0, 2.0, 0.0, 3.0, 6.0, 0.5]), [*"bbb", *"aaa"]
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1], [0, 0, 1], [1, 1, 1], [0, 0, 0]])
    batch = {"token_level_rewards": rewards, "response_mask": mask, "index": labels}
    kept = {"token_level_rewards": rewards[:5], "response_mask": mask[:5], "index": labels[:5]}
    without, _ = as_verl_calls_it(name, **kept)
    by_default, _ = as_verl_calls_it(name, **batch)
    by_argument, _ = as_verl_calls_it(name, **batch, exclude_empty=True)
    by_config, _ = as_verl_calls_it(name, **batch, config=AlgoConfig(exclude_empty=True))
    overruled, _ = as_verl_calls_it(name, **batch, config={"exclude_empty": True}, exclude_empty=False)
    assert by_default[5].eq(0).all()
    assert same_bits(by_argument[:5], without)
    assert same_bits(by_config, by_argument)
    assert same_bits(overruled, by_default)
    # An answer without tokens weighs nothing in opo; everywhere else its score moves its siblings.
    assert torch.equal(by_default[:5], without) == (name == "opo")


def test_failed_and_empty_answers_are_left_out_together():
    rewards = at_the_end([1.0, 3.0, 100.0, 1000.0])
    mask = torch.tensor([[1, 1], [1, 0], [0, 0], [1, 1]])
    advantages, _ = compute_dr_grpo_outcome_advantage(
        rewards, mask, [0] * 4, failed=torch.tensor([0, 0, 0, 1]), exclude_empty=True
    )
    assert advantages.tolist() == [[-1.0, -1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
def test_an_empty_batch_has_an_empty_result(name):
    batch = {"token_level_rewards": torch.zeros(0, 4), "response_mask": torch.zeros(0, 4), "index": []}
    if name in ("gdpo", "reinforce_plus_plus_baseline"):
        with pytest.warns(UserWarning, match=r"whitening over 0 response tokens"):
            advantages, returns = as_verl_calls_it(name, **batch)
    else:
        advantages, returns = as_verl_calls_it(name, **batch)
    assert advantages.shape == (0, 4)
    assert returns is advantages


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
def test_inputs_stay_as_they_were_and_outputs_do_not_require_grad(name):
    rewards = at_the_end(SCORES).requires_grad_()
    mask, index = MASK.float().requires_grad_(), np.array(LABELS, dtype=object)
    before = rewards.detach().clone(), mask.detach().clone(), index.copy()
    advantages, _ = as_verl_calls_it(name, token_level_rewards=rewards, response_mask=mask, index=index)
    assert not advantages.requires_grad
    advantages.add_(1.0)
    assert torch.equal(rewards.detach(), before[0])
    assert torch.equal(mask.detach(), before[1])
    assert (index == before[2]).all()


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
@pytest.mark.parametrize("score", [0.1, 0.35, 100.1, 1e6 + 0.1])
def test_equal_scores_are_exactly_zero_at_any_magnitude(name, score):
    for size in (3, 8, 13):
        rewards = at_the_end([score] * (4 * size))
        index = [group for group in range(4) for _ in range(size)]
        advantages, _ = as_verl_calls_it(
            name, token_level_rewards=rewards, response_mask=torch.ones(4 * size, 3), index=index
        )
        assert advantages.eq(0).all()


@pytest.mark.parametrize(
    "index",
    [
        np.array([0, 0, 0, 1, 1]),
        torch.tensor([0, 0, 0, 1, 1]),
        [torch.tensor(7), torch.tensor(7), torch.tensor(7), torch.tensor(-1), torch.tensor(-1)],
        ["x", "x", "x", "y", "y"],
        np.array([10**12] * 3 + [-(10**12)] * 2),
        Groups.of(LABELS),
    ],
)
def test_any_labels_of_the_same_grouping_give_the_same_bits(index):
    expected, _ = as_verl_calls_it("grpo")
    assert same_bits(as_verl_calls_it("grpo", index=index)[0], expected)


@pytest.mark.parametrize("name", OUTCOME_ESTIMATORS)
def test_an_index_of_another_length_is_refused(name):
    with pytest.raises(BadValueError, match=r"index has 4 labels for 5 answers"):
        as_verl_calls_it(name, index=LABELS[:4])


def test_rewards_and_mask_of_different_batches_are_refused():
    with pytest.raises(BadValueError, match=r"response_mask has 2 rows on cpu but token_level_rewards has 5"):
        as_verl_calls_it("grpo", response_mask=torch.ones(2, 3))


def test_rewards_may_be_one_column_for_a_wider_mask():
    narrow, _ = as_verl_calls_it("rloo", token_level_rewards=torch.tensor(SCORES)[:, None])
    wide, _ = as_verl_calls_it("rloo")
    assert same_bits(narrow, wide)


def test_a_group_of_one_keeps_verls_rules():
    one = (at_the_end([3.0]), torch.ones(1, 3), ["a"])
    assert compute_grpo_outcome_advantage(*one)[0].tolist() == [[pytest.approx(3 / (1 + 1e-6), rel=1e-7)] * 3]
    assert compute_rloo_outcome_advantage(*one)[0].tolist() == [[3.0] * 3]
    assert compute_opo_outcome_advantage(*one)[0].tolist() == [[3.0] * 3]
    assert compute_gpg_outcome_advantage(*one)[0].tolist() == [[3.0] * 3]
    assert compute_dr_grpo_outcome_advantage(*one)[0].tolist() == [[0.0] * 3]


def test_epsilon_and_the_std_are_arguments_of_grpo():
    batch = (at_the_end([0.0, 2.0, 4.0]), torch.ones(3, 1), [0, 0, 0])
    # Mean 2, std 2.
    assert compute_grpo_outcome_advantage(*batch, epsilon=0.5)[0][:, 0].tolist() == pytest.approx([-0.8, 0.0, 0.8])
    assert compute_grpo_outcome_advantage(*batch, 0.5, False)[0][:, 0].tolist() == [-2.0, 0.0, 2.0]
    zero = compute_grpo_outcome_advantage(*batch, epsilon=0.0)[0][:, 0]
    assert zero.tolist() == [-1.0, 0.0, 1.0]


def test_the_argument_decides_over_the_config_in_grpo():
    batch = (at_the_end([0.0, 2.0, 4.0]), torch.ones(3, 1), [0, 0, 0])
    config = AlgoConfig(norm_adv_by_std_in_grpo=False, epsilon=0.5)
    advantages, _ = compute_grpo_outcome_advantage(*batch, config=config)
    assert advantages[:, 0].tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=2e-6)


@pytest.mark.parametrize("make", [AlgoConfig, dict, lambda **fields: OmegaConf.create(fields)])
def test_the_convention_is_an_argument_or_a_field_of_the_config(make):
    config = make(convention="trl")
    batch = (at_the_end([0.0, 2.0, 4.0], dtype=torch.float64), torch.ones(3, 1), [0, 0, 0])
    expected = 2 / (2 + 1e-4)
    assert compute_grpo_outcome_advantage(*batch, config=config)[0][2, 0].item() == expected
    assert compute_grpo_outcome_advantage(*batch, convention="trl")[0][2, 0].item() == expected
    overruled, _ = compute_grpo_outcome_advantage(*batch, config=config, convention="dr_grpo")
    assert overruled[2, 0].item() == 2.0


CONFIGS = {
    "nothing": lambda **fields: None,
    "a dict": dict,
    "an AlgoConfig": AlgoConfig,
    "an OmegaConf node": lambda **fields: OmegaConf.create(fields),
    "a struct node": lambda **fields: struct_node(fields),
    "an object": lambda **fields: type("Settings", (), fields)(),
}


def struct_node(fields):
    node = OmegaConf.create(fields)
    OmegaConf.set_struct(node, True)
    return node


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("argument", [True, False])
@pytest.mark.parametrize("field", [True, False, None])
def test_in_grpo_passk_a_config_that_has_the_field_decides_over_the_argument(kind, argument, field):
    fields = {} if field is None else {"norm_adv_by_std_in_grpo": field}
    config = CONFIGS[kind](**fields)
    # AlgoConfig always has the field: its default is True.
    decided = {"nothing": argument, "an AlgoConfig": field is not False}.get(kind, argument if field is None else field)
    advantages, _ = compute_grpo_passk_outcome_advantage(
        at_the_end([0.0, 1.0, 0.0, 0.0]), torch.ones(4, 1), [0] * 4, norm_adv_by_std_in_grpo=argument, config=config
    )
    assert advantages[1].item() == pytest.approx(1 / 0.500001 if decided else 1.0, rel=1e-6)


def test_grpo_passk_takes_an_epsilon():
    advantages, _ = compute_grpo_passk_outcome_advantage(
        at_the_end([0.0, 1.0, 0.0, 0.0]), torch.ones(4, 1), [0] * 4, epsilon=0.5
    )
    assert advantages[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(("alpha", "factor"), [(None, 4 / 2), (1.0, 1.0), (3.0, 3.0)])
def test_gpgs_alpha_is_verls_batch_factor_or_a_number(alpha, factor):
    advantages, _ = compute_gpg_outcome_advantage(
        at_the_end([1.0, 0.0, 1.0, 0.0]), torch.ones(4, 1), [0] * 4, f_norm=2.0, alpha=alpha
    )
    assert advantages[:, 0].tolist() == [factor / 4, -factor / 4, factor / 4, -factor / 4]


def test_opo_weighs_by_the_tokens_of_the_mask():
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]]).bool()
    # (1 * 2 + 3 * 6) / 4 = 5.
    advantages, _ = compute_opo_outcome_advantage(at_the_end([2.0, 6.0]), mask, [0, 0])
    assert advantages.tolist() == [[-3.0, 0.0, 0.0], [1.0, 1.0, 1.0]]


def test_reinforce_plus_plus_baseline_whitens_over_the_tokens_of_the_mask():
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    # Centred -1, 1; tokens -1, 1, 1, 1: mean 1/2, squares 9/4 + 3/4 = 3, over 3: variance 1.
    advantages, _ = compute_reinforce_plus_plus_baseline_outcome_advantage(at_the_end([0.0, 2.0]), mask, [0, 0])
    torch.testing.assert_close(advantages, torch.tensor([[-1.5, 0, 0], [0.5, 0.5, 0.5]]), rtol=1e-7, atol=0)


def test_pass_at_k_reads_k_from_the_argument_or_the_config():
    batch = (at_the_end([0.0, 1.0, 0.0, 0.0], dtype=torch.float64), torch.ones(4, 1), [0] * 4)
    for k in (1, 2, 3):
        expected = advantages_from_scores(f64([0, 1, 0, 0]), [0] * 4, "pass_at_k", k=k)
        assert torch.equal(compute_pass_at_k_outcome_advantage(*batch, k=k)[0][:, 0], expected)
        assert torch.equal(compute_pass_at_k_outcome_advantage(*batch, config={"k": k})[0][:, 0], expected)
        assert torch.equal(compute_pass_at_k_outcome_advantage(*batch, config={"k": 1}, k=k)[0][:, 0], expected)
    default = advantages_from_scores(f64([0, 1, 0, 0]), [0] * 4, "pass_at_k", k=2)
    assert torch.equal(compute_pass_at_k_outcome_advantage(*batch)[0][:, 0], default)


def test_a_running_baseline_is_asked_for_where_it_is_missing():
    batch = (at_the_end([1.0, 2.0]), torch.ones(2, 1), [0, 0])
    with pytest.raises(MissingFieldError, match=r"'running_baseline' needs baseline=, as an argument or in the batch"):
        compute_running_baseline_outcome_advantage(*batch)


def test_what_verl_ignores_is_ignored():
    expected, _ = as_verl_calls_it("rloo")
    assert same_bits(as_verl_calls_it("rloo", reward_baselines=torch.ones(5), foo="bar")[0], expected)
    assert same_bits(as_verl_calls_it("rloo", epsilon=0.5)[0], expected)


# --- GDPO ---

PARTS = {"format": [1.0, 0.0, 1.0, 0.0, 1.0], "accuracy": [0.0, 1.0, 3.0, 2.0, 2.5]}


def gdpo(columns, config, **more):
    return compute_gdpo_outcome_advantage(
        at_the_end([0.0] * 5), MASK, LABELS, config=config, non_tensor_batch=columns, batch={}, **more
    )[0]


@pytest.mark.parametrize("kind", [k for k in CONFIGS if k != "nothing"])
def test_gdpo_takes_its_parts_and_weights_from_the_config(kind):
    config = CONFIGS[kind](gdpo_reward_keys=["format", "accuracy"], gdpo_reward_weights=[1.0, 3.0])
    expected = advantages_from_scores(
        f64([0] * 5), LABELS, "gdpo", parts=list(PARTS.values()), weights=[1.0, 3.0], lengths=MASK.sum(1)
    )
    given = gdpo(PARTS, config)
    assert same_bits(given, torch.where(MASK.bool(), expected[:, None], 0.0).float())
    alike = gdpo(PARTS, CONFIGS[kind](gdpo_reward_keys=["format", "accuracy"]))
    assert same_bits(
        alike, gdpo(PARTS, CONFIGS[kind](gdpo_reward_keys=["format", "accuracy"], gdpo_reward_weights=[1, 1]))
    )
    assert not torch.equal(alike, given)


@pytest.mark.parametrize(
    "make",
    [
        list,
        np.array,
        lambda part: np.array(part, dtype=object),
        torch.tensor,
        f64,
        lambda part: [np.float32(x) for x in part],
    ],
)
def test_the_parts_of_gdpo_are_lists_arrays_or_tensors(make):
    config = {"gdpo_reward_keys": ["format", "accuracy"]}
    made = {key: make(part) for key, part in PARTS.items()}
    assert same_bits(gdpo(made, config), gdpo(PARTS, config))


def test_gdpo_without_a_config_or_a_batch_takes_the_summed_reward_as_its_only_part():
    expected = advantages_from_scores(f64(SCORES), LABELS, "gdpo", lengths=MASK.sum(1))
    expected = torch.where(MASK.bool(), expected[:, None], 0.0).float()
    batch = (at_the_end(SCORES), MASK, LABELS)
    keys = {"gdpo_reward_keys": ["format"]}
    assert same_bits(compute_gdpo_outcome_advantage(*batch)[0], expected)
    assert same_bits(compute_gdpo_outcome_advantage(*batch, config=keys)[0], expected)
    assert same_bits(compute_gdpo_outcome_advantage(*batch, config=keys, non_tensor_batch=PARTS)[0], expected)
    assert same_bits(compute_gdpo_outcome_advantage(*batch, non_tensor_batch=PARTS, batch={})[0], expected)


@pytest.mark.parametrize("config", [{}, {"gdpo_reward_keys": None}, {"gdpo_reward_keys": []}, AlgoConfig()])
def test_gdpo_asks_for_its_keys(config):
    with pytest.raises(MissingFieldError, match=r"gdpo needs algorithm.gdpo_reward_keys: .*'format', 'accuracy'"):
        gdpo(PARTS, config)


def test_gdpo_refuses_a_key_that_is_not_in_the_batch():
    with pytest.raises(ValueError, match=r"gdpo_reward_keys names 'style', which is not in non_tensor_batch \(form"):
        gdpo(PARTS, {"gdpo_reward_keys": ["format", "style"]})
    with pytest.raises(KeyError):
        gdpo(PARTS, {"gdpo_reward_keys": ["style"]})


@pytest.mark.parametrize("weights", [[1.0], [1.0, 2.0, 3.0]])
def test_gdpo_refuses_a_wrong_number_of_weights(weights):
    with pytest.raises(BadValueError, match=rf"gdpo got {len(weights)} weights .* for 2 reward parts"):
        gdpo(PARTS, {"gdpo_reward_keys": ["format", "accuracy"], "gdpo_reward_weights": weights})


@pytest.mark.parametrize("part", [[1.0], torch.zeros(5, 2), [1.0] * 6])
def test_gdpo_refuses_a_part_of_another_length(part):
    with pytest.raises(BadValueError, match=r"reward part 'format' has shape .* one number for each of 5 answers"):
        gdpo({"format": part}, {"gdpo_reward_keys": ["format"]})


def test_the_std_of_gdpos_parts_is_an_argument():
    expected = advantages_from_scores(
        f64([0] * 5), LABELS, "gdpo", parts=list(PARTS.values()), lengths=MASK.sum(1), norm_adv_by_std_in_grpo=False
    )
    given = gdpo(PARTS, {"gdpo_reward_keys": ["format", "accuracy"]}, norm_adv_by_std_in_grpo=False)
    assert same_bits(given, torch.where(MASK.bool(), expected[:, None], 0.0).float())


def test_failed_answers_take_no_part_in_gdpo():
    columns = {"format": [1.0, 0.0, math.nan, 0.0, 1.0]}
    given = gdpo(columns, {"gdpo_reward_keys": ["format"]}, failed=torch.tensor([0, 0, 1, 0, 0]))
    kept = [0, 1, 3, 4]
    expected = compute_gdpo_outcome_advantage(
        at_the_end([columns["format"][row] for row in kept]), MASK[kept], [LABELS[row] for row in kept]
    )[0]
    assert same_bits(given[kept], expected)
    assert given[2].eq(0).all()


# --- an estimator of one's own ---


@pytest.fixture
def registries():
    before = dict(OUTCOME_ESTIMATORS), dict(ADV_ESTIMATOR_REGISTRY)
    yield
    for registry, kept in zip((OUTCOME_ESTIMATORS, ADV_ESTIMATOR_REGISTRY), before, strict=True):
        registry.clear()
        registry.update(kept)


def test_an_equation_of_ones_own_serves_both_paths(registries):
    @register_outcome_estimator("median_baseline")
    def median_baseline(scores, groups):
        medians = [scores[groups.ids == g].median() for g in range(groups.num_groups)]
        return scores - groups.spread(torch.stack(medians))

    # Medians 2 and 0.5.
    by_scores = advantages_from_scores(f64(SCORES), LABELS, "median_baseline")
    assert by_scores.tolist() == [-1.0, 0.0, 4.0, 0.0, 0.5]
    by_tokens, returns = as_verl_calls_it("median_baseline")
    assert returns is by_tokens
    assert same_bits(by_tokens, torch.where(MASK.bool(), by_scores[:, None], 0.0).float())


def test_the_options_of_an_equation_come_from_the_argument_the_config_or_their_default(registries):
    @register_outcome_estimator("scaled")
    def scaled(scores, groups, *, scale=2.0, lengths=None, epsilon=None):
        """Scores times scale."""
        return scores * scale + (0.0 if epsilon is None else epsilon) + (0 if lengths is None else lengths)

    function = get_adv_estimator_fn("scaled")
    assert function.__name__ == "compute_scaled_outcome_advantage"
    assert function.__doc__ == "Scores times scale."
    assert list(inspect.signature(function).parameters)[-4:] == ["failed", "exclude_empty", "scale", "kwargs"]
    batch = (at_the_end([1.0, 2.0], width=1), torch.tensor([[1], [1]]), ["a", "b"])
    # Times 2 by default, plus one token each.
    assert function(*batch)[0].tolist() == [[3.0], [5.0]]
    assert function(*batch, config={"scale": 10.0})[0].tolist() == [[11.0], [21.0]]
    assert function(*batch, config={"scale": 10.0}, scale=0.0)[0].tolist() == [[1.0], [1.0]]
    assert function(*batch, epsilon=0.5)[0].tolist() == [[3.5], [5.5]]


def test_an_option_without_a_default_is_asked_for(registries):
    @register_outcome_estimator("needy")
    def needy(scores, groups, *, difficulty):
        return scores * difficulty

    with pytest.raises(MissingFieldError, match=r"estimator 'needy' needs difficulty=, as an argument or in the batch"):
        as_verl_calls_it("needy")
    given, _ = as_verl_calls_it("needy", difficulty=f64([1, 2, 3, 4, 5]), failed=torch.tensor([1, 0, 0, 0, 0]))
    assert given.tolist() == [[0, 0, 0], [4, 4, 0], [0, 18, 18], [2, 0, 0], [0, 0, 0]]


def test_the_same_equation_twice_is_fine_and_another_under_its_name_is_refused(registries):
    def first(scores, groups):
        return scores

    def second(scores, groups):
        return -scores

    assert register_outcome_estimator("mine")(first) is first
    assert register_outcome_estimator("mine")(first) is first
    with pytest.raises(BadValueError, match=r"advantage estimator 'mine' is already registered"):
        register_outcome_estimator("mine")(second)
    assert OUTCOME_ESTIMATORS["mine"] is first
    with pytest.raises(BadValueError, match=r"advantage estimator 'gae' is already registered"):
        register_outcome_estimator("gae")(first)
    assert "gae" not in OUTCOME_ESTIMATORS
