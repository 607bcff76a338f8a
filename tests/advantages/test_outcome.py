"""The equations on one score per answer: by hand, against loops from the papers, and reduced to one another."""

import math

import pytest
import torch
from hypothesis import given

from groupwise.advantages import advantages_from_scores
from groupwise.errors import BadValueError
from oracles import outcome as oracle
from samples import batches, f64

close = {"rtol": 1e-10, "atol": 1e-10}
FOUR_AND_FOUR = ([1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0], [0, 0, 0, 0, 1, 1, 1, 1])


@given(batches(min_size=1))
def test_grpo_is_the_papers_formula(rows):
    expected = oracle.grpo(rows.scores, rows.labels)
    torch.testing.assert_close(advantages_from_scores(f64(rows.scores), rows.labels), f64(expected), **close)


@given(batches(min_size=1))
def test_dr_grpo_is_the_distance_from_the_mean(rows):
    advantages = advantages_from_scores(f64(rows.scores), rows.labels, "dr_grpo")
    torch.testing.assert_close(advantages, f64(oracle.dr_grpo(rows.scores, rows.labels)), **close)


@given(batches(min_size=2))
def test_dr_grpo_is_grpo_without_the_std(rows):
    scores = f64(rows.scores)
    plain = advantages_from_scores(scores, rows.labels, "grpo", norm_adv_by_std_in_grpo=False)
    assert torch.equal(advantages_from_scores(scores, rows.labels, "dr_grpo"), plain)


def test_maxrl_by_hand():
    # a: mean 1/4, so the success gets (1 - 1/4) / (1/4) = 3 and the failures -1.  b: nobody succeeded.  c: alone.
    advantages = advantages_from_scores(f64([0, 1, 0, 0, 0, 0, 5]), list("aaaabbc"), "maxrl")
    assert advantages.tolist() == [-1.0, 3.0, -1.0, -1.0, 0.0, 0.0, 0.0]


def test_maxrl_of_a_group_whose_mean_is_not_positive_is_zero():
    assert advantages_from_scores(f64([-3.0, 1.0, -1.0, 1.0]), list("aabb"), "maxrl").tolist() == [0.0] * 4


@given(batches(min_size=1))
def test_maxrl_is_the_papers_formula(rows):
    scores = [abs(score) for score in rows.scores]
    advantages = advantages_from_scores(f64(scores), rows.labels, "maxrl")
    torch.testing.assert_close(advantages, f64(oracle.maxrl(scores, rows.labels)), **close)


@pytest.mark.parametrize("name", ["rloo", "rloo_vectorized"])
def test_rloo_by_hand(name):
    # a: others of 1 are 2, 6 (mean 4), of 2 are 1, 6 (3.5), of 6 are 1, 2 (1.5).  b alone keeps its score.
    advantages = advantages_from_scores(f64([1.0, 2.0, 6.0, 9.0]), list("aaab"), name)
    assert advantages.tolist() == [-3.0, -1.5, 4.5, 9.0]


@given(batches(min_size=1))
def test_rloo_leaves_one_out_in_a_loop(rows):
    advantages = advantages_from_scores(f64(rows.scores), rows.labels, "rloo")
    torch.testing.assert_close(advantages, f64(oracle.rloo(rows.scores, rows.labels)), **close)


