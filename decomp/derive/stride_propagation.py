"""Stride propagation. An expansion may return other strides than the call that it replaces, if that returned a view
with gaps; and a kernel may return other strides than those with which the program was captured, as some fake kernels
lay results out differently. A node whose strides differ from the captured metadata is re-traced, and so is every node
that depends on its strides: metadata stays true, rules see it, and a call that does not work on other strides (such as
a view) gets a copy.

The pass runs while calls are being decided, in order. As long as strides are as captured, the source graph itself is
used and nothing is copied. At the first change a copy of the graph is started; from there on each node is run on the
metadata of its new arguments, and either inherits true metadata, or gets dense copies of its arguments before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn

from decomp.functionalize.writes import as_module
from decomp.graphs.graph_builder import Emitter
from decomp.graphs.rewrite import Rewrite, copy_graph
from decomp.graphs.tracing import fake_like
from decomp.ir.aliases import bodies, changes_metadata, spelling_of
from decomp.ir.call import is_host, metadata
from decomp.ir.module import ProgramGraph
from decomp.ir.op_facts import runs_once
from decomp.metadata.fakes import require_grad_like
from decomp.metadata.strides import dense_order, inverse, same_layout
from decomp.metadata.symbolic_sizes import is_data
from decomp.torch_internals.pytree import tensors_in, tree_leaves, tree_map

PINNED = "a call that stays reads its memory by strides, and it has gaps"
_UNSATISFIABLE = "reads memory with gaps by strides, which are different in the lowered program"


def changed_strides(graph: fx.Graph, expected: Any) -> Any:
    """The metadata of the results of `graph`, if any of them has strides other than `expected`; else None. A result
    that it omits, as it is not used, counts as expected."""
    output: Any = graph.output_node().args[0]
    # The usual case by itself: this is asked of every expansion.
    if isinstance(output, fx.Node) and isinstance(expected, torch.Tensor):
        value = metadata(output)
        return value if isinstance(value, torch.Tensor) and _differ([value], [expected]) else None
    if isinstance(output, (tuple, list)) and isinstance(expected, (tuple, list)):
        output = tuple(e if each is None else each for each, e in zip(output, expected))
    found = tree_map(lambda leaf: metadata(leaf) if isinstance(leaf, fx.Node) else leaf, output)
    return found if _differ(tensors_in(found), tensors_in(expected)) else None


# Two such fake kernels: https://github.com/pytorch/pytorch/issues/192668 (batch norm) and
# https://github.com/pytorch/pytorch/issues/139312 (`_unsafe_index`).
class StridePropagation:
    """A graph whose calls are being decided in order. It is the source itself until the first result has other strides
    than were captured; from there on it is a copy with true metadata."""

    def __init__(
        self, source: fx.Graph, stale_strides: Mapping[fx.Node, Any] | None = None, expected: Any = None
    ) -> None:
        """`stale_strides`: nodes whose metadata is true but differs from that with which their users were captured,
        mapped to the latter. `expected`: metadata of the results, if it is not that of the output."""
        self.source = source
        # With stale strides the first node may need a copy of its
        # operand, so that the copy of the graph begins at once.
        self.emit = Emitter(source) if stale_strides else None
        self.strides_unsatisfiable: dict[fx.Node, str] = {}
        """Calls that need the captured strides and cannot get them, and why."""
        self._changed: set[fx.Node] = set()
        self._expected = expected
        self._stale_strides = dict(stale_strides or {})

    @property
    def graph(self) -> fx.Graph:
        """The graph with true metadata."""
        return self.source if self.emit is None else self.emit.graph

    def current(self, node: fx.Node) -> fx.Node:
        """The current node for a node of the source; a node of the copy is returned unchanged."""
        found: fx.Node = node if self.emit is None else self.emit.rewrite.values.get(node, node)
        return found

    def nodes(self) -> Iterator[fx.Node]:
        """The nodes to be decided, in order: those of the source, or of its copy, each after calls that copy its
        arguments if it needs other strides. Calls of `strides_changed` in between affect the nodes that follow."""
        for node in self.source.nodes:
            if self.emit is None:
                yield node
            else:
                visit = self._visit_output if node.op == "output" else self._visit_node
                yield from visit(self.emit, node)

    def strides_changed(self, node: fx.Node, results: Any) -> None:
        """The replacement of the call `node` has `results`, with strides other than captured."""
        if self.emit is None:
            # Most graphs never come here: copying each of them would cost as much as planning it.
            self.emit = Emitter(self.source)
            # The copy begins with everything decided so far, which has captured strides.
            for earlier in self.source.nodes:
                self._copy_node(self.emit, earlier, self.emit.rewrite.values)
                if earlier is node:
                    break
        assert self.emit.mode is not None
        self._changed.add(self.current(node))
        _update_meta(self.emit, self.current(node), fake_like(self.emit.mode, results))

    def changed_before_unsatisfiable(self) -> frozenset[str]:
        """The names of calls whose changed strides make a later call lose its captured ones."""
        before = dict.fromkeys(self.strides_unsatisfiable)
        # The list grows while it is walked: a breadth-first search.
        for node in (waiting := list(before)):
            new = [given for given in node.all_input_nodes if given not in before]
            before.update(dict.fromkeys(new))
            waiting += new
        return frozenset(node.name for node in before if node in self._changed)

    def _visit_node(self, emit: Emitter, node: fx.Node) -> list[fx.Node]:
        value_map = {n: self.current(n) for n in node.all_input_nodes}
        moved = self._moved(emit, value_map)
        # A call that is not run keeps the captured metadata. Sizes that depend on data cannot be computed again: the
        # new run would make new symbols for them.
        if not moved or not self._can_be_run(node):
            return [self._copy_node(emit, node, value_map)]
        # Bodies were traced for the captured strides, and `as_strided` means
        # them: neither would fail on others, but compute something else.
        if isinstance(node.target, torch._ops.HigherOrderOperator) or spelling_of(node).op.short == "as_strided":
            return self._as_captured(emit, node, moved, value_map)
        value, before = _run(emit, node, value_map), []
        # The call does not work on these strides (a view, for instance): give it contiguous copies.
        if value is None:
            # All of them, as the failure does not say which operand it was.
            tensors = [n for n in moved if isinstance(metadata(n), torch.Tensor)]
            before = _in_order(emit, value_map, {n: list(range(metadata(n).dim())) for n in tensors}, node)
            value = _run(emit, node, value_map)
        new = self._copy_node(emit, node, value_map)
        _update_meta(emit, new, value)
        return [*before, new]

    def _moved(self, emit: Emitter, value_map: Mapping[fx.Node, fx.Node]) -> list[fx.Node]:
        """The arguments whose strides differ from the captured ones."""
        return [n for n in value_map if value_map[n] in emit.stale_strides]

    def _visit_output(self, emit: Emitter, output: fx.Node) -> list[fx.Node]:
        """Dense copies of results whose strides differ from the expected ones."""
        nodes = [leaf for leaf in tree_leaves(output.args[0]) if isinstance(leaf, fx.Node)]
        wanted = [metadata(n) for n in nodes] if self._expected is None else tensors_in(self._expected)
        # After the calls: a result that is also an operand keeps its own strides inside of the graph.
        value_map = {n: self.current(n) for n in output.all_input_nodes}
        orders = {}
        # An expansion omits unused results, and then says by position no more which is which.
        for node, want in zip(nodes, wanted) if len(nodes) == len(wanted) else ():
            found = metadata(value_map[node])
            if isinstance(want, torch.Tensor) and isinstance(found, torch.Tensor) and not same_layout(found, want):
                orders[node] = dense_order(want)
        before = _in_order(emit, value_map, orders, output)
        return [*before, self._copy_node(emit, output, value_map)]

    def _copy_node(self, emit: Emitter, node: fx.Node, value_map: Mapping[fx.Node, fx.Node]) -> fx.Node:
        new = emit.copy(node, value_map.__getitem__)
        if node in self._stale_strides:
            emit.stale_strides[new] = self._stale_strides[node]
        return new

    def _as_captured(
        self, emit: Emitter, node: fx.Node, moved: list[fx.Node], value_map: dict[fx.Node, fx.Node]
    ) -> list[fx.Node]:
        """A call that depends on memory layout, or whose body was traced for it, on copies with the captured
        strides."""
        orders = {n: dense_order(emit.stale_strides[value_map[n]]) for n in moved}
        before = _in_order(emit, value_map, orders, node)
        new = self._copy_node(emit, node, value_map)
        if None in orders.values() and not isinstance(node.target, torch._ops.HigherOrderOperator):
            self.strides_unsatisfiable[new] = _UNSATISFIABLE
        return [*before, new]

    def _can_be_run(self, node: fx.Node) -> bool:
        if node.op not in ("call_function", "call_method") or is_host(node):
            return False
        return not any(is_data(size) for value in tensors_in(metadata(node)) for size in value.shape)


def _run(emit: Emitter, node: fx.Node, value_map: Mapping[fx.Node, fx.Node]) -> Any:
    """The result of a call on the metadata of its arguments in `value_map`; None if it fails."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), value_map.__getitem__)
    try:
        return emit.computed(node.target, args, kwargs)
    # Whatever PyTorch raises here means that the call does not take these strides; there is no narrower class.
    except Exception:
        return None


