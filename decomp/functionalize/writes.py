"""A program without mutation, and the inputs and buffers to be written back at its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
import operator
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn

from decomp.functionalize.alias_sets import storage_of
from decomp.graphs.graph_builder import Emitter, own_memory
from decomp.graphs.rewrite import Rewrite
from decomp.ir.aliases import attribute, is_basic_index, spelling_of, view_bases
from decomp.ir.arguments import nodes_in
from decomp.ir.call import kind_of, metadata
from decomp.ir.dtypes import is_complex
from decomp.ir.op_facts import SAVES_NOTHING, SUMS
from decomp.metadata.symbolic_sizes import NUMBERS
from decomp.ops import aten


@dataclass(frozen=True, slots=True)
class Write:
    """An input or buffer to which the program writes, and its final value."""

    source: fx.Node
    """The placeholder or `get_attr` to be written back."""
    value: fx.Node
    untracked: bool = False
    """Whether the write is hidden from autograd, as gradients were disabled."""
    differentiable: bool = False
    """Whether the tensor may require a gradient at run time."""
    signed: bool = False
    """Whether the value is an output that the signature of an exported program names, and not that of a `copy_`."""

    def rebased_on(self, rewrite: Rewrite) -> Write:
        """The same write in a graph derived from this one."""
        return replace(self, source=rewrite.values[self.source], value=rewrite.values[self.value])


@dataclass(frozen=True)
class Functional:
    """A program without mutation, and its pending writes."""

    rewrite: Rewrite
    """From the source program; every node has its origin there."""
    writes: tuple[Write, ...] = ()
    """Inputs and buffers to be written back, once each, in order of the first write."""
    submodules: dict[str, fx.GraphModule] = field(default_factory=dict)
    """Functional versions of the bodies of higher-order ops that mutate, by attribute name."""
    stale_strides: Mapping[fx.Node, Any] = field(default_factory=dict)
    """Nodes whose strides differ from the captured metadata with which their users were traced, mapped to that
    metadata; including nodes of functional bodies."""

    @property
    def graph(self) -> fx.Graph:
        """The functional graph."""
        return self.rewrite.graph


def append_writes(graph: fx.Graph, writes: Iterable[Write], aten_dialect: bool) -> None:
    """Write inputs and buffers back, by `copy_` nodes before the output."""
    with graph.inserting_before(graph.output_node()):
        for write in writes:
            # Autograd does not record a `copy_` into a `detach()`, and the memory is the same.
            target = _detach(graph, write.source, aten_dialect) if write.untracked else write.source
            if aten_dialect:
                new = graph.call_function(aten.copy_.default, (target, write.value))
            else:
                new = graph.call_method("copy_", (target, write.value))
            new.meta = {k: v for k, v in write.source.meta.items() if k in ("val", "example_value", "stack_trace")}
    graph.lint()


def keep_saved_values(
    functional: Functional, root: nn.Module | None, aten_dialect: bool, state: Mapping[str, Any]
) -> None:
    """Where autograd may save the old value of an input or buffer that is written back, let calls read a copy of it:
    otherwise the backward pass fails, as a saved tensor was modified in place. (Autograd considers all views of a
    tensor modified, including those of other elements.) `state`: the tensors behind placeholders, by name."""
    if not functional.writes:
        return
    saved = _saved_values(functional.graph, root, state)
    sources = [write.source for write in functional.writes]
    storages = {storage_of(metadata(source)) for source in sources} - {None}
    for node in [node for node in functional.graph.nodes if node.op in ("placeholder", "get_attr")]:
        if node in saved and (node in sources or storage_of(metadata(node)) in storages):
            _use_copy_of_old_value(functional.rewrite, node, aten_dialect)


def _use_copy_of_old_value(rewrite: Rewrite, node: fx.Node, aten_dialect: bool) -> None:
    after = node.next
    while after.op in ("placeholder", "get_attr"):
        after = after.next
    clone = aten.clone.default if aten_dialect else torch.clone
    with rewrite.graph.inserting_before(after):
        new = rewrite.graph.create_node("call_function", clone, (node,), {}, name=f"{node.name}_before")
    new.meta = dict(node.meta)
    for key in ("val", "example_value"):
        if isinstance(value := node.meta.get(key), torch.Tensor):
            new.meta[key] = own_memory(value)
    rewrite.origin[new] = rewrite.origin[node]
    node.replace_all_uses_with(new, lambda user: user is not new)


def _saved_values(graph: fx.Graph, root: nn.Module | None, state: Mapping[str, Any]) -> set[fx.Node]:
    """The nodes whose memory may be saved for the backward pass, directly or through a view."""
    # Forward, collect the nodes that may require a gradient; backward, the operands that their derivatives read, and
    # the bases with which these share memory.
    tracked: set[fx.Node] = set()
    for node in graph.nodes:
        if (
            node.op in ("placeholder", "get_attr", "call_module")
            and input_requires_grad(node, root, state)
            or any(n in tracked for n in node.all_input_nodes)
            and _is_differentiable(node)
        ):
            tracked.add(node)
    saved: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in saved:
            saved.update(view_bases(node, root))
            saved.update(_bases_of_a_part(node))
        if node in tracked:
            saved.update(_saved_operands(node))
    return saved


def _bases_of_a_part(node: fx.Node) -> Iterable[fx.Node]:
    """The complex operand of a sum with a real one: where complex numbers are lowered to pairs of reals, the imaginary
    part of the result is that of the operand."""
    if node.op not in ("call_function", "call_method") or spelling_of(node).op.short not in SUMS:
        return ()
    found = [given for given in node.all_input_nodes if is_complex(metadata(given))]
    return found if len(found) == 1 else ()


def _is_differentiable(node: fx.Node) -> bool:
    # `wrap_with_set_grad_enabled(False, ...)`.
    if isinstance(node.target, torch._ops.HigherOrderOperator) and node.args[:1] == (False,):
        return str(node.target.__name__) != "wrap_with_set_grad_enabled"
    if node.op.startswith("call") and spelling_of(node).op.short == "detach":
        return False
    return node.op != "output" and can_require_grad(metadata(node)) and kind_of(node) != "host"


def _saved_operands(node: fx.Node) -> Iterable[fx.Node]:
    """The operands that a call, or its expansion by a rule, may save: a rule that reads or writes elements by index may
    use an op such as `aten.take`, which saves what it reads."""
    if node.op not in ("call_function", "call_method"):
        return node.all_input_nodes if node.op == "call_module" else ()
    op = str(spelling_of(node).op.short)
    if op == "getitem":
        return () if is_basic_index(node.args[1]) else node.all_input_nodes
    # The gradient of the tensor itself is zero at the places that are written, whatever it holds.
    if op == "index_put":
        return nodes_in((node.args[2:3], node.kwargs.get("values")))
    # Of `x * 2` autograd saves the number.
    scaled = op in ("mul", "div") and len(list(nodes_in((node.args, node.kwargs)))) == 1
    return () if scaled or op in SAVES_NOTHING else node.all_input_nodes


def can_require_grad(value: Any) -> bool:
    """Whether a value of this metadata may require a gradient."""
    if isinstance(value, torch.Tensor):
        return bool(value.is_floating_point() or value.is_complex())
    return not isinstance(value, NUMBERS)


def input_requires_grad(node: fx.Node, root: nn.Module | None, state: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Whether an input may require a gradient: parameters and buffers as they do, other inputs as the example does; for
    a call of a module, whether one of its parameters does. `state`: the tensors behind placeholders, by name."""
    if node.op in ("get_attr", "call_module"):
        value = attribute(root, str(node.target)) if root is not None else None
        if isinstance(value, nn.Module):
            return any(parameter.requires_grad for parameter in value.parameters())
        return bool(getattr(value, "requires_grad", False))
    value = state.get(node.name, metadata(node))
    return bool(value.requires_grad) if isinstance(value, torch.Tensor) else can_require_grad(value)


