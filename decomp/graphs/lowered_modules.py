"""Locates the graphs of a lowered program: in its own module, and in the bodies of its higher-order ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import fx, nn
from torch.export import ExportedProgram

from decomp.graphs.snapshot import Snapshot, snapshot

if TYPE_CHECKING:
    from decomp.ir.module import ProgramGraph


def lowered_modules(graphs: Sequence[ProgramGraph], result: Any) -> list[fx.GraphModule | None]:
    """For each record of a lowered graph, the main one first, the module with this graph in `result`; None if there is
    none."""
    found: dict[nn.Module, fx.GraphModule] = {}
    by_owner = {own.owner: own for own in graphs}
    waiting = [(graphs[0], result.graph_module if isinstance(result, ExportedProgram) else result)]
    for own, module in waiting:
        found[own.owner] = module
        for name, body in own.bodies.items():
            inner = _submodule(module, name)
            # Several calls may run one body.
            if inner is not None and body not in found and body in by_owner:
                waiting.append((by_owner[body], inner))
    return [found.get(own.owner) for own in graphs]


def _submodule(module: nn.Module, name: str) -> fx.GraphModule | None:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module if isinstance(module, fx.GraphModule) else None


def snapshots_of(graphs: Sequence[ProgramGraph], result: Any) -> tuple[Snapshot, ...]:
    """Snapshots of the current graphs of a lowered program."""
    return tuple({} if each is None else snapshot(each.graph) for each in lowered_modules(graphs, result))
