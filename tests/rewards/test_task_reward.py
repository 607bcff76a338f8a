"""The tasks' own rewards, judged on hand-written answers, and the border between groups and verdicts."""

import pytest

from groupwise.config import RewardConfig
from groupwise.rewards import CHECKERS, Verdict, reward_of, scored_by, task_reward
from groupwise.tasks import TASKS, GeneratedTasks
from groupwise.types import Completion, Group, Prompt, Task


def group(task, *texts, uid="0-0"):
    answers = tuple(Completion((5, 1), (-0.5, -0.1), "stop", text) for text in texts)
    return Group(Prompt(uid, task, (3,)), answers)


def scores(groups):
    return [[answer.score for answer in each.completions] for each in groups]


def score(data_source, truth, response, **extra_info):
    task = Task("k", "?", truth, data_source, extra_info)
    return scores(task_reward([group(task, response)]))[0][0]


@pytest.mark.parametrize(
    ("data_source", "truth", "response", "expected"),
    [
        ("sums", "46", "46", 1.0),
        ("sums", "46", " 46\n", 1.0),
        ("sums", "46", "046", 0.0),
        ("sums", "46", "46+", 0.0),
        ("sums", "46", "45 46", 0.0),
        ("sums", "46", "", 0.0),
        ("products", "84", "84", 1.0),
        ("sorting", "0123", "0123", 1.0),
        ("sorting", "0123", "123", 0.0),
        ("openai/gsm8k", "6*7\n#### 1,042", "so #### 1042", 1.0),
        ("openai/gsm8k", "42", r"\boxed{42.0}", 1.0),
        ("openai/gsm8k", "42", "41", 0.0),
        ("openai/gsm8k", "no number", "no number", 0.0),
        ("", 42, "The answer is 42.", 1.0),
        ("", 0.1, "0.10", 1.0),
        ("", "0.5", "1/2", 1.0),
        ("", "Paris", " Paris ", 1.0),
        ("", "Paris", r"It is \boxed{Paris}", 1.0),
        ("", "Paris", "It is Paris", 0.0),
        ("", "Paris", "paris", 0.0),
        ("never/heard", "42", "42", 1.0),
    ],
)
def test_right_and_wrong(data_source, truth, response, expected):
    assert score(data_source, truth, response) == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("3*8+1", 1.0),
        ("(3*8)+1", 1.0),
        ("1+8*3", 1.0),
        (" 1+8*3 ", 1.0),
        ("25", 0.0),  # the numbers are not used
        ("3*8+1+0", 0.0),
        ("3*8", 0.0),
        ("3+8+1", 0.0),
        ("31-8+1+1", 0.0),
        ("3*8+1=25", 0.0),
        ("3(8)+1", 0.0),
        ("3**8", 0.0),
        ("9**9**9**9", 0.0),
        ("-3*-8+1", 0.0),
        ("(" * 50 + "1" + ")" * 50, 0.0),
        ("(" * 10_000, 0.0),
        ("__import__('os')", 0.0),
        ("", 0.0),
        ("3*8+01", 0.0),
    ],
)
def test_countdown_takes_any_expression_that_is_right_and_no_other(response, expected):
    assert score("countdown", "25", response, numbers=[1, 8, 3]) == expected


@pytest.mark.parametrize("name", TASKS)
def test_every_family_has_a_checker(name):
    assert name in CHECKERS


@pytest.mark.parametrize("name", [name for name in TASKS if name != "countdown"])
def test_a_tasks_own_answer_is_right_and_another_tasks_is_wrong(name):
    tasks = GeneratedTasks(name, 6, seed=0)
    for position in range(50):
        task, other = tasks[position], tasks[position + 1]
        assert scores(task_reward([group(task, task.answer, other.answer)])) == [
            [1.0, float(task.answer == other.answer)]
        ]


def test_groups_keep_their_order_and_answers_everything_else_they_hold():
    groups = [
        group(Task("a", "1+1=", "2", "sums"), "2", "3", uid="0-0"),
        group(Task("b", "2+2=", "4", "sums"), uid="0-1"),
        group(Task("c", "3+3=", "6", "sums"), "5", "6", "6", uid="0-2"),
    ]
    judged = task_reward(groups)
    assert scores(judged) == [[1.0, 0.0], [], [0.0, 1.0, 1.0]]
    assert [each.prompt for each in judged] == [each.prompt for each in groups]
    first = judged[0].completions[0]
    assert (first.token_ids, first.log_probs, first.finish_reason, first.text) == ((5, 1), (-0.5, -0.1), "stop", "2")
    assert first.failure is None
    assert groups[0].completions[0].score is None


def test_a_scorer_sees_the_whole_batch_at_once_and_its_failures_are_kept():
    class Counting:
        def judge(self, items):
            self.seen = [(item.task.key, item.response, item.token_ids) for item in items]
            return [Verdict(1.0, {"length": 2.0}), Verdict.failed("too slow")]

    scorer = Counting()
    task = Task("a", "?", "2")
    (judged,) = scored_by(scorer)([group(task, "x", "y")])
    assert scorer.seen == [("a", "x", (5, 1)), ("a", "y", (5, 1))]
    good, bad = judged.completions
    assert (good.score, dict(good.parts), good.failure) == (1.0, {"length": 2.0}, None)
    assert (bad.score, dict(bad.parts), bad.failure) == (None, {}, "too slow")


def test_without_a_function_the_reward_is_the_tasks_own():
    assert reward_of(RewardConfig()) is task_reward
