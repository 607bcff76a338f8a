"""Write the tables of docs/configuration.md from the settings themselves.

    python scripts/write_settings.py

Names, defaults and meanings come from `groupwise.config`, ranges from `groupwise.checks`, verl's names from
`groupwise.overrides`. What stands outside the marked parts of the page is written by hand. A test compares.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from groupwise.checks import RULES
from groupwise.config import FilterGroupsConfig, RunConfig, Section
from groupwise.overrides import VERL_NAMES

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
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
    for theirs, ours in VERL_NAMES.items():
        rest = "*" if theirs.endswith(".") else ""
        lines.append(f"| `{theirs}{rest}` | `{ours}{rest}` |")
    return "\n".join([*lines, ""])


def render(page: str) -> str:
    parts = {"settings": all_settings, "names": verl_names}
    return _MARKED.sub(lambda found: f"{found[1]}\n{parts[found[2]]()}\n{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
