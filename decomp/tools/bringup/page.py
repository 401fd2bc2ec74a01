"""The report of a bring-up as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from decomp.page.frame import document
from decomp.tables import Markup, Table
from decomp.tools.bringup.report import KINDS, BringUp, count_verdicts, verdict_of
from decomp.tools.bringup.rows import BringUpRow, Problem

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bad: #c22; --good: #282; --dim: #888; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .25rem .6rem; text-align: left;
border-bottom: 1px solid var(--line); vertical-align: top; } td.n, th.n { text-align: right; }
.bad { color: var(--bad); font-weight: 600; } .good { color: var(--good); } .dim { color: var(--dim); }
code, pre { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
details { margin: .2rem 0; } input { font: inherit; padding: .2rem .5rem; width: 20rem; }
"""
_SCRIPT = """
const box = document.querySelector('input');
box.addEventListener('input', () => document.querySelectorAll('tbody tr').forEach(row => {
  row.hidden = !row.textContent.toLowerCase().includes(box.value.toLowerCase());
}));
"""
_TITLES = {"primitive": "Primitives", "op": "Ops of the library, lowered to these primitives", "model": "Models"}


def page_of(report: BringUp) -> str:
    """The whole page."""
    title = f"Bring-up of {report.backend}"
    parts = [f"<h1>{escape(title)}</h1>", f'<p class="{"good" if report.ok else "bad"}">{escape(report.headline)}</p>']
    form = "quick form, " if report.quick else ""
    facts = f"target {report.target}, {form}PyTorch {report.torch}, {report.seconds:.0f} s"
    parts.append(
        f'<p class="dim">{escape(facts)}. ULP: units in the last place of the exact result, beside '
        "PyTorch's own error.</p>"
    )
    if report.culprits:
        rows = [(Markup(f"<code>{escape(name)}</code>"), count) for name, count in report.culprits.items()]
        columns = ("primitive", "ops and models that are wrong because of it")
        parts += ["<h2>What is to blame</h2>", Table(columns, rows).html()]
    parts.append('<p><input placeholder="filter rows" aria-label="filter rows"></p>')
    for kind in KINDS:
        if report.of(kind):
            parts += [f"<h2>{_TITLES[kind]}</h2>", _summary(report.of(kind)), _of_kind(report.of(kind))]
    return document(title, _STYLE, "\n".join(parts), (_SCRIPT,))


def _summary(rows: Sequence[BringUpRow]) -> str:
    said = ", ".join(f"{count} {verdict}" for verdict, count in count_verdicts(rows).items())
    return f'<p class="dim">{escape(said)}</p>'


def _of_kind(rows: Iterable[BringUpRow]) -> str:
    ordered = sorted(rows, key=lambda row: (*row.gravity, row.name))
    columns = ("name", "verdict", "cases", "ULP / PyTorch", "what is wrong")
    return Table(columns, [_cells(row) for row in ordered]).html()


def _cells(row: BringUpRow) -> tuple[Markup, ...]:
    colour = "bad" if not row.fine else "good" if row.verdict in ("right", "by design") else "dim"
    errors = "<br>".join(
        f"{escape(dtype)} {ulp:.3g} / {'–' if own is None else f'{own:.3g}'}" for dtype, (ulp, own) in row.ulp.items()
    )
    details = "".join(_details(problem) for problem in row.problems)
    notes = (*(f"by design: {reason}" for reason in row.by_design), *row.notes)
    details += "".join(f'<div class="dim">{escape(note)}</div>' for note in notes)
    name = row.name.removeprefix("aten.")
    verdict = f'<span class="{colour}">{escape(verdict_of(row))}</span>'
    return tuple(map(Markup, (f"<code>{escape(name)}</code>", verdict, str(row.cases), errors, details)))


def _details(problem: Problem) -> str:
    said = f"{problem.got} instead of {problem.expected} at {problem.at}" if problem.at else ""
    facts = {"call": problem.call, "values": said, "node": problem.node, "source": problem.source}
    lines = "\n".join(f"{name}: {text}" for name, text in facts.items() if text)
    head = f"{problem.where}: {problem.problem}"
    return f"<details><summary>{escape(head)}</summary><pre>{escape(lines)}</pre></details>"
