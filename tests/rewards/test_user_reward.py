"""User functions, unchanged, in verl's and TRL's signatures; what they do wrong fails the answers concerned."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from groupwise.config import RewardConfig
from groupwise.errors import BadValueError, UnknownNameError
from groupwise.rewards import Item, reward_of, scored_by, user_reward, user_scorer
from groupwise.types import Completion, Group, Prompt, Task

VERL = '''
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """As in verl's documentation."""
    return {"score": float(solution_str == ground_truth), "length": len(solution_str), "pred": solution_str,
            "index": extra_info["index"], "source_is_maths": data_source == "maths"}
'''
TRL = '''
def reward(prompts, completions, ground_truth, index, **kwargs):
    """As in TRL's documentation."""
    assert set(kwargs) == {"data_source", "answer", "completion_ids", "level"}, set(kwargs)
    assert kwargs["level"] == [None, None, "hard"]
    return [float(c == t) + i / 10 + len(p) / 100 for p, c, t, i in zip(prompts, completions, ground_truth, index)]
'''


def groups():
    first = Task("a", "6*7?", "42", "maths", {"index": 1})
    second = Task("b", "?", "x", "maths", {"index": 2, "level": "hard"})
    answers = [Completion((7,), (-0.1,), "stop", text) for text in ("42", "41", "x")]
    return [
        Group(Prompt("0-0", first, (1,)), tuple(answers[:2])),
        Group(Prompt("0-1", second, (1,)), tuple(answers[2:])),
    ]


def write(tmp_path, code, name="my_reward.py"):
    path = tmp_path / name
    path.write_text(code)
    return path


def answers(reward):
    return [answer for group in reward(groups()) for answer in group.completions]


def test_verls_signature(tmp_path):
    right, wrong, other = answers(user_reward(f"{write(tmp_path, VERL)}:compute_score"))
    # numbers are parts, the score among them; the text "pred" is not
    assert right.parts == {"score": 1.0, "length": 2.0, "index": 1.0, "source_is_maths": 1.0}
    assert [a.score for a in (right, wrong, other)] == [1.0, 0.0, 1.0]
    assert other.parts["index"] == 2.0
    assert all(a.failure is None for a in (right, wrong, other))


def test_trls_signature(tmp_path):
    found = answers(user_reward(f"{write(tmp_path, TRL)}:reward"))
    assert [a.failure for a in found] == [None] * 3
    # right + index / 10 + length of the prompt / 100
    assert [a.score for a in found] == pytest.approx([1 + 0.1 + 0.04, 0 + 0.1 + 0.04, 1 + 0.2 + 0.01])


def test_configuration_names_the_function(tmp_path):
    reward = reward_of(RewardConfig(function=f"{write(tmp_path, VERL)}:compute_score"))
    assert [a.score for a in answers(reward)] == [1.0, 0.0, 1.0]


def test_chat_prompts_give_trl_chat_completions():
    seen = {}

    def reward(prompts, completions):
        seen.update(prompts=prompts, completions=completions)
        return [1.0]

    messages = [{"role": "user", "content": "hi"}]
    (verdict,) = user_scorer(reward).judge([Item(Task("k", messages, "x"), "hello")])
    assert verdict.score == 1.0
    assert seen == {"prompts": [messages], "completions": [[{"role": "assistant", "content": "hello"}]]}


def test_async_functions_are_run_to_their_end():
    async def per_answer(data_source, solution_str, ground_truth, extra_info=None):
        return 0.5

    async def per_batch(completions, **kwargs):
        return [0.25] * len(completions)

    items = [Item(Task("k", "?", "x"), "y")] * 2
    assert [v.score for v in user_scorer(per_answer).judge(items)] == [0.5, 0.5]
    assert [v.score for v in user_scorer(per_batch).judge(items)] == [0.25, 0.25]


def test_a_trl_function_is_called_once_per_batch():
    calls = []

    def reward(completions, **kwargs):
        calls.append(completions)
        return [1.0] * len(completions)

    answers(scored_by(user_scorer(reward)))
    assert calls == [["42", "41", "x"]]


def test_an_answer_cannot_change_what_the_next_one_sees():
    def compute_score(solution_str, extra_info):
        extra_info["seen"] = extra_info.get("seen", 0) + 1
        return extra_info["seen"]

    task = Task("k", "?", "x", extra_info={"index": 0})
    assert [v.score for v in user_scorer(compute_score).judge([Item(task, "a"), Item(task, "b")])] == [1.0, 1.0]


GOOD_RETURNS = [
    (True, 1.0),
    (False, 0.0),
    (3, 3.0),
    (-0.5, -0.5),
    (np.float32(0.5), 0.5),
    (np.int64(2), 2.0),
    (np.bool_(1), 1.0),
    (np.array(0.25), 0.25),
    (torch.tensor(0.75), 0.75),
    (torch.tensor(2), 2.0),
    (torch.tensor(1.0, requires_grad=True), 1.0),
    (Fraction(1, 4), 0.25),
    ({"score": np.float64(0.5), "format": torch.tensor(1.0)}, 0.5),
    ({"score": 1, "note": None, "why": ["a"]}, 1.0),
]


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError


BAD_RETURNS = [
    (None, "returned None; it must be a number"),
    (math.nan, "returned nan; it must be finite"),
    (math.inf, "returned inf; it must be finite"),
    (-math.inf, "returned -inf; it must be finite"),
    ("1.0", "returned str '1.0'; it must be a number"),
    (b"1", "returned bytes b'1'"),
    ("x" * 10_000, "returned str '" + "x" * 80 + "'; it must be a number"),
    ([1.0], "returned a list"),
    ((1.0, 2.0), "returned a tuple"),
    ([], "returned a list"),
    (set(), "returned a set"),
    (1 + 2j, "returned a complex"),
    (Decimal("0.5"), "returned a Decimal"),
    (10**400, "an integer too large for a float"),
    (object(), "returned a object"),
    (np.float64("nan"), "returned nan"),
    (np.array([1.0]), "returned a ndarray of shape (1,)"),
    (torch.tensor([1.0, 2.0]), "returned a Tensor of shape (2,)"),
    (torch.tensor(math.nan), "returned nan"),
    (torch.tensor(1 + 1j), "returned a Tensor of shape ()"),
    (np.array("1"), "returned a ndarray of shape ()"),
    ({}, "returned no 'score', only the keys []"),
    ({"acc": 1.0, "b": 2}, "returned no 'score', only the keys ['acc', 'b']"),
    ({"score": None}, "returned a 'score' of None"),
    ({"score": "1"}, "returned a 'score' of str '1'"),
    ({"score": 1.0, "format": math.nan}, "returned a part 'format' of nan; it must be finite"),
    (float, "returned a type"),
    (ValueError("bad"), "returned a ValueError"),
]


@pytest.mark.parametrize(("value", "expected"), GOOD_RETURNS)
@pytest.mark.parametrize("signature", ["verl", "trl"])
def test_good_returns(value, expected, signature):
    first, second = judged_with(value, signature)
    assert (first.score, first.failure) == (expected, None)
    assert type(first.score) is float
    assert second.score == 1.0


@pytest.mark.parametrize(("value", "reason"), BAD_RETURNS)
@pytest.mark.parametrize("signature", ["verl", "trl"])
def test_bad_returns_fail_that_answer_alone(value, reason, signature):
    first, second = judged_with(value, signature)
    assert first.score is None
    assert reason in first.failure
    assert first.parts == {}
    assert (second.score, second.failure) == (1.0, None)


def judged_with(value, signature):
    """Verdicts of two answers, of which the function returns `value` for the first and 1.0 for the second."""

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        return value if solution_str == "first" else 1.0

    def reward(prompts, completions, **kwargs):
        return [value, 1.0]

    items = [Item(Task("k", "?", "x"), "first"), Item(Task("k", "?", "x"), "second")]
    return user_scorer(compute_score if signature == "verl" else reward).judge(items)


RAISED = [
    ValueError("bad"),
    KeyError("x"),
    ZeroDivisionError(),
    AssertionError(),
    MemoryError(),
    RecursionError("deep"),
    StopIteration(),
    SystemExit(3),
    TimeoutError("slow"),
    BadValueError("no"),
    UnprintableError(),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_what_a_function_raises_fails_that_answer_alone(error):
    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        if solution_str == "first":
            raise error
        return 1.0

    items = [Item(Task("k", "?", "x"), "first"), Item(Task("k", "?", "x"), "second")]
    first, second = user_scorer(compute_score).judge(items)
    assert (first.score, second.score) == (None, 1.0)
    assert f"the reward function raised {type(error).__name__}" in first.failure.replace(
        "groupwise.errors.", ""
    ).replace(f"{__name__}.", "")
    assert "(test_user_reward.py, line" in first.failure


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_what_a_batch_function_raises_fails_the_batch(error):
    def reward(completions, **kwargs):
        raise error

    failed = answers(scored_by(user_scorer(reward)))
    assert [a.score for a in failed] == [None] * 3
    assert len({a.failure for a in failed}) == 1
    assert "the reward function raised" in failed[0].failure


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0], "returned 1 values for 3 answers"),
        ([], "returned 0 values for 3 answers"),
        ([1.0] * 4, "returned 4 values for 3 answers"),
        (np.ones((1, 3)), "returned 1 values for 3 answers"),
        (1.0, "returned a float; it must be a list of numbers"),
        (None, "returned a NoneType; it must be a list"),
        ("abc", "returned a str; it must be a list"),
        (iter([1.0] * 3), "returned a list_iterator; it must be a list"),
        ({0: 1.0, 1: 1.0, 2: 1.0}, "returned a dict; it must be a list"),
        (torch.tensor(1.0), "raised TypeError: len() of a 0-d tensor"),
    ],
)
def test_a_wrong_number_of_values_is_never_spread_over_the_batch(values, reason):
    failed = answers(scored_by(user_scorer(lambda completions, **kwargs: values)))
    assert [a.score for a in failed] == [None] * 3
    assert all(reason in a.failure for a in failed)


@pytest.mark.parametrize("values", [(1.0, 0.0, 0.5), np.array([1.0, 0.0, 0.5]), torch.tensor([1.0, 0.0, 0.5])])
def test_other_sequences_of_the_right_length_are_taken(values):
    assert [a.score for a in answers(scored_by(user_scorer(lambda completions: values)))] == [1.0, 0.0, 0.5]


@pytest.mark.parametrize("parameters", ["solution_str", "completions"])
def test_ctrl_c_is_not_a_failure(parameters):
    def raising():
        raise KeyboardInterrupt

    function = {"solution_str": lambda solution_str: raising(), "completions": lambda completions: raising()}[
        parameters
    ]
    with pytest.raises(KeyboardInterrupt):
        user_scorer(function).judge([Item(Task("k", "?", "x"), "y")])


def test_a_column_the_data_do_not_have_fails_the_batch_by_name():
    def reward(completions, difficulty):
        return [1.0] * len(completions)

    assert "missing 1 required positional argument: 'difficulty'" in answers(scored_by(user_scorer(reward)))[0].failure


@pytest.mark.parametrize(
    ("place", "code", "error", "said"),
    [
        ("my_reward.py", VERL, BadValueError, r"does not name a file and a function; write path/to/my_reward.py:score"),
        ("my_reward.py:", VERL, BadValueError, r"does not name a file and a function"),
        ("my_reward:score", VERL, BadValueError, r"does not name a file and a function"),
        (
            "other.py:score",
            VERL,
            BadValueError,
            r"reward.function=.*other.py:score: there is no file .*; correct the path",
        ),
        ("my_reward.py:score", VERL, UnknownNameError, r"has no function 'score'; the nearest is 'compute_score'"),
        ("my_reward.py:score", "score = 3", BadValueError, r"score is a int; name a function"),
        ("my_reward.py:score", "1 / 0", BadValueError, r"running the file raised ZeroDivisionError: division by zero"),
        ("my_reward.py:score", "import nowhere_to_be_found", BadValueError, r"raised ModuleNotFoundError"),
        ("my_reward.py:score", "def score(:", BadValueError, r"running the file raised SyntaxError"),
        ("my_reward.py:score", "raise SystemExit(1)", BadValueError, r"running the file raised SystemExit: 1"),
        ("my_reward.py:score", "def score(a, b): ...", BadValueError, r"takes \(a, b\); give it verl's parameters"),
        ("my_reward.py:score", "score = max", BadValueError, r"takes \(.*\); give it verl's parameters"),
    ],
)
def test_functions_that_cannot_be_used_are_refused(tmp_path, place, code, error, said):
    write(tmp_path, code)
    with pytest.raises(error, match=said):
        user_reward(str(tmp_path / place))


def test_a_file_can_define_dataclasses_and_two_files_can_have_one_name(tmp_path):
    code = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Weights:
    right: float = {value}

def score(solution_str):
    return Weights().right
"""
    places = []
    for value in (0.25, 0.5):
        folder = tmp_path / str(value)
        folder.mkdir()
        places.append(f"{write(folder, code.format(value=value))}:score")
    assert [answers(user_reward(place))[0].score for place in places] == [0.25, 0.5]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([[1, 0.5], [2, 1.0]], ((1, 0.5), (2, 1.0))),
        ([(np.int64(2), np.float32(0.5))], ((2, 0.5),)),
        ([], ()),
        ((), ()),
    ],
)
def test_rewards_of_steps_are_handed_on(given, expected):
    found = answers(scored_by(user_scorer(lambda solution_str: {"score": 1.0, "step_rewards": given})))
    assert [a.failure for a in found[:2]] == [None, None]
    assert found[0].step_rewards == expected
    assert found[0].parts == {"score": 1.0}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (0.5, "returned 'step_rewards' of a float; it must be a list of pairs"),
        ({1: 0.5}, "returned 'step_rewards' of a dict; it must be a list of pairs"),
        ([0.5], "returned 'step_rewards' of a float; each must be a pair"),
        ([[1, 0.5, 2]], "returned 'step_rewards' of a list; each must be a pair"),
        ([[1.0, 0.5]], "returned 'step_rewards' of a list; each must be a pair"),
        ([[1, "x"]], "returned 'step_rewards' of a reward str 'x'; it must be a number"),
        ([[1, math.nan]], "returned 'step_rewards' of a reward nan; it must be finite"),
        ([[0, 1.0]], "'step_rewards' that end at [0] in a text of 2 characters; they must ascend and lie inside it"),
        ([[3, 1.0]], "'step_rewards' that end at [3] in a text of 2 characters"),
        ([[2, 1.0], [1, 1.0]], "'step_rewards' that end at [2, 1] in a text of 2 characters"),
        ([[1, 1.0], [1, 1.0]], "'step_rewards' that end at [1, 1] in a text of 2 characters"),
    ],
)
def test_rewards_of_steps_that_cannot_be_placed_are_a_failure(given, reason):
    found = answers(scored_by(user_scorer(lambda solution_str: {"score": 1.0, "step_rewards": given})))
    assert reason in found[0].failure
    assert found[0].score is None