def drop_copies(writes: tuple[Write, ...], emit: Emitter, root: nn.Module | None) -> Iterator[Write]:
    """Write back the original of a value that was only copied to be written back, unless it is also a result or is
    written elsewhere: in the signature of a program, a result that is written back is identified with the input."""
    leaving = {*(write.value for write in writes), *emit.graph.output_node().all_input_nodes}
    for write in writes:
        node = write.value
        plain = node in emit.emitted and node.target in (aten.clone.default, torch.clone) and not node.users
        source = node.args[0] if plain else None
        if isinstance(source, fx.Node) and _is_new(source, emit, root) and source not in leaving:
            leaving.add(source)
            emit.rewrite.erase(node)
            yield replace(write, value=source)
        else:
            yield write


def _is_new(node: fx.Node, emit: Emitter, root: nn.Module | None) -> bool:
    """Whether a node is certain to have memory of its own."""
    if node.op not in ("call_function", "call_method") or node in emit.emitted:
        return False
    return node.target is not operator.getitem and not view_bases(emit.rewrite.origin[node], root)


def _detach(graph: fx.Graph, node: fx.Node, aten_dialect: bool) -> fx.Node:
    new = graph.call_function(aten.detach.default if aten_dialect else torch.detach, (node,))
    new.meta = {k: v for k, v in node.meta.items() if k in ("val", "example_value")}
    return new


def as_module(body: fx.GraphModule, graph: fx.Graph, submodules: Mapping[str, fx.GraphModule]) -> fx.GraphModule:
    """`body` with another graph, and other bodies that it calls."""
    module = fx.GraphModule(body, graph, type(body).__name__)
    for name, inner in submodules.items():
        module.add_submodule(name, inner)
    module.meta.update(body.meta)
    return module
