"""Write the tables of settings and of verl's names in docs/ from the code itself.

    python scripts/write_settings.py

Names, defaults and meanings come from `groupwise.config`, ranges from `groupwise.checks`, verl's names from
`groupwise.verl_names`. What stands outside the marked parts of a page is written by hand. A test compares.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

from groupwise.checks import RULES
from groupwise.config import FilterGroupsConfig, RunConfig, Section
from groupwise.verl_names import NAMES, PASSED_OVER

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [DOCS / "configuration.md", DOCS / "coming-from-verl.md"]
_MARKED = re.compile(r"(<!-- written by scripts/write_settings.py: (\w+) -->\n).*?(<!-- end -->)", re.S)


def meanings(section: type[Section]) -> dict[str, str]:
    """The text under each field, in one line."""
    body = ast.parse(inspect.getsource(section)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, after in pairwise(body.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            found[field.target.id] = " ".join(ast.literal_eval(after.value).split())
    return found


def settings(section: Section, prefix: str) -> Iterator[tuple[str, Any, str]]:
    """(key, default, meaning) of a section and of the sections in it."""
    texts = meanings(type(section))
    for name, value in section.items():
        inner = FilterGroupsConfig() if name == "filter_groups" else value
        if isinstance(inner, Section):
            yield from settings(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, value, texts[name]


def table(section: Section, prefix: str) -> Iterator[str]:
    yield "| key | default | allowed | meaning |"
    yield "|---|---|---|---|"
    for key, default, meaning in settings(section, prefix):
        shown = "" if default is None else f"`{as_written(default)}`"
        yield f"| `{key}` | {shown} | {allowed(key)} | {meaning} |".replace("  ", " ")


def allowed(key: str) -> str:
    """The short form of a rule: `must be 2 or more: an answer is ...` -> `2 or more`."""
    return re.split("[:;]", RULES[key][1].rpartition("must be ")[2])[0] if key in RULES else ""


def as_written(value: Any) -> str:
    """As one writes it on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(str, value))}]"
    return str(dict(value)) if isinstance(value, dict) else str(value)


def all_settings() -> str:
    lines = []
    for name, section in RunConfig().items():
        lines += [f"## {name}", "", inspect.getdoc(type(section)) or "", "", *table(section, f"{name}."), ""]
    return "\n".join(lines)


def verl_names() -> str:
    """verl's names and ours, where they differ; a name that ends in a dot stands for all that begin with it."""
    lines = ["| verl | here |", "|---|---|"]
    for theirs, ours in NAMES.items():
        rest = "*" if theirs.endswith(".") else ""
        lines.append(f"| `{theirs}{rest}` | `{ours}{rest}` |")
    return "\n".join([*lines, ""])


def passed_over() -> str:
    """verl's names that decide nothing here, by the reason."""
    lines = []
    for reason in dict.fromkeys(PASSED_OVER.values()):
        names = [f"`{name}{'*' * name.endswith('.')}`" for name, why in PASSED_OVER.items() if why == reason]
        item = f"- Because {reason}: {', '.join(names)}."
        lines += wrap(item, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join([*lines, ""])


def render(page: str) -> str:
    parts = {"settings": all_settings, "names": verl_names, "passed_over": passed_over}
    return _MARKED.sub(lambda found: f"{found[1]}\n{parts[found[2]]()}\n{found[3]}", page)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")
