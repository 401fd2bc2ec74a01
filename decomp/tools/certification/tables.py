"""Certificates on the command line: one in full, many as a summary, and a column in the table of rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.text import Text

from decomp.rules.certificate import AS_EAGER, Certificate, Implementation
from decomp.rules.certificate_text import circumstances, examples, notes, table, verdict
from decomp.tables import Table
from decomp.tools.certification.fronts import Front
from decomp.tools.open_table import OpenTable

SHOWN = 40
"""How many rules with faults a summary lists."""


def certificate_table(certificate: Certificate) -> RenderableType:
    """One certificate: its circumstances, and a table for each implementation."""
    colour = "green" if certificate.ok else "red"
    parts: list[RenderableType] = [Text.assemble((certificate.rule, "bold"), ": ", (verdict(certificate), colour))]
    if certificate.error:
        return Group(*parts, Text(f"  {certificate.error}", style="red"))
    parts.append(Text(f"  on {circumstances(certificate)}", style="dim"))
    alike: dict[str, list[str]] = {}
    for dtype, how in certificate.reference.items():
        alike.setdefault(how, []).append(dtype)
    parts += [Text(f"  {', '.join(dtypes)} against {how}", style="dim") for how, dtypes in alike.items()]
    for way in certificate.ways:
        parts += ["", *_way(way)]
    return Group(*parts)


def _way(way: Implementation) -> list[RenderableType]:
    title = Text(way.title, style="cyan")
    if way.verdict != "measured":
        reason = f": {way.reason}" if way.reason else ""
        return [Text.assemble(title, f"  {way.verdict}{reason}")]
    parts: list[RenderableType] = [title]
    found = table(way)
    if found.rows:
        rows = [(*cells, Text(wrong.replace("none", ""), style="red")) for *cells, wrong in found.rows]
        parts.append(OpenTable(replace(found, rows=rows)))
    parts += [Text(f"  {what}: {how}") for what, how in notes(way)]
    parts += [Text(f"  {name} in {dtype}: {one}", style="red") for name, dtype, one in examples(way)]
    return parts


def summary(certificates: Sequence[Certificate], news: Mapping[str, Sequence[str]]) -> RenderableType:
    """How many rules have no fault, by implementation; regressions against committed certificates, or other faults."""
    names = ("way", ">measured", ">without a fault", ">legal", ">not reached", ">not served", ">compiled as eager")
    rows = []
    ways = dict.fromkeys(way.title for one in certificates for way in one.ways)
    for name in ways:
        own = [way for one in certificates for way in one.ways if way.title == name]
        measured = [way for way in own if way.verdict == "measured"]
        good = sum(not way.faults for way in measured)
        counts = [len(measured), good] + [sum(way.verdict == v for way in own) for v in _OTHER]
        compiled = [way for way in measured if way.is_compiled]
        as_eager = sum(all(said == AS_EAGER for said in way.compiled.values()) for way in compiled)
        rows.append((name, *counts, f"{as_eager} of {len(compiled)}" if compiled else ""))
    faulty = [one for one in certificates if not one.ok]
    good = len(certificates) - len(faulty)
    title = Text(f"{len(certificates)} rules, {good} without a fault", style="bold")
    parts: list[RenderableType] = [title, "", OpenTable(Table(names, rows))]
    if faulty:
        parts += ["", *(Text.assemble((one.rule, "red"), f": {_in_short(one)}") for one in faulty[:SHOWN])]
        parts += [f"and {len(faulty) - SHOWN} more with faults"] if len(faulty) > SHOWN else []
        parts += [Text("decomp certify NAME, with the name of a rule, shows all its faults", style="dim")]
    for rule, worse in list(news.items())[:SHOWN]:
        parts += [
            "",
            Text.assemble((rule, "red"), " is worse than committed"),
            *(Text(f"  {line}") for line in worse),
        ]
    return Group(*parts)


def _in_short(certificate: Certificate) -> str:
    first, *others = certificate.faults
    return f"{first} (and {len(others)} more)" if others else first


_OTHER = ("legal", "not reached", "not served")


def front_table(front: Front) -> RenderableType:
    """The alternatives for an op on a target by error and calls, and which of them others beat."""
    title = Text(f"{front.op} on {front.target}: {len(front.best)} of {len(front.choices)} rules are worth using")
    columns = ("rule", "level", ">ULP", ">PyTorch", ">calls", ">flops", ">bytes", "beaten by")
    rows = []
    for choice in front.choices:
        beaten = front.beaten_by(choice)
        own = "is the reference" if choice.own is None else f"{choice.own:.3g}"
        costs = [f"{choice.cost[name]:,g}" if name in choice.cost else "" for name in ("calls", "flops", "bytes")]
        cells = (choice.rule, choice.level, f"{choice.ulp:.3g}", own, *costs, str(beaten or ""))
        rows.append([Text(cell, style="dim" if beaten else "") for cell in cells])
    return Group(title, "", OpenTable(Table(columns, rows)))


def in_brief(certificate: Certificate | None) -> tuple[str, str]:
    """The largest error in float32 of the rule and of PyTorch, and the rule's faults."""
    if certificate is None:
        return "", ""
    way = certificate.way("as written")
    figures = way.values.get("float32") if way is not None else None
    own = f" / {figures.own_max:.2g}" if figures is not None and figures.own_max is not None else ""
    error = f"{figures.max:.2g}{own}" if figures is not None else ""
    return error, "" if certificate.ok else verdict(certificate) if not certificate.error else certificate.error
