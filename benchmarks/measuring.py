"""Measures contenders in turns. Times are compared per emitted node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import gc
import tracemalloc
from typing import Any

import torch

from benchmarks.contenders import Contender, Run, graph_of
from decomp.tools.benchmarking.clock import Clock, Effort, Timing, time_interleaved
from decomp.tools.benchmarking.records import BenchmarkCase, BenchmarkRow

PATIENCE = 60.0
"""Seconds for one program after which it stops at two rounds."""


def compare(program: str, size: int, nodes: int, field: Sequence[Contender], rounds: int) -> list[BenchmarkRow]:
    """Run every contender in turn, `rounds` times. The first is the floor: `to_baseline` is the time per node over the
    floor's. Contenders whose limit is less than `nodes` are left out."""
    field = [contender for contender in field if nodes <= contender.limit]
    emitted: dict[str, int] = {}
    runs = {contender.name: _counting(contender, emitted) for contender in field}
    effort = Effort(warm_up=0, seconds=0.0, least=rounds, most=rounds, sample=0.0, collect=True, patience=PATIENCE)
    timing = time_interleaved(runs, Clock(torch.device("cpu")), effort, seed=0)
    per_node = Timing({name: [t / emitted[name] for t in times] for name, times in timing.taken.items()})
    case = BenchmarkCase(program, "lowering", f"{size:,}", "lowering", "cpu")
    return [
        BenchmarkRow(case, name, timing.spread(name), per_node.ratio(name, field[0].name), nodes=emitted[name])
        for name in runs
    ]


def _counting(contender: Contender, emitted: dict[str, int]) -> Callable[[], None]:
    """The run of a contender, which also records the number of nodes in its result."""

    def run() -> None:
        emitted[contender.name] = len(graph_of(contender.run()).nodes)

    return run


def microseconds(row: BenchmarkRow) -> float:
    """Time per emitted node."""
    assert row.seconds is not None and row.nodes is not None
    return row.seconds.median / row.nodes * 1e6


def bytes_per_node(run: Run) -> float:
    """The memory held by the result of `run`, per emitted node."""
    run()
    gc.collect()
    tracemalloc.start()
    try:
        result: Any = run()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / len(graph_of(result).nodes)
    finally:
        tracemalloc.stop()
