"""The built-in families of questions with a checkable answer: one short function and one row of `TASKS` each.

A family is a pure function of a random generator and a difficulty. The order in which it draws is part of it:
another order makes other questions from the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from groupwise.errors import BadValueError, unknown_name


@dataclass(frozen=True)
class Question:
    """A prompt and its answer. `kin` is what questions share that give each other away (12+34= and 34+12=): all
    of them are training questions or all of them are held out."""

    prompt: str
    answer: str
    kin: str
    extra_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """A row of `TASKS`: the function, and which difficulties it has."""

    make: Callable[[Random, int], Question]
    difficulties: range
    meaning: str
    """What the difficulty counts."""


def sums(rng: Random, difficulty: int) -> Question:
    """`12+34=` -> `46`: two numbers of `difficulty` digits."""
    a, b = _number(rng, difficulty), _number(rng, difficulty)
    return Question(f"{a}+{b}=", str(a + b), kin=f"{min(a, b)}+{max(a, b)}")


def products(rng: Random, difficulty: int) -> Question:
    """`12*7=` -> `84`: a number of `difficulty` digits times one digit."""
    a, b = _number(rng, difficulty), rng.randrange(10)
    return Question(f"{a}*{b}=", str(a * b), kin=f"{min(a, b)}*{max(a, b)}")


def sorting(rng: Random, difficulty: int) -> Question:
    """`sort 3142=` -> `1234`: `difficulty` digits in ascending order."""
    digits = "".join(str(rng.randrange(10)) for _ in range(difficulty))
    return Question(f"sort {digits}=", "".join(sorted(digits)), kin=digits)


def countdown(rng: Random, difficulty: int) -> Question:
    """`3,8,1>25=` -> `3*8+1`: reach the target with each of `difficulty` numbers used once.

    Any expression that does so is right; the answer here is the target, the numbers are in `extra_info`.
    """
    numbers = [rng.randrange(1, 10) for _ in range(difficulty)]
    target = numbers[0]
    for number in numbers[1:]:
        target = rng.choice([target + number, target - number, target * number])
    shown = rng.sample(numbers, difficulty)
    prompt = f"{','.join(map(str, shown))}>{target}="
    return Question(prompt, str(target), kin=f"{sorted(numbers)}>{target}", extra_info={"numbers": shown})


def _number(rng: Random, digits: int) -> int:
    """A number of exactly so many digits; 0 has one."""
    return rng.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)


TASKS: dict[str, Family] = {
    "sums": Family(sums, range(1, 19), "digits of both numbers"),
    "products": Family(products, range(1, 19), "digits of the first factor"),
    "sorting": Family(sorting, range(2, 65), "digits to sort"),
    "countdown": Family(countdown, range(2, 9), "numbers to combine"),
}


def get_family(name: str, difficulty: int) -> Family:
    """The row of `TASKS`, once the difficulty is one that it has."""
    if name not in TASKS:
        raise unknown_name("data.task", name, TASKS)
    family = TASKS[name]
    allowed = family.difficulties
    if isinstance(difficulty, bool) or not isinstance(difficulty, int) or difficulty not in allowed:
        raise BadValueError(
            f"data.difficulty={difficulty!r}: for the task {name!r} it counts {family.meaning}; "
            f"use a whole number from {allowed.start} to {allowed.stop - 1}"
        )
    return family
