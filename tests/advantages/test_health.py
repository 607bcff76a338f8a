"""What `check_groups` finds, what it says, and what strict mode refuses."""

import math

import numpy as np
import pytest
import torch

from groupwise.advantages import GroupHealth, Groups, check_groups
from groupwise.advantages.health import BROKEN, KINDS
from groupwise.errors import BadValueError, GroupHealthError, UnknownNameError

EVEN = ["a", "a", "b", "b"]


def found(health):
    """{kind: [(label, rows), ...]} of what was found."""
    kinds = {finding.kind for finding in health.findings}
    return {kind: [(f.label, f.rows) for f in health.of_kind(kind)] for kind in kinds}


def test_sound_groups_have_nothing_to_report():
    health = check_groups(
        EVEN, [0.0, 1.0, 1.0, 0.5], prompts=["x", "x", "y", "y"], answers=["1", "2", "3", "4"], expected_size=2
    )
    assert health.findings == ()
    assert health.is_sound
    assert str(health) == "4 answers in 2 groups: nothing to report"
    assert health.counts == dict.fromkeys(KINDS, 0)


def test_scores_in_an_array_of_objects_are_looked_at():
    health = check_groups(EVEN, np.array([0.5, 0.5, 1, float("nan")], dtype=object))
    assert found(health) == {"all_equal": [("a", (0, 1))], "non_finite": [("b", (3,))]}


def test_a_singleton_is_named():
    health = check_groups(["a", "a", "b"])
    assert found(health) == {"singleton": [("b", (2,))], "wrong_size": [("b", (2,))]}
    assert not health.is_sound


def test_a_group_of_another_size_than_most_is_named():
    health = check_groups(["a", "a", "b", "b", "c", "c", "c"])
    assert found(health) == {"wrong_size": [("c", (4, 5, 6))]}
    assert health.findings[0].detail == "size 3, expected 2"


def test_the_expected_size_can_be_said():
    health = check_groups(EVEN, expected_size=4)
    assert found(health) == {"wrong_size": [("a", (0, 1)), ("b", (2, 3))]}


def test_a_tiled_batch_labelled_as_interleaved_is_seen():
    # Rows are p, q, p, q; the labels say p, p, q, q.
    health = check_groups(EVEN, prompts=["p", "q", "p", "q"])
    assert found(health) == {
        "mixed_prompts": [("a", (0, 1)), ("b", (2, 3))],
        "split_prompt": [("a", (0, 2)), ("a", (1, 3))],
    }
    assert health.of_kind("mixed_prompts")[0].detail == "2 prompts, at rows 0, 1"
    assert health.of_kind("split_prompt")[0].detail == "also under 'b'"


def test_one_prompt_under_many_labels_names_the_first_few():
    health = check_groups(range(12), prompts=["p"] * 12, expected_size=1)
    (finding,) = health.of_kind("split_prompt")
    assert finding.rows == tuple(range(12))
    assert finding.detail == "also under 1, 2, 3, 4, 5, 6, 7, 8"


@pytest.mark.parametrize(
    "answers",
    [
        ["x", "x", "y", "x"],
        [[1, 2], [1, 2], [1, 3], [1, 2]],
        torch.tensor([[1, 2], [1, 2], [1, 3], [1, 2]]),
        np.array([[1, 2], [1, 2], [1, 3], [1, 2]]),
        [torch.tensor([1, 2]), torch.tensor([1, 2]), torch.tensor([1, 3]), torch.tensor([1, 2])],
        [{"text": "x", "n": [1]}, {"n": [1], "text": "x"}, {"text": "y", "n": [1]}, {"text": "x", "n": [1]}],
        [(b"x", 1), (b"x", 1), (b"x", 2), (b"x", 1)],
    ],
)
def test_answers_that_are_the_same_are_seen_within_a_group_whatever_they_are_made_of(answers):
    health = check_groups(EVEN, answers=answers)
    assert found(health) == {"duplicate_answers": [("a", (0, 1))]}
    assert health.findings[0].detail == "1 of 2 are copies"
    assert health.is_sound


def test_several_copies_are_counted_beyond_the_first():
    health = check_groups([0] * 6, answers=["x", "y", "x", "x", "z", "y"])
    (finding,) = health.findings
    assert finding.rows == (0, 2, 3, 1, 5)
    assert finding.detail == "3 of 6 are copies"


@pytest.mark.parametrize(
    "scores",
    [
        [0.1, 0.1, 0.0, 1.0],
        np.array([0.1, 0.1, 0.0, 1.0]),
        torch.tensor([0.1, 0.1, 0.0, 1.0]),
        torch.tensor([[0.0, 0.1], [0.0, 0.1], [0.0, 0.0], [0.5, 0.5]]),
        torch.tensor([3, 3, 1, 2]),
    ],
)
def test_a_group_whose_scores_are_all_equal_is_seen_from_scores_and_from_rewards(scores):
    health = check_groups(EVEN, scores)
    assert found(health) == {"all_equal": [("a", (0, 1))]}
    assert health.is_sound


def test_the_common_score_is_said():
    assert check_groups(EVEN, torch.tensor([0.5, 0.5, 1e-3, 2e-3])).findings[0].detail == "all 0.5"


