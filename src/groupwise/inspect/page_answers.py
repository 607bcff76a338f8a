"""The sections of a report about what the model said."""

from __future__ import annotations

from collections.abc import Iterator

from groupwise.inspect.answers import Answer, AnswerGroup, Endings, Rollout
from groupwise.inspect.html import Html, element, shortened
from groupwise.inspect.numbers import compact, percent, signed
from groupwise.inspect.parts import cell, head_cell, section, table

LONGEST_TEXT = 3000
LONGEST_PROMPT = 1500
LONGEST_REASON = 300
MOST_ANSWERS = 16
MOST_REASONS = 12


def answers(rollouts: list[Rollout]) -> Iterator[Html]:
    shown = [rollout for rollout in rollouts if rollout.learned_most or rollout.worst]
    if not shown:
        return
    lead = (
        "The prompts whose answers differed most in score teach most: what scored above its siblings is reinforced, "
        "what scored below is discouraged. Beside them, the prompts the model did worst at."
    )
    yield section("Answers", lead, *(_rollout(rollout) for rollout in shown))


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
        element("tr", element("td", reason), cell(f"{count:,}"), cell(percent(count / found.num_answers)))
        for reason, count in rows
    )
    head = element("tr", element("th", "reason"), head_cell("answers"), head_cell("share"))
    yield section("Failures", lead, *([table(head, body, "slim")] if rows else []))


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
    remarks += [f"{len(answer.text):,} characters"] if len(answer.text) > LONGEST_TEXT else []
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
