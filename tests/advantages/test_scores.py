"""The scores path: containers, dtypes, options and failed answers."""

import math

import numpy as np
import pytest
import torch

from groupwise.advantages import OUTCOME_ESTIMATORS, AdvantageEstimator, Groups, RunningBaseline, advantages_from_scores
from groupwise.errors import BadValueError, UnknownNameError
from samples import CASES, Rows, f64, same_bits

LABELS = ["a", "a", "a", "b", "b"]
PLAIN = [-1.0, 0.0, 1.0, -2.0, 2.0]


def plain(scores, index=LABELS, **options):
    return advantages_from_scores(scores, index, "dr_grpo", **options)


def test_the_cases_of_these_tests_cover_every_outcome_estimator():
    assert {case.estimator for case in CASES.values()} == set(OUTCOME_ESTIMATORS)


@pytest.mark.parametrize(
    "scores",
    [
        [1, 2, 3, 4, 8],
        (1.0, 2.0, 3.0, 4.0, 8.0),
        np.array([1, 2, 3, 4, 8]),
        np.array([1, 2, 3, 4, 8], dtype=np.float32),
        torch.tensor([1, 2, 3, 4, 8]),
        torch.tensor([1, 2, 3, 4, 8], dtype=torch.uint8),
        torch.tensor([1.0, 2.0, 3.0, 4.0, 8.0]),
    ],
)
def test_scores_come_in_any_container(scores):
    assert same_bits(plain(scores), torch.tensor(PLAIN))


def test_scores_in_an_array_of_objects_are_read_as_pythons_floats():
    # What verl's non_tensor_batch holds.  a: 1, 2, 3 about 2.  b: 4, 8 about 6.
    scores = np.array([True, 2, np.float32(3), 4.0, 8], dtype=object)
    assert same_bits(plain(scores), f64(PLAIN))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_result_has_the_dtype_of_the_scores(dtype):
    assert same_bits(plain(torch.tensor([1, 2, 3, 4, 8], dtype=dtype)), torch.tensor(PLAIN, dtype=dtype))


def test_booleans_are_scores():
    assert plain([True, False], [0, 0]).tolist() == [0.5, -0.5]
    assert plain(torch.tensor([True, False]), [0, 0]).dtype == torch.get_default_dtype()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_scores_are_normalised_in_float64(dtype):
    # 0.1 and 0.35 round to something in 8 or 11 bits; from there on nothing more is lost until the end.
    scores = torch.tensor([0.1, 0.35, 0.7], dtype=dtype)
    exact = advantages_from_scores(scores.double(), [0, 0, 0])
    assert torch.equal(advantages_from_scores(scores, [0, 0, 0]), exact.to(dtype))


def test_the_index_may_be_groups_made_beforehand():
    groups = Groups.of(LABELS)
    assert plain([1, 2, 3, 4, 8], groups).tolist() == PLAIN
    assert plain([1, 2, 3, 4, 8], groups, failed=[False] * 5).tolist() == PLAIN


def test_an_estimator_is_a_name_or_a_member():
    assert torch.equal(advantages_from_scores([0.0, 1.0], [0, 0], AdvantageEstimator.RLOO), torch.tensor([-1.0, 1.0]))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (torch.zeros(2, 3), r"scores has shape \(2, 3\) .*one real number per answer.*compute_\* function"),
        (torch.tensor(1.0), r"scores has shape \(\)"),
        (torch.zeros(2, dtype=torch.complex64), "dtype torch.complex64; it must hold one real number"),
    ],
)
def test_scores_that_are_not_one_real_number_per_answer_are_refused(scores, message):
    with pytest.raises(BadValueError, match=message):
        plain(scores, [0, 0])


def test_an_index_of_another_length_is_refused():
    with pytest.raises(BadValueError, match=r"index has 5 labels for 2 answers"):
        plain([1.0, 2.0])


def test_an_estimator_of_tokens_has_no_scores_path():
    with pytest.raises(BadValueError, match=r"estimator 'gae' judges tokens, not answers.*get_adv_estimator_fn"):
        advantages_from_scores([1.0], [0], "gae")


def test_an_unknown_estimator_names_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown outcome estimator 'rlo'; the nearest is 'rloo'; known: dr_"):
        advantages_from_scores([1.0], [0], "rlo")


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(
        UnknownNameError, match=r"unknown option of estimator 'grpo': 'epsilo'; the nearest is 'epsilon'; known: conv"
    ):
        advantages_from_scores([1.0], [0], epsilo=1.0)
    with pytest.raises(UnknownNameError, match=r"unknown option of estimator 'rloo': 'k'; known: $"):
        advantages_from_scores([1.0], [0], "rloo", k=1)


def test_an_option_that_is_needed_is_asked_for():
    with pytest.raises(BadValueError, match=r"estimator 'running_baseline' needs the option baseline="):
        advantages_from_scores([1.0], [0], "running_baseline")


def test_failed_answers_take_no_part_and_get_zero():
    # Without the 3: a has mean 3/2.
    assert plain([1, 2, 3, 4, 8], failed=[False, False, True, False, False]).tolist() == [-0.5, 0.5, 0.0, -2.0, 2.0]


