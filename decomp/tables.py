"""Tables as values, and what they are shown as: aligned text, Markdown, and HTML for notebooks and pages (where every
text is escaped, and there are no styles, scripts or links). `decomp.tools.open_table` shows them in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True)
class Table:
    """Rows of cells under titles."""

    columns: Sequence[str]
    """The titles, with units. A ">" before a title aligns its column to the right, as numbers are."""
    rows: Sequence[Sequence[Any]]
    most: int | None = None
    """How many rows are shown; the others are counted."""

    @property
    def titles(self) -> list[str]:
        """The titles as they are shown."""
        return [name.removeprefix(">") for name in self.columns]

    @property
    def right(self) -> list[bool]:
        """Which columns are aligned to the right."""
        return [name.startswith(">") for name in self.columns]

    @property
    def shown(self) -> Sequence[Sequence[Any]]:
        """The rows that are shown."""
        return self.rows[: self.most]

    @property
    def more(self) -> list[str]:
        """`and 3 more`, if there are more rows than are shown."""
        left = len(self.rows) - len(self.shown)
        return [f"and {left} more"] if left else []

    def lines(self, indent: str = "") -> Iterator[str]:
        """As aligned text; nothing without rows."""
        if self.rows:
            rows = [self.titles, *([*map(str, row)] for row in self.shown)]
            widths = [max(map(len, column)) for column in zip(*rows)]
            for row in rows:
                cells = (c.rjust(w) if right else c.ljust(w) for c, w, right in zip(row, widths, self.right))
                yield (indent + "  ".join(cells)).rstrip()
            yield from (indent + line for line in self.more)

    def markdown(self) -> Iterator[str]:
        """As the lines of a Markdown table."""
        yield _markdown_row(self.titles)
        yield f"|{'|'.join('--:' if right else '---' for right in self.right)}|"
        yield from map(_markdown_row, self.shown)
        yield from ("", *self.more) if self.more else ()

    def html(self) -> Markup:
        """As HTML; empty without rows."""
        if not self.rows:
            return Markup()
        head = "".join(f"<th>{markup(title)}</th>" for title in self.titles)
        body = "".join(f"<tr>{''.join(f'<td>{markup(cell)}</td>' for cell in row)}</tr>\n" for row in self.shown)
        whole = f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"
        return Markup(whole + "".join(map(paragraph, self.more)))


def _markdown_row(cells: Iterable[Any]) -> str:
    # A vertical bar would begin a new cell.
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def markup(value: Any) -> str:
    """A value as HTML: texts are escaped, `Markup` is left as it is."""
    return value if isinstance(value, Markup) else escape(str(value))


def folded(summary: str, *parts: Any) -> Markup:
    """Parts that are shown when the summary is pressed."""
    return Markup(f"<details><summary>{markup(summary)}</summary>{''.join(map(markup, parts))}</details>")


def titled(headline: str, *parts: Any) -> str:
    """What a notebook shows of a value: a headline, and the parts below it."""
    return "\n".join([f"<p><b>{markup(headline)}</b></p>", *(paragraph(part) for part in parts if part)])


def paragraph(part: Any) -> str:
    """A part as it is if it is HTML; otherwise a paragraph."""
    return part if isinstance(part, Markup) else f"<p>{escape(str(part))}</p>"
