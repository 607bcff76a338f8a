"""Where ours differs from verl 0.9.1 on purpose: both values, and why, side by side."""

import numpy as np
import pytest
import torch
from verl.trainer.config import AlgoConfig as VerlConfig
from verl.trainer.ppo import core_algos

from groupwise import advantages
from groupwise.errors import BadValueError, GroupwiseWarning, MissingFieldError
from integrations.verl.batches import CASES, GDPO_KEYS, call, random_batch

BY_NAME = {case.name: case.function for case in CASES}
# A batch whose masks have holes before rewards, and company at the pads.
HOLED = 3
CONFIG = VerlConfig(gamma=0.9, gdpo_reward_keys=GDPO_KEYS)


def both(name, fields):
    """The advantages and returns of verl's function, then of ours."""
    fields = {"config": CONFIG, **fields}
    return call(getattr(core_algos, BY_NAME[name]), fields), call(getattr(advantages, BY_NAME[name]), fields)


def answers(scores, index=None, length=2, dtype=torch.float32):
    """One answer per score: the reward on the last of `length` tokens, all of one prompt unless told otherwise."""
    rewards = torch.zeros(len(scores), length, dtype=dtype)
    rewards[:, -1] = torch.tensor(scores, dtype=dtype)
    labels = np.zeros(len(scores), dtype=np.int64) if index is None else np.array(index, dtype=object)
    return {"token_level_rewards": rewards, "response_mask": torch.ones(len(scores), length), "index": labels}


@pytest.mark.parametrize(("name", "at_least"), [("grpo", 0.8), ("grpo_vectorized", 0.8), ("rloo", 1e-6), ("gpg", 1e-6)])
def test_equal_scores_are_exactly_zero_where_verl_scales_up_rounding(name, at_least):
    (theirs, _), (ours, _) = both(name, answers([100.1] * 8))
    assert theirs.abs().max() > at_least
    assert torch.count_nonzero(ours) == 0


def test_a_lone_answer_is_treated_alike_by_rloo_and_rloo_vectorized_where_verl_has_two_rules():
    fields = answers([3.0, 1.0, 0.0], ["alone", "pair", "pair"])
    (loop, _), (ours_loop, _) = both("rloo", fields)
    (vectorized, _), (ours_vectorized, _) = both("rloo_vectorized", fields)
    assert loop[0].tolist() == [3.0, 3.0]
    assert vectorized[0].tolist() == [0.0, 0.0]
    assert ours_loop[0].tolist() == ours_vectorized[0].tolist() == [3.0, 3.0]


def test_gae_is_zero_outside_the_mask_where_verl_whitens_what_stands_there():
    fields = random_batch(HOLED)
    (theirs, their_returns), (ours, our_returns) = both("gae", fields)
    outside = ~fields["response_mask"].bool()
    assert theirs[outside].abs().max() > 0.1
    assert their_returns[outside].abs().max() > 0.1
    assert torch.count_nonzero(ours[outside]) == torch.count_nonzero(our_returns[outside]) == 0


@pytest.mark.parametrize("name", ["remax", "optimal_token_baseline", "tir_optimal_token_baseline"])
def test_returns_are_zero_outside_the_mask_where_verl_leaves_the_reward_to_go(name):
    fields = random_batch(HOLED)
    (theirs, their_returns), (ours, our_returns) = both(name, fields)
    outside = ~fields["response_mask"].bool()
    assert torch.count_nonzero(their_returns[outside]) > 0
    assert torch.count_nonzero(our_returns[outside]) == 0
    assert torch.count_nonzero(ours[outside]) == 0
    # verl's remax takes the baseline off inside the mask only, and leaves the reward to go in the advantages as well.
    assert (torch.count_nonzero(theirs[outside]) > 0) == (name == "remax")


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("gae", "values"),
        ("gae", "token_level_rewards"),
        ("reinforce_plus_plus", "token_level_rewards"),
        ("remax", "token_level_rewards"),
        ("optimal_token_baseline", "old_log_probs"),
        ("tir_optimal_token_baseline", "sum_pi_squared"),
    ],
)
def test_nan_outside_the_mask_does_no_harm_where_verl_multiplies_it_by_zero(name, field):
    fields = random_batch(HOLED)
    outside = ~fields["response_mask"].bool()
    clean, _ = call(getattr(advantages, BY_NAME[name]), fields | {"config": CONFIG})
    fields[field] = torch.where(outside, torch.nan, fields[field])
    (theirs, _), (ours, _) = both(name, fields)
    assert theirs.isnan().any()
    assert torch.equal(ours, clean)


