"""Which of the values that a caller can observe depend on random draws. A rule, or a converter's runtime, draws in
another order or number than PyTorch's kernel, so that equal seeds give other numbers, and only the rest is compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
import functools
from typing import Any

from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from decomp.ir.call import graphs_of
from decomp.ir.effects import Effect, EffectTable
from decomp.proof.dependence import results_of_draws
from decomp.torch_internals import pytree
from decomp.validation.running_programs import AFTERWARDS, is_random


@dataclass(frozen=True)
class DrawnValues:
    """The names of values that depend on random draws, as an `ObservedRun` has them."""

    names: frozenset[str] = frozenset()
    every: bool = False
    """Whether any value may depend on them, for all that is known."""

    def __contains__(self, name: object) -> bool:
        return self.every or name in self.names or (AFTERWARDS in self.names and str(name).endswith(AFTERWARDS))

    def __bool__(self) -> bool:
        return self.every or bool(self.names)


def drawn_values(*programs: Any) -> DrawnValues:
    """The values that depend on draws in any of these programs, which are meant to compute the same. A module without a
    graph says nothing, and neither does a graph that writes to tensors, as its edges do not show all dependence."""
    found = [_names(program) for program in programs]
    known = frozenset[str]().union(*(names for names in found if names is not None))
    return DrawnValues(known, every=None in found and not known)


def _names(program: Any) -> frozenset[str] | None:
    """The names of the values of one program that depend on draws; None if it is not known which."""
    if not is_random(program):
        return frozenset()
    module = program.graph_module if isinstance(program, ExportedProgram) else program
    if not isinstance(module, fx.GraphModule) or _writes(module):
        return None
    draws = functools.partial(_draws, module, EffectTable(module))
    places = {place for served in results_of_draws(module.graph, draws) for place in served}
    names = list(_exported_results(program) if isinstance(program, ExportedProgram) else _results(module.graph))
    return frozenset(names[place] for place in places)


def _writes(module: fx.GraphModule) -> bool:
    tables = ((EffectTable(root), graph) for root, graph in graphs_of(module))
    return any(Effect.MUTATION in table.of(node).kinds for table, graph in tables for node in graph.nodes)


def _draws(root: fx.GraphModule, table: EffectTable, node: fx.Node) -> bool:
    """Whether a call, or a program that it is given, draws random numbers."""
    named = [node] if node.op == "call_module" else node.all_input_nodes
    inner = (_attribute(root, str(each.target)) for each in named if each.op in ("get_attr", "call_module"))
    return bool(table.of(node).most) or any(is_random(each) for each in inner if isinstance(each, nn.Module))


def _attribute(root: nn.Module, name: str) -> Any:
    return functools.reduce(lambda owner, part: getattr(owner, part, None), name.split("."), root)


def _exported_results(program: ExportedProgram) -> Iterator[str]:
    """The names of the tensors that the graph of an exported program returns, in order: results, and what is written
    to its inputs and state."""
    spec = program.call_spec.out_spec
    users = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    named = _named(pytree.tree_unflatten(range(spec.num_leaves), spec))
    leaves = pytree.tree_leaves(program.graph.output_node().args[0])
    for leaf, written in zip(leaves, program.graph_signature.output_specs):
        name = next(named) if written.kind in users else AFTERWARDS
        if isinstance(leaf, fx.Node):
            yield name


def _results(graph: fx.Graph) -> Iterator[str]:
    """The same, of a graph without a signature."""
    returned = graph.output_node().args[0]
    leaves, spec = pytree.tree_flatten(returned)
    signature = getattr(graph._codegen, "pytree_info", None)
    names = _named(pytree.tree_unflatten(range(len(leaves)), getattr(signature, "out_spec", None) or spec))
    return (name for name, leaf in zip(names, leaves) if isinstance(leaf, fx.Node))


def _named(results: Any) -> Iterator[str]:
    return (f"result{pytree.keystr(path)}" for path, _ in pytree.tree_flatten_with_path(results)[0])
