"""HTML that foreign text cannot get out of.

Everything is built from `element`. A plain str is text: its hidden characters are made visible and it is escaped,
always. Only `Html`, which only this module makes, goes in as it is. So there is no place to forget the escaping.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable

# Joiners shape letters in several scripts and change nothing around them.
_KEPT = "\n\t\u200c\u200d"
_VOID = ("br", "meta")


class Html(str):
    """Finished markup. Whatever is made from it by other means than `element` is an ordinary str again."""

    __slots__ = ()


def element(tag: str, *children: str | Iterable[str], **attributes: str | float) -> Html:
    """`element("p", "a < b", class_="note")`: <p class="note">a &lt; b</p>.

    In the name of an attribute a trailing underscore is dropped and an inner one becomes a hyphen.
    """
    pairs = "".join(f' {_attribute(name)}="{escaped(_plain(value))}"' for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{pairs}>")
    inner = "".join(_markup(child) for child in children)
    return Html(f"<{tag}{pairs}>{inner}</{tag}>")


def style_sheet(css: str) -> Html:
    """Our own CSS, which must not be escaped."""
    return Html(f"<style>\n{css}</style>")


def document(*children: Html) -> str:
    return "<!DOCTYPE html>\n" + element("html", *children, lang="en") + "\n"


def escaped(text: str) -> str:
    return html.escape(visible(text), quote=True)


def visible(text: str) -> str:
    """Characters that hide, reorder text or steer a terminal by their numbers, such as ⟨U+202E⟩."""
    return text if text.isprintable() else "".join(map(_shown, text))


def shortened(text: str, limit: int) -> str:
    """The text, or its beginning and its end (where a conclusion stands) with the number of characters between."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    head = limit - tail
    return f"{text[:head]}\n… {len(text) - limit:,} characters left out …\n{text[len(text) - tail :]}"


def _shown(char: str) -> str:
    if char.isprintable() or char in _KEPT or unicodedata.category(char) == "Zs":
        return char
    return f"⟨U+{ord(char):04X}⟩"


def _markup(child: str | Iterable[str]) -> str:
    if isinstance(child, Html):
        return child
    return escaped(child) if isinstance(child, str) else "".join(_markup(one) for one in child)


def _attribute(name: str) -> str:
    return name.removesuffix("_").replace("_", "-")


def _plain(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
