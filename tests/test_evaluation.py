"""Accuracy, mean@n, pass@k and maj@n by hand."""

from itertools import combinations

import pytest

from groupwise.evaluation import evaluate, is_right, majority, pass_at_k
from groupwise.types import Completion, Group, Prompt, Sampling, Task


def group(*answers):
    completions = tuple(Completion((1,), (0.0,), "stop", text, score) for text, score in answers)
    return Group(Prompt("0", Task("k", "?", "a"), (1,)), completions)


@pytest.mark.parametrize("n", [1, 4, 7])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer(n):
    for right in range(n + 1):
        answers = [True] * right + [False] * (n - right)
        for k in range(1, n + 1):
            subsets = list(combinations(answers, k))
            assert pass_at_k(n, right, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-15)


def test_the_majority_is_the_most_common_text_and_the_first_of_ties():
    assert majority(group(("7", 0.0), ("4", 1.0), ("4", 1.0))).text == "4"
    assert majority(group(("7", 0.0), ("4", 1.0))).text == "7"


def test_right_is_what_the_part_acc_says_where_there_is_one():
    # A score with a penalty for length, verl's way: right answers score below 1, and a wrong one may score above.
    assert is_right(Completion((1,), (0.0,), "stop", "4", 0.9, {"acc": 1.0}))
    assert not is_right(Completion((1,), (0.0,), "stop", "5", 1.2, {"acc": 0.0}))
    assert not is_right(Completion((1,), (0.0,), "stop", "4", None, {"acc": 1.0}))


def test_without_questions_there_is_no_accuracy():
    assert evaluate(Scripted([], []), [], list, Sampling(4), 4) == {}


class Scripted:
    """Gives written-down answers: greedy ones when the temperature is 0."""

    def __init__(self, greedy, sampled):
        self.answers = {True: greedy, False: sampled}

    def generate(self, prompts, n, sampling):
        groups = self.answers[sampling.temperature == 0.0]
        assert [len(g.completions) for g in groups] == [n] * len(prompts)
        return groups

    def load_weights(self, weights):
        raise AssertionError


def test_all_figures_of_a_small_evaluation_by_hand():
    greedy = [group(("4", 1.0)), group(("5", 0.0)), group(("", None)), group(("6", 0.5))]
    sampled = [
        group(("4", 1.0), ("4", 1.0), ("5", 0.0), ("6", 0.0)),
        group(("5", 0.0), ("5", 0.0), ("4", 1.0), ("7", 0.5)),
        group(("x", None), ("4", 1.0), ("x", None), ("y", 0.0)),
        group(("1", 0.0), ("2", 0.0), ("3", 0.0), ("4", 0.0)),
    ]
    prompts = [g.prompt for g in greedy]
    found = evaluate(Scripted(greedy, sampled), prompts, list, Sampling(4), 4)
    assert found == {
        "accuracy": 0.25,
        # the rows add up to two, one and a half, one and none
        "mean@4": 4.5 / 16,
        # right answers of four: two, one, one, none
        "pass@1": 1.0 / 4,
        # 1 - C(2,2)/6 = 5/6; 1 - C(3,2)/6 = 1/2 twice; 0
        "pass@2": pytest.approx((5 / 6 + 0.5 + 0.5) / 4),
        "pass@4": 0.75,
        # "4" is right, "5" is wrong, "x" failed, "1" is wrong
        "maj@4": 0.25,
    }


def test_one_sample_gives_the_greedy_accuracy_alone():
    greedy = [group(("4", 1.0))]
    assert evaluate(Scripted(greedy, None), [greedy[0].prompt], list, Sampling(4), 1) == {"accuracy": 1.0}


def test_answers_that_could_not_be_scored_are_counted_and_wrong():
    broken = Group(
        Prompt("0", Task("k", "?", "a"), (1,)), (Completion((1,), (0.0,), "stop", "4", failure="reward: ValueError"),)
    )
    greedy = [group(("4", 1.0)), broken, broken, broken]
    found = evaluate(Scripted(greedy, []), [g.prompt for g in greedy], list, Sampling(4), 1)
    assert found == {"accuracy": 0.25, "failed": 0.75}
