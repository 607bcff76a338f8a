"""Mean 0 and standard deviation 1 over the response tokens."""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.advantages.whitening import whiten_answers, whiten_tokens
from groupwise.errors import GroupwiseWarning
from oracles import whitening as oracle
from samples import dyadic, f64


def test_answers_weigh_as_many_tokens_as_they_have():
    # Tokens 1, 1, 4: mean 2, squares 1 + 1 + 4 = 6, over 2: variance 3.
    expected = f64([-1.0, 2.0]) / math.sqrt(3 + 1e-8)
    torch.testing.assert_close(whiten_answers(f64([1.0, 4.0]), torch.tensor([2, 1])), expected, rtol=1e-15, atol=0)


def test_without_lengths_answers_weigh_alike():
    # 1, 3: mean 2, variance (1 + 1) / 1 = 2.
    expected = f64([-1.0, 1.0]) / math.sqrt(2 + 1e-8)
    torch.testing.assert_close(whiten_answers(f64([1.0, 3.0])), expected, rtol=1e-15, atol=0)


def test_an_answer_without_tokens_does_not_weigh():
    # Tokens 1, 3 as above; what stands at the empty answer is the same transformation, and no token shows it.
    whitened = whiten_answers(f64([1.0, 3.0, 1e9]), torch.tensor([1, 1, 0]))
    torch.testing.assert_close(whitened[:2], f64([-1.0, 1.0]) / math.sqrt(2 + 1e-8), rtol=1e-15, atol=0)


@given(st.lists(st.tuples(dyadic, st.integers(1, 6)), min_size=2, max_size=20))
def test_whitened_answers_are_the_loop_over_all_tokens(pairs):
    values, lengths = [v for v, _ in pairs], [n for _, n in pairs]
    expected = oracle.whiten_answers(values, lengths)
    whitened = whiten_answers(f64(values), torch.tensor(lengths))
    torch.testing.assert_close(whitened, f64(expected), rtol=1e-10, atol=1e-10)


@given(st.lists(st.lists(st.tuples(dyadic, st.booleans()), min_size=3, max_size=3), min_size=2, max_size=6))
def test_whitened_tokens_are_the_loop_over_the_mask(table):
    values = [[v for v, _ in row] for row in table]
    mask = [[on for _, on in row] for row in table]
    if sum(map(sum, mask)) < 2:
        mask[0] = [True, True, True]
    whitened = whiten_tokens(f64(values), torch.tensor(mask))
    torch.testing.assert_close(whitened, f64(oracle.whiten_masked(values, mask)), rtol=1e-10, atol=1e-10)


def test_both_forms_agree_where_an_answers_tokens_are_alike():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 0]]).bool()
    values = f64([0.1, 0.35, -2.0])
    tokens = whiten_tokens(values[:, None].expand(3, 3), mask)
    answers = whiten_answers(values, mask.sum(1))
    torch.testing.assert_close(tokens, torch.where(mask, answers[:, None], 0.0), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("value", [0.1, 0.35, 100.1, 1e6 + 0.1])
def test_equal_values_are_exactly_zero(value):
    for size in (2, 3, 7, 100):
        assert whiten_answers(torch.full((size,), value, dtype=torch.float64)).tolist() == [0.0] * size
        lengths = torch.arange(1, size + 1)
        assert whiten_answers(torch.full((size,), value, dtype=torch.float64), lengths).tolist() == [0.0] * size
    tokens = torch.full((5, 3), value, dtype=torch.float64)
    assert whiten_tokens(tokens, torch.ones(5, 3).bool()).eq(0).all()


def test_nan_tokens_take_no_part_and_stay_nan():
    nan = math.nan
    whitened = whiten_answers(f64([1.0, nan, 3.0]), torch.tensor([2, 5, 1]))
    # Tokens 1, 1, 3: mean 5/3, squares 2 * 4/9 + 16/9 = 8/3, over 2: 4/3.
    expected = f64([-2 / 3, nan, 4 / 3]) / math.sqrt(4 / 3 + 1e-8)
    torch.testing.assert_close(whitened, expected, rtol=1e-14, atol=0, equal_nan=True)
    tokens = whiten_tokens(f64([[1.0, nan], [3.0, nan]]), torch.tensor([[True, False], [True, True]]))
    expected = f64([[-1.0, 0.0], [1.0, nan]]) / math.sqrt(2 + 1e-8)
    torch.testing.assert_close(tokens, expected, rtol=1e-14, atol=0, equal_nan=True)


@pytest.mark.parametrize("count", [0, 1])
def test_over_no_token_or_one_the_result_is_zero_with_a_warning(count):
    mask = torch.zeros(2, 2).bool()
    mask[0, 0] = count == 1
    with pytest.warns(GroupwiseWarning, match=rf"whitening over {count} response tokens: there is no spread"):
        assert whiten_tokens(f64([[5.0, 1.0], [2.0, 3.0]]), mask).eq(0).all()
    with pytest.warns(GroupwiseWarning, match=rf"whitening over {count} response tokens"):
        assert whiten_answers(f64([5.0, 1.0]), mask.sum(1)).eq(0).all()


def test_over_one_finite_token_the_nan_ones_stay_nan():
    with pytest.warns(GroupwiseWarning, match=r"whitening over 1 response tokens"):
        answers = whiten_answers(f64([5.0, math.nan]))
    assert answers[0] == 0
    assert answers[1].isnan()
    with pytest.warns(GroupwiseWarning, match=r"whitening over 1 response tokens"):
        tokens = whiten_tokens(f64([[5.0, math.nan, math.nan]]), torch.tensor([[True, True, False]]))
    torch.testing.assert_close(tokens, f64([[0.0, math.nan, 0.0]]), equal_nan=True)


def test_two_tokens_are_enough_and_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert whiten_answers(f64([1.0, 3.0]))[1] > 0
        assert whiten_tokens(f64([[1.0, 3.0]]), torch.ones(1, 2).bool())[0, 1] > 0
