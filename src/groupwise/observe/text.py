"""Numbers and foreign text as a terminal may show them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
_LARGEST = 1e150


def printable(text: str) -> str:
    r"""The text with every character that a terminal would act on, or that hides, written as its escape.

        printable("a\x1b[2Jb")  # a\x1b[2Jb, the escape sequence spelled out

    Newlines are escaped as well: what a model or a file name says stays on its line.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def sparkline(values: Sequence[float], width: int) -> str:
    """One block per value, the lowest ▁ and the highest █; more values than `width` are averaged in even runs."""
    # Beyond this the arithmetic below overflows; such a value is a fault, not a part of the curve.
    finite = [value for value in values if abs(value) < _LARGEST]
    if not finite or width < 1:
        return ""
    count = min(width, len(finite))
    edges = [place * len(finite) // count for place in range(count + 1)]
    means = [math.fsum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if not high > low:
        return BLOCKS[3] * count
    top = len(BLOCKS) - 1
    return "".join(BLOCKS[round((mean - low) / (high - low) * top)] for mean in means)


def middle_cut(text: str, width: int) -> str:
    """At most `width` characters: where there are more, the beginning and the end, which says how it came out."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def duration(seconds: float) -> str:
    """1:05 for 65 seconds, 2:00:00 for two hours."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def fixed(value: float, digits: int = 3) -> str:
    """At most eight characters: `0.813`, `1234.5`; `1.2e+06` where that says too little."""
    size = abs(value)
    if value == 0 or 10**-digits <= size < 99999.5:
        return f"{value:.{max(0, min(digits, 5 - len(str(int(size)))))}f}"
    short = f"{value:.1e}"
    return short if len(short) <= 8 else f"{value:.0e}"
