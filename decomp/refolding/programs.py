"""Programs whose graphs are folded: put together again as what they were, and checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import fx, nn
from torch.export import ExportedProgram

from decomp.capture import frontends
from decomp.capture.frontends import Parts, Program
from decomp.errors import CaptureError
from decomp.graphs.graph_builder import is_aten
from decomp.graphs.rewrite import Rewrite
from decomp.ir.call import is_host, is_projection
from decomp.ir.effects import EffectTable
from decomp.metadata.fakes import mode_of
from decomp.refolding.folding import Circular, Fold, folded


@dataclass(frozen=True)
class Graphs:
    """The graphs of a program, its own first, and after it those of its sub-programs."""

    program: Program
    modules: tuple[fx.GraphModule, ...]

    @property
    def calls(self) -> int:
        """Calls of tensor ops in all graphs."""
        return sum(count_calls(module.graph) for module in self.modules)


def graphs_in(program: ExportedProgram | fx.GraphModule) -> Graphs:
    """The graphs of a program. Raises `CaptureError` for a module without one."""
    if isinstance(program, ExportedProgram):
        root: nn.Module = program.graph_module
        found = Program(program.graph, root, "exported", "aten", mode_of(program.graph), program)
    elif isinstance(program, fx.GraphModule):
        root, graph = program, program.graph
        found = Program(graph, root, "graph", "aten" if is_aten(graph) else "torch", mode_of(graph))
    else:
        raise CaptureError(
            f"{type(program).__name__} has no graph to fold; pass a Lowering, a GraphModule or an ExportedProgram"
        )
    return Graphs(found, tuple(inner for inner in root.modules() if isinstance(inner, fx.GraphModule)))


def count_calls(graph: fx.Graph) -> int:
    """Calls of tensor ops in a graph."""
    return sum(node.op.startswith("call") and not is_host(node) and not is_projection(node) for node in graph.nodes)


@dataclass(frozen=True)
class Refolded:
    """A graph with its folds."""

    before: fx.Graph
    rewrite: Rewrite
    folds: tuple[Fold, ...]
    dropped: frozenset[str]
    """Names of inputs that nothing uses any more, and that the program need not have."""


def with_folds(module: fx.GraphModule, folds: Iterable[Fold], constants: Iterable[str] = ()) -> Refolded:
    """The graph of a module with folds in it; inputs called `constants` go where nothing uses them any more. A fold
    that would depend on itself is left out."""
    graph, left = module.graph, list(folds)
    names = frozenset(constants)
    dropped = {node for node in graph.nodes if node.op == "placeholder" and node.name in names}
    while True:
        try:
            rewrite = folded(graph, left, EffectTable(module), dropped)
        except Circular as circular:
            left.remove(circular.fold)
            continue
        gone = frozenset(node.name for node in dropped if node not in rewrite.values)
        return Refolded(graph, rewrite, tuple(left), gone)


def rebuilt(graphs: Graphs, refolded: Mapping[fx.GraphModule, Refolded]) -> object:
    """The program around its folded graphs."""
    made: dict[nn.Module, nn.Module] = {}
    root, *bodies = graphs.modules
    for body in reversed(bodies):
        if body in refolded:
            made[body] = frontends.graph_module(body, _parts(body, refolded[body], made))
    result, _ = frontends.rebuild(graphs.program, _parts(root, refolded[root], made))
    return result


def _parts(module: fx.GraphModule, refolded: Refolded, made: Mapping[nn.Module, nn.Module]) -> Parts:
    submodules = {name: made[inner] for name, inner in module.named_children() if inner in made}
    return Parts(refolded.rewrite.graph, {}, submodules, (), refolded.dropped)
