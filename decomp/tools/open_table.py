"""A table in a terminal, readable at any width. Where it does not fit, titles are wrapped; then its last column is
printed below each row, and other cells end in an ellipsis. A cell may be a `rich.text.Text`, which has a style."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import textwrap

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule as Line
from rich.table import Table as Frame
from rich.text import Text

from decomp.tables import Table

_ROOM = 32
"""The least width of a column of text, if it needs that much."""
_LEAST = 6
"""The least width of any column."""
_GAP = 3
"""The space between columns."""
_BELOW = (0, 0, 0, 4)
"""The padding of a cell below its row."""


class OpenTable:
    """A table without a frame. The last column takes the remaining width."""

    def __init__(self, table: Table) -> None:
        self.table, self.right = table, table.right
        self.rows = [[_as_text(cell) for cell in row] for row in table.shown]
        self.widths = [max([cell.cell_len for cell in column], default=0) for column in zip(*self.rows)]
        self.widths = self.widths or [0] * len(table.columns)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        titles = self.table.titles
        for head in (titles, [_narrowed(title, width) for title, width in zip(titles, self.widths)]):
            widths = [max(width, *map(len, title.split("\n"))) for title, width in zip(head, self.widths)]
            if sum(widths[:-1]) + _GAP * (len(widths) - 1) + min(widths[-1], _ROOM) <= options.max_width:
                yield self._framed(head)
                break
        else:
            aside = not self.right[-1] and len(widths) > 1
            kept = widths[:-1] if aside else widths
            yield from self._lines(head, _fitted(kept, options.max_width - _GAP * (len(kept) - 1)))
        yield from self.table.more

    def _framed(self, titles: Sequence[str]) -> Frame:
        frame = Frame(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        last = len(self.right) - 1
        for i, (title, right) in enumerate(zip(titles, self.right)):
            frame.add_column(
                Text(title),
                justify="right" if right else "left",
                overflow="fold" if i == last else "ellipsis",
                no_wrap=i != last,
                vertical="bottom",
            )
        for row in self.rows:
            frame.add_row(*row)
        return frame

    def _lines(self, titles: Sequence[str], widths: Sequence[int]) -> Iterator[RenderableType]:
        """Each row in columns of these widths; further cells are printed below it."""
        heads = [title.split("\n") for title in titles]
        for i in range(height := max(map(len, heads[: len(widths)]))):
            yield self._line([Text(([""] * (height - len(head)) + head)[i]) for head in heads], widths)
        yield from (Padding(Text(title.replace("\n", " ")), _BELOW) for title in titles[len(widths) :] if title)
        yield Line(style="")
        for row in self.rows:
            yield self._line(row, widths)
            yield from (Padding(cell, _BELOW) for cell in row[len(widths) :] if cell.plain)

    def _line(self, row: Sequence[Text], widths: Sequence[int]) -> Text:
        found = []
        for cell, width, right in zip(row, widths, self.right):
            fitted = cell.copy()
            fitted.truncate(width, overflow="ellipsis")
            fitted.align("right" if right else "left", width)
            found.append(fitted)
        line = Text(" " * _GAP, no_wrap=True).join(found)
        line.rstrip()
        return line


def _fitted(widths: Sequence[int], room: int) -> list[int]:
    """The widths of columns with this total width: the widest columns are narrowed first."""
    found = list(widths)
    while sum(found) > room and max(found) > _LEAST:
        found[found.index(max(found))] -= 1
    return found


def _narrowed(title: str, width: int) -> str:
    """A title on several lines, no wider than its column or its longest word."""
    return "\n".join(textwrap.wrap(title, max([width, *map(len, title.split())]), break_long_words=False))


def _as_text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))