def _update_meta(emit: Emitter, node: fx.Node, value: Any) -> None:
    """Set the metadata of a node in the copy, if it has changed."""
    assert emit.key is not None
    before = metadata(node)
    old, new = tensors_in(before), tensors_in(value)
    if not _differ(new, old):
        return
    for was, now in zip(old, new):
        # The new metadata was computed under no_grad, but signatures and kernels depend on requires_grad.
        require_grad_like(now, was)
    following = iter(new)
    node.meta[emit.key] = tree_map(lambda x: next(following) if isinstance(x, torch.Tensor) else x, before)
    # The captured one stays if the strides change twice: users were captured with it.
    emit.stale_strides.setdefault(node, before)


def _in_order(
    emit: Emitter, value_map: dict[fx.Node, fx.Node], orders: Mapping[fx.Node, list[int] | None], at: fx.Node
) -> list[fx.Node]:
    """Replace values in `value_map` by copies with dimensions laid out in the given orders, the slowest first."""
    made: list[fx.Node] = []
    for node, order in orders.items():
        if order is not None:
            copy = dense_copy(emit, value_map[node], order, at)
            made += copy
            value_map[node] = copy[-1]
    return made


def dense_copy(emit: Emitter, node: fx.Node, order: list[int], at: fx.Node) -> list[fx.Node]:
    """Calls that copy `node` so that its dimensions are laid out in `order`, the slowest first; the last one is the
    copy."""
    # `contiguous()` would return its operand if sizes of one make both layouts the same.
    keep = {"memory_format": torch.contiguous_format}
    if order == sorted(order):
        return [emit.call("clone", (node,), keep, at=at)]
    turned = emit.call("permute", (node, order), at=at)
    clone = emit.call("clone", (turned,), keep, at=at)
    return [turned, clone, emit.call("permute", (clone, inverse(order)), at=at)]


