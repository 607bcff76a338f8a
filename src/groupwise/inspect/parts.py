"""The pieces that sections are made of."""

from __future__ import annotations

from collections.abc import Iterator

from groupwise.inspect.html import Html, element


def section(title: str, lead: str, *children: Html) -> Html:
    return element("section", element("h2", title), element("p", lead, class_="lead"), *children)


def table(head: Html, body: Iterator[Html], class_: str) -> Html:
    whole = element("table", element("thead", head), element("tbody", body), class_=class_)
    return element("div", whole, class_="scroll")


def head_cell(text: str) -> Html:
    return element("th", text, class_="n")


def cell(text: str) -> Html:
    return element("td", text, class_="n")
