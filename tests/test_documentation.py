"""Documents name what is there: paths of the tree, and pages that they link to."""

from pathlib import Path
import re

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_of_a_page_exist(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    if page.name != "CHANGELOG.md":  # which names what was there
        named = re.findall(r"`((?:decomp|decomp_rules|tests|benchmarks|docs)/[\w./-]*)`", text)
        assert [path for path in named if not (ROOT / path).exists()] == []
