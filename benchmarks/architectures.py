"""Architectures at small sizes in front of converters: as exported, after PyTorch's own `run_decompositions()`, and
lowered by `decomp` to the target of the converter.

    python -m benchmarks.architectures openvino [--every N] [NAME ...]
    python -m benchmarks.architectures --table

The first converts what has no row yet in `benchmarks/results/architectures.json`, so that it goes on where it was
stopped, and writes each row as it is found; with `--every N`, these are the first architecture and each N-th after it.
With names, it converts these again, several times each, and the least time counts. Both write the page
`docs/results/architectures.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import importlib
from pathlib import Path
import sys
from typing import Any

import torch

from benchmarks import small_architectures
from benchmarks.conversion_trials import (
    CONVERTED,
    CRASHES,
    RANDOM,
    REFUSED,
    RIGHT,
    WRONG,
    Row,
    counts,
    record,
    recorded,
    tried,
)
from decomp.errors import count_noun
from decomp.files import write_atomically
from decomp.tables import Table
from decomp_rules import converters

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "architectures.json"
PAGE = ROOT / "docs" / "results" / "architectures.md"
TIMEOUT = 240.0
TIMED = 3
"""How many conversions of an architecture are timed that is named."""
SLOWER = 1.1
"""A conversion is slower where it takes this many times the seconds of the program as exported."""


def measure(converter: str, names: Sequence[str], step: int = 1) -> None:
    """Write the rows of these architectures, or of each `step`-th that has none yet with this version of the
    converter."""
    facts = {"version": converters.get(converter).require(), "torch": torch.__version__.partition("+")[0]}
    run = functools.partial(_tried, converter, TIMED if names else 1)
    every = small_architectures.names()
    jobs = [(name, way) for ways in PASSES for name in (every if names else every[::step]) for way in ways]
    record(RESULTS, converter, facts, every, names, jobs, run)


def _tried(converter: str, conversions: int, name: str, way: str) -> dict[str, Any]:
    return tried(converter, small_architectures.__name__, "architecture", name, TIMEOUT, [way], conversions)


PASSES = (("lowered", "exported"), ("decomposed",))
"""The ways in which all programs are converted before the next ones are tried."""


# The page.

_TEXT = """\
Architectures at small sizes with random weights (families of transformers by their configurations, and models of other
kinds), each converted as `torch.export` has it, after PyTorch's own `run_decompositions()`, and behind `decomp`, in
another process, run there on the CPU, and compared with the source in float64 by the measure of `verify="values"`.
*Wrong* means converted without a word; where it is wrong behind `decomp`, `decomp.convert` raises. *Random* means run,
and not compared, as all results depend on random numbers, which a runtime draws itself. Where the exported program
computes something else than the model, it is the source, and `decomp.convert` refuses the model. All three are handed
over by `decomp_rules.converters`, which mends some of what a converter gets wrong. Seconds are of the
processor, on a machine that others used as well, from the exported program to the converted model, by a process that
has converted before: those of `run_decompositions()` and of lowering are inside, those of `torch.export` are not. What
`decomp` keeps of earlier lowerings is kept, as by default. The first conversion of a program takes longer than others,
and that was the one behind `decomp`; rows marked ×{times} were timed again, the least of {times} conversions in each
way. On a busy machine the seconds of one program differed by up to a half between runs. IREE imports a program in about
0.1 s and compiles it when it is run, so that lowering alone, 0.04 s for a hundred calls, is over a tenth. What gives no
answer in {timeout:.0f} s of the clock counts as refused; on that machine it may need less elsewhere.