@pytest.mark.parametrize("name", ["gdpo", "reinforce_plus_plus_baseline", "gpg"])
def test_a_nan_score_stays_in_its_group_where_verl_spreads_it_over_the_batch_or_counts_it(name):
    fields = answers([float("nan"), 1.0, 0.0, 1.0, 0.0, 0.0], ["a", "a", "b", "b", "c", "c"], dtype=torch.float64)
    rest = answers([0.0, 1.0, 0.0, 0.0], ["b", "b", "c", "c"], dtype=torch.float64)
    del fields["index"], rest["index"]
    with_nan = {**fields, "index": np.array(list("aabbcc"), dtype=object)}
    without = {**rest, "index": np.array(list("bbcc"), dtype=object)}
    (theirs, _), (ours, _) = both(name, with_nan)
    (their_rest, _), (our_rest, _) = both(name, without)
    assert not torch.equal(theirs[2:], their_rest)
    assert ours[:2].isnan().all()
    assert torch.equal(ours[2:], our_rest)


def test_opo_without_a_single_token_is_zero_where_verl_divides_zero_by_zero():
    fields = answers([1.0, 0.0])
    fields["response_mask"] = torch.zeros(2, 2)
    (theirs, _), (ours, _) = both("opo", fields)
    assert theirs.isnan().all()
    assert torch.count_nonzero(ours) == 0


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo"])
@pytest.mark.parametrize("num_tokens", [0, 1])
def test_whitening_too_few_tokens_warns_and_is_zero_where_verl_raises(name, num_tokens):
    fields = answers([1.0, 0.0], length=1) | {"values": torch.ones(2, 1)}
    fields["response_mask"] = torch.tensor([[float(num_tokens)], [0.0]])
    with pytest.raises(ValueError, match=r"sum of the mask|At least one element in the mask"):
        call(getattr(core_algos, BY_NAME[name]), {"gamma": 1.0, "lam": 1.0, **fields, "config": CONFIG})
    with pytest.warns(GroupwiseWarning, match=f"whitening over {num_tokens} response tokens"):
        ours, _ = call(getattr(advantages, BY_NAME[name]), {"gamma": 1.0, "lam": 1.0, **fields, "config": CONFIG})
    assert torch.count_nonzero(ours) == 0


@pytest.mark.parametrize("name", ["grpo_passk", "reinforce_plus_plus"])
def test_no_config_means_the_defaults_where_verl_asserts_that_there_is_one(name):
    fields = answers([1.0, 0.0, 0.25]) | {"config": None}
    with pytest.raises(AssertionError):
        call(getattr(core_algos, BY_NAME[name]), fields)
    ours, _ = call(getattr(advantages, BY_NAME[name]), fields)
    theirs, _ = call(getattr(core_algos, BY_NAME[name]), fields | {"config": VerlConfig()})
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus"])
def test_a_bool_mask_is_a_mask_where_verl_subtracts_it_from_one(name):
    fields = random_batch(3, torch.float32) | {"config": CONFIG}
    expected, _ = call(getattr(advantages, BY_NAME[name]), fields)
    fields["response_mask"] = fields["response_mask"].bool()
    with pytest.raises(RuntimeError, match="bool"):
        call(getattr(core_algos, BY_NAME[name]), fields)
    ours, _ = call(getattr(advantages, BY_NAME[name]), fields)
    assert torch.equal(ours, expected)


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_integer_rewards_are_rewards_where_verl_cannot_average_them(name):
    fields = answers([3, 1, 0], dtype=torch.int64)
    with pytest.raises(RuntimeError, match="floating point"):
        call(getattr(core_algos, BY_NAME[name]), fields)
    ours, _ = call(getattr(advantages, BY_NAME[name]), fields)
    expected, _ = call(getattr(core_algos, BY_NAME[name]), answers([3.0, 1.0, 0.0]))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


def test_bfloat16_rewards_are_normalised_in_float64_where_verl_stays_in_bfloat16():
    fields = answers([256.0, 257.0, 258.0, 259.0], dtype=torch.bfloat16)
    # bfloat16 knows no 257 and no 259: the scores are 256, 256, 258, 260, mean 257.5, std 1.91485.
    (theirs, _), (ours, _) = both("grpo", fields)
    assert ours[:, 0].tolist() == pytest.approx([-0.78335, -0.78335, 0.26112, 1.30558], abs=1e-5)
    assert (theirs[:, 0] - ours[:, 0]).abs().max() > 0.2


def test_gpg_takes_the_alpha_it_is_given_where_verl_overwrites_it():
    fields = answers([1.0, 0.0]) | {"alpha": 5.0}
    (theirs, _), (ours, _) = both("gpg", fields)
    # verl: 2 answers, 1 of them nonzero: 2 * (1 - 0.5).
    assert theirs[:, 0].tolist() == [1.0, -1.0]
    assert ours[:, 0].tolist() == [2.5, -2.5]


