"""Small pieces of HTML: tables for notebooks and pages, in which every text is escaped. No styles, scripts or links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def markup(value: Any) -> str:
    """A value as HTML: texts are escaped, `Markup` is left as it is."""
    return value if isinstance(value, Markup) else escape(str(value))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markup:
    """A table with a head; empty without rows."""
    rows = list(rows)
    if not rows:
        return Markup()
    head = "".join(f"<th>{markup(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{markup(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    return Markup(f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>")


def folded(summary: str, *parts: Any) -> Markup:
    """Parts that are shown when the summary is pressed."""
    return Markup(f"<details><summary>{markup(summary)}</summary>{''.join(map(markup, parts))}</details>")


def titled(headline: str, *parts: Any) -> str:
    """What a notebook shows of a value: a headline, and the parts below it."""
    return "\n".join([f"<p><b>{markup(headline)}</b></p>", *(paragraph(part) for part in parts if part)])


def paragraph(part: Any) -> str:
    """A part as it is if it is HTML; otherwise a paragraph."""
    return part if isinstance(part, Markup) else f"<p>{escape(str(part))}</p>"
