"""The tables of the results are those of the committed records."""

from pathlib import Path

from benchmarks.conversions import MODELS, OPS, recorded, tables

ROOT = Path(__file__).resolve().parents[3]


def test_the_results_have_the_tables_of_the_records():
    page = (ROOT / "docs" / "results" / "converters.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- trial -->\n")[2].partition("<!-- end -->")[0]
    assert shown.strip() == tables(recorded()).strip()


def test_a_record_has_a_row_for_each_program_and_what_it_was_made_with():
    for record in recorded().values():
        assert [row["name"] for row in record["rows"]] == [*OPS, *MODELS]
        assert all(record[key] for key in ("version", "torch", "date", "command"))
