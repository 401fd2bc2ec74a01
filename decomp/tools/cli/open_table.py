"""A table that is readable at any width: if its last column does not fit next to the others, it is printed below each
row; other cells that do not fit end in an ellipsis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule as Line
from rich.table import Table
from rich.text import Text

_ROOM = 32
"""The least width of a column of text, if it needs that much."""
_LEAST = 6
"""The least width of any column."""
_GAP = 3
"""The space between columns."""


class OpenTable(Table):
    """A table without a frame. The last column takes the remaining width."""

    def __init__(self, *columns: str, right: Sequence[bool]) -> None:
        """`right`: for each column, whether it is aligned to the right, as numbers are."""
        super().__init__(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for i, name in enumerate(columns):
            last = i == len(columns) - 1
            self.add_column(
                name, justify="right" if right[i] else "left", overflow="fold" if last else "ellipsis", no_wrap=not last
            )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = [[*map(_as_text, (column.header, *column.cells))] for column in self.columns]
        widths = [max(cell.cell_len for cell in column) for column in cells]
        aside = self.columns[-1].justify != "right" and len(widths) > 1
        if sum(widths[:-1]) + _GAP * (len(widths) - 1) + min(widths[-1], _ROOM) <= options.max_width:
            yield from super().__rich_console__(console, options)
        else:
            kept = widths[:-1] if aside else widths
            yield from self._lines(cells, _fitted(kept, options.max_width - _GAP * (len(kept) - 1)))

    def _lines(self, cells: Sequence[Sequence[Text]], widths: Sequence[int]) -> Iterator[RenderableType]:
        """Each row in columns of these widths; further cells are printed below it."""
        for i, row in enumerate(zip(*cells)):
            yield self._line(row, widths)
            yield from (Padding(cell, (0, 0, 0, 4)) for cell in row[len(widths) :] if cell.plain)
            if not i:
                yield Line(style="")

    def _line(self, row: Sequence[Text], widths: Sequence[int]) -> Text:
        found = []
        for cell, width, column in zip(row, widths, self.columns):
            fitted = cell.copy()
            fitted.truncate(width, overflow="ellipsis")
            fitted.align("right" if column.justify == "right" else "left", width)
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


def _as_text(cell: RenderableType) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))
