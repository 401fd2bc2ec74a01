"""What lowering costs: `python -m benchmarks.lowering [--quick]` compares `decomp.lower` with `Graph.create_node` for
each emitted node and with PyTorch's own ways, prints medians and ratios, and saves them with a plot."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
import json
from pathlib import Path
import platform
from typing import Any
import warnings

import torch

from benchmarks import programs
from benchmarks.contenders import contenders, graph_of
from benchmarks.measuring import Result, bytes_per_node, compare

RESULTS = Path(__file__).parent / "results"
SLOW_LIMIT = 1_200
"""Source nodes above which `make_fx` and `run_decompositions`, at milliseconds a node, sit out."""

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
    results: list[Result] = []
    for case in cases(options.quick):
        results += measured(case, options.rounds)
        print("\n".join(section(results, case)), flush=True)
        save(options.out, results, {}, options.quick)
    memory = memory_of(2_000 if options.quick else 100_000)
    print("\n".join(closing(results, memory)))
    save(options.out, results, memory, options.quick)


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
        "stack": programs.stack, "exported stack": programs.exported_stack,
        "exported transformer": programs.transformer, "synthetic": programs.synthetic,
    }
    return make[name](size)


def measured(case: Case, rounds: int) -> list[Result]:
    """Every contender on one program."""
    program = built(case)
    source = len(graph_of(program).nodes)
    field = contenders(program, SLOW_LIMIT)
    if source > 50_000:
        field = [contender for contender in field if "decompose" not in contender.name and "cold" not in contender.name]
        rounds = min(rounds, 2)
    return compare(*case, source, field, rounds)


def memory_of(size: int) -> dict[str, float]:
    """Bytes a node, without metadata."""
    program = programs.synthetic(size)
    field = {contender.name: contender for contender in contenders(program, 0)}
    return {name: bytes_per_node(field[name].run) for name in ("Graph.create_node", "lower, warm")}


def section(results: Iterable[Result], case: Case) -> Iterator[str]:
    """The table of one program."""
    name, size = case
    yield f"\n### {name}, {size:,}\n"
    yield "| contender | nodes | ms | µs/node | × create_node | rounds |"
    yield "|---|--:|--:|--:|--:|--:|"
    for r in results:
        if (r.program, r.size) == case:
            yield (f"| {r.contender} | {r.nodes:,} | {r.seconds * 1e3:.1f} | {r.microseconds:.2f} | "
                   f"{r.over_floor:.2f} | {r.rounds} |")


def closing(results: Sequence[Result], memory: dict[str, float]) -> Iterator[str]:
    """The ratios that matter, and memory."""
    yield "\n### In short\n"
    at = {(r.program, r.size, r.contender): r.over_floor for r in results}
    for program, size in dict.fromkeys((r.program, r.size) for r in results):
        warm = at[program, size, "lower, warm"]
        ratios = [
            f"{name} {at[program, size, name] / warm:.2f} ×"
            for name in ("lower, warm, verified", "lower, warm, code generated", "make_fx on fakes",
                         "run_decompositions", "run_decompositions, default table")
            if (program, size, name) in at
        ]
        yield f"- {program}, {size:,}: time per node over that of `lower`, warm: {', '.join(ratios)}"
    per_node = {r.size: r.microseconds for r in results if (r.program, r.contender) == ("synthetic", "lower, warm")}
    sizes = [size for size in per_node if size >= 10_000]
    if len(sizes) > 1:
        growth = per_node[sizes[-1]] / per_node[sizes[0]]
        yield f"- time per node at {sizes[-1]:,} nodes over that at {sizes[0]:,}: {growth:.2f}"
    for name, count in memory.items():
        yield f"- {name}: {count:,.0f} bytes a node without metadata"
    yield ("- Lowered programs get their code when they are first run; `make_fx`, `run_decompositions` and "
           "`fx.Transformer` generate it at once, as the row \"code generated\" does")
    yield (f"- `make_fx` and `run_decompositions` sit out above {SLOW_LIMIT:,} source nodes, `fx.Transformer` above "
           "20,000, cold runs and `decompose` above 50,000")


def save(folder: Path, results: Sequence[Result], memory: dict[str, float], quick: bool) -> None:
    """`lowering.json`, `lowering.md` and, where matplotlib is installed, `lowering.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    data = {"quick": quick, **machine, "results": [r.as_dict() for r in results], "bytes_per_node": memory}
    (folder / "lowering.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    command = "python -m benchmarks.lowering" + (" --quick" if quick else "")
    lines = ["# Cost of lowering", "", f"`{command}`, torch {torch.__version__}, one thread. Medians; the collector is "
             "paused, contenders take turns."]
    for case in dict.fromkeys((r.program, r.size) for r in results):
        lines += section(results, case)
    (folder / "lowering.md").write_text("\n".join([*lines, *closing(results, memory)]) + "\n")
    try:
        from benchmarks.plotting import plot
    except ImportError:
        print("no plot: matplotlib is not installed (the extra called plot has it)")
        return
    plot(results, folder / "lowering.png")


if __name__ == "__main__":
    main()