def test_a_lone_answer_is_not_all_equal():
    assert "all_equal" not in found(check_groups(["a"], [1.0]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_named_by_row(bad):
    health = check_groups(EVEN, [0.0, 1.0, bad, 1.0])
    assert found(health) == {"non_finite": [("b", (2,))]}
    assert health.findings[0].detail == "1 of 2 scores"
    assert not health.is_sound


def test_failed_answers_count_toward_the_size_but_not_toward_the_scores():
    scores = [math.nan, 1.0, 1.0, 2.0, 2.0, 7.0]
    health = check_groups([*"aaabbb"], scores, failed=[True, False, False, False, False, True])
    assert found(health) == {"all_equal": [("a", (1, 2)), ("b", (3, 4))]}
    assert health.num_failed == 2
    assert str(health).startswith("6 answers in 2 groups, 2 failed: 2 findings\n")


@pytest.mark.parametrize(
    "flags", [[True, True, False, False], np.array([1, 1, 0, 0]), torch.tensor([1.0, 1.0, 0.0, 0.0])]
)
def test_a_group_in_which_all_failed_is_broken(flags):
    health = check_groups(EVEN, failed=flags)
    assert found(health) == {"all_failed": [("a", (0, 1))]}
    assert health.findings[0].detail == "2 failed"
    assert not health.is_sound


def test_what_is_not_given_is_not_looked_at():
    assert check_groups(EVEN).findings == ()


def test_groups_made_beforehand_are_taken():
    assert found(check_groups(Groups.of(["a", "a", "b"])))["singleton"] == [("b", (2,))]


def test_an_empty_batch_is_sound():
    health = check_groups([], [], prompts=[], answers=[], failed=[])
    assert (health.num_answers, health.num_groups, health.findings) == (0, 0, ())


def test_the_report_reads_like_one():
    health = check_groups(["a", "a", "b"], [1.0, 1.0, math.nan], failed=[False, False, False], expected_size=2)
    assert str(health) == (
        "3 answers in 2 groups: 4 findings\n"
        "  singleton (1): an answer alone in its group has nobody to be compared with\n"
        "    'b', rows 2: size 1\n"
        "  wrong_size (1): the group does not have the expected number of answers\n"
        "    'b', rows 2: size 1, expected 2\n"
        "  non_finite (1): a score is NaN or infinite, which makes every advantage of its group NaN\n"
        "    'b', rows 2: 1 of 1 scores\n"
        "  all_equal (1): all scores of the group are equal, so it teaches nothing\n"
        "    'a', rows 0, 1: all 1"
    )


def test_a_long_report_is_cut():
    report = str(check_groups(range(20), expected_size=1))
    assert "singleton (20)" in report
    assert report.count("rows ") == 8
    assert report.endswith("... and 12 more")
    many = check_groups([0] * 30, [1.0] * 30)
    assert "rows 0, 1, 2, 3, 4, 5, 6, 7, ... (30 in all): all 1" in str(many)


def test_findings_of_one_kind_can_be_asked_for_by_name_only():
    health = check_groups(["a", "a", "b"])
    assert [f.label for f in health.of_kind("singleton")] == ["b"]
    assert health.of_kind("all_equal") == ()
    assert health.counts["singleton"] == 1
    with pytest.raises(UnknownNameError, match=r"unknown kind of finding 'singelton'; the nearest is 'singleton'"):
        health.of_kind("singelton")


def test_strict_refuses_any_finding_with_the_report():
    with pytest.raises(GroupHealthError, match=r"broken groups refused:\n4 answers in 2 groups: 1 findings\n  all"):
        check_groups(EVEN, [1.0, 1.0, 0.0, 1.0], strict=True)
    assert isinstance(check_groups(EVEN, [0.0, 1.0, 0.0, 1.0], strict=True), GroupHealth)


def test_strict_may_name_the_kinds_to_refuse():
    scores = [1.0, 1.0, 0.0, 1.0]
    assert found(check_groups(EVEN, scores, strict=BROKEN)) == {"all_equal": [("a", (0, 1))]}
    for strict in (["all_equal"], {"all_equal", "singleton"}, "all_equal"):
        with pytest.raises(GroupHealthError, match=r"broken groups refused"):
            check_groups(EVEN, scores, strict=strict)
    for strict in ("singleton", [], False):
        assert check_groups(EVEN, scores, strict=strict).counts["all_equal"] == 1


def test_a_kind_that_does_not_exist_is_refused():
    with pytest.raises(
        UnknownNameError, match=r"unknown kind of finding in strict= 'singel'; the nearest is 'singleton'"
    ):
        check_groups(EVEN, strict=["singel"])


@pytest.mark.parametrize("scores", [[1.0], torch.zeros(3, 2), torch.zeros(4, 1, 1), torch.tensor(1.0)])
def test_scores_of_another_shape_are_refused(scores):
    with pytest.raises(BadValueError, match=r"scores has shape .*; it must have one row for each of 4 labels"):
        check_groups(EVEN, scores)


@pytest.mark.parametrize("name", ["prompts", "answers"])
def test_prompts_and_answers_of_another_length_are_refused(name):
    with pytest.raises(BadValueError, match=rf"{name} has 2 entries for 4 labels; give one per answer, in the"):
        check_groups(EVEN, **{name: ["x", "y"]})


def test_failed_marks_of_another_length_are_refused():
    with pytest.raises(BadValueError, match=r"failed has shape \(1,\); it must hold one value for each of 4 answers"):
        check_groups(EVEN, failed=[True])


def test_every_broken_kind_is_a_kind():
    assert set(BROKEN) < set(KINDS)