`python -m benchmarks.architectures CONVERTER` makes the records, `benchmarks/results/architectures.json`, and this
page; it goes on where it was stopped. `--every N` tries the first architecture and each N-th after it alone: the list
says of which converters and ways."""


def page(records: Mapping[str, Any]) -> str:
    """The page of the records."""
    return "\n".join(_lines(records)) + "\n"


def _lines(records: Mapping[str, Any]) -> Iterator[str]:
    rows = {name: [Row(**row) for row in made["rows"]] for name, made in records.items()}
    yield "# Architectures in front of converters"
    yield ""
    yield from _TEXT.format(times=TIMED, timeout=TIMEOUT).splitlines()
    yield ""
    for name, made in records.items():
        yield f"- {name} {made['version']} on torch {made['torch']}, {made['date']}: {_extent(rows[name])}"
    yield ""
    yield from _totals(rows)
    for title, belongs in LISTS.items():
        yield from ("", f"## {title}", "", *_listed(rows, belongs))
    for name, own in rows.items():
        yield from ("", f"## All rows of {name}", "")
        ordered = sorted(own, key=lambda row: small_architectures.names().index(row.name))
        yield from Table(("architecture", *COLUMNS), [(row.name, *_cells(row)) for row in ordered]).markdown()


def _extent(rows: Sequence[Row]) -> str:
    """Which architectures were tried, in the ways that share the same: "157 of 157", "40 of 157, one in 4"."""
    every, ways = small_architectures.names(), dict[tuple[str, ...], list[str]]()
    for way, said in zip(_ORDER, COLUMNS):
        ways.setdefault(tuple(row.name for row in rows if getattr(row, way)), []).append(said)
    parts = [(_part(names, every), said) for names, said in ways.items() if names]
    return parts[0][0] if len(ways) == 1 else "; ".join(f"{part} ({', '.join(said)})" for part, said in parts)


def _part(names: Sequence[str], every: Sequence[str]) -> str:
    steps = (step for step in range(1, len(every)) if [*names] == [*every[::step]])
    step = next(steps, None)
    which = "those with a verdict in the table" if step is None else f"one in {step}"
    return f"{len(names)} of {len(every)}" + (f", {which}" if step != 1 else "")


def _totals(rows: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    yield "| | way | tried | right | wrong | refused | seconds, where both as exported and behind `decomp` |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    for name, own in rows.items():
        both = [row for row in own if _is_good_in_both(row)]
        for way, said in zip(_ORDER, COLUMNS):
            some = [row for row in own if getattr(row, way)]
            seconds = f"{sum(_seconds(row, way) for row in both):.1f}" if way != "decomposed" else ""
            yield f"| {name} | {said} | {len(some)} | {counts([_verdict(row, way) for row in some])} | {seconds} |"
    yield ""
    for name, own in rows.items():
        refused = [row for row in own if row.exported in (REFUSED, CRASHES)]
        found = sum(row.lowered in GOOD for row in refused)
        said = CONVERTED if any(row.lowered == CONVERTED for row in own) else RIGHT
        lost, slower = (sum(map(belongs, own)) for belongs in (_is_lost, _is_slower))
        yield (
            f"Of {len(refused)} that {name} refuses as exported, {found} are {said} behind `decomp`; "
            f"{lost} are lost; {slower} of {sum(map(_is_good_in_both, own))} take over a tenth longer."
        )


def _verdict(row: Row, way: str) -> str:
    found: str = getattr(row, way)
    return found or "–"


def _seconds(row: Row, way: str) -> float:
    found: float = getattr(row, f"{way}_seconds")
    return found


GOOD = (RIGHT, CONVERTED)
"""What is right, and what converts where there is no runtime that would say so."""


def _is_good_in_both(row: Row) -> bool:
    return row.exported == row.lowered and row.lowered in GOOD


def _is_lost(row: Row) -> bool:
    return row.exported in (*GOOD, RANDOM) and row.lowered in (WRONG, REFUSED, CRASHES)


def _is_refused(row: Row) -> bool:
    return row.lowered in (REFUSED, CRASHES) and not _is_lost(row)


def _is_slower(row: Row) -> bool:
    return _is_good_in_both(row) and row.lowered_seconds > SLOWER * row.exported_seconds


LISTS: Mapping[str, Callable[[Row], bool]] = {
    "Right as exported, and not behind decomp": _is_lost,
    "Wrong behind decomp": lambda row: row.lowered == WRONG,
    "Refused behind decomp": _is_refused,
    "Not compared with the model behind decomp": lambda row: row.lowered in (RIGHT, RANDOM) and bool(row.lowered_text),
    "Slower to convert by more than a tenth": _is_slower,
}


def _listed(rows: Mapping[str, Sequence[Row]], belongs: Callable[[Row], bool]) -> Iterator[str]:
    found = [(name, row) for name, own in rows.items() for row in own if belongs(row)]
    yield f"{count_noun(len(found), 'row')}." if found else "None."
    yield from [""] * bool(found)
    for name, row in found:
        seconds = f"{row.exported_seconds:.2f} → {row.lowered_seconds:.2f} s"
        yield f"- {row.name} on {name}: {row.lowered_text.strip() or seconds}"


COLUMNS = ("as exported", "`run_decompositions()`", "`decomp`", ">calls", ">seconds")


def _cells(row: Row) -> Sequence[str]:
    seconds = (f"{each:.2f}" if each else "–" for each in (_seconds(row, way) for way in _ORDER))
    return (
        *(_verdict(row, way) for way in _ORDER),
        f"{row.calls or '–'} → {row.lowered_calls or '–'}",
        " / ".join(seconds) + (f" ×{row.conversions}" if row.conversions > 1 else ""),
    )


_ORDER = ("exported", "decomposed", "lowered")


def main(words: list[str]) -> None:
    """Measure, if a converter is named, and write the page."""
    if not words or "--help" in words:
        print(__doc__)
        return
    if words != ["--table"]:
        words, step = _without_step(words)
        converter, *names = words
        unknown = [name for name in names if name not in small_architectures.names()]
        if converter not in converters.names() or unknown:
            known = small_architectures.names() if unknown else converters.names()
            sys.exit(f"there is no {unknown[0] if unknown else converter!r}. Available: {', '.join(known)}")
        measure(converter, names, step)
    with write_atomically(PAGE) as unfinished:
        unfinished.write_text(page(recorded(RESULTS)), encoding="utf-8")


def _without_step(words: list[str]) -> tuple[list[str], int]:
    """The words without `--every N`, and N, which is 1 by default."""
    if "--every" not in words:
        return words, 1
    at = words.index("--every")
    given = "".join(words[at + 1 : at + 2])
    if not given.isdecimal() or int(given) < 1:
        sys.exit(f"--every takes a number, 1 or more, and got {given!r}")
    return words[:at] + words[at + 2 :], int(given)


if __name__ == "__main__":
    importlib.import_module("benchmarks.architectures").main(sys.argv[1:])  # where other processes find its classes
