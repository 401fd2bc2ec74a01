"""The functionalization pass: an in-place op becomes the op that returns the new value, later uses of the tensor, of
its views and of its base see that value, and inputs and buffers are written back once. The source graph is not changed;
nodes unrelated to mutation are copied unchanged.

It is a pass of its own, not `torch.func.functionalize`, because it also works without metadata, keeps the names,
dialect and gradients of the source, and refuses programs that it cannot follow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
import operator
from typing import Any

import torch
from torch import fx, nn

from decomp.functionalize.alias_sets import AliasSets
from decomp.functionalize.functional_ops import (
    cast,
    functional_variant,
    functional_view,
    has_out,
    out_call,
    written_op,
)
from decomp.functionalize.gradients import GradientSources, gradient_inputs, reaches
from decomp.functionalize.new_values import NewValues, refuse_dependence_on_order, returning_new_values, without_variant
from decomp.functionalize.overlap import memory_range_of, overlap
from decomp.functionalize.running_statistics import functional_form
from decomp.functionalize.storage import (
    Alias,
    AliasMemory,
    Tensor,
    connected,
    filling_its_memory,
    refuse_change_of_shape,
    refuse_detached_input,
)
from decomp.functionalize.views import (
    changes_nothing,
    element_view,
    listed_view,
    refuse_unless_unpacked,
    strided,
    view_of,
)
from decomp.functionalize.writes import (
    Functional,
    Write,
    append_writes,
    as_module,
    can_require_grad,
    drop_copies,
    input_requires_grad,
    keep_saved_values,
)
from decomp.graphs.graph_builder import Emitter
from decomp.ir.aliases import (
    bodies,
    is_same_tensor,
    is_view,
    list_operands,
    method_name,
    mutated_args,
    overload_on_lists,
    refusal,
    spelling_of,
    view_bases,
)
from decomp.ir.call import bound_call, kind_of, metadata
from decomp.ir.op_facts import BATCH_NORMS, COMPARISONS, METADATA_WRITES, RUN_ONCE
from decomp.torch_internals.modes import set_grad_enabled

__all__ = ["Functional", "Write", "append_writes", "functionalize", "mutates"]


def mutates(graph: fx.Graph, root: nn.Module | None) -> bool:
    """Whether anything in `graph`, or in the bodies of its higher-order ops, writes a tensor."""
    return any(mutated_args(n, root) or any(mutates(b.graph, b) for _, b in bodies(n, root)) for n in graph.nodes)


def functionalize(
    graph: fx.Graph, root: nn.Module | None, state: Mapping[str, Any] | None = None, trains: bool = True
) -> Functional:
    """A functional copy of `graph`. `state`: the tensors behind placeholders, by name, if the program lifts its state
    to inputs. `trains`: whether gradients are kept. Raises `MutationError` for mutation that cannot be followed."""
    walk = _FunctionalWalk(graph, root, gradient_inputs(graph, root, state or {}) if trains else (), state=state)
    functional = walk.functional()
    keep_saved_values(functional, root, walk.emit.is_aten, state or {})
    return functional


class _FunctionalWalk:
    """One pass over a graph, from inputs to outputs."""

    def __init__(
        self,
        graph: fx.Graph,
        root: nn.Module | None,
        tracks: Collection[fx.Node],
        grad_enabled: bool = True,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """`tracks`: the inputs that may require a gradient at run time."""
        self.source, self.root, self.tracks = graph, root, tracks
        self.emit = Emitter(graph)
        self.memory = AliasMemory(self.emit, grad_enabled)
        self.alias_sets = AliasSets(graph, root, state)
        self.sources = GradientSources(root)
        self.copies: dict[fx.Node, fx.Node] = self.emit.rewrite.values
        self.tensors: dict[fx.Node, Tensor] = {}
        """The tensor object of each node that may share memory with a written one."""
        self.requires_grad: dict[fx.Node, bool] = {}
        self.attributes: dict[Any, Tensor] = {}
        self.storages: dict[Any, fx.Node] = {}
        """The first `get_attr` on each storage that may be written."""
        self.inputs: dict[Any, list[fx.Node]] = {}
        """Inputs that may be written, by the storage of their example values."""
        self.results: dict[tuple[fx.Node, Any], Tensor] = {}
        """The results of calls that return several new tensors, by call and index."""
        self.regions: dict[fx.Node, _RunOnceBody] = {}
        self.submodules: dict[str, fx.GraphModule] = {}
        self.at: fx.Node = next(iter(graph.nodes))

    def functional(self, outputs: list[Write] | None = None) -> Functional:
        """Run the pass."""
        writes: tuple[Write, ...] = ()
        for node in self.source.nodes:
            self.at = node
            if node.op == "output":
                writes = tuple(self._writes(in_region=outputs is not None))
                if outputs is not None:
                    outputs.extend(writes)
                self._output(node, outputs or [])
            else:
                self._visit(node)
        self._sweep(writes)
        # After unused nodes are gone, as they would count as users of a copy.
        writes = tuple(drop_copies(writes, self.emit, self.root))
        self.emit.graph.lint()
        return Functional(self.emit.rewrite, writes, self.submodules, self.emit.stale_strides)

    # Values of nodes.

    def value_of(self, node: fx.Node) -> fx.Node:
        """The current value of a source node, as a node of the copy."""
        tensor = self.tensors.get(node)
        return self.copies[node] if tensor is None else self.memory.read(tensor.alias, self.at)

    def _requires(self, *nodes: fx.Node) -> bool:
        return any(self._tracked(node) for node in nodes)

    def _tracked(self, node: fx.Node) -> bool:
        tensor = self.tensors.get(node)
        return tensor.alias.requires_grad if tensor is not None else self.requires_grad.get(node, False)

    def _gradient_of(self, node: fx.Node) -> bool:
        """Whether the result of a call requires a gradient, as far as its inputs and a module's parameters show."""
        if not self.memory.grad_enabled or not can_require_grad(metadata(node)):
            return False
        own = node.op == "call_module" and input_requires_grad(node, self.root)
        return own or self._requires(*node.all_input_nodes)

    # Nodes.

    def _visit(self, node: fx.Node) -> None:
        if node.op in ("placeholder", "get_attr"):
            self._input(node)
        elif node.target is set_grad_enabled:
            self.memory.set_grad_enabled(bool(node.args[0]), node)
            self._copy(node)
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            self._higher_order(node)
        elif targets := mutated_args(node, self.root):
            self._mutation(node, targets)
        elif self.alias_sets.may_be_written(node) and view_bases(node, self.root):
            self._view(node)
        else:
            self._copy(node)

    def _copy(self, node: fx.Node) -> fx.Node:
        requires = self._gradient_of(node)
        new = self.emit.copy(node, self.value_of)
        self._fresh(node, new, requires)
        return new

    def _fresh(self, node: fx.Node, new: fx.Node, requires: bool) -> None:
        """`node` is a tensor on memory of its own, whose value is `new`."""
        self.copies[node] = new
        self.requires_grad[node] = requires
        if self.alias_sets.may_be_written(node):
            self.tensors[node] = Tensor(self.memory.new(node, new, requires))

    def _input(self, node: fx.Node) -> None:
        new, tracked = self.emit.copy(node, self.value_of), node in self.tracks
        self.sources.inputs.update((new,) if tracked else ())
        key = self.alias_sets.attribute_key(node)
        if key in self.attributes:
            self.tensors[node] = self.attributes[key]
            return
        if self.alias_sets.may_be_written(node) and (storage := self.alias_sets.storage_key(node)) is not None:
            if self.storages.setdefault(storage, node) is not node:
                raise refusal(
                    node,
                    f"it shares memory with {self.storages[storage].name!r}, another buffer or "
                    "parameter, and one of them is written",
                    "clone() one of the two when the module is made",
                )
        if self.alias_sets.may_be_written(node):
            self._refuse_overlapping_inputs(node)
        self._fresh(node, new, tracked)
        if key is not None and node in self.tensors:
            self.attributes[key] = self.tensors[node]

    def _refuse_overlapping_inputs(self, node: fx.Node) -> None:
        others = self.inputs.setdefault(self.alias_sets.input_key(node) or node, [])
        for other in others:
            if overlap(memory_range_of(metadata(other)), memory_range_of(metadata(node))):
                raise refusal(
                    node,
                    f"it shares memory with the input {other.name!r}, and one of them is written",
                    f"lower and call the program with inputs that do not overlap ({node.name}.clone())",
                )
        others.append(node)

    def _view(self, node: fx.Node) -> None:
        bases = view_bases(node, self.root)
        base = bases[0]
        if listed := list_operands(node if len(bases) > 1 else base):
            self._listed(node, base, listed)
            return
        if base in self.regions:
            self._result_of_region(node, self.regions[base])
            return
        # With several bases it is not known which one is viewed.
        shares = is_view(node, base) if len(bases) == 1 else None
        if shares is False or base not in self.tensors:
            self._copy(node)
            return
        tensor = self.tensors[base]
        if tensor.alias.storage.source is base and node.target is operator.getitem and kind_of(base) == "many":
            return self._result(node, base)
        if shares and kind_of(node) != "many" and is_same_tensor(node, base):
            self.emit.copy(node, self.value_of)
            self.tensors[node] = tensor
            return
        if shares and spelling_of(node).op.short == "as_strided":
            self._strided_view(node, tensor.alias)
            return
        before = self.memory.read(tensor.alias, node)
        new = self.emit.copy(node, self.value_of)
        if self.emit.mode is None and tensor.alias.storage.write_count and new.target == "view":
            if not any(isinstance(argument, torch.dtype) for argument in new.args):
                new.target = "reshape"  # strides are unknown: those of the new value may differ from the old one's
        if tensor.alias.is_tuple and node.target is operator.getitem and isinstance(node.args[1], int):
            assert tensor.alias.view is not None
            view = element_view(node, new, tensor.alias.view)
            view.base = before
            self.tensors[node] = Tensor(self.memory.derive(tensor.alias, view, index=node.args[1]))
            return
        view = view_of(node, new, before, self.value_of, certain=shares is True)
        self.tensors[node] = Tensor(self.memory.derive(tensor.alias, view, is_tuple=kind_of(node) == "many"))

    def _strided_view(self, node: fx.Node, operand: Alias) -> None:
        """`as_strided`, which addresses the memory: a view of the nearest tensor that fills its part of it."""
        base = filling_its_memory(operand)
        before = self.memory.read(base, node)
        view = view_of(node, before, before, self.value_of, certain=True)
        view.layouts = operand.source_metadata, base.source_metadata
        if base.storage.write_count:
            view.value = self.copies[node] = strided(self.emit, view, before, replaces=True)
        else:
            view.value = self.emit.copy(node, self.value_of)
        self.tensors[node] = Tensor(self.memory.derive(base, view))

    def _listed(self, node: fx.Node, whole: fx.Node, listed: tuple[fx.Node, ...]) -> None:
        """A call that returns views of several tensors, or one of them, `getitem(whole, i)`, which is a view of its own
        base."""
        new = self.emit.copy(node, self.value_of)
        self.requires_grad[node] = self._gradient_of(node)
        if node.target is not operator.getitem:
            refuse_unless_unpacked(node)
            return
        base = listed[node.args[1]]
        if (tensor := self.tensors.get(base)) is not None:
            if not is_same_tensor(whole, base):
                view = listed_view(self.emit, node, whole, self.memory.read(tensor.alias, node), new)
                tensor = Tensor(self.memory.derive(tensor.alias, view))
            self.tensors[node] = tensor

    def _result(self, node: fx.Node, base: fx.Node) -> None:
        """One of several new tensors, each on memory of its own."""
        place = (base, node.args[1])
        if place in self.results:
            self.emit.copy(node, self.value_of)
            self.tensors[node] = self.results[place]
        else:
            self._copy(node)
            self.results[place] = self.tensors[node]

    def _output(self, node: fx.Node, extra: list[Write]) -> None:
        new = self.emit.copy(node, self.value_of)
        if extra:
            values = new.args[0] if isinstance(new.args[0], (list, tuple)) else (new.args[0],)
            new.args = ((*values, *(write.value for write in extra)),)

    # Mutation.

    def _mutation(self, node: fx.Node, targets: tuple[fx.Node, ...]) -> None:
        name = method_name(node)
        for target in targets:
            self._refuse_unless_followed(node, target)
        if spelling_of(node).op.short in BATCH_NORMS if node.op != "call_module" else False:
            self._batch_norm(node)
        elif node.kwargs.get("out") is not None or has_out(node):
            self._out(node, targets)
        # Before functional variants, which these have as well: the tensor must become a view, so that writes reach its
        # base.
        elif name in METADATA_WRITES:
            self._change_of_metadata(node, targets[0])
        elif values := returning_new_values(node):
            self._returning_new_values(node, values)
        elif len(targets) > 1 or node.op == "call_module" or overload_on_lists(node.target) is not None:
            raise without_variant(node)
        else:
            self._inplace(node, targets[0])

    def _refuse_unless_followed(self, node: fx.Node, target: fx.Node) -> None:
        if target not in self.tensors:
            raise refusal(
                node,
                f"it writes {target.name!r}, and which tensor that is cannot be determined",
                "return new tensors in the model",
            )

    def _inplace(self, node: fx.Node, target: fx.Node) -> None:
        tensor = self.tensors[target]
        requires, before = self._gradient_of(node), self.value_of(target)
        # If the new value does not depend on the old one, `overwritten` restores that dependence, with a gradient of
        # zero.
        tracked = self.memory.grad_enabled and self.sources.may_require_grad(before)
        last = next(iter(reversed(self.emit.graph.nodes)))
        new = functional_variant(self.emit, node, self.value_of, tracked)
        compares = written_op(node) in COMPARISONS and can_require_grad(metadata(target))  # bool never does
        # A comparison has no derivative, but its in-place form has one of zero, for the other operand as well.
        if compares and self.memory.grad_enabled:
            for other in {self.value_of(n): None for n in node.all_input_nodes if n is not target}:
                if self.sources.may_require_grad(other):
                    new = connected(self.emit, new, other, node)
        lost = tracked and not reaches(new, before, last)
        self.memory.write(tensor.alias, new, requires, node, overwritten=before if lost else None)
        self.tensors[node] = tensor

    def _returning_new_values(self, node: fx.Node, values: NewValues) -> None:
        """A call whose functional variant returns what is written after the results of its own."""
        refuse_dependence_on_order(node, values, self.tensors)
        requires = self._gradient_of(node)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self.value_of)
        whole = self.emit.node("call_function", values.target, args, kwargs, at=node)
        for source, value, is_result in values.items(self.emit, node, whole):
            value = self._fitting(node, source, value)
            # What is written beside the result, such as the noise of `rrelu_with_noise`, has no gradient.
            tracked = requires and is_result and can_require_grad(metadata(source))
            self.memory.write(self.tensors[source].alias, value, tracked, node)
        if values.returned is not None:
            self.tensors[node] = self.tensors[values.returned]
        elif values.own == 1 and not values.is_list:
            self._fresh(node, self.emit.like(node, "call_function", operator.getitem, (whole, 0), {}), requires)
        else:
            refuse_unless_unpacked(node)
            self.copies[node] = whole

    def _change_of_metadata(self, node: fx.Node, target: fx.Node) -> None:
        """squeeze_() and similar: from now on the tensor is a view of its former self. detach_() changes no view."""
        tensor = self.tensors[node] = self.tensors[target]
        base = self.memory.read(tensor.alias, node)
        if method_name(node) == "detach_":
            refuse_detached_input(node, target, tensor)
            self.memory.detach_in_place(tensor.alias, node)
            return
        view = view_of(node, base, base, self.value_of, certain=True)
        view.op = view.op.removesuffix("_")
        view.layouts = (tensor.alias.source_metadata,) * 2
        if view.op == "as_strided" and tensor.alias.storage.write_count:
            new = strided(self.emit, view, base, replaces=True)
        else:
            new = functional_view(self.emit, node, *fx.node.map_arg((node.args, node.kwargs), self.value_of))
        view.value = new
        if changes_nothing(base, new) and changes_nothing(target, node):  # without gradients it keeps its history
            return
        names = [other for other, one in self.tensors.items() if one is tensor]
        refuse_change_of_shape(node, target, tensor, names)
        tensor.alias = self.memory.reshape(tensor.alias, view, node)

    def _batch_norm(self, node: fx.Node) -> None:
        """Batch norm in training: its functional form, and writes of the running statistics that this returns."""
        call = bound_call(node)
        assert call is not None
        requires = self._gradient_of(node) or self._requires(*node.all_input_nodes)
        form = functional_form(self.emit, node, call, fx.node.map_arg(call.arguments, self.value_of))
        if form is None:
            raise refusal(
                node,
                f"{call.op.short} updates its running statistics, and it has no functional form",
                "use batch_norm, or track_running_stats=False",
            )
        if form.is_tuple:
            self.copies[node] = form.whole
        else:
            self._fresh(node, form.whole, requires)
        for name, new in form.statistics:
            self.memory.write(self.tensors[call.arguments[name]].alias, new, False, node)

    def _out(self, node: fx.Node, targets: tuple[fx.Node, ...]) -> None:
        """`out=`: the results are computed, then written to the tensors passed as `out`."""
        op, target, args, kwargs = out_call(node, self.value_of)
        requires = self._gradient_of(node)
        whole = self.emit.node(op, target, args, kwargs, at=node)
        for i, source in enumerate(targets):
            value = whole
            if len(targets) > 1:
                value = self.emit.node("call_function", operator.getitem, (whole, i), {}, at=node, label=source.name)
            value = self._fitting(node, source, value)
            self.memory.write(self.tensors[source].alias, value, requires, node)
            if len(targets) == 1:
                self.tensors[node] = self.tensors[source]
        if len(targets) > 1:
            self.copies[node] = whole

    def _fitting(self, node: fx.Node, source: fx.Node, value: fx.Node) -> fx.Node:
        """The result of an op with `out=`, in the dtype of the tensor to which it is written."""
        alias = self.tensors[source].alias
        own, new = metadata(alias.value), metadata(value)
        if not isinstance(own, torch.Tensor) or not isinstance(new, torch.Tensor):
            return value
        is_fixed = alias.parent is not None or alias.storage.source.op in ("placeholder", "get_attr")
        if own.shape != new.shape and is_fixed:
            raise refusal(node, f"out= changes the size of {source.name!r}", "give out= a tensor of the right size")
        return cast(self.emit, node, value, alias.value, final=False) if own.dtype != new.dtype else value

    # Higher-order ops.

    def _higher_order(self, node: fx.Node) -> None:
        found = bodies(node, self.root)
        # A body of `cond` or of a loop may run never, or often: its writes have no one place in this graph.
        if node.target.__name__ not in RUN_ONCE or len(found) != 1:
            for name, body in found:
                self._pure_body(node, str(name.target), body)
            self._copy(node)
            return
        name, body = found[0]
        region = self.regions[node] = _RunOnceBody(self, node, name, body)
        if region.changed:
            self.submodules[str(name.target)] = region.module()
            self.emit.stale_strides.update(region.functional.stale_strides)
        self._enter(node, region)

    def _pure_body(self, node: fx.Node, name: str, body: fx.GraphModule) -> None:
        if name in self.submodules or not mutates(body.graph, body):
            return
        inner = _FunctionalWalk(
            body.graph, body, gradient_inputs(body.graph, body, {}) if self.tracks else ()
        ).functional()
        if inner.writes:
            raise refusal(
                node,
                f"its body {name!r} writes {inner.writes[0].source.name!r}, an operand",
                "return the new value from the body",
            )
        self.submodules[name] = as_module(body, inner.graph, inner.submodules)
        self.emit.stale_strides.update(inner.stale_strides)

    def _enter(self, node: fx.Node, region: _RunOnceBody) -> None:
        written_operands = [region.operands[i] for i, _ in region.writes]
        for operand in written_operands:
            self._refuse_unless_followed(node, operand)
            self._refuse_shared(node, operand, region)
        requires = region.grad_enabled and self._requires(*region.operand_nodes)
        new = self.emit.copy(node, self.value_of)
        self.requires_grad[node] = requires
        if not region.writes:
            return
        # Written operands become additional results of the region, after its own.
        count = len(region.outputs)
        if self.emit.key is not None and isinstance(new.meta.get(self.emit.key), tuple):
            extra = tuple(self.emit.fresh(metadata(write.value)) for _, write in region.writes)
            new.meta[self.emit.key] = (*new.meta[self.emit.key], *extra)
        before = self.memory.grad_enabled
        # The writes were made in the region, in its gradient mode.
        self.memory.grad_enabled = before and region.grad_enabled
        for k, operand in enumerate(written_operands):
            value = self.emit.node("call_function", operator.getitem, (new, count + k), {}, at=node, label=operand.name)
            self.memory.write(self.tensors[operand].alias, value, requires, node)
        self.memory.grad_enabled = before

    def _refuse_shared(self, node: fx.Node, operand: fx.Node, region: _RunOnceBody) -> None:
        root = self.tensors[operand].alias.storage
        for other in region.operand_nodes:
            if other is not operand and other in self.tensors and self.tensors[other].alias.storage is root:
                raise refusal(
                    node,
                    f"it writes {operand.name!r}, which shares memory with {other.name!r}, in a region of its own",
                    "clone() one of them before the region",
                )

    def _result_of_region(self, node: fx.Node, region: _RunOnceBody) -> None:
        """`getitem(region, i)`: an operand itself, a possible view of one, or a new tensor."""
        index = node.args[1]
        # The results of a region are one tuple, which is no tensor with a current value.
        new = self.emit.copy(node, lambda n: self.copies[n])
        same, views = region.outputs[index] if isinstance(index, int) else (None, ())
        if same is not None and region.operands[same] in self.tensors:
            self.tensors[node] = self.tensors[region.operands[same]]
            return
        bases = [region.operands[i] for i in views if region.operands[i] in self.tensors]
        if not bases:
            self._fresh(node, new, self.requires_grad.get(region.node, False))
            return
        base = self.tensors[bases[0]].alias
        view = view_of(node, new, base.value, self.value_of, certain=False)
        self.tensors[node] = Tensor(self.memory.derive(base, view))

    # Results.

    def _writes(self, in_region: bool) -> Iterator[Write]:
        for storage in self.memory.written:
            source = storage.source
            if source.op in ("placeholder", "get_attr"):
                # A program ends in a `copy_`, which connects gradients itself; what a region returns must carry them.
                data_only = not (in_region or storage.has_gradient_of_before)
                value = self.memory.read(self._whole(source), storage.writer or self.at, data_only=data_only)
                differentiable = self._tracked(source) or storage.detached
                yield Write(self.copies[source], value, storage.only_untracked, differentiable)

    def _whole(self, source: fx.Node) -> Alias:
        alias = self.tensors[source].alias
        while alias.parent is not None:
            alias = alias.parent
        return alias

    def _sweep(self, writes: tuple[Write, ...]) -> None:
        """Erase unused nodes that the pass emitted, or whose only uses were mutation."""
        kept = {write.value for write in writes}
        origin, emitted = self.emit.rewrite.origin, self.emit.emitted
        self.emit.sweep(
            node
            for node in reversed(list(self.emit.graph.nodes))
            if node not in kept and (node in emitted or origin[node].users)
        )


