"""A score as a page and as a badge, each one file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from decomp.tables import Table
from decomp.tools.page.frame import document
from decomp.tools.proving.records import some_of
from decomp.tools.scoring.score import Figure, Lack, TargetScore

FEW = 20
"""The most rows of a table of what is missing."""
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 56rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .25rem .8rem; text-align: left; border-bottom: 1px solid #8884;
vertical-align: top; }
"""


def summary_table(score: TargetScore) -> Table:
    """One row a figure."""
    rows = [(each.unit, f"{each.reached:,} of {each.total:,}", f"{100 * each.share:.1f}%") for each in score.figures]
    return Table(("figure", ">reached", ">share"), rows)


def lacks_table(figure: Figure, most: int | None = FEW) -> Table:
    """What is not reached of a figure."""
    rows = [(added(each), f"{each.gain:,}", some_of(each.of)) for each in figure.lacks]
    return Table(("add", ">gain", "for"), rows, most)


def added(lack: Lack) -> str:
    """The ops to add, in words."""
    return ", ".join(op.removeprefix("aten.") for op in lack.add) or "(no op is known to be enough)"


def page_of(score: TargetScore) -> str:
    """The score as an HTML page."""
    return document(score.headline, _STYLE, "\n".join(_parts(score)))


def _parts(score: TargetScore) -> Iterator[str]:
    yield f"<h1>{escape(score.headline)}</h1>"
    yield f"<p>{escape(basis(score))}</p>"
    yield str(summary_table(score).html())
    counts = ", ".join(f"{count:,} {verdict}" for verdict, count in score.derivation.items())
    yield f"<p>Sample calls: {escape(counts)}.</p>"
    for figure in score.figures:
        if figure.lacks:
            yield f"<h2>What is missing: {escape(figure.unit)}</h2>{lacks_table(figure).html()}"
        if figure.untried:
            yield f"<p>Not counted, as there is no sample call: {escape(', '.join(figure.untried))}.</p>"


def basis(score: TargetScore) -> str:
    """What the score is, in one sentence."""
    versions = f"torch {score.versions.get('torch', '?')}, decomp {score.versions.get('decomp', '?')}"
    return f"The mean of the shares below; no hardware takes part. {versions}."


_BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{text}">
<title>{text}</title>
<rect width="{width}" height="20" rx="3" fill="#444"/>
<path d="M{left} 0h{inner}a3 3 0 0 1 3 3v14a3 3 0 0 1 -3 3h-{inner}z" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{middle}" y="14">{label}</text><text x="{centre}" y="14">{value}</text></g>
</svg>
"""
_COLOURS = ((95, "#2a7d2a"), (80, "#6b7d1a"), (50, "#a86a00"), (0, "#b3362b"))
"""From so many points on; white text on each has a contrast of more than 4.5."""


def badge_of(score: TargetScore) -> str:
    """The score as an SVG badge: `decomp tinygrad | 98.3`."""
    label, value = f"decomp {score.target}", f"{score.value:.1f}"
    left, right = (round(7 * len(each) + 12) for each in (label, value))
    return _BADGE.format(
        width=left + right,
        left=left,
        inner=right - 3,
        middle=left // 2,
        centre=left + right // 2,
        label=escape(label),
        value=value,
        text=escape(f"{label}: {value} of 100"),
        colour=next(colour for least, colour in _COLOURS if score.value >= least),
    )
