"""The built-in families: questions are right by independent arithmetic, splits disjoint and drawn alike."""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from groupwise.errors import BadValueError, UnknownNameError
from groupwise.tasks import TASKS, GeneratedTasks, held_out_sample
from groupwise.tasks.families import countdown, products, sorting, sums
from groupwise.tasks.generated import is_held_out


class Scripted(Random):
    """Hands out written numbers in place of drawn ones."""

    def __init__(self, *numbers):
        super().__init__()
        self.numbers = list(numbers)

    def randrange(self, *_):
        return self.numbers.pop(0)

    def choice(self, options):
        return options[self.numbers.pop(0)]

    def sample(self, population, k):
        return list(reversed(population))[:k]


def test_questions_written_by_hand():
    assert (sums(Scripted(12, 34), 2).prompt, sums(Scripted(12, 34), 2).answer) == ("12+34=", "46")
    assert (products(Scripted(12, 7), 2).prompt, products(Scripted(12, 7), 2).answer) == ("12*7=", "84")
    assert (sorting(Scripted(3, 1, 4, 2), 4).prompt, sorting(Scripted(3, 1, 4, 2), 4).answer) == ("sort 3142=", "1234")
    # numbers 3, 8, 1; times (the third choice), then plus (the first): 3*8+1
    question = countdown(Scripted(3, 8, 1, 2, 0), 3)
    assert (question.prompt, question.answer, question.extra_info) == ("1,8,3>25=", "25", {"numbers": [1, 8, 3]})


@pytest.mark.parametrize(("difficulty", "low", "high"), [(1, 0, 9), (2, 10, 99), (3, 100, 999)])
def test_difficulty_of_sums_is_the_digits_of_both_numbers(difficulty, low, high):
    tasks = GeneratedTasks("sums", difficulty, seed=1)
    for position in range(500):
        a, b = (int(number) for number in tasks[position].prompt.rstrip("=").split("+"))
        assert low <= a <= high
        assert low <= b <= high
        assert tasks[position].answer == str(a + b)


def test_every_countdown_has_a_solution():
    tasks = GeneratedTasks("countdown", 3, seed=0)
    for position in range(200):
        numbers, target = tasks[position].extra_info["numbers"], int(tasks[position].answer)
        assert target in reachable(numbers)


def reachable(numbers):
    """All values of left-to-right expressions over every order of the numbers: the naive search."""
    if len(numbers) == 1:
        return set(numbers)
    values = set()
    for place, last in enumerate(numbers):
        for value in reachable(numbers[:place] + numbers[place + 1 :]):
            values |= {value + last, value - last, value * last}
    return values


@pytest.mark.parametrize("name", TASKS)
def test_splits_are_disjoint_on_thousands_of_draws(name):
    difficulty = max(2, TASKS[name].difficulties.start)
    train, held_out = GeneratedTasks(name, difficulty, seed=3), GeneratedTasks(name, difficulty, seed=4, held_out=True)
    trained = {train[position].prompt for position in range(4000)}
    asked = {held_out[position].prompt for position in range(4000)}
    assert not trained & asked
    assert len(trained) > len(asked) > 5


def test_a_sum_and_its_mirror_are_in_the_same_split():
    for a in range(10, 60):
        for b in range(10, 60):
            assert is_held_out(sums(Scripted(a, b), 2)) == is_held_out(sums(Scripted(b, a), 2))


def test_splits_are_drawn_alike():
    # Over the 8100 sums of two digits: a fifth is held out, and the mean answer of both splits is 109 (two
    # numbers with mean 54.5). The standard error of the held-out mean is 37 / sqrt(1620) = 0.9.
    answers = {True: [], False: []}
    for a in range(10, 100):
        for b in range(10, 100):
            answers[is_held_out(sums(Scripted(a, b), 2))].append(a + b)
    assert len(answers[True]) / 8100 == pytest.approx(0.2, abs=0.02)
    for kept in answers.values():
        assert sum(kept) / len(kept) == pytest.approx(109, abs=3)


def test_draws_are_even_over_their_split():
    # 1000 draws of one-digit sums over 80 questions or so: the rarest and the commonest stay within what chance
    # allows (mean 12.5, standard deviation 3.5).
    tasks = GeneratedTasks("sums", 1, seed=0)
    counts = {}
    for position in range(1000):
        counts[tasks[position].prompt] = counts.get(tasks[position].prompt, 0) + 1
    assert len(counts) > 70
    assert max(counts.values()) < 30


@pytest.mark.parametrize("name", TASKS)
def test_the_smallest_difficulty_has_both_splits(name):
    difficulty = TASKS[name].difficulties.start
    assert held_out_sample(name, difficulty, 3)
    assert GeneratedTasks(name, difficulty, seed=0)[0]


def test_seeds_and_positions_change_the_draw_and_nothing_else_does():
    tasks = GeneratedTasks("sums", 4, seed=7)
    later = tasks[100]
    assert GeneratedTasks("sums", 4, seed=7)[100] == later
    assert len({GeneratedTasks("sums", 4, seed=seed)[0].prompt for seed in range(20)}) == 20
    assert len({tasks[position].prompt for position in range(100)}) == 100


def test_held_out_sample_has_no_twice_and_ends_where_the_family_ends():
    sample = held_out_sample("sums", 2, 256)
    assert len({task.key for task in sample}) == 256
    everything = {f"{a}+{b}=" for a in range(10) for b in range(10) if is_held_out(sums(Scripted(a, b), 1))}
    assert {task.prompt for task in held_out_sample("sums", 1, 256)} == everything


def test_a_salted_hash_changes_nothing():
    script = """
import json
from groupwise.tasks import GeneratedTasks, held_out_sample
tasks = GeneratedTasks("countdown", 3, seed=5)
print(json.dumps([tasks[p].prompt for p in range(50)] + [t.key for t in held_out_sample("sums", 2, 50)]
                 + [tasks.fingerprint]))
"""
    outputs = {run_in_new_process(script, salt) for salt in ("1", "2", "random")}
    assert len(outputs) == 1
    tasks = GeneratedTasks("countdown", 3, seed=5)
    here = [tasks[p].prompt for p in range(50)] + [t.key for t in held_out_sample("sums", 2, 50)] + [tasks.fingerprint]
    assert json.loads(outputs.pop()) == here


def run_in_new_process(script, salt):
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONHASHSEED": salt}
    return subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True).stdout


def test_fingerprint_follows_the_settings_and_not_the_seed():
    prints = [GeneratedTasks(name, d, seed=0).fingerprint for name in TASKS for d in (2, 3)]
    assert len(set(prints)) == len(prints)
    assert GeneratedTasks("sums", 2, seed=0).fingerprint == GeneratedTasks("sums", 2, seed=9).fingerprint


@pytest.mark.parametrize(
    ("name", "difficulty", "error", "said"),
    [
        ("sum", 2, UnknownNameError, r"unknown data.task 'sum'; the nearest is 'sums'"),
        ("sums", 0, BadValueError, r"data.difficulty=0: .* counts digits of both numbers; use .* from 1 to 18"),
        ("sums", 19, BadValueError, r"data.difficulty=19"),
        ("sums", "2", BadValueError, r"data.difficulty='2'"),
        ("sums", True, BadValueError, r"data.difficulty=True"),
        ("countdown", 1, BadValueError, r"data.difficulty=1: .* use a whole number from 2 to 8"),
    ],
)
def test_impossible_settings_are_refused_by_name(name, difficulty, error, said):
    with pytest.raises(error, match=said):
        GeneratedTasks(name, difficulty, seed=0)
