"""The sections of a report, each from plain data to markup."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from groupwise.config import RunConfig, Section
from groupwise.inspect.answers import Answer, AnswerGroup, Endings, Rollout
from groupwise.inspect.curves import Curve, draw
from groupwise.inspect.html import Html, element, shortened
from groupwise.inspect.numbers import compact, duration, number, percent, signed
from groupwise.inspect.run import Run

CURVES: tuple[Curve, ...] = (
    Curve("reward/mean", "Reward", "mean score of the sampled answers"),
    Curve("eval/accuracy", "Accuracy", "held-out prompts, greedy", is_share=True),
    Curve("groups/no_signal", "No signal", "share of groups whose advantages are all 0", is_share=True),
    Curve("response_length/mean", "Answer length", "mean, in tokens"),
    Curve("entropy", "Entropy", "of the next token, in nats"),
    Curve("kl", "KL", "distance from the reference policy"),
    Curve("grad_norm", "Gradient norm", "before clipping"),
    Curve("loss", "Loss", "of the optimiser steps"),
)
LONGEST_TEXT = 3000
LONGEST_PROMPT = 1500
LONGEST_REASON = 300
MOST_ANSWERS = 16
MOST_REASONS = 12
MOST_EVALUATIONS = 14


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
    yield _section("Curves", "By step. Hover over a curve for its values.", element("div", figures, class_="curves"))


def evaluations(run: Run) -> Iterator[Html]:
    rows = [row for row in run.rows if any(key.startswith("eval/") for key in row)]
    keys = sorted({key for row in rows for key in row if key.startswith("eval/")})
    if len(keys) < 2:
        return  # accuracy alone has a curve
    last = len(rows) - 1
    shown = sorted({place * last // (MOST_EVALUATIONS - 1) for place in range(MOST_EVALUATIONS)})
    head = element("tr", element("th", "step", class_="n"), (_head(key.removeprefix("eval/")) for key in keys))
    body = (
        element("tr", _cell(f"{rows[place]['step']:.0f}"), (_cell(_known(rows[place].get(key))) for key in keys))
        for place in shown
    )
    lead = "On held-out prompts." if len(shown) == len(rows) else f"On held-out prompts; {len(shown)} of {len(rows)}."
    yield _section("Evaluations", lead, _table(head, body, "slim"))


def answers(rollouts: list[Rollout]) -> Iterator[Html]:
    shown = [rollout for rollout in rollouts if rollout.learned_most or rollout.worst]
    if not shown:
        return
    lead = (
        "The prompts whose answers differed most in score teach most: what scored above its siblings is reinforced, "
        "what scored below is discouraged. Beside them, the prompts the model did worst at."
    )
    yield _section("Answers", lead, *(_rollout(rollout) for rollout in shown))


def endings(found: Endings) -> Iterator[Html]:
    if not found.num_answers:
        return
    scope = "" if found.num_files == found.num_all else f" in {found.num_files} of {found.num_all} rollouts"
    failed = sum(found.failures.values())
    cut = found.finishes["length"]
    lead = f"{found.num_answers:,} answers{scope}: {failed:,} failed, {cut:,} cut off at the longest length allowed."
    reasons = found.failures.most_common(MOST_REASONS)
    rest = failed - sum(count for _, count in reasons)
    rows = [(shortened(reason, LONGEST_REASON), count) for reason, count in reasons]
    rows += [("other reasons", rest)] if rest else []
    body = (
        element("tr", element("td", reason), _cell(f"{count:,}"), _cell(percent(count / found.num_answers)))
        for reason, count in rows
    )
    head = element("tr", element("th", "reason"), _head("answers"), _head("share"))
    yield _section("Failures", lead, *([_table(head, body, "slim")] if rows else []))


def settings(run: Run) -> Iterator[Html]:
    if not run.settings:
        return
    defaults = dict(_flat(RunConfig()))
    rows = [(key, value, defaults.get(key)) for key, value in _flat(run.settings)]
    changed = [row for row in rows if row[1] != row[2]]
    lead = f"{len(changed)} of {len(rows)} settings differ from their defaults."
    parts = [_settings_table(changed, changed)] if changed else []
    every = element("details", element("summary", f"All {len(rows)} settings"), _settings_table(rows, changed))
    yield _section("Settings", lead, *parts, every)


def _verdict(run: Run) -> list[str | Html]:
    for key, name, label in (("eval/accuracy", "Accuracy", percent), ("reward/mean", "Reward", number)):
        points = run.curve(key)
        if len(points) > 1:
            return [f"{name} {label(points[0][1])} → ", element("b", label(points[-1][1]))]
        if points:
            return [f"{name} ", element("b", label(points[0][1]))]
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
    """The clock at the last step if there is one, else the sum over the steps."""
    total = run.curve("time/total")
    steps = run.curve("time/step")
    if total:
        return total[-1][1]
    return sum(seconds for _, seconds in steps) if steps else None


def _rollout(rollout: Rollout) -> Html:
    columns = [
        element("div", element("h4", title), (_group(group) for group in groups))
        for title, groups in (("Learned most", rollout.learned_most), ("Worst", rollout.worst))
        if groups
    ]
    title = f"Step {rollout.step}, {rollout.num_groups:,} groups"
    return element("div", element("h3", title), element("div", columns, class_="pairs"))


def _group(group: AnswerGroup) -> Html:
    heads = element("div", *(element("span", name) for name in ("score", "advantage", "answer")), class_="answer heads")
    left_out = len(group.answers) - MOST_ANSWERS
    return element(
        "article",
        element("pre", shortened(group.prompt, LONGEST_PROMPT), class_="prompt"),
        element("p", _summary(group)),
        heads,
        (_answer(answer) for answer in group.answers[:MOST_ANSWERS]),
        [element("p", f"and {left_out:,} more")] if left_out > 0 else [],
        class_="group",
    )


def _summary(group: AnswerGroup) -> str:
    total = sum(answer.count for answer in group.answers)
    failed = sum(answer.count for answer in group.answers if answer.failure is not None)
    if failed == total:
        return f"all {total} answers failed"
    scores = group.scores
    if not scores:
        return f"{total} answers without a score"
    spread = (
        f"all scored {compact(scores[0])}"
        if min(scores) == max(scores)
        else (
            f"scores from {compact(min(scores))} to {compact(max(scores))}, mean {compact(sum(scores) / len(scores))}"
        )
    )
    return f"{total} answers, {spread}" + (f", {failed} failed" if failed else "")


def _answer(answer: Answer) -> Html:
    advantage = answer.advantage
    side = "" if not advantage else " up" if advantage > 0 else " down"
    remarks = [] if answer.text else ["nothing"]
    remarks += [f"× {answer.count}"] if answer.count > 1 else []
    remarks += ["cut off"] if answer.finish_reason == "length" else []
    remarks += [f"failed: {shortened(answer.failure, LONGEST_REASON)}"] if answer.failure is not None else []
    return element(
        "div",
        element("span", "–" if answer.score is None else compact(answer.score), class_="n"),
        element("span", "–" if advantage is None else signed(advantage), class_="n" + side),
        element(
            "div",
            element("pre", shortened(answer.text, LONGEST_TEXT)),
            [element("span", " · ".join(remarks), class_="why")] if remarks else [],
            class_="said",
        ),
        class_="answer",
    )


def _settings_table(rows: list[tuple[str, str, str | None]], changed: list[tuple[str, str, str | None]]) -> Html:
    body = (
        element(
            "tr",
            element("td", element("code", row[0])),
            element("td", element("code", shortened(row[1], LONGEST_REASON))),
            element("td", element("code", row[2] or "–"), class_="dim"),
            class_="changed" if row in changed else "same",
        )
        for row in rows
    )
    head = element("tr", element("th", "setting"), element("th", "value"), element("th", "default"))
    return _table(head, body, "settings")


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and (value or isinstance(value, Section)):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            # A tuple here is a list in YAML.
            yield f"{prefix}{key}", str(list(value) if isinstance(value, tuple) else value)


def _section(title: str, lead: str, *children: Html) -> Html:
    return element("section", element("h2", title), element("p", lead, class_="lead"), *children)


def _table(head: Html, body: Iterator[Html], class_: str) -> Html:
    table = element("table", element("thead", head), element("tbody", body), class_=class_)
    return element("div", table, class_="scroll")


def _head(text: str) -> Html:
    return element("th", text, class_="n")


def _cell(text: str) -> Html:
    return element("td", text, class_="n")


def _known(value: float | None) -> str:
    return "–" if value is None else number(value)
