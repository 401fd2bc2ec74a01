"""What a whole program costs."""

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
    """What the calls of a program (a GraphModule, Graph or ExportedProgram) cost together, by any cost; those that no
    target is asked for are free. The bodies of higher-order ops count as if they ran once. Raises `CostError`."""
    if not isinstance(program, (fx.Graph, nn.Module, ExportedProgram)):
        raise CostError(f"{type(program).__name__} has no graph; pass a GraphModule, a Graph or an ExportedProgram")
    if isinstance(cost, PeakMemory):
        _, graph = next(iter(graphs_of(program)))
        return float(peak(graph))
    return price_of_calls(cost, calls(program))
