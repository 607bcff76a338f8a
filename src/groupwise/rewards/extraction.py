r"""Find the answer in a text: `\boxed{42}`, `#### 42`, the last number. Pure functions; None is "not there"."""

from __future__ import annotations

import re
from fractions import Fraction

_BOXED = r"\boxed{"
# A number longer than this is no answer, and Python refuses to read very long ones.
_LONGEST = 200
# Thousands may be grouped. ASCII digits only. The sign counts where no value stands before it: the last number of
# 12-5 is 5.
_NUMBER = re.compile(
    r"(?:(?<![0-9A-Za-z)\]}])[-+])?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,3}(?![0-9]))?"
)
_RATIO = re.compile(rf"({_NUMBER.pattern})/([0-9]+)")


def last_boxed(text: str) -> str | None:
    r"""The contents of the last `\boxed{...}` whose braces close: `\boxed{\frac{1}{2}}` -> `\frac{1}{2}`."""
    start = text.rfind(_BOXED)
    while start >= 0:
        depth = 1
        for place in range(start + len(_BOXED), len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[start + len(_BOXED) : place].strip()
        start = text.rfind(_BOXED, 0, start)
    return None


def after_hashes(text: str) -> str | None:
    """What follows the last `####` on its line, as in GSM8K: `6*7\\n#### 42` -> `42`."""
    _, marker, rest = text.rpartition("####")
    return rest.split("\n", 1)[0].strip() if marker else None


def last_number(text: str) -> str | None:
    """The last number as it is written: `it costs $1,234.50.` -> `1,234.50`."""
    found = _NUMBER.findall(_plain(text))
    return found[-1] if found else None


def as_number(text: str) -> Fraction | None:
    """The exact value of a text that is a number and nothing else: `1,234.50`, `-3`, `1e3`, `1/3`, `$5`, `42.`"""
    bare = _plain(text).strip().removeprefix("$").removesuffix(".").strip()
    if len(bare) > _LONGEST:
        return None
    if _NUMBER.fullmatch(bare):
        return Fraction(bare.replace(",", ""))
    ratio = _RATIO.fullmatch(bare)
    if ratio is None or int(ratio[2]) == 0:
        return None
    return Fraction(ratio[1].replace(",", "")) / int(ratio[2])


def answer_number(text: str) -> Fraction | None:
    """The number a text ends up with: the boxed one, else the one after `####`, else the last one written."""
    for marked in (last_boxed(text), after_hashes(text)):
        if marked is not None:
            value = as_number(marked)
            return value if value is not None else _value_of_last(marked)
    whole = as_number(text)
    return whole if whole is not None else _value_of_last(text)


def _value_of_last(text: str) -> Fraction | None:
    number = last_number(text)
    return None if number is None else as_number(number)


def _plain(text: str) -> str:
    """With the mathematical minus sign as a hyphen."""
    return text.replace("\u2212", "-")
