"""Estimators of the best of several answers, against enumeration."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.advantages import advantages_from_scores
from groupwise.errors import BadValueError
from oracles import best_of_k, outcome
from samples import batches, f64


def test_grpo_passk_by_hand():
    # a: 1 leads 0 by 1; mean 1/4, squares 3/16 + 9/16 = 3/4, over 3: std 1/2.  b: a tie at the top.
    advantages = advantages_from_scores(f64([0, 1, 0, 0, 5, 5, 1]), list("aaaabbb"), "grpo_passk")
    assert advantages.tolist() == [0.0, 1 / 0.500001, 0.0, 0.0, 0.0, 0.0, 0.0]
    plain = advantages_from_scores(f64([0, 1, 0, 0]), [0] * 4, "grpo_passk", norm_adv_by_std_in_grpo=False)
    assert plain.tolist() == [0.0, 1.0, 0.0, 0.0]
    eps = advantages_from_scores(f64([0, 1, 0, 0]), [0] * 4, "grpo_passk", epsilon=0.5)
    assert eps.tolist() == [0.0, 1.0, 0.0, 0.0]


@given(batches(), st.booleans())
def test_grpo_passk_is_the_lead_of_the_best(rows, divide):
    advantages = advantages_from_scores(f64(rows.scores), rows.labels, "grpo_passk", norm_adv_by_std_in_grpo=divide)
    # The oracle divides 0 by 1e-6 where all are equal: 0 either way.
    expected = f64(outcome.grpo_passk(rows.scores, rows.labels, divide))
    torch.testing.assert_close(advantages, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_grpo_passk_of_equal_scores_is_zero_with_no_epsilon_too(epsilon):
    # b: 0, 0, 3: mean 1, squares 1 + 1 + 4 = 6, over 2: std sqrt(3).
    advantages = advantages_from_scores(f64([7, 7, 7, 0, 3, 0]), list("aaabbb"), "grpo_passk", epsilon=epsilon)
    torch.testing.assert_close(advantages, f64([0, 0, 0, 0, 3 / (math.sqrt(3) + epsilon), 0]), rtol=1e-15, atol=0)


def test_grpo_passk_refuses_a_label_with_one_answer_by_name():
    with pytest.raises(BadValueError, match=r"at least 2 answers per prompt, but 'b' has 1; sample more"):
        advantages_from_scores([1.0, 2.0, 3.0], list("aab"), "grpo_passk")


def test_grpo_passk_of_an_answer_whose_siblings_failed_is_zero():
    failed = [False, True, True, False, False]
    advantages = advantages_from_scores(f64([1, 5, 7, 0, 2]), list("aaabb"), "grpo_passk", failed=failed)
    # b: lead 2, std sqrt(2).
    assert advantages.tolist() == [0.0, 0.0, 0.0, 0.0, 2 / (math.sqrt(2) + 1e-6)]


def test_pass_at_k_by_hand():
    # n = 4, one right, k = 2.  6 pairs, 3 with the right one: mean 1/2, std 1/2.  Given the right one: 1.
    # Given a wrong one: 3 pairs, 1 with the right one: 1/3.  (1 - 1/2) / (1/2) = 1, (1/3 - 1/2) / (1/2) = -1/3.
    advantages = advantages_from_scores(f64([0, 1, 0, 0]), [0] * 4, "pass_at_k", k=2)
    torch.testing.assert_close(advantages, f64([-1 / 3, 1.0, -1 / 3, -1 / 3]), rtol=1e-14, atol=0)
    plain = advantages_from_scores(f64([0, 1, 0, 0]), [0] * 4, "pass_at_k", k=2, norm_adv_by_std_in_grpo=False)
    torch.testing.assert_close(plain, f64([-1 / 6, 0.5, -1 / 6, -1 / 6]), rtol=1e-14, atol=0)
    eps = advantages_from_scores(f64([0, 1, 0, 0]), [0] * 4, "pass_at_k", k=2, epsilon=0.5)
    torch.testing.assert_close(eps, f64([-1 / 6, 0.5, -1 / 6, -1 / 6]), rtol=1e-14, atol=0)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("divide", [True, False])
@given(rows=batches(min_size=1))
def test_pass_at_k_is_the_average_over_all_subsets(k, divide, rows):
    rows.labels = [*rows.labels, *["many"] * 6]
    scores = [*rows.scores, 0.0, 0.1, 0.0, 1.0, 1.0, -2.0]
    advantages = advantages_from_scores(f64(scores), rows.labels, "pass_at_k", k=k, norm_adv_by_std_in_grpo=divide)
    expected = best_of_k.pass_at_k(scores, rows.labels, k, divide)
    torch.testing.assert_close(advantages, f64(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", range(2, 14))
def test_pass_at_k_of_any_group_size_ranks_its_best_answer_highest(size):
    scores = [float(i == size - 1) for i in range(size)]
    for k in range(1, size):
        advantages = advantages_from_scores(f64(scores), [0] * size, "pass_at_k", k=k)
        expected = best_of_k.pass_at_k(scores, [0] * size, k)
        torch.testing.assert_close(advantages, f64(expected), rtol=1e-11, atol=1e-13)


@given(batches(min_size=1))
def test_pass_at_one_is_deepseekmaths_grpo(rows):
    advantages = advantages_from_scores(f64(rows.scores), rows.labels, "pass_at_k", k=1)
    expected = advantages_from_scores(f64(rows.scores), rows.labels, "grpo", convention="deepseekmath")
    torch.testing.assert_close(advantages, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 11])
def test_a_right_answer_gains_what_the_unbiased_pass_at_k_lacks(n):
    for right in range(1, n + 1):
        for k in range(1, n):
            scores = f64([1.0] * right + [0.0] * (n - right)) + 5.0
            options = {"k": k, "norm_adv_by_std_in_grpo": False}
            advantages = advantages_from_scores(scores, [0] * n, "pass_at_k", **options)
            # A subset with a right answer scores 1 for sure; without the condition, pass@k.
            assert advantages[0].item() == pytest.approx(1 - best_of_k.pass_rate(right, n, k), abs=1e-14)


def test_pass_at_k_of_a_large_group_does_not_overflow():
    # C(4096, 1000) has more than 900 digits.  One right of n: pass@k = k / n.
    scores = torch.zeros(4096, dtype=torch.float64)
    scores[17] = 1.0
    advantages = advantages_from_scores(scores, [0] * 4096, "pass_at_k", k=1000, norm_adv_by_std_in_grpo=False)
    assert advantages[17].item() == pytest.approx(1 - 1000 / 4096, rel=1e-12)
    assert advantages[0].item() == pytest.approx(999 / 4095 - 1000 / 4096, rel=1e-9)


def test_tied_answers_get_the_same_bits():
    scores = f64([0.1, 0.7, 0.1, 0.7, 0.3, 0.7, 0.1, 0.9, 0.3])
    advantages = advantages_from_scores(scores, [0] * 9, "pass_at_k", k=3)
    assert len(set(advantages.tolist())) == 4


@pytest.mark.parametrize("score", [0.0, 0.1, 0.35, 100.1, 1e6 + 0.1])
@pytest.mark.parametrize("name", ["pass_at_k", "grpo_passk"])
def test_equal_scores_are_exactly_zero(name, score):
    for size in (3, 4, 5, 7, 8, 31):
        assert advantages_from_scores([score] * size, [0] * size, name).tolist() == [0.0] * size


def test_a_group_of_k_answers_or_fewer_learns_nothing():
    advantages = advantages_from_scores(f64([1, 0, 1, 0, 0, 0, 1]), list("aabbbcc"), "pass_at_k", k=2)
    assert advantages[[0, 1, 5, 6]].tolist() == [0.0] * 4
    assert advantages[2] > 0 > advantages[3]


def test_pass_at_k_where_no_prompt_has_enough_answers_is_refused():
    with pytest.raises(BadValueError, match=r"k=3, but no prompt has more than 3 answers.*lower k.*rollout.n"):
        advantages_from_scores([1.0, 0.0, 1.0, 0.0], list("aaab"), "pass_at_k", k=3)


def test_pass_at_k_counts_the_answers_that_were_sampled_not_those_that_survived():
    failed = [False, False, True, True]
    advantages = advantages_from_scores(f64([1, 0, 1, 0]), [0] * 4, "pass_at_k", k=2, failed=failed)
    assert advantages.tolist() == [0.0] * 4


def test_pass_at_k_of_answers_alone_in_their_groups_is_zero_for_k_one():
    assert advantages_from_scores([1.0, 2.0], ["a", "b"], "pass_at_k", k=1).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("k", [0, -1])
def test_a_k_below_one_is_refused(k):
    with pytest.raises(BadValueError, match=rf"k={k}: pass@k is the best of k answers, so k must be at least 1"):
        advantages_from_scores([1.0, 2.0], [0, 0], "pass_at_k", k=k)


@pytest.mark.parametrize("name", ["pass_at_k", "grpo_passk"])
def test_a_nan_makes_its_group_nan_and_no_other(name):
    scores = f64([1, math.nan, 0, 2, 1, 0])
    advantages = advantages_from_scores(scores, list("aaabbb"), name)
    assert advantages[:3].isnan().all()
    assert torch.equal(advantages[3:], advantages_from_scores(scores[3:], [0] * 3, name))
