"""Whatever a model writes is text in the report: it adds no tag, no attribute and nothing a browser would load."""

import json

import pytest
import yaml

from fake_run import metrics_row, write_run
from groupwise.inspect.html import shortened, visible
from groupwise.inspect.page_answers import LONGEST_REASON, LONGEST_TEXT
from groupwise.inspect.report import POLICY, write_report
from hostile import PAYLOADS
from skeleton import Skeleton

TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "section", "article", "div", "span", "p", "b",
    "h1", "h2", "h3", "h4", "figure", "figcaption", "svg", "g", "line", "text", "path", "rect", "circle", "table",
    "thead", "tbody", "tr", "th", "td", "code", "pre", "details", "summary",
}  # fmt: skip
# No href, no src, no style and nothing that begins with "on".
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "role", "aria-label", "viewbox", "d", "x", "y", "x1",
    "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "text-anchor",
}  # fmt: skip


def report_with(folder, text):
    """A run where `text` is the prompt, an answer, its end, the reason of a failure, a label, a setting and a key."""
    common = {"step": 1, "uid": text, "prompt": text, "finish_reason": text, "advantage": 0.5}
    rows = [
        common | {"response": text, "score": 1.0, "failure": None},
        common | {"response": f"{text}2", "score": 0.0, "failure": None},
        common | {"response": text, "score": None, "failure": text},
    ]
    config = yaml.safe_dump({"model": {"path": text}, "rollout": {"n": 3}})
    run = write_run(folder, steps=3, rollouts={1: rows}, config=config)
    row = metrics_row(4) | {f"eval/{text[:50]}": 0.5, "eval/accuracy": 0.7}
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    return write_report(run).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAYLOADS)
def test_hostile_text_builds_the_page_that_harmless_text_builds(tmp_path, name):
    text = PAYLOADS[name]
    page = report_with(tmp_path / "run", text)
    harmless = report_with(tmp_path / "harmless" / "run", "a" * len(text))
    found = Skeleton(page)
    assert found.events == Skeleton(harmless).events
    assert "<script" not in page.lower()
    assert {event[0].removeprefix("/") for event in found.events} <= TAGS | {"declaration"}
    assert {name for _, name, _ in found.attributes} <= ATTRIBUTES
    # Nothing is lost either: the text stands there as an answer and as a reason.
    assert visible(shortened(text, LONGEST_TEXT)) in found.text
    assert visible(shortened(text, LONGEST_REASON)) in found.text


@pytest.mark.parametrize("name", PAYLOADS)
def test_no_character_that_acts_reaches_the_page(tmp_path, name):
    page = report_with(tmp_path / "run", PAYLOADS[name])
    assert [char for char in set(page) if not char.isprintable() and char not in "\n\t"] == []


def test_the_name_of_the_folder_is_text(tmp_path):
    page = report_with(tmp_path / "<img src=x onerror=alert(1)>\u202e", "a")
    assert "<img" not in page
    assert "Run &lt;img src=x onerror=alert(1)&gt;⟨U+202E⟩" in page


def test_a_lone_surrogate_in_a_key_is_shown_as_its_number(tmp_path):
    run = write_run(tmp_path / "run", steps=2)
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 3, "eval/accuracy": 0.5, "eval/\\ud800": 1}\n')
    assert "⟨U+D800⟩" in write_report(run).read_text(encoding="utf-8")


def test_a_setting_is_shown_as_written_and_never_looked_up(tmp_path, monkeypatch):
    monkeypatch.setenv("GROUPWISE_TEST_SECRET", "hunter2")
    run = write_run(tmp_path / "run", config="model: {path: '${oc.env:GROUPWISE_TEST_SECRET}'}\n")
    page = write_report(run).read_text(encoding="utf-8")
    assert "${oc.env:GROUPWISE_TEST_SECRET}" in page
    assert "hunter2" not in page


def test_the_policy_forbids_scripts_and_every_load(tmp_path):
    found = Skeleton(write_report(write_run(tmp_path / "run")).read_text(encoding="utf-8"))
    assert POLICY == "default-src 'none'; style-src 'unsafe-inline'"
    assert ("meta", "content", POLICY) in found.attributes
    # It binds what comes after it: nothing but the declaration of the encoding may stand before.
    tags = [event[0] for event in found.events]
    assert tags[:5] == ["declaration", "html", "head", "meta", "meta"]
    assert "url(" not in found.text
    assert "@import" not in found.text


def test_a_long_text_is_cut_with_a_count():
    assert shortened("abcdef", 6) == "abcdef"
    # Of six characters two thirds are the beginning, one third is the end.
    assert shortened("abcdefghij", 6) == "abcd\n… 4 characters left out …\nij"
