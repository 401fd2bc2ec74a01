"""Tables as text, Markdown and HTML."""

from decomp.tables import Table

TABLE = Table(("op", ">calls", "why"), [("aten.gelu", 12, "a | b"), ("aten.erf", 3, ""), ("aten.exp", 1, "c")], 2)


def test_as_text_columns_are_aligned_and_rows_that_are_not_shown_are_counted():
    assert [*TABLE.lines("  ")] == [
        "  op         calls  why",
        "  aten.gelu     12  a | b",
        "  aten.erf       3",
        "  and 1 more",
    ]


def test_as_markdown_no_cell_ends_its_column():
    assert [*TABLE.markdown()] == [
        "| op | calls | why |",
        "|---|--:|---|",
        "| aten.gelu | 12 | a / b |",
        "| aten.erf | 3 |  |",
        "",
        "and 1 more",
    ]


def test_as_html_rows_that_are_not_shown_are_counted():
    assert TABLE.html().count("<tr>") == 3 and TABLE.html().endswith("</table><p>and 1 more</p>")


def test_without_rows_there_is_no_text_and_no_html():
    empty = Table(("op", ">calls"), [])
    assert [*empty.lines()] == [] and empty.html() == "" and [*empty.markdown()] == ["| op | calls |", "|---|--:|"]
