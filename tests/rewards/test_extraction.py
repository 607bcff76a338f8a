r"""Answers found in texts: hand-written nasty strings, and properties over generated ones."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.rewards.extraction import after_hashes, answer_number, as_number, last_boxed, last_number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", None),
        ("no number here", None),
        ("42", "42"),
        ("the answer is 42.", "42"),
        ("first 1, then 2, then 3", "3"),
        ("1,2,3", "3"),
        ("it costs $1,234.50.", "1,234.50"),
        ("1,234,56", "56"),
        ("1234,567", "567"),
        ("-7", "-7"),
        ("12-5", "5"),
        ("x-5", "5"),
        ("(3)-5", "5"),
        ("= -5", "-5"),
        ("12 - 5", "5"),
        ("\u22125", "-5"),
        ("+5", "+5"),
        ("--5", "-5"),
        (".5", ".5"),
        ("3.", "3"),
        ("1e3", "1e3"),
        ("2e", "2"),
        ("1e99999", "99999"),
        ("42kg", "42"),
        ("a1b2c", "2"),
        ("\u0664\u0662", None),  # 42 in Arabic digits
        ("1\n2\n", "2"),
        ("\x007\x00", "7"),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        (r"so \boxed{42}", "42"),
        (r"\boxed{1} no, \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}} done", r"\frac{1}{2}"),
        (r"\boxed{7} and \boxed{never closed", "7"),
        (r"\boxed{}", ""),
        (r"\boxed{a}b}", "a"),
        (r"\boxed 42", None),
        ("boxed{42}", None),
        ("", None),
    ],
)
def test_last_boxed(text, contents):
    assert last_boxed(text) == contents


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("6*7=42\n#### 42", "42"),
        ("#### 1\n#### 2\nthanks", "2"),
        ("####42", "42"),
        ("####", ""),
        ("##### 5", "5"),
        ("### 5", None),
    ],
)
def test_after_hashes(text, answer):
    assert after_hashes(text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", Fraction(42)),
        (" 1,234.50 ", Fraction(2469, 2)),
        ("$5", Fraction(5)),
        ("42.", Fraction(42)),
        ("\u22123", Fraction(-3)),
        ("1e3", Fraction(1000)),
        ("2E-1", Fraction(1, 5)),
        ("1/3", Fraction(1, 3)),
        ("-1/3", Fraction(-1, 3)),
        ("1/0", None),
        ("1/2/3", None),
        ("0.1", Fraction(1, 10)),
        ("", None),
        ("$", None),
        ("nan", None),
        ("inf", None),
        ("1 2", None),
        ("12-5", None),
        ("9" * 201, None),
        ("1e9999", None),
    ],
)
def test_as_number(text, value):
    assert as_number(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"first 7, so \boxed{42}. Not 8.", 42),
        ("#### 42\nBye 2", 42),
        (r"\boxed{x = 42}", 42),
        ("#### the answer is 42 apples", 42),
        (r"\boxed{none} 5", None),
        ("the total is 42", 42),
        ("1/2", Fraction(1, 2)),
        ("9" * 5000, None),
    ],
)
def test_answer_number_prefers_what_is_marked(text, value):
    assert answer_number(text) == value


@given(st.text())
def test_no_text_breaks_extraction(text):
    for wrapped in (text, rf"\boxed{{{text}", f"####{text}", f"5{text}"):
        value = answer_number(wrapped)
        assert value is None or isinstance(value, Fraction)


@given(st.text(alphabet="0123456789,.eE+-/ $()\\{}#boxed\n"))
def test_what_is_found_can_be_read(text):
    found = last_number(text)
    assert found is None or len(found) > 200 or as_number(found) is not None


@given(
    st.text(alphabet=st.characters(exclude_categories=["N"], exclude_characters=".,+-/eE\u2212"), max_size=30),
    st.integers(-(10**12), 10**12),
)
def test_a_number_at_the_end_is_found(text, number):
    assert answer_number(f"{text} {number}") == number if "####" not in text else True


@given(st.integers(-(10**15), 10**15), st.integers(0, 6))
def test_grouped_digits_mean_the_same(number, decimals):
    assert as_number(f"{number:,}.{'0' * decimals}") == number


@given(st.text(alphabet="0123456789 abc", max_size=20), st.text(alphabet="ab 12", max_size=20))
def test_a_box_is_read_whatever_stands_around_it(inside, around):
    assert last_boxed(rf"{around}\boxed{{{inside}}}{around}") == inside.strip()


def test_long_texts_take_time_in_proportion():
    assert last_number("1," * 200_000) == "1"
    assert last_boxed(r"\boxed{" * 300) is None