class _RunOnceBody:
    """A body that runs once, on operands: its writes, and the memory that its outputs share with operands."""

    def __init__(self, outer: _FunctionalWalk, node: fx.Node, name: fx.Node, body: fx.GraphModule) -> None:
        self.node, self.body = node, body
        place = node.args.index(name)
        self.operands: list[Any] = list(node.args[place + 1 :])
        self.operand_nodes = [o for o in self.operands if isinstance(o, fx.Node)]
        self.grad_enabled = outer.memory.grad_enabled
        if node.target.__name__ == "wrap_with_set_grad_enabled":
            self.grad_enabled = bool(node.args[0])
        self.inputs = body.graph.find_nodes(op="placeholder")
        given = zip(self.inputs, self.operands)
        tracks = {source for source, operand in given if isinstance(operand, fx.Node) and outer._tracked(operand)}
        walk = _FunctionalWalk(body.graph, body, tracks, self.grad_enabled)
        written_here: list[Write] = []
        self.functional = walk.functional(written_here)
        self.changed = mutates(body.graph, body)
        places = {walk.copies[source]: i for i, source in enumerate(self.inputs)}
        self.writes = [(places[w.source], w) for w in written_here if w.source in places]
        if len(self.writes) < len(written_here):
            raise refusal(node, "its body writes a buffer of its own", "pass the buffer to the body")
        output = body.graph.output_node()
        results = output.args[0] if isinstance(output.args[0], (list, tuple)) else (output.args[0],)
        self.outputs = [self._shared(walk, result) for result in results]

    def _shared(self, walk: _FunctionalWalk, result: Any) -> tuple[int | None, tuple[int, ...]]:
        """The input that an output is identical to, and those of which it may be a view."""
        if not isinstance(result, fx.Node):
            return None, ()
        for i, source in enumerate(self.inputs):
            known = walk.tensors.get(result)
            if result is source or known is not None and known is walk.tensors.get(source):
                return i, ()
        return None, tuple(i for i, source in enumerate(self.inputs) if walk.alias_sets.may_alias(result, source))

    def module(self) -> fx.GraphModule:
        """The functional body."""
        return as_module(self.body, self.functional.graph, self.functional.submodules)
