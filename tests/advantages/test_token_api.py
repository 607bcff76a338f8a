"""GAE, REINFORCE++, ReMax and GRPO on steps, against loops, reduced to one another, and at their edges."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from groupwise.advantages import (
    AlgoConfig,
    compute_gae_advantage_return,
    compute_grpo_outcome_advantage,
    compute_grpo_process_advantage,
    compute_reinforce_plus_plus_outcome_advantage,
    compute_remax_outcome_advantage,
)
from groupwise.errors import BadValueError
from oracles import process, recurrences
from samples import at_the_end, dyadic, f64, same_bits

cells = st.tuples(dyadic, dyadic, st.booleans(), st.booleans())
tables = st.lists(st.lists(cells, min_size=4, max_size=4), min_size=2, max_size=6)
close = {"rtol": 1e-8, "atol": 1e-8}
REWARDS = torch.tensor([[0.5, 0.0, 1.0, 2.0], [1.0, -1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 3.0]])
VALUES = torch.tensor([[0.1, 0.2, 0.3, 0.4], [1.0, 0.5, 0.2, 0.0], [2.0, 2.0, 2.0, 2.0]])
MASK = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0], [0, 1, 1, 1]])


def columns(table):
    return ([[cell[i] for cell in row] for row in table] for i in range(4))


def enough(mask):
    """Two tokens to whiten over."""
    if sum(map(sum, mask)) < 2:
        mask[0] = [True] * len(mask[0])
    return mask


def call(name, rewards=REWARDS, mask=MASK, **more):
    if name == "gae":
        values = more.pop("values", VALUES)
        return compute_gae_advantage_return(rewards, values, mask, more.pop("gamma", 0.9), more.pop("lam", 0.8), **more)
    if name == "reinforce_plus_plus":
        return compute_reinforce_plus_plus_outcome_advantage(rewards, mask, **more)
    if name == "remax":
        baselines = more.pop("reward_baselines", torch.tensor([1.0, 0.5, 0.25])[: len(rewards)])
        return compute_remax_outcome_advantage(rewards, baselines, mask, **more)
    index = more.pop("index", ["a", "a", "b"][: len(rewards)])
    steps = more.pop("step_mask", torch.ones(rewards.shape))
    return compute_grpo_process_advantage(rewards, mask, index, steps, **more)


NAMES = ["gae", "reinforce_plus_plus", "remax", "grpo_process"]


@given(tables, st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.0, 0.5, 1.0]))
def test_gae_is_the_papers_sum_whitened(table, gamma, lam):
    rewards, values, mask, _ = columns(table)
    mask = enough(mask)
    advantages, returns = compute_gae_advantage_return(f64(rewards), f64(values), torch.tensor(mask), gamma, lam)
    expected, total = recurrences.whitened_gae(rewards, values, mask, gamma, lam)
    torch.testing.assert_close(advantages, f64(expected), **close)
    torch.testing.assert_close(returns, f64(total), **close)


@given(tables, st.sampled_from([0.0, 0.9, 1.0]))
def test_reinforce_plus_plus_is_the_whitened_discounted_return(table, gamma):
    rewards, _, mask, _ = columns(table)
    mask = enough(mask)
    advantages, returns = compute_reinforce_plus_plus_outcome_advantage(
        f64(rewards), torch.tensor(mask), AlgoConfig(gamma=gamma)
    )
    expected, total = recurrences.reinforce_plus_plus(rewards, mask, gamma)
    torch.testing.assert_close(advantages, f64(expected), **close)
    torch.testing.assert_close(returns, f64(total), **close)


@given(tables)
def test_remax_is_the_reward_to_go_minus_the_greedy_score(table):
    rewards, values, mask, _ = columns(table)
    greedy = [row[0] for row in values]
    advantages, returns = compute_remax_outcome_advantage(f64(rewards), f64(greedy), torch.tensor(mask))
    expected, total = recurrences.remax(rewards, greedy, mask)
    torch.testing.assert_close(advantages, f64(expected), **close)
    torch.testing.assert_close(returns, f64(total), **close)


@pytest.mark.parametrize("convention", ["verl", "trl", "dr_grpo", "deepseekmath", "nemo_rl"])
@given(table=tables)
def test_process_grpo_normalises_the_steps_of_the_group_and_adds_them_up(convention, table):
    rewards, _, mask, steps = columns(table)
    labels = [row % 2 for row in range(len(rewards))]
    advantages, returns = compute_grpo_process_advantage(
        f64(rewards), torch.tensor(mask), labels, torch.tensor(steps), convention=convention
    )
    expected = process.grpo_process(rewards, mask, labels, steps, convention)
    torch.testing.assert_close(advantages, f64(expected), **close)
    assert returns is advantages


def test_gae_by_hand():
    # gamma = lam = 1/2, values 4, 2; rewards 1, 3.  delta_2 = 3 - 2 = 1; delta_1 = 1 + 1 - 4 = -2, A_1 = -2 + 1/4.
    # Raw -1.75, 1; mean -0.375, variance 2 * 1.375^2; returns 2.25, 3.
    advantages, returns = compute_gae_advantage_return(f64([[1.0, 3.0]]), f64([[4.0, 2.0]]), torch.ones(1, 2), 0.5, 0.5)
    assert returns.tolist() == [[2.25, 3.0]]
    z = 1.375 / math.sqrt(2 * 1.375**2 + 1e-8)
    assert advantages[0].tolist() == pytest.approx([-z, z], rel=1e-14)


def test_gae_without_values_and_with_lambda_one_is_reinforce_plus_plus():
    for gamma in (0.5, 1.0):
        gae = compute_gae_advantage_return(REWARDS, torch.zeros_like(REWARDS), MASK, gamma, 1.0)
        reinforce = compute_reinforce_plus_plus_outcome_advantage(REWARDS, MASK, AlgoConfig(gamma=gamma))
        torch.testing.assert_close(gae[0], reinforce[0])
        torch.testing.assert_close(gae[1], reinforce[1])


def test_remax_with_one_final_reward_and_no_baseline_is_the_score_at_every_token():
    rewards = at_the_end([2.0, -1.0])
    advantages, returns = compute_remax_outcome_advantage(rewards, torch.zeros(2), torch.ones(2, 3))
    assert advantages.tolist() == [[2.0] * 3, [-1.0] * 3]
    assert torch.equal(returns, advantages)


def test_remax_ignores_rewards_outside_the_mask():
    advantages, _ = compute_remax_outcome_advantage(
        torch.tensor([[1.0, 9.0, 2.0]]), torch.tensor([0.5]), torch.tensor([[1, 0, 1]])
    )
    assert advantages.tolist() == [[2.5, 0.0, 1.5]]


def test_the_discount_of_reinforce_plus_plus_comes_from_the_config_and_is_one_without():
    rewards, mask = torch.tensor([[1.0, 2.0]]), torch.ones(1, 2)
    for config in (AlgoConfig(gamma=0.5), {"gamma": 0.5}, OmegaConf.create({"gamma": 0.5})):
        assert compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config)[1].tolist() == [[2.0, 2.0]]
    for config in (None, {}, {"gamma": None}):
        assert compute_reinforce_plus_plus_outcome_advantage(rewards, mask, config)[1].tolist() == [[3.0, 2.0]]


def test_process_grpo_with_one_step_at_the_end_is_grpo():
    rewards = at_the_end([1.0, 2.0, 6.0, 0.5, 1.0], dtype=torch.float64)
    labels, mask, steps = ["a", "a", "a", "b", "b"], torch.ones(5, 3), torch.tensor([[0, 0, 1]] * 5)
    for options in ({}, {"norm_adv_by_std_in_grpo": False}, {"epsilon": 0.5}, {"config": {"convention": "trl"}}):
        process_, _ = compute_grpo_process_advantage(rewards, mask, labels, steps, **options)
        outcome, _ = compute_grpo_outcome_advantage(rewards, mask, labels, **options)
        assert torch.equal(process_, outcome)


def test_process_grpo_by_hand():
    # Steps 1, 3 of the first answer and 5 of the second: mean 3, std 2, so -1, 0, 1.  Tokens sum the steps to come.
    rewards = f64([[0.0, 1.0, 9.0, 3.0], [5.0, 9.0, 9.0, 0.0]])
    steps = torch.tensor([[0, 1, 0, 1], [1, 0, 0, 0]])
    advantages, _ = compute_grpo_process_advantage(rewards, torch.ones(2, 4), [0, 0], steps, epsilon=0.0)
    assert advantages.tolist() == [[-1.0, -1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]


def test_steps_outside_the_mask_do_not_count():
    rewards, steps = f64([[1.0, 9.0], [3.0, 5.0]]), torch.ones(2, 2)
    mask = torch.tensor([[1, 0], [1, 0]])
    advantages, _ = compute_grpo_process_advantage(rewards, mask, [0, 0], steps, norm_adv_by_std_in_grpo=False)
    assert advantages.tolist() == [[-1.0, 0.0], [1.0, 0.0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("column", [0, 1, 3])
def test_a_step_that_is_not_finite_makes_its_group_nan_at_every_token(bad, column):
    rewards = f64([[0.0, 1.0, 0.0, 2.0], [1.0, 3.0, 0.0, 4.0], [0.0, 1.0, 0.0, 2.0], [0.0, 5.0, 0.0, 0.0]])
    steps, labels = torch.tensor([[1, 1, 0, 1]] * 4), ["a", "a", "b", "b"]
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]])
    clean, _ = compute_grpo_process_advantage(rewards[2:], mask[2:], labels[2:], steps[2:])
    rewards[0, column] = bad
    advantages, _ = compute_grpo_process_advantage(rewards, mask, labels, steps)
    assert advantages[:2][mask[:2] == 1].isnan().all()
    assert advantages[mask == 0].eq(0).all()
    assert torch.equal(advantages[2:], clean)


def test_a_reward_that_ends_no_step_may_be_nan():
    rewards = f64([[math.nan, 1.0], [math.nan, 3.0]])
    advantages, _ = compute_grpo_process_advantage(
        rewards, torch.ones(2, 2), [0, 0], torch.tensor([[0, 1]] * 2), norm_adv_by_std_in_grpo=False
    )
    assert advantages.tolist() == [[-1.0, -1.0], [1.0, 1.0]]


@pytest.mark.parametrize("score", [0.1, 0.35, 100.1, 1e6 + 0.1])
def test_equal_steps_are_exactly_zero(score):
    for convention in ("verl", "openrlhf", "deepseekmath", "nemo_rl"):
        advantages, _ = compute_grpo_process_advantage(
            torch.full((3, 4), score), torch.ones(3, 4), [0] * 3, torch.ones(3, 4), convention=convention
        )
        assert advantages.eq(0).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_masked_positions_are_exactly_zero_and_nothing_there_is_read(name, bad):
    off = MASK == 0
    dirty = {"values": VALUES.masked_fill(off, bad)} if name == "gae" else {}
    expected = call(name)
    given_ = call(name, REWARDS.masked_fill(off, bad), **dirty)
    for left, right in zip(given_, expected, strict=True):
        assert same_bits(left, right)
        assert left[off].eq(0).all()


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "remax"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_with_a_reward_that_is_not_finite_is_nan_and_takes_no_part_in_whitening(name, bad):
    rewards = REWARDS.clone()
    rewards[0, 1] = bad
    others = {"values": VALUES[1:]} if name == "gae" else {}
    if name == "remax":
        others["reward_baselines"] = torch.tensor([0.5, 0.25])
    advantages, returns = call(name, rewards)
    clean = call(name, REWARDS[1:], MASK[1:], **others)
    for left, right in zip((advantages, returns), clean, strict=True):
        assert left[0].isnan().tolist() == [True, True, False, True]
        assert left[0, 2] == 0
        torch.testing.assert_close(left[1:], right)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_greedy_score_or_a_value_that_is_not_finite_makes_its_row_nan(bad):
    advantages, _ = call("remax", reward_baselines=torch.tensor([bad, 0.5, 0.25]))
    assert advantages[0].isnan().tolist() == [True, True, False, True]
    assert advantages[1:].isfinite().all()
    values = VALUES.clone()
    values[1, 0] = bad
    advantages, _ = call("gae", values=values)
    assert advantages[1].isnan().tolist() == [True, True, True, False]
    assert advantages[[0, 2]].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("flags", [[True, False, False], torch.tensor([1, 0, 0])])
def test_failed_answers_are_zero_and_as_good_as_absent(name, flags):
    rewards = REWARDS.clone()
    rewards[0, 1] = math.nan
    others = {"gae": {"values": VALUES[1:]}, "remax": {"reward_baselines": torch.tensor([0.5, 0.25])}}.get(name, {})
    if name == "grpo_process":
        others = {"index": ["a", "b"]}
    expected = call(name, REWARDS[1:], MASK[1:], **others)
    for left, right in zip(call(name, rewards, failed=flags), expected, strict=True):
        assert left[0].eq(0).all()
        assert same_bits(left[1:], right)


@pytest.mark.parametrize("name", NAMES)
def test_marks_of_another_length_are_refused(name):
    with pytest.raises(BadValueError, match=r"failed has shape \(2,\); it must hold one value for each of 3 answers"):
        call(name, failed=[True, False])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rewards", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("mask", [torch.bool, torch.int32, torch.float16, torch.float32])
def test_every_dtype_of_rewards_and_mask_gives_the_same_numbers_in_the_promoted_dtype(name, rewards, mask):
    whole = REWARDS.bool().to(torch.int64)
    values = {"values": VALUES.to(torch.float16)} if name == "gae" else {}
    exact = call(name, whole.double(), **values)
    given_ = call(name, whole.to(rewards), MASK.to(mask), **values)
    promoted = torch.promote_types(rewards, mask)
    if name == "gae":
        promoted = torch.promote_types(promoted, torch.float16)
    for left, right in zip(given_, exact, strict=True):
        assert left.dtype == (promoted if promoted.is_floating_point else torch.float32)
        assert torch.equal(left, right.to(left.dtype))


@pytest.mark.parametrize("name", NAMES)
def test_inputs_stay_as_they_were_and_outputs_do_not_require_grad(name):
    rewards, mask = REWARDS.clone().requires_grad_(), MASK.float().requires_grad_()
    before = rewards.detach().clone(), mask.detach().clone()
    for result in call(name, rewards, mask):
        assert not result.requires_grad
        result.add_(1.0)
    assert torch.equal(rewards.detach(), before[0])
    assert torch.equal(mask.detach(), before[1])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("rows", "width"), [(0, 4), (3, 0)])
@pytest.mark.filterwarnings("ignore:whitening over 0 response tokens")
def test_an_empty_batch_has_an_empty_result(name, rows, width):
    empty = torch.zeros(rows, width)
    more = {"gae": {"values": empty}, "remax": {"reward_baselines": torch.zeros(rows)}}.get(name, {})
    for result in call(name, empty, empty, **more):
        assert result.shape == (rows, width)


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus"])
@pytest.mark.parametrize("count", [0, 1])
def test_whitening_over_no_token_or_one_is_zero_with_a_warning(name, count):
    mask = torch.zeros(3, 4)
    mask[1, 1] = count
    with pytest.warns(UserWarning, match=rf"whitening over {count} response tokens"):
        advantages, _ = call(name, mask=mask)
    assert advantages.eq(0).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_over_other_tokens_is_refused(name):
    with pytest.raises(BadValueError, match=r"response_mask has shape \(3, 2\) but token_level_rewards has \(3, 4\)"):
        call(name, mask=MASK[:, :2])


def test_values_and_steps_over_other_tokens_are_refused():
    with pytest.raises(BadValueError, match=r"values has shape \(3, 2\) but token_level_rewards has \(3, 4\)"):
        call("gae", values=VALUES[:, :2])
    with pytest.raises(BadValueError, match=r"step_mask has shape \(2, 4\) but token_level_rewards has \(3, 4\)"):
        call("grpo_process", step_mask=MASK[:2])


@pytest.mark.parametrize("baselines", [torch.zeros(2), torch.zeros(3, 1), torch.tensor(1.0)])
def test_greedy_scores_of_another_length_are_refused(baselines):
    with pytest.raises(BadValueError, match=r"reward_baselines has shape .*the greedy answer for each of 3 answers"):
        call("remax", reward_baselines=baselines)


def test_process_grpo_refuses_labels_of_another_length():
    with pytest.raises(BadValueError, match=r"index has 2 labels for 3 answers"):
        call("grpo_process", index=["a", "b"])


def test_what_verl_ignores_is_ignored():
    for name in ("reinforce_plus_plus", "remax", "grpo_process"):
        assert same_bits(call(name, foo="bar")[0], call(name)[0])