def _differ(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    """Whether any of them has different strides. (Unused results may have any shape.)"""
    # An expansion may leave an unused result out, or give it another rank.
    pairs = [pair for pair in zip(found, expected) if pair[0].dim() == pair[1].dim()]
    return len(found) == len(expected) and not all(same_layout(*pair) for pair in pairs)


# Strides of kernels' results.

KernelStrides = Callable[[fx.Node], Any]
"""Returns the true metadata of a call's results, if the captured metadata has other strides; else None."""


def with_kernel_strides(own: ProgramGraph, kernel_strides: KernelStrides) -> ProgramGraph:
    """A functional graph with metadata that has the strides its kernels return. A call that does not work on these
    gets a copy."""
    # The output is not brought to its captured strides: what a functional graph returns is compared later, by the plan.
    propagation = StridePropagation(own.graph, own.stale_strides, expected=())
    for node in propagation.nodes():
        results = kernel_strides(propagation.current(node))
        if results is not None:
            propagation.strides_changed(node, results)
    return own if propagation.emit is None else own.rewritten(propagation.emit.rewrite, "kernel strides")


def correct_strides(own: ProgramGraph, kernel_strides: KernelStrides) -> ProgramGraph:
    """A captured graph with the strides that its kernels return; its calls are unchanged. Their meaning depends on it:
    which of them return views, and what those that read by strides read. The graph itself if it already has them, or
    if a call does not work on them: PyTorch could not run the captured graph, and `with_kernel_strides` adds a copy."""
    try:
        found = _corrected(own.graph, own.owner, kernel_strides, {})
    except _CannotBeRun:
        return own
    return own if found is None else own.rewritten(found[0], "correct strides", bodies=found[1])


def owner_of_bodies(own: ProgramGraph) -> nn.Module:
    """The owner of a graph, or a copy that has the bodies which the graph calls now."""
    if not own.bodies:
        return own.owner
    found = nn.Module()
    found.__dict__.update(own.owner.__dict__)
    # A shallow copy that shares parameters: only bodies are looked up in it.
    found._modules = {**own.owner._modules, **own.bodies}
    return found


class _CannotBeRun(Exception):
    """A call does not work on the strides that kernels return."""


class _StridesOnly(StridePropagation):
    """Stride propagation through a graph that may write memory and depend on its layout: no calls are added."""

    def _visit_node(self, emit: Emitter, node: fx.Node) -> list[fx.Node]:
        value_map = {n: self.current(n) for n in node.all_input_nodes}
        new = self._copy_node(emit, node, value_map)
        # Regions are corrected from inside, by `_region_results`.
        if not self._moved(emit, value_map) or runs_once(node.target) or not tensors_in(metadata(node)):
            return [new]
        # `transpose_` and its like change the metadata of their operand:
        # running one on a fake would change it for all earlier calls.
        value = None if changes_metadata(node) or not self._can_be_run(node) else _run(emit, node, value_map)
        if value is None or isinstance(node.target, torch._ops.HigherOrderOperator):
            raise _CannotBeRun
        _update_meta(emit, new, value)
        return [new]

    def _visit_output(self, emit: Emitter, output: fx.Node) -> list[fx.Node]:
        return [self._copy_node(emit, output, {n: self.current(n) for n in output.all_input_nodes})]


def _corrected(
    graph: fx.Graph, owner: nn.Module, kernel_strides: KernelStrides, inputs: Mapping[str, Any]
) -> tuple[Rewrite, dict[str, fx.GraphModule]] | None:
    """The rewrite of a graph, and the bodies of regions that were corrected as well, by attribute name. `inputs`: the
    metadata of inputs, by name, if it is not the captured one."""
    walk, regions = _StridesOnly(graph), dict[str, fx.GraphModule]()
    for node in walk.nodes():
        now = walk.current(node)
        if runs_once(now.target):
            results = _region_results(walk, now, owner, kernel_strides, regions)
        else:
            results = inputs.get(node.name) if node.op == "placeholder" else kernel_strides(now)
        if results is not None:
            walk.strides_changed(node, results)
    if walk.emit is not None:
        return walk.emit.rewrite, regions
    return (copy_graph(graph), regions) if regions else None


def _region_results(
    walk: StridePropagation,
    node: fx.Node,
    owner: nn.Module,
    kernel_strides: KernelStrides,
    regions: dict[str, fx.GraphModule],
) -> Any:
    """The results of a region, if they differ from the captured ones; its body is added to `regions` if it was
    corrected."""
    found = bodies(node, owner)
    # A region runs one body. Anything else is not understood here, and keeps its metadata.
    if len(found) != 1:
        return None
    name, body = found[0]
    operands = node.args[node.args.index(name) + 1 :]
    moved = walk.emit.stale_strides if walk.emit is not None else {}
    pairs = zip(body.graph.find_nodes(op="placeholder"), operands)
    inputs = {inner.name: metadata(given) for inner, given in pairs if given in moved}
    own = _corrected(body.graph, body, kernel_strides, inputs)
    if own is None:
        return None
    rewrite, inner = own
    # One body has one graph, so it cannot be right for both.
    if str(name.target) in regions:
        raise _CannotBeRun  # one body, called with two layouts
    regions[str(name.target)] = as_module(body, rewrite.graph, inner)
    return changed_strides(rewrite.graph, metadata(node))