@given(batches(min_size=2))
def test_rloo_is_the_distance_from_the_mean_times_n_over_n_minus_one(rows):
    scores = f64(rows.scores)
    sizes = f64([len(rows.rows_of(label)) for label in rows.labels])
    stretched = advantages_from_scores(scores, rows.labels, "dr_grpo") * sizes / (sizes - 1)
    torch.testing.assert_close(advantages_from_scores(scores, rows.labels, "rloo"), stretched, rtol=1e-14, atol=0)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_no_equation_depends_on_torchs_default_dtype(default):
    scores = f64([0.3, 0.1, 0.9, 0.2, 0.2, 0.8])
    labels = [0, 0, 0, 1, 1, 1]
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        advantages = advantages_from_scores(scores, labels, "rloo")
        running = advantages_from_scores(scores, labels, "gpg")
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(advantages, f64(oracle.rloo(scores.tolist(), labels)), rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(running, f64(oracle.gpg(scores.tolist(), labels)), rtol=1e-14, atol=1e-15)


def test_opo_by_hand():
    # a: (1 * 2 + 3 * 6) / 4 = 5.  b: no token at all, so no baseline.  c: alone.
    advantages = advantages_from_scores(f64([2.0, 6.0, 7.0, 8.0, 9.0]), list("aabbc"), "opo", lengths=[1, 3, 0, 0, 4])
    assert advantages.tolist() == [-3.0, 1.0, 7.0, 8.0, 9.0]


@given(batches(min_size=1))
def test_opo_is_the_papers_formula(rows):
    advantages = advantages_from_scores(f64(rows.scores), rows.labels, "opo", lengths=rows.lengths)
    torch.testing.assert_close(advantages, f64(oracle.opo(rows.scores, rows.labels, rows.lengths)), **close)


@given(batches(min_size=1))
def test_opo_with_answers_of_one_length_is_the_distance_from_the_mean(rows):
    scores = f64(rows.scores)
    alone = torch.tensor([len(rows.rows_of(label)) == 1 for label in rows.labels])
    expected = torch.where(alone, scores, advantages_from_scores(scores, rows.labels, "dr_grpo"))
    for lengths in (None, [7] * len(rows)):
        advantages = advantages_from_scores(scores, rows.labels, "opo", lengths=lengths)
        torch.testing.assert_close(advantages, expected, **close)


def test_opo_makes_a_group_without_tokens_nan_too():
    advantages = advantages_from_scores(f64([math.nan, 1.0, 2.0, 4.0]), list("aabb"), "opo", lengths=[0, 0, 1, 1])
    assert advantages.isnan().tolist() == [True, True, False, False]
    assert advantages[2:].tolist() == [-1.0, 1.0]


def test_gpg_scales_by_the_share_of_scores_that_are_not_zero():
    # 8 answers, 3 of them not zero: alpha 8/3.  Means 1/2 and 1/4.
    advantages = advantages_from_scores(f64(FOUR_AND_FOUR[0]), FOUR_AND_FOUR[1], "gpg")
    expected = [4 / 3, -4 / 3, 4 / 3, -4 / 3, -2 / 3, -2 / 3, -2 / 3, 2.0]
    torch.testing.assert_close(advantages, f64(expected), rtol=1e-15, atol=0)


def test_gpg_takes_a_number_for_alpha_and_one_is_a_number():
    scores, labels = f64(FOUR_AND_FOUR[0]), FOUR_AND_FOUR[1]
    plain = [0.5, -0.5, 0.5, -0.5, -0.25, -0.25, -0.25, 0.75]
    assert advantages_from_scores(scores, labels, "gpg", alpha=1.0).tolist() == plain
    assert advantages_from_scores(scores, labels, "gpg", alpha=3, f_norm=2.0).tolist() == [1.5 * a for a in plain]


def test_gpg_of_scores_that_are_all_zero_divides_by_one():
    assert advantages_from_scores(f64([0.0, 0.0, 0.0]), list("aab"), "gpg").tolist() == [0.0, 0.0, 0.0]


def test_gpg_alone_keeps_its_score():
    # 3 answers, 3 not zero: alpha 1.  a: mean 2.
    assert advantages_from_scores(f64([1.0, 3.0, 5.0]), list("aab"), "gpg").tolist() == [-1.0, 1.0, 5.0]


def test_gpg_counts_no_answer_of_a_group_with_a_nan():
    # What is left is [1, 0]: alpha 2/1.  Counting the others it would be 5/2 or 5/4.
    advantages = advantages_from_scores(f64([1.0, 0.0, math.nan, 3.0, 3.0]), list("aabbb"), "gpg")
    assert advantages[:2].tolist() == [1.0, -1.0]
    assert advantages[2:].isnan().all()


@given(batches(min_size=1))
def test_gpg_is_the_papers_formula(rows):
    advantages = advantages_from_scores(f64(rows.scores), rows.labels, "gpg", f_norm=0.5)
    torch.testing.assert_close(advantages, f64(oracle.gpg(rows.scores, rows.labels, 0.5)), **close)


def test_gpg_refuses_to_divide_by_zero():
    with pytest.raises(BadValueError, match=r"f_norm=0 would divide every advantage by zero; use 1.0"):
        advantages_from_scores([1.0, 0.0], [0, 0], "gpg", f_norm=0.0)


def test_reinforce_plus_plus_baseline_by_hand():
    # Centred: +-1/2 four times, -1/4 three times, 3/4.  Sum 0; squares 4/4 + 3/16 + 9/16 = 7/4, over 7: variance 1/4.
    # So each is doubled, but for the 1e-8 under the root.
    advantages = advantages_from_scores(f64(FOUR_AND_FOUR[0]), FOUR_AND_FOUR[1], "reinforce_plus_plus_baseline")
    doubled = f64([1.0, -1.0, 1.0, -1.0, -0.5, -0.5, -0.5, 1.5])
    torch.testing.assert_close(advantages, doubled * 0.5 / math.sqrt(0.25 + 1e-8), rtol=1e-14, atol=1e-15)


@given(batches(min_size=1))
def test_reinforce_plus_plus_baseline_is_the_papers_formula(rows):
    advantages = advantages_from_scores(
        f64(rows.scores), rows.labels, "reinforce_plus_plus_baseline", lengths=rows.lengths
    )
    expected = oracle.reinforce_plus_plus_baseline(rows.scores, rows.labels, rows.lengths)
    torch.testing.assert_close(advantages, f64(expected), rtol=1e-8, atol=1e-8)


@given(batches(min_size=1))
def test_gdpo_is_the_papers_formula(rows):
    parts, weights = [rows.scores, rows.second], [1.0, 0.25]
    advantages = advantages_from_scores(
        f64(rows.scores), rows.labels, "gdpo", parts=parts, weights=weights, lengths=rows.lengths
    )
    expected = oracle.gdpo(parts, rows.labels, weights, rows.lengths)
    torch.testing.assert_close(advantages, f64(expected), rtol=1e-8, atol=1e-8)


@given(batches(min_size=1))
def test_gdpo_with_one_part_is_whitened_grpo(rows):
    scores = f64(rows.scores)
    grpo = advantages_from_scores(scores, rows.labels)
    centred = grpo - grpo.mean()
    whitened = centred / torch.sqrt(grpo.var() + 1e-8)
    torch.testing.assert_close(advantages_from_scores(scores, rows.labels, "gdpo"), whitened, rtol=1e-8, atol=1e-8)


def test_gdpo_switches_the_std_of_its_parts_off():
    scores, labels = f64([0.0, 10.0, 0.0, 1.0]), list("aabb")
    # Without the std: -5, 5, -1/2, 1/2; mean 0, squares 50.5 over 3.
    advantages = advantages_from_scores(scores, labels, "gdpo", norm_adv_by_std_in_grpo=False)
    expected = f64([-5.0, 5.0, -0.5, 0.5]) / math.sqrt(50.5 / 3 + 1e-8)
    torch.testing.assert_close(advantages, expected, rtol=1e-14, atol=0)


def test_gdpo_takes_an_epsilon():
    # Std of 0, 2: sqrt(2).  -+1 / (sqrt(2) + 1) before whitening, which depends on eps only through 1e-8.
    advantages = advantages_from_scores(f64([0.0, 2.0]), [0, 0], "gdpo", epsilon=1.0)
    a = 1 / (math.sqrt(2) + 1)
    assert advantages.tolist() == pytest.approx([-a / math.sqrt(2 * a * a + 1e-8), a / math.sqrt(2 * a * a + 1e-8)])


def test_a_nan_in_any_part_makes_the_group_nan_and_leaves_the_others_alone():
    parts = [[1.0, 0.0, 1.0, 0.0], [0.0, math.nan, 2.0, 3.0]]
    advantages = advantages_from_scores([0.0] * 4, list("aabb"), "gdpo", parts=parts)
    alone = advantages_from_scores([0.0] * 2, list("bb"), "gdpo", parts=[part[2:] for part in parts])
    assert advantages[:2].isnan().all()
    torch.testing.assert_close(advantages[2:], alone, rtol=1e-6, atol=0)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.0, 1.0], []])
def test_gdpo_refuses_a_wrong_number_of_weights(weights):
    with pytest.raises(BadValueError, match=rf"gdpo got {len(weights)} weights .* for 2 reward parts; give algorithm"):
        advantages_from_scores([0.0, 1.0], [0, 0], "gdpo", parts=[[0.0, 1.0], [1.0, 0.0]], weights=weights)
