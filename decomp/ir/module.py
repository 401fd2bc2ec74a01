"""The value that every pass takes and returns: a program as graphs, its own and the bodies of its higher-order ops.
Each graph knows the graph that it was made from and how the nodes of the two relate, so that a program at any stage can
be traced back to the captured one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from decomp.ir.aliases import attribute
from decomp.torch_internals.fakes import FakeTensorMode

if TYPE_CHECKING:
    from decomp.functionalize.writes import Write
    from decomp.graphs.rewrite import Rewrite


@dataclass(frozen=True, eq=False)
class ProgramGraph:
    """One graph of a program: its own, or the body of a higher-order op."""

    graph: fx.Graph
    owner: nn.Module
    """The module of the captured program that owns the attributes that the graph names."""
    name: str = ""
    """The attribute by which another graph calls it; empty for the program's own."""
    before: ProgramGraph | None = None
    """The graph that it was made from; None for one that was captured as it is."""
    edges: Rewrite | None = None
    """How its nodes relate to those of the graph before."""
    why: Any = None
    """What justifies the edges that are no copies, as the pass recorded it."""
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Tensors that passes added, by attribute name."""
    bodies: Mapping[str, nn.Module] = field(default_factory=dict)
    """By attribute name: the owner of each graph that it calls."""
    writes: tuple[Write, ...] = ()
    """What an exported program still has to write back to its inputs."""
    dropped: frozenset[str] = frozenset()
    """Names of inputs, constants of an exported program, that it no longer takes."""

    def rewritten(self, edges: Rewrite, **changes: Any) -> ProgramGraph:
        """The graph that was made from this one."""
        return replace(self, graph=edges.graph, before=self, edges=edges, **changes)

    @property
    def calls(self) -> int:
        """How many calls it makes."""
        return sum(node.op.startswith("call") for node in self.graph.nodes)

    def source_of(self, node: fx.Node) -> fx.Node:
        """The node of the user's program from which a node comes."""
        each: ProgramGraph | None = self
        while each is not None and each.edges is not None:
            node, each = each.edges.source_of(node), each.before
        return node


@dataclass(frozen=True, eq=False)
class Module:
    """A program at one stage: its graphs, and what its callers see of it."""

    graphs: Mapping[nn.Module, ProgramGraph]
    """By owner: the program's own graph first, then those of bodies."""
    kind: str
    """The kind of the source: "module", "captured" (a module, exported here), "graph" or "exported"."""
    dialect: str
    """"aten" (overloads) or "torch" (functions, methods, modules)."""
    mode: FakeTensorMode | None
    """The fake mode of the metadata; None if there is no metadata."""
    exported: ExportedProgram | None = None
    """The exported program that was captured: its signature, state and constraints."""
    by_example: bool = False
    """Whether the metadata comes from example inputs, as the graph had none for its inputs."""
    refused: str | None = None
    """Why torch.export failed to capture it, if it was tried."""
    refused_leaves: Mapping[str, str] = field(default_factory=dict)
    """The same for leaf modules, by path."""
    opened: bool = False
    """Whether leaf modules were captured by torch.export, which specialises on numbers and sizes."""

    @classmethod
    def of(cls, graph: fx.Graph, root: nn.Module, *interface: Any) -> Module:
        """A program with one graph, whose attributes `root` owns; `interface`: the other fields, in order."""
        return cls({root: ProgramGraph(graph, root)}, *interface)

    @property
    def main(self) -> ProgramGraph:
        """The program's own graph."""
        return next(iter(self.graphs.values()))

    @property
    def graph(self) -> fx.Graph:
        """The nodes of the program's own graph."""
        return self.main.graph

    @property
    def root(self) -> nn.Module:
        """The owner of the attributes that its own graph names."""
        return self.main.owner

    def rewritten(self, edges: Rewrite, root: nn.Module | None = None, **changes: Any) -> Module:
        """The program, which has no bodies yet, with a graph that was made from its own; its attributes are in
        `root`."""
        own = self.main.rewritten(edges, owner=root or self.root)
        return replace(self, graphs={own.owner: own}, **changes)

    def source_of(self, node: fx.Node) -> fx.Node:
        """The node of the user's program from which a node of its own graph comes."""
        return self.main.source_of(node)

    def with_bodies(self, called_by: Sequence[str] = ("get_attr",)) -> Module:
        """The program with the graphs that its own calls, and these in turn: those of GraphModules that nodes of the
        kinds `called_by` name."""
        graphs, waiting = {self.root: self.main}, [self.main]
        for each in waiting:
            names = dict.fromkeys(str(node.target) for op in called_by for node in each.graph.find_nodes(op=op))
            found = {name: attribute(each.owner, name) for name in names}
            bodies = {name: body for name, body in found.items() if isinstance(body, fx.GraphModule)}
            graphs[each.owner] = replace(each, bodies=bodies)
            for name, body in bodies.items():
                if body not in graphs:
                    graphs[body] = ProgramGraph(body.graph, body, name)
                    waiting.append(graphs[body])
        return replace(self, graphs=graphs)
