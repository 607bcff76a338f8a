"""The sections of a report about the run as a whole, each from plain data to markup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from groupwise.config import RunConfig, Section
from groupwise.inspect.curves import Curve, draw
from groupwise.inspect.html import Html, element, shortened
from groupwise.inspect.numbers import duration, number, percent
from groupwise.inspect.parts import cell, head_cell, section, table
from groupwise.inspect.run import Run

CURVES: tuple[Curve, ...] = (
    Curve("reward/mean", "Reward", "mean score of the sampled answers"),
    Curve("eval/accuracy", "Accuracy", "held-out prompts, greedy", is_share=True),
    Curve("groups/no_signal", "No signal", "share of groups whose advantages are all 0", is_share=True),
    Curve("response_length/mean", "Answer length", "mean, in tokens"),
    Curve("actor/entropy", "Entropy", "of the next token, in nats"),
    Curve("actor/kl", "KL", "of the policy from the reference, a mean over tokens"),
    Curve("kl/reward", "KL in the reward", "of the policy from the reference, a mean over answers"),
    Curve("grad_norm", "Gradient norm", "before clipping"),
    Curve("loss", "Loss", "of the optimiser steps"),
)
MOST_EVALUATIONS = 14
LONGEST_VALUE = 300
PHASES = ("rollout", "reward", "advantage", "update", "store", "evaluation")


def header(run: Run) -> Html:
    return element(
        "header",
        element("h1", f"Run {run.name}"),
        element("p", _verdict(run), class_="verdict"),
        element("p", _facts(run), class_="facts"),
    )


def notes(found: list[str]) -> Iterator[Html]:
    if found:
        yield element("div", (element("p", note) for note in found), class_="notes", role="note")


def curves(run: Run) -> Iterator[Html]:
    recorded = [(curve, points) for curve in CURVES if (points := run.curve(curve.key))]
    if not recorded:
        return
    steps = run.rows[0]["step"], run.rows[-1]["step"]
    figures = (
        element(
            "figure",
            element("figcaption", element("b", curve.title), element("span", curve.meaning)),
            draw(curve, points, steps),
        )
        for curve, points in recorded
    )
    yield section("Curves", "By step. Hover over a curve for its values.", element("div", figures, class_="curves"))


def evaluations(run: Run) -> Iterator[Html]:
    rows = [row for row in run.rows if any(key.startswith("eval/") for key in row)]
    keys = sorted({key for row in rows for key in row if key.startswith("eval/")})
    if len(keys) < 2:
        return  # accuracy alone has a curve
    last = len(rows) - 1
    shown = sorted({place * last // (MOST_EVALUATIONS - 1) for place in range(MOST_EVALUATIONS)})
    head = element("tr", element("th", "step", class_="n"), (head_cell(key.removeprefix("eval/")) for key in keys))
    body = (
        element("tr", cell(f"{rows[place]['step']:.0f}"), (cell(_known(rows[place].get(key))) for key in keys))
        for place in shown
    )
    lead = "On held-out prompts." if len(shown) == len(rows) else f"On held-out prompts; {len(shown)} of {len(rows)}."
    yield section("Evaluations", lead, table(head, body, "slim"))


def times(run: Run) -> Iterator[Html]:
    spent = {name: sum(seconds for _, seconds in run.curve(f"time/{name}")) for name in PHASES}
    whole = wall_time(run)
    if not whole or not any(spent.values()):
        return
    spent["everything else"] = max(0.0, whole - sum(spent.values()))
    head = element("tr", element("th", "phase"), head_cell("time"), head_cell("share"))
    body = (
        element("tr", element("td", name), cell(duration(seconds)), cell(percent(seconds / whole)))
        for name, seconds in spent.items()
        if seconds
    )
    yield section("Time", "Where it went.", table(head, body, "slim"))


def settings(run: Run) -> Iterator[Html]:
    if not run.settings:
        return
    defaults = dict(_flat(RunConfig()))
    rows = [(key, value, defaults.get(key)) for key, value in _flat(run.settings)]
    changed = [row for row in rows if row[1] != row[2]]
    lead = f"{len(changed)} of {len(rows)} settings differ from their defaults."
    parts = [_settings_table(changed, changed)] if changed else []
    every = element("details", element("summary", f"All {len(rows)} settings"), _settings_table(rows, changed))
    yield section("Settings", lead, *parts, every)


def _verdict(run: Run) -> list[str | Html]:
    for key, name, label in (("eval/accuracy", "Accuracy", percent), ("reward/mean", "Reward", number)):
        points = run.curve(key)
        if len(points) > 1:
            first, last = points[0][1], points[-1][1]
            side = "up" if last > first else "down" if last < first else "same"
            return [f"{name} {label(first)} → ", element("b", label(last), class_=side)]
        if points:
            return [f"{name} {label(points[0][1])}"]
    return ["Nothing has been measured yet"]


def _facts(run: Run) -> str:
    facts = []
    if run.rows:
        steps = run.rows[-1]["step"]
        facts.append("1 step" if steps == 1 else f"{steps:,.0f} steps")
    seconds = wall_time(run)
    if seconds is not None:
        facts.append(duration(seconds))
    flat = dict(_flat(run.settings))
    for key, form in (
        ("model.path", "model {}"),
        ("algorithm.adv_estimator", "{}"),
        ("data.train_batch_size", "{} prompts a step"),
        ("rollout.n", "{} answers a prompt"),
        ("trainer.seed", "seed {}"),
    ):
        if key in flat:
            facts.append(form.format(flat[key]))
    return " · ".join(facts)


def wall_time(run: Run) -> float | None:
    """The seconds of all steps and evaluations; what a run spends before its first step is not in its metrics."""
    known = [row[key] for row in run.rows for key in ("time/step", "time/evaluation") if key in row]
    return sum(known) if known else None


def _settings_table(rows: list[tuple[str, str, str | None]], changed: list[tuple[str, str, str | None]]) -> Html:
    body = (
        element(
            "tr",
            element("td", element("code", row[0])),
            element("td", element("code", shortened(row[1], LONGEST_VALUE))),
            element("td", element("code", row[2] or "–"), class_="dim"),
            class_="changed" if row in changed else "same",
        )
        for row in rows
    )
    head = element("tr", element("th", "setting"), element("th", "value"), element("th", "default"))
    return table(head, body, "settings")


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and (value or isinstance(value, Section)):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            # A tuple here is a list in YAML.
            yield f"{prefix}{key}", str(list(value) if isinstance(value, tuple) else value)


def _known(value: float | None) -> str:
    return "–" if value is None else number(value)
