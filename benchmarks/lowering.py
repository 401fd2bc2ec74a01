"""The cost of lowering: `python -m benchmarks.lowering [--quick]` compares `decomp.lower` with `Graph.create_node` for
each emitted node and with PyTorch's own tools, prints medians and ratios, and saves them with a plot."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
import warnings

import torch

from benchmarks import programs
from benchmarks.contenders import contenders, graph_of
from benchmarks.measuring import bytes_per_node, compare, microseconds
from decomp.costs.machine import describe_machine
from decomp.tables import Table
from decomp.tools.benchmarking.records import BenchmarkResults, BenchmarkRow

RESULTS = Path(__file__).parent / "results"
SLOW_LIMIT = 1_200
"""The most source nodes for `make_fx` and `run_decompositions`, which take milliseconds per node."""

Case = tuple[str, int]


def main(argv: Sequence[str] | None = None) -> None:
    """Run, print and save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lowering", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, about half a minute")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    # run_decompositions copies tree specs, which torch 2.13 deprecates.
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec")
    command = "python -m benchmarks.lowering" + (" --quick" if options.quick else "")
    results = BenchmarkResults(command, describe_machine(torch.device("cpu")), seed=0)
    for case in cases(options.quick):
        results = results.with_case(measured(case, options.rounds))
        print("\n".join(section(results.rows, case)), flush=True)
        save(options.out, results)
    memory = memory_of(2_000 if options.quick else 100_000)
    results = replace(results, notes={"bytes_per_node": memory})
    print("\n".join(closing(results.rows, memory)))
    save(options.out, results)


def cases(quick: bool) -> list[Case]:
    """Programs and sizes."""
    layers = (64,) if quick else (64, 256, 1024, 4096)
    exported = (64,) if quick else (64, 256)
    nodes = (1_000, 10_000) if quick else (1_000, 10_000, 100_000, 1_000_000)
    return [
        *(("stack", n) for n in layers),
        *(("exported stack", n) for n in exported),
        ("exported transformer", 4 if quick else 24),
        *(("synthetic", n) for n in nodes),
    ]


def built(case: Case) -> Any:
    """The program of a case."""
    name, size = case
    make = {
        "stack": programs.stack,
        "exported stack": programs.exported_stack,
        "exported transformer": programs.transformer,
        "synthetic": programs.synthetic,
    }
    return make[name](size)


def measured(case: Case, rounds: int) -> list[BenchmarkRow]:
    """Every contender on one program."""
    program = built(case)
    source = len(graph_of(program).nodes)
    field = contenders(program, SLOW_LIMIT)
    if source > 50_000:
        field = [each for each in field if not any(word in each.name for word in ("decompose", "cold", "disk"))]
        rounds = min(rounds, 2)
    return compare(*case, source, field, rounds)


def memory_of(size: int) -> dict[str, float]:
    """Bytes per emitted node, without metadata."""
    program = programs.synthetic(size)
    field = {contender.name: contender for contender in contenders(program, 0)}
    return {name: bytes_per_node(field[name].run) for name in ("Graph.create_node", "lower, warm")}


def section(rows: Iterable[BenchmarkRow], case: Case) -> Iterator[str]:
    """The table of one program."""
    name, size = case
    yield f"\n### {name}, {size:,}\n"
    found = [
        (
            r.variant,
            f"{r.nodes:,}",
            f"{r.seconds.median * 1e3:.1f}",
            f"{microseconds(r):.2f}",
            f"{r.to_baseline.median:.2f}",
            r.seconds.rounds,
        )
        for r in rows
        if (r.case.name, r.case.size) == (name, f"{size:,}") and r.seconds is not None and r.to_baseline is not None
    ]
    yield from Table(("contender", ">nodes", ">ms", ">µs/node", ">× create_node", ">rounds"), found).markdown()


def closing(rows: Sequence[BenchmarkRow], memory: dict[str, float]) -> Iterator[str]:
    """The main ratios, and memory."""
    yield "\n### In short\n"
    at = {(r.case, r.variant): r.to_baseline.median for r in rows if r.to_baseline is not None}
    for case in dict.fromkeys(r.case for r in rows):
        warm = at[case, "lower, warm"]
        ratios = [
            f"{name} {at[case, name] / warm:.2f} ×"
            for name in (
                "lower, warm, verified",
                "lower, warm, code generated",
                "make_fx on fakes",
                "run_decompositions",
                "run_decompositions, default table",
            )
            if (case, name) in at
        ]
        yield f"- {case.name}, {case.size}: time per node over that of `lower`, warm: {', '.join(ratios)}"
    sizes = [r for r in rows if (r.case.name, r.variant) == ("synthetic", "lower, warm") and (r.nodes or 0) > 9_000]
    if len(sizes) > 1:
        growth = microseconds(sizes[-1]) / microseconds(sizes[0])
        yield f"- time per node at {sizes[-1].case.size} nodes over that at {sizes[0].case.size}: {growth:.2f}"
    for name, count in memory.items():
        yield f"- {name}: {count:,.0f} bytes a node without metadata"
    yield (
        "- Lowered programs get their code when they are first run; `make_fx`, `run_decompositions` and "
        '`fx.Transformer` generate it at once, as the row "code generated" does'
    )
    yield (
        f"- `make_fx` and `run_decompositions` sit out above {SLOW_LIMIT:,} source nodes, `fx.Transformer` above "
        "20,000, cold runs and `decompose` above 50,000"
    )


def save(folder: Path, results: BenchmarkResults) -> None:
    """`lowering.json` (which `decomp bench --compare` reads), `lowering.md` and, with matplotlib, two plots."""
    results.save(folder / "lowering.json")
    lines = [
        "# Cost of lowering",
        "",
        f"`{results.command}`, torch {results.machine['torch']}, one thread. Medians; "
        "the collector is paused, contenders take turns, in a new order each round.",
    ]
    for case in results.cases():
        lines += section(results.rows, (case.name, int(case.size.replace(",", ""))))
    text = "\n".join([*lines, *closing(results.rows, dict(results.notes.get("bytes_per_node", {})))]) + "\n"
    (folder / "lowering.md").write_text(text)
    try:
        from benchmarks.plotting import plots
    except ImportError:
        print("no plot: matplotlib is not installed (the extra called plot has it)")
        return
    plots(results.rows, folder)


if __name__ == "__main__":
    main()
