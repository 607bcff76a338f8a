"""Backward recurrences over the response tokens, against explicit sums."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.advantages.recurrences import backward_scan, rewards_to_go
from oracles import recurrences as oracle
from samples import dyadic, f64

cells = st.tuples(dyadic, dyadic, st.booleans())
tables = st.lists(st.lists(cells, min_size=5, max_size=5), min_size=1, max_size=5)
factors = st.tuples(st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.sampled_from([0.0, 0.7, 1.0]))


def columns(table):
    rewards, values, mask = ([[cell[i] for cell in row] for row in table] for i in range(3))
    return rewards, values, mask


@given(tables, factors)
def test_generalised_advantages_are_the_papers_sum_of_deltas(table, gamma_lam):
    rewards, values, mask = columns(table)
    advantages, returns = backward_scan(f64(rewards), f64(values), None, torch.tensor(mask), gamma_lam)
    raw, total = oracle.gae(rewards, values, mask, *gamma_lam)
    torch.testing.assert_close(advantages, f64(raw), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(returns, f64(total), rtol=1e-12, atol=1e-12)


@given(tables, st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_without_values_it_is_the_discounted_return(table, gamma):
    rewards, _, mask = columns(table)
    advantages, returns = backward_scan(f64(rewards), None, None, torch.tensor(mask), (gamma, 1.0))
    expected = f64(oracle.discounted_returns(rewards, mask, gamma))
    torch.testing.assert_close(advantages, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(returns, advantages)


def test_tool_output_is_passed_over_by_hand():
    # Tokens 1, 2, 4 of the answer; 3 is tool output.  gamma 1/2: G_4 = 8, G_2 = 2 + 4 = 6, G_1 = 1 + 3 = 4.
    advantages, _ = backward_scan(
        f64([[1.0, 2.0, 100.0, 8.0]]), None, None, torch.tensor([[True, True, False, True]]), (0.5, 1.0)
    )
    assert advantages.tolist() == [[4.0, 6.0, 0.0, 8.0]]


def test_a_baseline_is_taken_off_the_advantage_and_not_off_the_return():
    advantages, returns = backward_scan(f64([[1.0, 2.0]]), None, f64([5.0]), torch.tensor([[True, True]]))
    assert advantages.tolist() == [[-2.0, -3.0]]
    assert returns.tolist() == [[3.0, 2.0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("gamma_lam", [(1.0, 1.0), (0.5, 0.5)])
def test_nothing_is_read_outside_the_mask(bad, gamma_lam):
    mask = torch.tensor([[True, False, True], [False, True, True]])
    rewards, values = f64([[1.0, 7.0, 3.0], [7.0, 2.0, 1.0]]), f64([[0.5, 7.0, 1.0], [7.0, 2.0, 0.0]])
    for critic in (None, values):
        clean = backward_scan(rewards, critic, None, mask, gamma_lam)
        dirty_critic = None if critic is None else torch.where(mask, critic, bad)
        dirty = backward_scan(torch.where(mask, rewards, bad), dirty_critic, None, mask, gamma_lam)
        assert torch.equal(dirty[0], clean[0])
        assert torch.equal(dirty[1], clean[1])
        assert clean[0][~mask].eq(0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["rewards", "values", "baselines"])
def test_a_row_with_a_token_that_is_not_finite_is_nan_at_all_its_tokens(bad, where):
    mask = torch.tensor([[True, True, False], [True, True, True]])
    tensors = {"rewards": torch.ones(2, 3).double(), "values": torch.ones(2, 3).double(), "baselines": torch.ones(2)}
    if where == "baselines":
        tensors[where][0] = bad
    else:
        tensors[where][0, 1] = bad
    results = backward_scan(tensors["rewards"], tensors["values"], tensors["baselines"], mask, (0.5, 0.5))
    for result in results:
        assert result[0].isnan().tolist() == [True, True, False]
        assert result[0, 2] == 0
        assert result[1].isfinite().all()


def test_results_have_the_dtypes_asked_for():
    advantages, returns = backward_scan(
        torch.ones(1, 2, dtype=torch.int64), None, None, torch.ones(1, 2), dtypes=(torch.float32, torch.bfloat16)
    )
    assert (advantages.dtype, returns.dtype) == (torch.float32, torch.bfloat16)
    assert returns.tolist() == [[2.0, 1.0]]


def test_no_tokens_are_no_advantages():
    for gamma_lam in ((1.0, 1.0), (0.5, 1.0)):
        advantages, _ = backward_scan(torch.zeros(3, 0), torch.zeros(3, 0), None, torch.zeros(3, 0), gamma_lam)
        assert advantages.shape == (3, 0)


def test_the_reward_to_go_leaves_masked_rewards_out_and_is_zero_there():
    to_go = rewards_to_go(f64([[1.0, math.nan, 2.0, 4.0]]), torch.tensor([[True, False, True, True]]))
    assert to_go.tolist() == [[7.0, 0.0, 6.0, 4.0]]
