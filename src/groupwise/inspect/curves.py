"""Curves as SVG, drawn point by point: axes, the values at both ends, and a column to hover over per point."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from groupwise.inspect.html import Html, element
from groupwise.inspect.numbers import number, percent, tick_label, ticks

WIDTH, HEIGHT = 360.0, 170.0
LEFT, RIGHT, TOP, BOTTOM = 40.0, 60.0, 14.0, 24.0
MOST_POINTS = 160
"""A longer curve is averaged in even runs of steps: more points than that cannot be told apart at this size."""
MOST_DOTS = 30
LABEL_WIDTH = 34.0

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """key: in metrics.jsonl. is_share: between 0 and 1, shown in percent on an axis of that range."""

    key: str
    title: str
    meaning: str
    is_share: bool = False


@dataclass(frozen=True)
class Frame:
    """From steps and values to places in the drawing."""

    steps: tuple[float, float]
    values: tuple[float, float]

    def x(self, step: float) -> float:
        first, last = self.steps
        return LEFT + (step - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.values
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)


def draw(curve: Curve, points: Points, steps: tuple[float, float]) -> Html:
    """points: (step, value), at least one, in step order. steps: the run's first and last, the same for every
    curve, so that curves one above the other line up."""
    label = percent if curve.is_share else number
    thinned = thin(points, MOST_POINTS)
    levels = value_ticks([value for _, value in thinned], curve.is_share)
    frame = Frame(widened(*steps), (levels[0], levels[-1]))
    (first_step, first), (last_step, last) = points[0], points[-1]
    summary = f"{curve.title}: {label(first)} at step {first_step:.0f}, {label(last)} at step {last_step:.0f}"
    return element(
        "svg",
        element("title", summary),
        _value_axis(frame, levels, curve.is_share),
        _step_axis(frame),
        element("path", class_="curve", d=path(frame, thinned)),
        _columns(frame, thinned, label),
        _ends(frame, thinned, (label(first), label(last))),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=summary,
    )


def thin(points: Points, most: int) -> Points:
    """At most so many points: the mean step and the mean value of even runs; the two ends stay as they are."""
    if len(points) <= most:
        return points
    inner = points[1:-1]
    edges = [place * len(inner) // (most - 2) for place in range(most - 1)]
    runs = [inner[a:b] for a, b in itertools.pairwise(edges)]
    means = [(_mean([step for step, _ in run]), _mean([value for _, value in run])) for run in runs]
    return [points[0], *means, points[-1]]


def value_ticks(values: Sequence[float], is_share: bool) -> list[float]:
    """The levels marked on the axis; the first and the last are its ends."""
    if is_share and min(values) >= 0 and max(values) <= 1:
        return [0.0, 0.5, 1.0]
    low, high = min(values), max(values)
    if low == high or high - low < 1e-12 * max(abs(low), abs(high)):
        # A constant is drawn against zero; zero itself against one.
        low, high = min(low, 0.0), max(high, 0.0) if low != 0 else 1.0
    return ticks(low, high, 3)


def widened(first: float, last: float) -> tuple[float, float]:
    """A run of a single step still needs an axis with two ends."""
    return (first, last) if last > first else (first - 1, last + 1)


def path(frame: Frame, points: Points) -> str:
    return "M" + "L".join(f"{frame.x(step):.1f} {frame.y(value):.1f}" for step, value in points)


def _value_axis(frame: Frame, levels: list[float], is_share: bool) -> list[Html]:
    drawn = []
    spacing = levels[1] - levels[0]
    for level in levels:
        y = frame.y(level)
        text = f"{100 * level:.0f}%" if is_share else tick_label(level, spacing)
        drawn.append(element("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        drawn.append(element("text", text, class_="tick", x=LEFT - 6, y=y + 3.5, text_anchor="end"))
    return drawn


def _step_axis(frame: Frame) -> list[Html]:
    first, last = frame.steps
    marks = [step for step in ticks(first, last, 4) if first <= step <= last and step == math.floor(step)]
    y = HEIGHT - BOTTOM + 15
    return [
        element("text", f"{step:,.0f}", class_="tick", x=frame.x(step), y=y, text_anchor="middle") for step in marks
    ]


def _columns(frame: Frame, points: Points, label: Callable[[float], str]) -> list[Html]:
    """Hovering anywhere above or below a point names it."""
    places = [frame.x(step) for step, _ in points]
    borders = [places[0], *((a + b) / 2 for a, b in itertools.pairwise(places)), places[-1]]
    dotted = " dot" if len(points) <= MOST_DOTS else ""
    drawn = []
    for index, (step, value) in enumerate(points):
        left, right = borders[index] - 1, borders[index + 1] + 1
        drawn.append(
            element(
                "g",
                element("title", f"step {step:.0f}: {label(value)}"),
                element("rect", x=left, y=TOP, width=right - left, height=HEIGHT - TOP - BOTTOM),
                element("circle", cx=places[index], cy=frame.y(value), r=2.5),
                class_="point" + dotted,
            )
        )
    return drawn


def _ends(frame: Frame, points: Points, labels: tuple[str, str]) -> list[Html]:
    last_step, last = points[-1]
    drawn = [element("text", labels[1], class_="end", x=frame.x(last_step) + 7, y=frame.y(last) + 4)]
    if len(points) > 1:
        x = frame.x(points[0][0]) + 4
        drawn.append(element("text", labels[0], class_="start", x=x, y=_clear_of(frame, points, x)))
    return drawn


def _clear_of(frame: Frame, points: Points, x: float) -> float:
    """Where the first value's label stands: under or over the part of the curve it would cover, inside the frame."""
    end = x + LABEL_WIDTH
    covered = [frame.y(value) for step, value in points if frame.x(step) <= end]
    if len(covered) < len(points):
        # And where the line to the next point leaves the label.
        (before, _), (after, value) = points[len(covered) - 1], points[len(covered)]
        part = (end - frame.x(before)) / (frame.x(after) - frame.x(before))
        covered.append(covered[-1] + part * (frame.y(value) - covered[-1]))
    lower, upper = max(covered) + 13, min(covered) - 6
    start, floor = frame.y(points[0][1]), HEIGHT - BOTTOM - 3
    fits_below = lower <= floor
    if fits_below and (lower - start <= start - upper or upper < TOP):
        return lower
    return max(upper, TOP - 3)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
