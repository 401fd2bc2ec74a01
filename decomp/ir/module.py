"""The value that every pass takes and returns: a program as graphs, its own and the bodies of its higher-order ops.
Each graph knows the graph that it was made from and how the nodes of the two relate, so that a program at any stage can
be traced back to the captured one, and printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from decomp.ir.aliases import attribute
from decomp.ir.composites import CompositeCall
from decomp.ir.stages import stage_of
from decomp.torch_internals.fakes import FakeTensorMode

if TYPE_CHECKING:
    from decomp.derive.decisions import Decision
    from decomp.functionalize.writes import Write
    from decomp.graphs.rewrite import Rewrite


BODY = "body"
"""The pass that made the body of a composite, without composites inside."""


@dataclass(frozen=True, eq=False)
class ProgramGraph:
    """One graph of a program at one stage: its own, or the body of a higher-order op."""

    graph: fx.Graph
    owner: nn.Module
    """The module of the captured program that owns the attributes that the graph names."""
    name: str = ""
    """The attribute by which another graph calls it; empty for the program's own."""
    by: str = "capture"
    """The pass that made it."""
    before: ProgramGraph | None = None
    """The graph that it was made from; None for one that was captured as it is."""
    edges: Rewrite | None = None
    """How its nodes relate to those of the graph before."""
    why: Any = None
    """What justifies the edges that are no copies, as the pass recorded it."""
    decisions: Mapping[fx.Node, Decision] | None = None
    """What becomes of each of its calls; None if it was not planned."""
    bodies: Mapping[str, nn.Module] = field(default_factory=dict)
    """By attribute name: the owner of each graph that it calls."""
    writes: tuple[Write, ...] = ()
    """Inputs and buffers that are to be written back, and their new values."""
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Tensors that passes added, by attribute name."""
    chains: Mapping[fx.Node, tuple[Any, ...]] = field(default_factory=dict)
    """The rules that created a node, the outermost first."""
    stale_strides: Mapping[fx.Node, Any] = field(default_factory=dict)
    """Nodes whose strides differ from the captured metadata with which their users were traced, mapped to that
    metadata."""
    lifted: frozenset[str] = frozenset()
    """Names of parameters, buffers and constants of an exported program, which its graph takes as inputs."""
    dropped: frozenset[str] = frozenset()
    """Names of inputs, constants of an exported program, that it no longer takes."""
    composite: CompositeCall | None = None
    """For the body of composite calls: what the first of them says of itself."""

    def rewritten(self, edges: Rewrite, by: str, **changes: Any) -> ProgramGraph:
        """The graph that a pass made from this one. Writes, stale strides and chains of rules are carried over."""
        values, chains = edges.values, self.chains
        facts = {
            "why": None,
            "decisions": None,
            "writes": tuple(write.rebased_on(edges) for write in self.writes),
            "stale_strides": {values[node]: meta for node, meta in self.stale_strides.items() if node in values},
            # A node under the name of its source is that call; a node under a new name was made otherwise.
            "chains": {new: chains[old] for new, old in edges.origin.items() if new.name == old.name and old in chains}
            if chains
            else chains,
        }
        return replace(self, graph=edges.graph, by=by, before=self, edges=edges, **{**facts, **changes})

    @property
    def attribute_names(self) -> set[str]:
        """The names that an attribute which a pass adds must not have."""
        # A module has parameters, buffers and children in tables, and everything else in its `__dict__`.
        owned = vars(self.owner)
        registered = (name for kind in ("_parameters", "_buffers", "_modules") for name in owned.get(kind, ()))
        return {*registered, *owned, *self.constants, *self.lifted}

    @property
    def calls(self) -> int:
        """How many calls it makes."""
        return sum(node.op.startswith("call") for node in self.graph.nodes)

    @property
    def signed(self) -> tuple[Write, ...]:
        """The writes that the signature of an exported program names."""
        return tuple(write for write in self.writes if write.signed)

    def at(self, by: str) -> ProgramGraph | None:
        """The latest graph that a pass made, among this one and those that it was made from, or None."""
        each: ProgramGraph | None = self
        while each is not None and each.by != by:
            each = each.before
        return each

    def record(self, by: str) -> Any:
        """What a pass recorded; None if it changed nothing."""
        found = self.at(by)
        return None if found is None else found.why

    @property
    def captured(self) -> ProgramGraph:
        """The graph of the captured program."""
        return self._require("capture")

    @property
    def expanded(self) -> ProgramGraph:
        """The lowered graph before it was simplified."""
        return self._require("expand")

    @property
    def inlined(self) -> ProgramGraph:
        """The graph before it was simplified, without composite calls: that of the body of one, or the expanded one."""
        return self.at(BODY) or self.expanded

    def _require(self, by: str) -> ProgramGraph:
        found = self.at(by)
        assert found is not None, by
        return found

    @property
    def planned(self) -> ProgramGraph:
        """The graph that has decisions."""
        each = self
        while each.decisions is None:
            assert each.before is not None
            each = each.before
        return each

    @functools.cached_property
    def since_planned(self) -> Rewrite:
        """The rewrite from the planned graph."""
        return self.since(self.planned)

    def since(self, before: ProgramGraph) -> Rewrite:
        """The rewrite from an earlier graph. Nodes that have no source there have no origin."""
        assert self.before is not None and self.edges is not None
        if self.before is before:
            return self.edges
        earlier = self.before.since(before)
        both, known = earlier.then(self.edges), earlier.origin
        # `then` gives a node without a source the node itself as one.
        both.origin = {new: known[old] for new, old in self.edges.origin.items() if old in known}
        return both

    def source_of(self, node: fx.Node) -> fx.Node:
        """The node of the user's program from which a node comes."""
        each: ProgramGraph | None = self
        while each is not None and each.edges is not None:
            node, each = each.edges.source_of(node), each.before
        return node

    def sources_of(self, node: fx.Node) -> tuple[fx.Node, ...]:
        """All nodes of the user's program from which a node comes: several if it is the call of a pattern."""
        found: tuple[fx.Node, ...] = (node,)
        each: ProgramGraph | None = self
        while each is not None and each.edges is not None:
            found = tuple(old for new in found for old in each.edges.sources_of(new))
            each = each.before
        return tuple(dict.fromkeys(found))


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
        found = cls({root: ProgramGraph(graph, root)}, *interface)
        if found.exported is None:
            return found
        specs = found.exported.graph_signature.input_specs
        lifted = frozenset(spec.target for spec in specs if spec.target is not None)
        return replace(found, graphs={root: replace(found.main, lifted=lifted)})

    @property
    def main(self) -> ProgramGraph:
        """The program's own graph."""
        return next(iter(self.graphs.values()))

    @property
    def sources(self) -> tuple[ProgramGraph, ...]:
        """The graphs that the source has, too: all but the bodies of composites."""
        return tuple(own for own in self.graphs.values() if own.composite is None)

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
        own = self.main.rewritten(edges, "capture", owner=root or self.root)
        return replace(self, graphs={own.owner: own}, **changes)

    def map(self, change: Callable[[ProgramGraph], ProgramGraph]) -> Module:
        """The program with each graph changed."""
        return replace(self, graphs={owner: change(own) for owner, own in self.graphs.items()})

    def __str__(self) -> str:
        """Its graphs as text: calls with dtypes and shapes, and for each the nodes that it comes from, in the graph
        before, with the justification."""
        return str(stage_of(self.graphs.values()))

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
