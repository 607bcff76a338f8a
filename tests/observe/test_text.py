"""Spark-lines by hand, and foreign text that cannot steer a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.observe.text import duration, fixed, printable, sparkline
from hostile import PAYLOADS


def test_a_spark_line_by_hand():
    # From 0 to 7 in eight heights: each value is its own block.
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    # (0.4 - 0.2) / 0.8 * 7 = 1.75, the third block.
    assert sparkline([0.2, 0.4, 1.0], 8) == "▁▃█"
    # Two values a block: means 0.5, 2.5, 4.5; the middle is 3.5 of 7, and half rounds to even.
    assert sparkline([0, 1, 2, 3, 4, 5], 3) == "▁▅█"


def test_a_spark_line_of_little_or_odd():
    assert sparkline([], 8) == ""
    assert sparkline([1.0], 0) == ""
    assert sparkline([0.5, 0.5], 8) == "▄▄"
    assert sparkline([float("nan"), 1.0, float("inf"), 2.0], 8) == "▁█"


@given(st.lists(st.floats(), max_size=300), st.integers(0, 120))
def test_a_spark_line_is_never_too_wide(values, width):
    assert len(sparkline(values, width)) <= width


def test_control_characters_are_spelled_out():
    assert printable("plain — ünïcode 漢字 🙂") == "plain — ünïcode 漢字 🙂"
    assert printable("a\x1b[2Jb") == r"a\x1b[2Jb"
    assert printable("one\ntwo\r\t\x07") == r"one\ntwo\r\t\x07"
    assert printable("user\u202etxt\u2028") == r"user\u202etxt\u2028"
    assert printable("\ud800") == r"\ud800"


@pytest.mark.parametrize("name", PAYLOADS)
def test_hostile_text_becomes_printable(name):
    assert printable(PAYLOADS[name]).isprintable()


def test_numbers():
    assert [duration(value) for value in (0, 65, 3599.6, 7200, -1)] == ["0:00", "1:05", "1:00:00", "2:00:00", "0:00"]
    assert [fixed(value) for value in (0, 0.8125, -0.5, 2e-5, 3e6)] == [
        "0.000",
        "0.812",
        "-0.500",
        "2.0e-05",
        "3.0e+06",
    ]
    assert [fixed(value, 4) for value in (12.34567, -1234.56, 98765.4)] == ["12.346", "-1234.6", "98765"]


@given(st.floats(allow_nan=False), st.integers(1, 4))
def test_a_number_fits_its_column(value, digits):
    assert len(fixed(value, digits)) <= 8
