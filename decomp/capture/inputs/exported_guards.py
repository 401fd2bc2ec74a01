"""The guards of `ExportedProgram.module()`: a module that its graph calls to check the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from decomp.graphs.graph_builder import checks_inputs


@dataclass(frozen=True)
class ExportedGuards:
    """A further check of inputs, for a program whose graph no longer calls the guards."""

    guards: nn.Module
    names: tuple[str, ...]
    """The inputs that they take."""

    @classmethod
    def of(cls, graph: fx.Graph, root: nn.Module) -> ExportedGuards | None:
        """The guards that a graph calls; None if it calls none."""
        for node in filter(checks_inputs, graph.nodes):
            return cls(root.get_submodule(str(node.target)), tuple(str(each.target) for each in node.args))
        return None

    def __call__(self, module: nn.Module, given: Mapping[str, Any]) -> None:
        """Raises `AssertionError`, in the words of torch.export, for inputs that the program was not exported for."""
        self.guards(*(given[name] for name in self.names))
