"""Tables are read at any width: nothing is lost, and what is cut ends in an ellipsis."""

import io

from rich.console import Console
from rich.text import Text

from decomp.tables import Table
from decomp.tools.cli.tables import indented
from decomp.tools.cli.terminal import show
from decomp.tools.open_table import OpenTable

WORDS = "each of which is to be read, at whatever width a terminal has"


def shown(width, *rows, columns=("op", ">calls", "why")):
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(OpenTable(Table(columns, rows)))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_where_there_is_room_a_row_is_a_line():
    head, _, row = shown(90, ("aten.gelu", "12", WORDS))
    assert head.split() == ["op", "calls", "why"] and row.endswith(WORDS)


def test_without_room_the_last_column_goes_below():
    head, why, line, row, *below = shown(40, ("aten.gelu", "12", WORDS), ("aten.erf", "3", ""))
    assert (head, why) == ("op          calls", "    why") and set(line) == {"─"}
    assert row == "aten.gelu      12" and below[-1] == "aten.erf        3"
    assert " ".join(part.strip() for part in below[:-1]) == WORDS
    assert all(each.startswith("    ") for each in below[:-1])


def test_titles_are_wrapped_before_anything_is_cut():
    first, second, line, row = shown(30, ("aten.gelu", "12", "3"), columns=("op", ">without a fault", ">not reached"))
    assert first.split() == ["without", "not"] and second.split() == ["op", "a", "fault", "reached"]
    assert row.split() == ["aten.gelu", "12", "3"] and max(map(len, (first, second, line, row))) <= 30


def test_what_is_cut_ends_in_an_ellipsis():
    lines = shown(30, ("aten._a_name_that_is_longer_than_that", "7", WORDS))
    assert "aten._a_name_that_is_…" in lines[3] and lines[3].endswith("7") and max(map(len, lines)) <= 30
    numbers = shown(20, ("aten._a_name_that_is_longer", "7"), columns=("op", ">calls"))
    assert "…" in numbers[-1] and numbers[-1].endswith("7")


def test_a_pipe_is_as_wide_as_it_is_said_to_be(monkeypatch, capsys):
    for columns, width in (("50", 50), ("", 160), ("wide", 160)):
        monkeypatch.setenv("COLUMNS", columns)
        show(Text("word " * 60))
        longest = max(map(len, capsys.readouterr().out.splitlines()))
        assert width - 6 < longest <= width


def test_what_is_indented_stays_so_where_it_is_wrapped(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    show(indented("    tried " + "word " * 20))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2 and all(line.startswith("    ") and line[4] != " " for line in lines)
    assert max(map(len, lines)) <= 40
