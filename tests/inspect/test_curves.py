"""Where the points of a curve stand, computed by hand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.inspect.curves import HEIGHT, WIDTH, Curve, Frame, draw, path, thin, value_ticks
from groupwise.inspect.numbers import compact, duration, number, percent, signed, tick_label, ticks

SHARE = Curve("eval/accuracy", "Accuracy", "", is_share=True)
PLAIN = Curve("kl", "KL", "")


def test_points_stand_where_the_arithmetic_says():
    # 360 wide less 40 left and 60 right leaves 260; 170 high less 14 above and 24 below leaves 132, upside down.
    frame = Frame((0, 100), (0.0, 1.0))
    assert path(frame, [(0, 0.0), (50, 0.5), (100, 1.0)]) == "M40.0 146.0L170.0 80.0L300.0 14.0"


def test_a_small_curve_has_its_axes_ends_and_titles():
    drawing = draw(SHARE, [(0, 0.25), (10, 0.75)], (0, 10))
    # 0.25 of 132 above 146 is 113; 0.75 is 47.
    assert 'd="M40.0 113.0L300.0 47.0"' in drawing
    assert '<line class="grid" x1="40" x2="300" y1="80" y2="80"></line>' in drawing
    assert re.findall(r">([\d.,]+%?)</text>", drawing) == ["0%", "50%", "100%", "0", "5", "10", "75.0%", "25.0%"]
    assert '<text class="end" x="307" y="51">75.0%</text>' in drawing  # 7 to the right of the point, 4 down
    # The curve rises, so the first value stands under its start: 113 + 13.
    assert '<text class="start" x="44" y="126">25.0%</text>' in drawing
    assert "<title>step 0: 25.0%</title>" in drawing
    assert "<title>step 10: 75.0%</title>" in drawing
    assert 'role="img" aria-label="Accuracy: 25.0% at step 0, 75.0% at step 10"' in drawing
    # Halfway between the points their columns meet: 170, and each reaches one further.
    assert '<rect x="39" y="14" width="132" height="132"></rect>' in drawing
    assert '<rect x="169" y="14" width="132" height="132"></rect>' in drawing


def test_the_first_value_keeps_clear_of_a_falling_curve():
    drawing = draw(SHARE, [(0, 0.75), (10, 0.25)], (0, 10))
    # Over the start: 47 - 6.
    assert '<text class="start" x="44" y="41">75.0%</text>' in drawing


def test_a_long_curve_is_averaged_between_its_ends():
    points = [(step, float(step % 2)) for step in range(10)]
    # Steps 1..8 in two runs of four.
    assert thin(points, 4) == [(0, 0.0), (2.5, 0.5), (6.5, 0.5), (9, 1.0)]
    assert thin(points, 10) == points


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.588, 0.963, [0.4, 0.6, 0.8, 1.0]),  # a third is 0.125, the next round step 0.2
        (0.0, 30.0, [0, 10, 20, 30]),
        (-1.0, 1.0, [-1, 0, 1]),
        (2.0, 2.3, [2.0, 2.1, 2.2, 2.3]),
    ],
)
def test_ticks_are_round_and_enclose(low, high, expected):
    assert ticks(low, high, 3) == pytest.approx(expected)


def test_a_constant_is_drawn_against_zero():
    assert value_ticks([0.5, 0.5], False) == pytest.approx([0, 0.2, 0.4, 0.6])
    assert value_ticks([-3.0], False)[-1] == 0
    assert value_ticks([0.0], False) == pytest.approx([0, 0.5, 1])
    assert value_ticks([0.2], True) == [0, 0.5, 1]
    assert value_ticks([0.2, 1.5], True)[-1] == pytest.approx(1.5)  # a share that is none keeps its own axis


numbers = st.floats(-1e149, 1e149)


@given(st.lists(numbers, min_size=1, max_size=400), st.booleans(), st.integers(0, 10**9))
def test_any_curve_stays_inside_its_frame(values, is_share, start):
    points = [(float(start + place), value) for place, value in enumerate(values)]
    drawing = draw(SHARE if is_share else PLAIN, points, (points[0][0], points[-1][0]))
    drawn = re.search(r' d="M([^"]*)"', drawing).group(1)
    for place in drawn.split("L"):
        x, y = map(float, place.split())
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
    assert "nan" not in drawing
    for y in re.findall(r'<text class="(?:start|end)" x="[^"]*" y="([^"]*)"', drawing):
        assert 0 <= float(y) <= HEIGHT


def test_numbers_for_people():
    assert [number(value) for value in (0, 0.8125, 12.34, 1234.5, 1.2e-5, -0.5, 3e7)] == [
        "0.000", "0.812", "12.3", "1,234", "1.2e-5", "−0.500", "3.0e7",
    ]  # fmt: skip
    assert [compact(value) for value in (0.0, 1.0, 0.5, 1 / 3, 100.0, 2e-9)] == [
        "0",
        "1",
        "0.5",
        "0.333",
        "100",
        "2.0e-9",
    ]
    assert [signed(value) for value in (0.8660, -0.5, 0.0)] == ["+0.866", "−0.500", "0"]
    assert percent(0.9375) == "93.8%"
    assert [duration(value) for value in (0.4, 59.6, 102, 3600, 7500)] == [
        "0 s",
        "1 min",
        "1 min 42 s",
        "1 h",
        "2 h 5 min",
    ]
    assert [tick_label(value, 0.05) for value in (0.0, 0.05, 0.1)] == ["0.00", "0.05", "0.10"]
    assert tick_label(2e7, 1e7) == "2e7"
    assert tick_label(2e-5, 1e-5) == "2e-5"
    assert [tick_label(value, 5e-9) for value in (-5e-9, 0.0, 5e-9)] == ["−5e-9", "0", "5e-9"]
    assert tick_label(-0.5, 0.5) == "−0.5"