@pytest.mark.parametrize(
    "failed",
    [
        [False, True, False, False, False],
        np.array([False, True, False, False, False]),
        np.array([False, True, False, False, False], dtype=object),
        np.array([0, 1, 0, 0, 0]),
        torch.tensor([False, True, False, False, False]),
        torch.tensor([0.0, 0.5, 0.0, 0.0, 0.0]),
        torch.tensor([0, 2, 0, 0, 0]),
    ],
)
def test_the_marks_of_failed_answers_come_in_any_container(failed):
    assert plain([1, 2, 3, 4, 8], failed=failed).tolist() == [-1.0, 0.0, 1.0, -2.0, 2.0]
    assert plain([1, 9, 3, 4, 8], failed=failed).tolist() == [-1.0, 0.0, 1.0, -2.0, 2.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_the_score_of_a_failed_answer_may_be_anything(bad):
    assert plain(f64([1, bad, 3, 4, 8]), failed=[False, True, False, False, False]).tolist() == [-1, 0, 1, -2, 2]


def test_a_batch_in_which_all_answers_failed_is_zero():
    for estimator in ("grpo", "rloo", "maxrl", "gpg", "shrinkage", "pass_at_k", "grpo_passk"):
        assert advantages_from_scores([1.0, 2.0, 3.0], [0, 0, 0], estimator, failed=[True] * 3).tolist() == [0.0] * 3


@pytest.mark.parametrize("failed", [[True], torch.zeros(2, 1), [False] * 6])
def test_marks_of_another_length_are_refused(failed):
    with pytest.raises(BadValueError, match=r"failed has shape .*must hold one value for each of 5 answers"):
        plain([1, 2, 3, 4, 8], failed=failed)


@pytest.mark.parametrize("lengths", [[2], [2, 3, 4], 5])
def test_lengths_of_another_length_are_refused(lengths):
    with pytest.raises(BadValueError, match=r"lengths has shape .*must hold one value for each of 2 answers"):
        advantages_from_scores([1.0, 2.0], [0, 0], "opo", lengths=lengths)


@pytest.mark.parametrize("parts", [[[1.0]], [[1.0, 2.0], [1.0, 2.0, 3.0]], torch.zeros(2, 3)])
def test_parts_of_another_length_are_refused(parts):
    with pytest.raises(BadValueError, match=r"a reward part has shape .*must hold one value for each of 2 answers"):
        advantages_from_scores([1.0, 2.0], [0, 0], "gdpo", parts=parts)


PARTS = [[1.0, 0.0, 0.5, 2.0, 2.5], [0.1, 0.2, 0.3, 0.0, 0.7]]


@pytest.mark.parametrize(
    "parts",
    [
        PARTS,
        tuple(map(tuple, PARTS)),
        np.array(PARTS),
        [np.array(part, dtype=object) for part in PARTS],
        f64(PARTS),
        [f64(PARTS[0]), PARTS[1]],
    ],
)
@pytest.mark.parametrize("weights", [[1.0, 3.0], (1, 3), np.array([1.0, 3.0]), torch.tensor([1.0, 3.0])])
@pytest.mark.parametrize("failed", [None, [False, False, True, False, False]])
def test_parts_and_weights_come_in_any_container_whether_or_not_an_answer_failed(parts, weights, failed):
    expected = advantages_from_scores(f64([0] * 5), LABELS, "gdpo", parts=f64(PARTS), weights=[1.0, 3.0], failed=failed)
    given = advantages_from_scores(f64([0] * 5), LABELS, "gdpo", parts=parts, weights=weights, failed=failed)
    assert torch.equal(given, expected)
    assert expected.abs().max() > 0.5


def test_a_read_only_array_is_read_and_left_alone():
    part = np.array(PARTS[0])
    part.flags.writeable = False
    failed = np.zeros(5, dtype=bool)
    failed.flags.writeable = False
    given = advantages_from_scores(f64([0] * 5), LABELS, "gdpo", parts=[part], failed=failed)
    assert torch.equal(given, advantages_from_scores(f64(PARTS[0]), LABELS, "gdpo"))


def test_options_that_are_not_per_answer_stay_as_they_are_where_answers_failed():
    failed = [False, False, True, False, False]
    scores = f64([1, 2, 3, 4, 8])
    number = advantages_from_scores(scores, LABELS, "gpg", alpha=2.0, failed=failed)
    integer = advantages_from_scores(scores, LABELS, "gpg", alpha=2, failed=failed)
    assert torch.equal(integer, number)
    assert number.tolist() == [-1.0, 1.0, 0.0, -4.0, 4.0]


def test_nothing_given_is_changed_and_the_result_does_not_require_grad():
    for name, case in CASES.items():
        rows = five_answers()
        scores = f64(rows.scores).requires_grad_()
        before = scores.detach().clone()
        advantages = case(rows, scores)
        assert not advantages.requires_grad, name
        assert torch.equal(scores.detach(), before), name
        assert advantages.data_ptr() != scores.data_ptr(), name
        assert scores.grad is None, name


def five_answers():
    return Rows([1.0, 2.0, 4.0, 0.5, 0.25], [0.0, 1.0, 1.0, 2.0, 0.0], [1, 2, 3, 4, 5], list(LABELS))


def test_an_empty_batch_is_an_empty_result():
    for name, case in CASES.items():
        if case.estimator in ("gdpo", "reinforce_plus_plus_baseline"):
            with pytest.warns(UserWarning, match=r"whitening over 0 response tokens"):
                assert case(Rows([], [], [], [])).tolist() == [], name
        else:
            assert case(Rows([], [], [], [])).tolist() == [], name


def test_a_running_baseline_made_elsewhere_is_updated():
    baseline = RunningBaseline()
    advantages_from_scores([2.0, 4.0], ["a", "a"], "running_baseline", baseline=baseline)
    assert baseline.means == {"a": 3.0}
