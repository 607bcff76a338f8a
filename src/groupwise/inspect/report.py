"""report.html: one file about one run, readable from disk, without a network and without a script."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from groupwise.inspect import page, page_answers
from groupwise.inspect.answers import count_endings, evenly, read_rollout
from groupwise.inspect.html import document, element, style_sheet
from groupwise.inspect.run import read_run

# Should anything ever get past the escaping, the browser still runs and loads nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
ROLLOUTS_SHOWN = 3
GROUPS_SHOWN = 2


def write_report(run_dir: Path) -> Path:
    """Writes `report.html` into the run's folder, whole or not at all, and says where it is.

    What is missing in the folder is missing in the report; what is damaged is named in it.
    """
    target = run_dir / "report.html"
    text = render(run_dir)
    temporary = run_dir / f".report.html.{os.getpid()}"
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def render(run_dir: Path) -> str:
    run = read_run(run_dir)
    notes = list(run.notes)
    rollouts = [read_rollout(path, GROUPS_SHOWN, notes) for path in evenly(run.rollouts, ROLLOUTS_SHOWN)]
    endings = count_endings(run.rollouts, notes)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{run.name} · Groupwise"),
        style_sheet(files(__package__).joinpath("report.css").read_text(encoding="utf-8")),
    )
    body = element(
        "main",
        page.header(run),
        page.notes(notes),
        page.curves(run),
        page.evaluations(run),
        page_answers.answers(rollouts),
        page_answers.endings(endings),
        page.times(run),
        page.settings(run),
    )
    return document(head, element("body", body))
