"""Measuring: contenders take turns, the garbage collector is paused, the median counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
import gc
import statistics
import time
import tracemalloc
from typing import Any

from benchmarks.contenders import Contender, Run, graph_of


@dataclass(frozen=True)
class Result:
    """One contender on one program."""

    program: str
    size: int
    """Layers, or nodes asked for."""
    contender: str
    nodes: int
    """Nodes that it emitted."""
    seconds: float
    """Median of the rounds."""
    rounds: int
    over_floor: float
    """Time per node over that of `Graph.create_node`: the median of the ratios within each round."""

    @property
    def microseconds(self) -> float:
        """Time per emitted node."""
        return self.seconds / self.nodes * 1e6

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "microseconds_per_node": self.microseconds}


def compare(program: str, size: int, nodes: int, field: Sequence[Contender], rounds: int) -> list[Result]:
    """Every contender in turn, `rounds` times; the first is the floor. Those whose limit `nodes` exceeds sit out."""
    field = [contender for contender in field if nodes <= contender.limit]
    taken: dict[str, list[float]] = {contender.name: [] for contender in field}
    emitted: dict[str, int] = {}
    for turn in range(rounds):
        for contender in field:
            if turn < contender.rounds:
                seconds, emitted[contender.name] = timed(contender.run)
                taken[contender.name].append(seconds / emitted[contender.name])
    floor = taken[field[0].name]
    return [
        Result(program, size, name, emitted[name], statistics.median(times) * emitted[name], len(times),
               statistics.median(t / f for t, f in zip(times, floor)))
        for name, times in taken.items()
    ]


def timed(run: Run) -> tuple[float, int]:
    """Seconds, and the number of nodes of what came out."""
    gc.collect()
    gc.disable()
    try:
        began = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - began
        return seconds, len(graph_of(result).nodes)
    finally:
        gc.enable()


def bytes_per_node(run: Run) -> float:
    """Memory that stays allocated for what `run` returns, by emitted node."""
    run()
    gc.collect()
    tracemalloc.start()
    try:
        result = run()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / len(graph_of(result).nodes)
    finally:
        tracemalloc.stop()
