"""The cost of a whole program."""

from __future__ import annotations

from typing import Any

from torch import fx, nn
from torch.export import ExportedProgram

from decomp.costs.memory import PeakMemory, peak
from decomp.costs.model import Cost, price_of_calls
from decomp.errors import CostError, boundary
from decomp.ir.call import calls, graphs_of


@boundary("total")
def total(program: Any, cost: Cost) -> float:
    """The cost of all calls of a program (a GraphModule, Graph or ExportedProgram); those that a target need not
    support are free. Bodies of higher-order ops count once. Raises `CostError`."""
    if not isinstance(program, (fx.Graph, nn.Module, ExportedProgram)):
        raise CostError(f"{type(program).__name__} has no graph; pass a GraphModule, a Graph or an ExportedProgram")
    if isinstance(cost, PeakMemory):
        _, graph = next(iter(graphs_of(program)))
        return float(peak(graph))
    return price_of_calls(cost, calls(program))
