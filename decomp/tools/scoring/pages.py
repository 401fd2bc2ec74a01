"""A score as a page and as a badge, each one file that loads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from decomp.page.frame import document
from decomp.tables import Table
from decomp.tools.proving.records import some_of
from decomp.tools.scoring.records import NUMERIC, STRUCTURAL, Figure, Lack, ScoreHalf, TargetScore

FEW = 20
"""The most rows of a table of what is missing."""
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 56rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2rem; } h3 { font-size: 1.05rem; }
table { border-collapse: collapse; } td, th { padding: .25rem .8rem; text-align: left; border-bottom: 1px solid #8884;
vertical-align: top; }
"""


def summary_table(half: ScoreHalf) -> Table:
    """One row a figure."""
    rows = [(each.unit, f"{each.reached:,} of {each.total:,}", f"{100 * each.share:.1f}%") for each in tried(half)]
    return Table(("figure", ">reached", ">share"), rows)


def tried(half: ScoreHalf) -> list[Figure]:
    """The figures of a half that count."""
    return [each for each in half.figures if each.total]


def lacks_table(figure: Figure, most: int | None = FEW, verb: str = "add") -> Table:
    """What is not reached of a figure."""
    rows = [(added(each), f"{each.gain:,}", some_of(each.of)) for each in figure.lacks]
    return Table((verb, ">gain", "for"), rows, most)


def added(lack: Lack) -> str:
    """The ops to add or to mend, in words: `sin (crashes)`."""
    named = ", ".join(op.removeprefix("aten.") for op in lack.add)
    why = f" ({lack.why})" if lack.why else ""
    return f"{named}{why}" if named else f"(no op is known to be enough{': ' * bool(lack.why)}{lack.why})"


VERBS = {STRUCTURAL: "add", NUMERIC: "mend"}
"""By half: what is done about what is missing."""
TITLES = {STRUCTURAL: "what is missing", NUMERIC: "what is wrong"}


def page_of(score: TargetScore) -> str:
    """The score as an HTML page."""
    return document(score.headline, _STYLE, "\n".join(_parts(score)))


def _parts(score: TargetScore) -> Iterator[str]:
    yield f"<h1>{escape(score.headline)}</h1>"
    yield f"<p>{escape(versions_of(score))}</p>"
    for name, half in score.halves.items():
        yield f"<h2>{escape(name.capitalize())}: {half.value:.1f} of 100</h2><p>{escape(BASES[name])}</p>"
        yield str(summary_table(half).html())
        yield f"<p>{escape(counted(name, half))}</p>"
        for figure in half.figures:
            if figure.lacks:
                title = escape(f"{TITLES[name]}: {figure.unit}".capitalize())
                yield f"<h3>{title}</h3>{lacks_table(figure, verb=VERBS[name]).html()}"
            yield from (f"<p>{escape(line)}</p>" for line in left_out(figure))


BASES = {
    STRUCTURAL: "The mean of the shares below; no hardware takes part.",
    NUMERIC: "The mean of the shares below; each is of what the backend computed, compared with PyTorch and float64.",
}
"""By half: what it is."""


def counted(name: str, half: ScoreHalf) -> str:
    """`Sample calls: 12 legal, 3 blocked.`"""
    what = "Sample calls" if name == STRUCTURAL else "Primitives, ops and models"
    return f"{what}: {', '.join(f'{count:,} {verdict}' for verdict, count in half.counts.items())}."


def left_out(figure: Figure) -> Iterator[str]:
    """What is not counted, and why."""
    if not figure.total:
        yield f"Not tried: {figure.unit}: {figure.note or 'there are none'}."
    elif figure.untried:
        why = figure.note or "there is no sample call"
        yield f"Not counted, as {why}: {some_of(figure.untried, 40)}."


def versions_of(score: TargetScore) -> str:
    """`torch 2.13.0, decomp 0.2.0.`"""
    return f"{', '.join(f'{name} {version}' for name, version in score.versions.items())}."


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
    """The score as an SVG badge: `decomp tinygrad | 98.3`, and with a numeric half `decomp chip | 98.3 / 91.0`."""
    values = {name: f"{half.value:.1f}" for name, half in score.halves.items()}
    label, value = f"decomp {score.target}", " / ".join(values.values())
    left, right = (round(7 * len(each) + 12) for each in (label, value))
    said = ", ".join(f"{each} of 100 {name}" for name, each in values.items())
    worst = min(half.value for half in score.halves.values())
    return _BADGE.format(
        width=left + right,
        left=left,
        inner=right - 3,
        middle=left // 2,
        centre=left + right // 2,
        label=escape(label),
        value=value,
        text=escape(f"{label}: {said}"),
        colour=next(colour for least, colour in _COLOURS if worst >= least),
    )
