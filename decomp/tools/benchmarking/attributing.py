"""Attributes the time of a lowered program: each of its nodes is timed, and its time is assigned to the source op that
it came from, by provenance. The source program is timed in the same way and in the same rounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
import re
import statistics
import time
from typing import Any

import torch
from torch import fx, nn

from decomp.errors import spell_target
from decomp.ir.call import CALLS, module_path
from decomp.lowering import Lowering
from decomp.provenance import Provenance
from decomp.tools.benchmarking.records import Attribution, BenchmarkCase, Share

ROUNDS = 5
Label = Callable[[Provenance], str]


def attribute_time(
    case: BenchmarkCase,
    variant: str,
    source: fx.GraphModule,
    lowering: Lowering,
    args: tuple[Any, ...],
    rounds: int = ROUNDS,
) -> Attribution:
    """The shares of source ops in the time of a lowered program. `source`: the program that was lowered, as a graph
    whose nodes have the names that provenance gives."""
    lowered = lowering.result
    taken = _timed({"lowered": lowered, "source": source}, args, rounds)
    seconds: dict[str, float] = defaultdict(float)
    before: dict[str, float] = defaultdict(float)
    nodes, calls = Counter[str](), Counter[str]()
    for node in _calls(lowered.graph):
        label = label_nodes(_provenance(lowering, node))
        seconds[label] += taken["lowered"][node.name]
        nodes[label] += 1
    for node in _calls(source.graph):
        label = _label(module_path(node.meta.get("nn_module_stack")), spell_target(node.target))
        before[label] += taken["source"][node.name]
        calls[label] += 1
    shares = [
        Share(label, seconds[label], before.get(label), calls[label], nodes[label]) for label in {**seconds, **before}
    ]
    shares.sort(key=lambda share: -share.seconds)
    return Attribution(case, variant, sum(seconds.values()), sum(before.values()), tuple(shares))


def label_nodes(origin: Provenance | None) -> str:
    """The label that a node's time is assigned to."""
    if origin is None:
        return "(bookkeeping)"
    return _label(origin.module, origin.op)


def _label(module: str, op: str) -> str:
    return f"{_collapsed(module)}{_op(op)}"


def _collapsed(module: str) -> str:
    """A module's name without the numbers of layers, so that similar layers are merged."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", module) + " · " if module else ""


def _op(spelling: str) -> str:
    return spelling.removeprefix("torch.ops.").removeprefix("aten.").partition(".")[0]


def _provenance(lowering: Lowering, node: fx.Node) -> Provenance | None:
    try:
        return lowering.provenance(node)
    except KeyError:
        return None


def _calls(graph: fx.Graph) -> Iterable[fx.Node]:
    return (node for node in graph.nodes if node.op in CALLS)


def _timed(programs: Mapping[str, nn.Module], args: tuple[Any, ...], rounds: int) -> dict[str, dict[str, float]]:
    """Median seconds by program and node."""
    taken: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in programs}
    stopwatches = {name: _Stopwatch(module, taken[name]) for name, module in programs.items()}
    for turn in range(rounds + 1):
        for stopwatch in stopwatches.values():
            stopwatch.counts = turn > 0
            with torch.no_grad():
                stopwatch.run(*args, enable_io_processing=False)
    return {name: {node: statistics.median(times) for node, times in of.items()} for name, of in taken.items()}


class _Stopwatch(fx.Interpreter):
    """Runs a graph node by node and records the time of each; on CUDA, with synchronisation."""

    def __init__(self, module: Any, taken: dict[str, list[float]]) -> None:
        super().__init__(module)
        self.taken, self.counts = taken, True
        self.waits = any(t.is_cuda for t in [*module.parameters(), *module.buffers()])

    def run_node(self, n: fx.Node) -> Any:
        if n.op not in CALLS or not self.counts:
            return super().run_node(n)
        began = time.perf_counter()
        result = super().run_node(n)
        if self.waits:
            torch.cuda.synchronize()
        self.taken[n.name].append(time.perf_counter() - began)
        return result
