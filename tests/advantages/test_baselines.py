"""Baselines that look beyond one group."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.advantages import RunningBaseline, advantages_from_scores
from groupwise.errors import BadValueError
from oracles import baselines as oracle
from samples import batches, coarse, f64

PROMPTS = ["a", "a", "b", "b", "c", "c", "d", "d"]


def test_shrinkage_by_hand():
    # Means 1, 3, 5, 11 (mean 5); within: each group's squares are 2, together 8 over 4: 2; noise 2/2 = 1 in all groups.
    # Scatter (16 + 4 + 0 + 36) / (4 - 3) = 56; between 55; trust 55/56.  With equal noise the centre is the mean, 5.
    # Group a: baseline 1 + (1/56) * 4 = 1 + 1/14.
    scores = f64([0, 2, 2, 4, 4, 6, 10, 12])
    pull = f64([-4, -4, -2, -2, 0, 0, 6, 6]) / 56
    expected = f64([-1, 1, -1, 1, -1, 1, -1, 1]) + pull
    torch.testing.assert_close(advantages_from_scores(scores, PROMPTS, "shrinkage"), expected, rtol=1e-14, atol=0)


@given(batches(min_size=1, min_groups=4, max_groups=9))
def test_shrinkage_is_empirical_bayes_in_loops(rows):
    advantages = advantages_from_scores(f64(rows.scores), rows.labels, "shrinkage")
    expected = oracle.shrinkage(rows.scores, rows.labels)
    torch.testing.assert_close(advantages, f64(expected), rtol=1e-8, atol=1e-8)


@given(batches(min_size=1, max_groups=3))
def test_with_fewer_than_four_groups_nothing_is_shrunk(rows):
    scores = f64(rows.scores)
    assert torch.equal(
        advantages_from_scores(scores, rows.labels, "shrinkage"), advantages_from_scores(scores, rows.labels, "dr_grpo")
    )


def test_without_two_answers_anywhere_nothing_is_shrunk():
    assert advantages_from_scores([1.0, 2.0, 3.0, 4.0, 5.0], range(5), "shrinkage").tolist() == [0.0] * 5


def test_groups_that_agree_in_the_mean_are_pulled_onto_it():
    # All means are 1, so scatter 0, between 0, trust 0, centre 1: the baseline is 1 for all.
    scores = f64([0, 2, 1, 1, -1, 3, 0.5, 1.5])
    assert advantages_from_scores(scores, PROMPTS, "shrinkage").tolist() == (scores - 1).tolist()


def test_equal_groups_keep_their_own_means_where_there_is_no_noise_at_all():
    # Within 0, noise 0, trust 1: every baseline is its group's mean.
    assert advantages_from_scores([1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0], PROMPTS, "shrinkage").tolist() == [0.0] * 8


@pytest.mark.parametrize("score", [0.1, 0.35, 100.1, 1e6 + 0.1])
def test_a_batch_of_equal_scores_is_exactly_zero(score):
    for size in (2, 3, 7):
        labels = [group for group in range(5) for _ in range(size)]
        assert advantages_from_scores([score] * len(labels), labels, "shrinkage").tolist() == [0.0] * len(labels)


def test_groups_with_a_nan_take_no_part_in_the_shrinkage():
    scores = f64([0, 2, 2, 4, 4, 6, 10, 12])
    clean = advantages_from_scores(scores, PROMPTS, "shrinkage")
    dirty = advantages_from_scores(torch.cat([scores, f64([math.nan, 1e9])]), [*PROMPTS, "e", "e"], "shrinkage")
    torch.testing.assert_close(dirty[:8], clean, rtol=1e-14, atol=0)
    assert dirty[8:].isnan().all()


def test_the_first_batch_is_judged_by_its_own_groups_and_a_lone_answer_by_the_batch():
    # a: mean 2.  b is alone: the batch's mean, (1 + 3 + 8) / 3 = 4.
    advantages = advantages_from_scores(
        f64([1.0, 3.0, 8.0]), list("aab"), "running_baseline", baseline=RunningBaseline()
    )
    assert advantages.tolist() == [-1.0, 1.0, 4.0]


def test_the_baseline_is_the_prompts_mean_before_the_batch():
    baseline = RunningBaseline(decay=0.5)
    advantages_from_scores(f64([1.0, 3.0]), ["a", "a"], "running_baseline", baseline=baseline)
    second = advantages_from_scores(f64([6.0]), ["a"], "running_baseline", baseline=baseline)
    assert second.tolist() == [4.0]
    # Step max(1/3, 1 - 0.5) = 1/2 from 2 to 6: 4.
    assert baseline.means == {"a": 4.0}
    assert baseline.counts == {"a": 3}
    third = advantages_from_scores(f64([5.0, 4.0]), ["a", "a"], "running_baseline", baseline=baseline)
    assert third.tolist() == [1.0, 0.0]


def test_the_mean_is_that_of_all_answers_while_counting_forgets_faster():
    baseline = RunningBaseline(decay=0.99)
    for score in (0.0, 3.0, 6.0, 7.0):
        advantages_from_scores([score], ["a"], "running_baseline", baseline=baseline)
    assert baseline.means["a"] == pytest.approx(4.0, rel=1e-15)


@given(
    st.lists(st.lists(st.tuples(coarse, st.sampled_from("abc")), min_size=1, max_size=6), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.5, 0.9, 0.99]),
)
def test_a_running_baseline_follows_its_oracle_step_by_step(steps, decay):
    baseline, loops = RunningBaseline(decay), oracle.Running(decay)
    for step in steps:
        scores, labels = [score for score, _ in step], [label for _, label in step]
        advantages = advantages_from_scores(f64(scores), labels, "running_baseline", baseline=baseline)
        torch.testing.assert_close(advantages, f64(loops.step(scores, labels)), rtol=1e-12, atol=1e-12)


def test_nan_and_failed_answers_are_not_remembered():
    baseline = RunningBaseline()
    advantages = advantages_from_scores(
        f64([1.0, 3.0, math.nan, 5.0, 9.0]),
        list("aabba"),
        "running_baseline",
        baseline=baseline,
        failed=[False, False, False, False, True],
    )
    assert advantages[[0, 1, 4]].tolist() == [-1.0, 1.0, 0.0]
    assert advantages[2:4].isnan().all()
    assert baseline.means == {"a": 2.0}
    assert baseline.counts == {"a": 2}


def test_a_lone_answer_beside_a_nan_group_is_compared_with_the_finite_answers():
    advantages = advantages_from_scores(
        f64([1.0, 3.0, math.nan]), list("abc"), "running_baseline", baseline=RunningBaseline()
    )
    assert advantages[:2].tolist() == [-1.0, 1.0]
    assert advantages[2].isnan()


def test_a_batch_that_is_all_nan_is_all_nan():
    baseline = RunningBaseline()
    advantages = advantages_from_scores(f64([math.nan]), ["a"], "running_baseline", baseline=baseline)
    assert advantages.isnan().all()
    assert baseline.means == {}


def test_a_running_baseline_goes_on_from_its_state_after_a_round_through_json():
    baseline = RunningBaseline(0.5)
    advantages_from_scores(f64([0.1, 0.35, 0.7]), ["a", "a", 7], "running_baseline", baseline=baseline)
    again = RunningBaseline.from_state(json.loads(json.dumps(baseline.state())))
    assert again == baseline
    batch = (f64([1.0, 2.0]), ["a", 7], "running_baseline")
    assert torch.equal(
        advantages_from_scores(*batch, baseline=again), advantages_from_scores(*batch, baseline=baseline)
    )


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2.0])
def test_a_decay_outside_zero_to_one_is_refused(decay):
    with pytest.raises(BadValueError, match=rf"decay={decay} must be in \[0, 1\)"):
        RunningBaseline(decay)
