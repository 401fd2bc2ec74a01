"""A certificate as plain text, for `print` and logs; the command line shows the same rows as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from decomp.rules.certificate import Certificate, Figures, Implementation
from decomp.tables import Table, folded, titled

COLUMNS = ("", "dtype", ">rule, max / mean ULP", ">PyTorch, max / mean", "worst at", "wrong")
KINDS = (("value", "values"), ("gradient", "gradients"), ("second", "second"))


def text(certificate: Certificate) -> str:
    """The whole certificate, one line per measurement."""
    return "\n".join(_lines(certificate))


def markup(certificate: Certificate) -> str:
    """The whole certificate, for notebooks: a table per measurement, that of the rule as written first."""
    shown = [folded(way.title, table(way).html(), Table(("", ""), notes(way)).html()) for way in certificate.ways]
    faults = Table(("wrong",), [(fault,) for fault in certificate.faults]).html()
    headline = f"{certificate.rule}: {verdict(certificate)}"
    return titled(headline, f"measured on {circumstances(certificate)}", faults, *shown)


def verdict(certificate: Certificate) -> str:
    """The verdict of the certificate in a few words."""
    count = len(certificate.faults)
    return "nothing wrong" if not count else "1 fault" if count == 1 else f"{count} faults"


def circumstances(certificate: Certificate) -> str:
    """The inputs, version, processor and seed of a certificate."""
    machine = f", {certificate.machine}" if certificate.machine else ""
    return f"{certificate.domain}; torch {certificate.torch}{machine}, seed {certificate.seed}"


def table(way: Implementation) -> Table:
    """One measurement: quantity, dtype, errors of the rule and of PyTorch, worst input, number wrong."""
    return Table(
        COLUMNS,
        [
            (name if i == 0 else "", dtype, *cells(figures))
            for name, attribute in KINDS
            for i, (dtype, figures) in enumerate(getattr(way, attribute).items())
        ],
    )


def cells(figures: Figures) -> tuple[str, str, str, str]:
    """Errors of the rule, errors of PyTorch, the worst input, and how many results are wrong beyond rounding."""
    own = "is the reference" if figures.own_max is None else f"{figures.own_max:.3g} / {figures.own_mean or 0:.3g}"
    wrong = f"{figures.mismatches:,} of {figures.points + figures.mismatches:,}" if figures.mismatches else "none"
    # With an error of 0 every input is the worst one.
    worst = figures.worst if figures.max else ""
    return f"{figures.max:.3g} / {figures.mean:.3g}", own, worst, wrong


def notes(way: Implementation) -> list[tuple[str, str]]:
    """Verdicts on dtypes, strides, dynamic shapes, compiled and flushed programs; equal ones are joined."""
    lines = [(", ".join(dtypes), what) for what, dtypes in _alike(way.dtypes).items()]
    compiled = [(f"compiled, {', '.join(dtypes)}", what) for what, dtypes in _alike(way.compiled).items()]
    compiled += [(f"flushed, {', '.join(dtypes)}", what) for what, dtypes in _alike(way.flushed).items()]
    cost = [("cost", ", ".join(f"{value:,g} {name}" for name, value in way.cost.items()))] if way.cost else []
    return [*lines, *way.notes.items(), *compiled, *cost]


def _alike(verdicts: Mapping[str, str]) -> dict[str, list[str]]:
    """The dtypes of each verdict."""
    found: dict[str, list[str]] = {}
    for dtype, verdict in verdicts.items():
        found.setdefault(verdict, []).append(dtype)
    return found


def _lines(certificate: Certificate) -> Iterator[str]:
    yield f"{certificate.rule}: {verdict(certificate)}"
    if certificate.error:
        yield f"  {certificate.error}"
        return
    yield f"  measured on {circumstances(certificate)}"
    for dtype, how in certificate.reference.items():
        yield f"  {dtype} against {how}"
    for way in certificate.ways:
        yield ""
        yield f"  {way.title}" + (f": {way.verdict}" if way.verdict != "measured" else "")
        if way.reason:
            yield f"    {way.reason}"
        yield from table(way).lines("    ")
        yield from (f"    {what}: {how}" for what, how in notes(way))
        yield from (f"    {name} in {dtype}: {one}" for name, dtype, one in examples(way))


def examples(way: Implementation) -> Iterator[tuple[str, str, str]]:
    """Results that are wrong beyond rounding."""
    for name, attribute in KINDS:
        for dtype, figures in getattr(way, attribute).items():
            yield from ((name, dtype, str(example)) for example in figures.examples)