def test_tensor_labels_group_by_value_where_verls_loops_cannot_find_them_again():
    fields = answers([1.0, 0.0]) | {"index": torch.tensor([7, 7])}
    with pytest.raises(KeyError):
        call(core_algos.compute_grpo_outcome_advantage, fields)
    ours, _ = call(advantages.compute_grpo_outcome_advantage, fields)
    assert ours[:, 0].tolist() == pytest.approx([0.70711, -0.70711], abs=1e-5)


def test_negative_labels_name_groups_where_verls_vectorized_function_indexes_with_them():
    fields = answers([1.0, 0.0, 1.0, 1.0]) | {"index": np.array([-5, -5, 3, 3])}
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        call(core_algos.compute_grpo_vectorized_outcome_advantage, fields)
    ours, _ = call(advantages.compute_grpo_vectorized_outcome_advantage, fields)
    assert ours[:, 0].tolist() == pytest.approx([0.70711, -0.70711, 0.0, 0.0], abs=1e-5)


def test_labels_for_more_answers_than_there_are_are_refused_where_verls_loops_ignore_them():
    fields = answers([1.0, 0.0]) | {"index": np.array(["a", "a", "b"], dtype=object)}
    theirs, _ = call(core_algos.compute_grpo_outcome_advantage, fields)
    assert theirs[:, 0].tolist() == pytest.approx([0.70711, -0.70711], abs=1e-5)
    with pytest.raises(BadValueError, match="index has 3 labels for 2 answers"):
        call(advantages.compute_grpo_outcome_advantage, fields)


@pytest.mark.parametrize(
    ("weights", "verls"), [([1.0], IndexError), ([1.0, 1.0, 99.0], None)], ids=["too few", "too many"]
)
def test_gdpo_refuses_a_wrong_number_of_weights_where_verl_stumbles_or_ignores(weights, verls):
    fields = random_batch(1) | {"config": VerlConfig(gdpo_reward_keys=GDPO_KEYS, gdpo_reward_weights=weights)}
    if verls is None:
        call(core_algos.compute_gdpo_outcome_advantage, fields)
    else:
        with pytest.raises(verls):
            call(core_algos.compute_gdpo_outcome_advantage, fields)
    with pytest.raises(BadValueError, match=f"gdpo got {len(weights)} weights"):
        call(advantages.compute_gdpo_outcome_advantage, fields)


@pytest.mark.parametrize("keys", [None, ["format", "speed"]])
def test_gdpo_names_the_missing_key_in_an_error_where_verl_asserts(keys):
    fields = random_batch(1) | {"config": VerlConfig(gdpo_reward_keys=keys)}
    with pytest.raises(AssertionError):
        call(core_algos.compute_gdpo_outcome_advantage, fields)
    with pytest.raises(MissingFieldError, match="gdpo_reward_keys"):
        call(advantages.compute_gdpo_outcome_advantage, fields)


def test_gdpo_keeps_float64_rewards_in_float64_where_verl_falls_to_float32():
    (theirs, _), (ours, _) = both("gdpo", random_batch(1, torch.float64, torch.int64))
    assert (theirs.dtype, ours.dtype) == (torch.float32, torch.float64)


def test_rloo_vectorized_keeps_the_dtype_of_its_input_where_verl_widens_it():
    fields = answers([1.0, 0.0], dtype=torch.bfloat16)
    fields["response_mask"] = fields["response_mask"].bool()
    (theirs, _), (ours, _) = both("rloo_vectorized", fields)
    assert (theirs.dtype, ours.dtype) == (torch.float64, torch.bfloat16)


def test_the_order_of_the_rows_changes_no_bit_where_it_changes_verls():
    generator = torch.Generator().manual_seed(0)
    fields = answers(torch.randn(64, generator=generator).tolist(), [row % 4 for row in range(64)])
    order = torch.randperm(64, generator=generator)
    shuffled = {"token_level_rewards": fields["token_level_rewards"][order], "index": fields["index"][order.numpy()]}
    (theirs, _), (ours, _) = both("grpo", fields)
    (theirs_shuffled, _), (ours_shuffled, _) = both("grpo", fields | shuffled)
    assert not torch.equal(theirs[order], theirs_shuffled)
    assert torch.equal(ours[order], ours_shuffled)


def test_epsilon_of_the_token_baselines_shrinks_toward_the_lowest_return_where_verl_shrinks_toward_zero():
    fields = answers([4.0, 4.0], length=1) | {"epsilon": 1.0}
    fields |= {"old_log_probs": torch.full((2, 1), 0.5).log(), "sum_pi_squared": torch.full((2, 1), 0.5)}
    # W is 1 - 2 * 0.5 + 0.5 = 0.5 for both: verl's baseline is (2 + 2) / (0.5 + 0.5 + 1), not the common return.
    (theirs, _), (ours, _) = both("optimal_token_baseline", fields)
    assert theirs[:, 0].tolist() == pytest.approx([2.0, 2.0])
    assert ours[:, 0].tolist() == [0.0, 0.0]
