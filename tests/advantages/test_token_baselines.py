"""Optimal token baselines, against loops, reduced to known cases, and at their edges."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.advantages import (
    compute_multi_turn_optimal_token_baseline_advantage,
    compute_optimal_token_baseline_advantage,
)
from groupwise.errors import BadValueError
from oracles import token_baselines as oracle
from samples import coarse, f64, same_bits

BOTH = {
    "optimal_token_baseline": compute_optimal_token_baseline_advantage,
    "tir_optimal_token_baseline": compute_multi_turn_optimal_token_baseline_advantage,
}
close = {"rtol": 1e-11, "atol": 1e-11}


@st.composite
def token_batches(draw, gaps=True):
    width = draw(st.integers(1, 5))
    count = draw(st.integers(1, 7))
    labels = draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count))
    if gaps:
        mask = draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=count, max_size=count))
    else:
        lengths = draw(st.lists(st.integers(1, width), min_size=count, max_size=count))
        mask = [[t < length for t in range(width)] for length in lengths]

    def table(kind):
        row = st.lists(kind, min_size=width, max_size=width)
        return draw(st.lists(row, min_size=count, max_size=count))

    log_probs = table(st.integers(1, 64).map(lambda n: math.log(n / 64)))
    # sum pi^2 is at least pi^2 of the token drawn, and at most 1.
    squares = [[math.exp(2 * lp) + (1 - math.exp(lp)) * 0.125 for lp in row] for row in log_probs]
    return table(coarse), mask, labels, log_probs, squares, table(st.sampled_from([0.5, 1.0, 2.0]))


def tensors(batch):
    rewards, mask, labels, log_probs, squares, rho = batch
    return f64(rewards), torch.tensor(mask), labels, f64(log_probs), f64(squares), f64(rho)


@given(token_batches(), st.booleans(), st.booleans())
def test_the_baseline_by_columns_is_the_loop(batch, weighted, tail):
    rewards, mask, labels, log_probs, squares, rho = tensors(batch)
    advantages, returns = compute_optimal_token_baseline_advantage(
        rewards, mask, labels, log_probs, squares, rho if weighted else None, tail, 0.0
    )
    *plain, weights = batch
    expected, to_go = oracle.optimal_token_baseline(*plain, weights if weighted else None, tail, 0.0)
    torch.testing.assert_close(advantages, f64(expected), **close)
    torch.testing.assert_close(returns, f64(to_go), **close)


@given(token_batches(), st.booleans(), st.booleans())
def test_the_baseline_by_response_tokens_is_the_loop(batch, weighted, tail):
    rewards, mask, labels, log_probs, squares, rho = tensors(batch)
    advantages, _ = compute_multi_turn_optimal_token_baseline_advantage(
        rewards, mask, labels, log_probs, squares, rho if weighted else None, tail, 0.0
    )
    *plain, weights = batch
    expected = oracle.multi_turn(*plain, weights if weighted else None, tail, 0.0)
    torch.testing.assert_close(advantages, f64(expected), **close)


@given(token_batches(gaps=False), st.booleans())
def test_without_gaps_both_are_the_same(batch, tail):
    rewards, mask, labels, log_probs, squares, _ = tensors(batch)
    columns = compute_optimal_token_baseline_advantage(rewards, mask, labels, log_probs, squares, handle_zero_tail=tail)
    turns = compute_multi_turn_optimal_token_baseline_advantage(
        rewards, mask, labels, log_probs, squares, handle_zero_tail=tail
    )
    torch.testing.assert_close(columns[0], turns[0])
    torch.testing.assert_close(columns[1], turns[1])


def uniform(mask):
    """Log-probabilities and squares of a coin: pi = 1/2, sum pi^2 = 1/2, so every token spends 1 - 1 + 1/2 = 1/2."""
    return torch.full(mask.shape, math.log(0.5)).double(), torch.full(mask.shape, 0.5).double()


@pytest.mark.parametrize("name", BOTH)
def test_by_hand(name):
    # W = 1/2, 1 for both.  Returns 3, 2 and 1, 1.  B_1 = (3 + 1)/2 = 2, B_2 = (2 + 1)/2 = 1.5.
    rewards, mask = f64([[1.0, 2.0], [0.0, 1.0]]), torch.ones(2, 2)
    advantages, returns = BOTH[name](rewards, mask, [0, 0], *uniform(mask), epsilon=0.0)
    assert returns.tolist() == [[3.0, 2.0], [1.0, 1.0]]
    assert advantages.tolist() == [[1.0, 0.5], [-1.0, -0.5]]
    # rho = 2 for the first answer: its W is four times as large.  B_1 = (3 * 4 + 1)/5 = 2.6, B_2 = (2 * 4 + 1)/5 = 1.8.
    rho = f64([[2.0, 2.0], [1.0, 1.0]])
    advantages, _ = BOTH[name](rewards, mask, [0, 0], *uniform(mask), rho, epsilon=0.0)
    torch.testing.assert_close(advantages, f64([[0.4, 0.2], [-1.6, -0.8]]))


@pytest.mark.parametrize("name", BOTH)
def test_epsilon_is_added_to_the_energy(name):
    # B_1: rises 2 and 0 over the lowest return 1: 1 + (2 * 1/2)/(1 + 1) = 1.5; B_2: 1 + (1 * 1)/(2 + 1).
    mask = torch.ones(2, 2)
    advantages, _ = BOTH[name](f64([[1.0, 2.0], [0.0, 1.0]]), mask, [0, 0], *uniform(mask), epsilon=1.0)
    torch.testing.assert_close(advantages, f64([[1.5, 2 / 3], [-0.5, -1 / 3]]))


@pytest.mark.parametrize("name", BOTH)
def test_the_longest_answer_has_no_baseline_where_it_is_alone_in_front(name):
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    rewards = f64([[0.0, 0.0, 2.0], [4.0, 0.0, 0.0]])
    kept, _ = BOTH[name](rewards, mask, [0, 0], *uniform(mask), handle_zero_tail=False, epsilon=0.0)
    tail, _ = BOTH[name](rewards, mask, [0, 0], *uniform(mask), epsilon=0.0)
    # B_1 = 3 for both; after that the first answer's own return, or nothing.
    assert kept.tolist() == [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    assert tail.tolist() == [[-1.0, 2.0, 2.0], [1.0, 0.0, 0.0]]


def test_an_answer_without_a_token_counts_by_columns_and_not_by_turns():
    # By columns the empty answer is company: the other is then alone in front from its first token.
    mask, rewards = torch.tensor([[1, 1], [0, 0]]), f64([[1.0, 1.0], [5.0, 5.0]])
    columns, _ = compute_optimal_token_baseline_advantage(rewards, mask, [0, 0], *uniform(mask), handle_zero_tail=False)
    turns, _ = compute_multi_turn_optimal_token_baseline_advantage(
        rewards, mask, [0, 0], *uniform(mask), handle_zero_tail=False
    )
    assert columns.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert turns.tolist() == [[2.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("name", BOTH)
def test_an_answer_alone_keeps_its_returns(name):
    mask = torch.ones(2, 2)
    advantages, returns = BOTH[name](f64([[1.0, 2.0], [0.0, 1.0]]), mask, ["a", "b"], *uniform(mask))
    assert advantages.tolist() == [[3.0, 2.0], [1.0, 1.0]]
    assert torch.equal(returns, advantages)


@pytest.mark.parametrize("name", BOTH)
def test_where_nobody_has_spent_anything_the_baseline_is_zero(name):
    # A certain token: pi = 1, sum pi^2 = 1, so 1 - 2 + 1 = 0.
    mask = torch.ones(2, 2)
    advantages, _ = BOTH[name](f64([[1.0, 2.0], [0.0, 1.0]]), mask, [0, 0], torch.zeros(2, 2), torch.ones(2, 2))
    assert advantages.tolist() == [[3.0, 2.0], [1.0, 1.0]]


@pytest.mark.parametrize("name", BOTH)
def test_a_share_below_zero_is_rounding(name):
    # pi = 1 with a sum of squares just below 1 is a share of -1e-7, which would turn the weights' sign.
    mask = torch.ones(2, 1)
    squares = f64([[1 - 1e-7], [1.0]])
    advantages, _ = BOTH[name](f64([[1.0], [0.0]]), mask, [0, 0], torch.zeros(2, 1).double(), squares)
    assert advantages.tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("score", [0.1, 0.35, 100.1, 1e6 + 0.1])
def test_equal_returns_are_exactly_zero(name, score):
    rewards = torch.zeros(5, 3)
    rewards[:, -1] = score
    mask = torch.ones(5, 3)
    log_probs = torch.rand(5, 3).log()
    advantages, _ = BOTH[name](rewards, mask, [0] * 5, log_probs, (2 * log_probs).exp())
    assert advantages.eq(0).all()


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_masked_positions_are_exactly_zero_and_nothing_there_is_read(name, bad):
    mask = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1]])
    off = mask == 0
    clean = [torch.rand(3, 3), torch.rand(3, 3).log(), torch.rand(3, 3), torch.rand(3, 3)]
    dirty = [tensor.masked_fill(off, bad) for tensor in clean]
    expected = BOTH[name](clean[0], mask, [0, 0, 0], *clean[1:])
    for left, right in zip(BOTH[name](dirty[0], mask, [0, 0, 0], *dirty[1:]), expected, strict=True):
        assert same_bits(left, right)
        assert left[off].eq(0).all()


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("which", "bad"),
    [("log_probs", math.nan), *((which, x) for which in ("rewards", "squares", "rho") for x in (math.nan, math.inf))],
)
@pytest.mark.parametrize("tail", [True, False])
def test_an_input_that_is_not_finite_makes_its_group_nan_and_no_other(name, bad, which, tail):
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 1, 1]])
    inputs = {key: torch.rand(4, 3) for key in ("rewards", "log_probs", "squares", "rho")}
    inputs["log_probs"] = inputs["log_probs"].log()

    def run(rows):
        given_ = {key: value[rows] for key, value in inputs.items()}
        labels = [["a", "a", "b", "b"][row] for row in rows]
        return BOTH[name](
            given_["rewards"], mask[rows], labels, given_["log_probs"], given_["squares"], given_["rho"], tail
        )[0]

    alone = run([2, 3])
    inputs[which][0, 1] = bad
    advantages = run([0, 1, 2, 3])
    assert advantages[:2][mask[:2] == 1].isnan().all()
    assert advantages[mask == 0].eq(0).all()
    torch.testing.assert_close(advantages[2:], alone)


@pytest.mark.parametrize("name", BOTH)
def test_an_impossible_token_is_not_a_broken_one(name):
    # log 0 = -inf: pi = 0, share 1 + sum pi^2.
    mask = torch.ones(2, 1)
    log_probs = f64([[-math.inf], [-math.inf]])
    advantages, _ = BOTH[name](f64([[1.0], [0.0]]), mask, [0, 0], log_probs, torch.zeros(2, 1), epsilon=0.0)
    assert advantages.tolist() == [[0.5], [-0.5]]


@pytest.mark.parametrize("name", BOTH)
def test_failed_answers_are_zero_and_as_good_as_absent(name):
    rewards, log_probs, squares = torch.rand(4, 3), torch.rand(4, 3).log(), torch.rand(4, 3)
    mask, labels = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]), ["a", "a", "a", "b"]
    expected = BOTH[name](rewards[1:], mask[1:], labels[1:], log_probs[1:], squares[1:])
    rewards[0] = math.nan
    given_ = BOTH[name](rewards, mask, labels, log_probs, squares, failed=[True, False, False, False])
    for left, right in zip(given_, expected, strict=True):
        assert left[0].eq(0).all()
        torch.testing.assert_close(left[1:], right)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("rewards", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("mask", [torch.bool, torch.int32, torch.float16, torch.float32])
def test_every_dtype_of_rewards_and_mask_gives_the_same_numbers_in_the_promoted_dtype(name, rewards, mask):
    whole = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 1]])
    on = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1]])
    log_probs, squares = torch.rand(3, 3).double().log(), torch.rand(3, 3).double()
    exact = BOTH[name](whole.double(), on, [0, 0, 0], log_probs, squares)
    promoted = torch.promote_types(rewards, mask)
    for left, right in zip(
        BOTH[name](whole.to(rewards), on.to(mask), [0, 0, 0], log_probs, squares), exact, strict=True
    ):
        assert left.dtype == (promoted if promoted.is_floating_point else torch.float32)
        assert torch.equal(left, right.to(left.dtype))


@pytest.mark.parametrize("name", BOTH)
def test_inputs_stay_as_they_were_and_outputs_do_not_require_grad(name):
    inputs = [torch.rand(2, 3), torch.rand(2, 3), torch.rand(2, 3).log(), torch.rand(2, 3), torch.rand(2, 3)]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    before = [tensor.detach().clone() for tensor in inputs]
    for result in BOTH[name](*inputs[:2], [0, 0], *inputs[2:]):
        assert not result.requires_grad
        result.add_(1.0)
    for tensor, old in zip(inputs, before, strict=True):
        assert torch.equal(tensor.detach(), old)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(("rows", "width"), [(0, 4), (3, 0)])
def test_an_empty_batch_has_an_empty_result(name, rows, width):
    empty = torch.zeros(rows, width)
    for result in BOTH[name](empty, empty, [0] * rows, empty, empty, empty):
        assert result.shape == (rows, width)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("which", ["response_mask", "old_log_probs", "sum_pi_squared", "rollout_is_weights"])
def test_inputs_over_other_tokens_are_refused_by_name(name, which):
    inputs = {
        key: torch.ones(2, 3)
        for key in ("token_level_rewards", "response_mask", "old_log_probs", "sum_pi_squared", "rollout_is_weights")
    }
    inputs[which] = torch.ones(2, 4)
    with pytest.raises(BadValueError, match=rf"{which} has shape \(2, 4\) but token_level_rewards has \(2, 3\)"):
        BOTH[name](**inputs, index=[0, 0])


@pytest.mark.parametrize("name", BOTH)
def test_labels_and_marks_of_another_length_are_refused(name):
    ones = torch.ones(2, 3)
    with pytest.raises(BadValueError, match=r"index has 3 labels for 2 answers"):
        BOTH[name](ones, ones, [0, 0, 0], ones, ones)
    with pytest.raises(BadValueError, match=r"failed has shape \(3,\)"):
        BOTH[name](ones, ones, [0, 0], ones, ones, failed=[True] * 3)


@pytest.mark.parametrize("name", BOTH)
def test_what_verl_ignores_is_ignored(name):
    ones = torch.ones(2, 3)
    expected, _ = BOTH[name](ones, ones, [0, 0], -ones, ones)
    assert same_bits(BOTH[name](ones, ones, [0, 0], -ones, ones, config={"gamma": 0.5})[0], expected)
