"""Rewrites a graph so that complex calls compute on pairs of real tensors. Complex inputs are split at their first use,
and complex outputs merged before they are returned, so that callers see the same dtypes. Calls that cannot be computed
on pairs stay complex, with a merge before and a split after; the planner decides whether they are legal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx

from decomp.errors import CaptureError
from decomp.graphs.graph_builder import own_memory
from decomp.graphs.rewrite import Rewrite
from decomp.graphs.template import ExpansionTemplate, make_value
from decomp.graphs.tracing import on_metadata
from decomp.ir.aliases import is_view, view_bases
from decomp.ir.call import inherited_meta, is_projection, metadata
from decomp.ir.effects import is_discharged_assertion, switches
from decomp.metadata.fakes import Fakes, mode_of
from decomp.metadata.strides import dense_order, inverse, same_layout
from decomp.ops import aten
from decomp.pairs.recording import PairRecorder, is_complex_call, reads_sizes

# Views where memory allows it, so that the border costs no copy of an input.
TAKEN_APART, PUT_TOGETHER = aten.view_as_real.default, aten.view_as_complex.default


def complex_as_real(
    source: fx.Graph, recorder: PairRecorder, kept: Collection[fx.Node], written: Collection[fx.Node], taken: Any
) -> ComplexAsReal:
    """`source` with pairs of real numbers. `kept` calls stay complex. `written` values are written back to inputs or
    buffers after the run, so that they are needed as complex tensors. `taken` are the names of attributes in use."""
    walk = ComplexAsReal(source, recorder, kept, set(taken))
    for node in source.nodes:
        walk.visit(node)
        if node in written:
            walk.observed(node)
    return walk


class ComplexAsReal:
    """One pass over a graph, and what came of it."""

    def __init__(self, source: fx.Graph, recorder: PairRecorder, kept: Collection[fx.Node], taken: set[str]) -> None:
        self.recorder, self.kept, self.taken = recorder, kept, taken
        self.rewrite = Rewrite.of(source)
        self.why: dict[fx.Node, ExpansionTemplate | str] = {}
        """By complex call of the source: its expansion, or why it has none and stays complex."""
        self.chains: dict[fx.Node, tuple[Any, ...]] = {}
        """For each node of an expansion: the rules that emitted it."""
        self.constants: dict[str, torch.Tensor] = {}
        """Tensors that rules use, by attribute."""
        self.stale_strides: dict[fx.Node, Any] = {}
        """The captured metadata of real results whose strides differ from it now."""
        mode = mode_of(source)
        assert mode is not None
        self.mode, self.fakes = mode, Fakes(mode)
        self.whole: dict[Any, fx.Node] = {}
        """Maps a complex value of the source to the new node that has it as a complex tensor, if there is one. The key
        is the source node, or the node and the index of a result."""
        self.pairs: dict[fx.Node, tuple[fx.Node, fx.Node]] = {}
        self.at_border: tuple[set[Any], set[fx.Node]] = set(), set()
        """The values merged, and those split, in the current region."""
        self.here: set[fx.Node] | None = None
        """The calls of the current region (no_grad, autocast); None before the first region."""
        self.attributes: dict[int, fx.Node] = {}

    def visit(self, node: fx.Node) -> None:
        """Copy a node, or expand it on pairs."""
        if switches(node):
            self._enter()
        if node.op in ("placeholder", "get_attr"):
            self._copy(node)
        elif is_projection(node):
            self._projected(node)
        # It asserts the complex dtype, which no value here has.
        elif is_complex_call(node) and is_discharged_assertion(node):
            self.rewrite.replace(node, None)
        elif node.op == "output":
            self.rewrite.copy(node, self._as_it_leaves)
        elif not is_complex_call(node) or node in self.kept:
            self._copy(node)
        elif reads_sizes(node):
            self._note(node, self.rewrite.copy(node, lambda given: self._parts(given)[0]))
        else:
            self._stamped(node)

    def observed(self, node: fx.Node) -> None:
        """Map a value to its complex tensor from here on, because it leaves the program."""
        self.rewrite.replace(node, self._as_it_leaves(node))

    def _enter(self) -> None:
        """Begin another region. Whether a merge or split has a gradient depends on its region, so those of the last
        region are not reused."""
        whole, pairs = self.at_border
        for key in whole:
            del self.whole[key]
        for node in pairs:
            del self.pairs[node]
        self.at_border, self.here = (set(), set()), set()

    # Values.

    def _copy(self, node: fx.Node) -> None:
        new = self.rewrite.copy(node, self._whole)
        self._note(node, new)
        if isinstance(new, fx.Node) and _is(node):
            self.whole[node] = new

    def _note(self, node: fx.Node, new: Any) -> None:
        """Record that a new node belongs to this region. (A projection belongs to the region of its call.)"""
        if self.here is None or not isinstance(new, fx.Node) or new.op in ("placeholder", "get_attr"):
            return
        if not is_projection(node) or new.args[0] in self.here:
            self.here.add(new)

    def _of_this_region(self, node: fx.Node, result: Any) -> Any:
        """The image of a call, with copies of nodes from other regions. A part of the image may be an operand, which
        can have a gradient where the result of the call has none."""
        if self.here is None:
            return result
        leaves = {leaf: leaf for leaf in flatten_image((result,)) if isinstance(leaf, fx.Node)}
        for leaf in leaves:
            if leaf not in self.here and isinstance(metadata(leaf), torch.Tensor):
                # A view that is taken under no_grad still reports requires_grad; a clone does not.
                leaves[leaf] = self._call(aten.clone.default, (leaf,), node, "own")
        return fx.node.map_arg(result, leaves.__getitem__)

    def _real(self, node: fx.Node) -> Any:
        return self.rewrite.values[node]

    def _as_it_leaves(self, node: fx.Node) -> Any:
        """The node returned for a value: merged if complex, and cloned if it shares memory with an input that the
        source did not. (The real part of a pair can be an input, to which the caller or the program may write.)"""
        value = self._whole(node)
        if not isinstance(value, fx.Node) or _is(node):
            return value
        # By name, as one set is of new nodes and the other of source nodes.
        shared = {given.name for given in _inputs_under(value)} - {given.name for given in _inputs_under(node)}
        return self._call(aten.clone.default, (value,), node, "own") if shared else value

    def _projected(self, node: fx.Node) -> None:
        """Map a projection to a pair or a real tensor; copy it if its call stays complex."""
        whole = self.rewrite.values[node.args[0]]
        if isinstance(whole, fx.Node):
            self._copy(node)
            return
        value = self.rewrite.copy(node)
        if _is(node):
            self.pairs[node] = value

    def _whole(self, node: fx.Node) -> Any:
        """The operand of a call that stays complex: complex tensors are merged if they are not yet."""
        if _is(node):
            if node not in self.whole:
                self.whole[node] = self._together(self.pairs[node], metadata(node), node)
                self.at_border[0].add(node)
            return self.whole[node]
        found, expected = self._real(node), metadata(node)
        if isinstance(found, fx.Node) or not isinstance(expected, (tuple, list)):
            return found
        for place, (each, value) in enumerate(zip(found, expected)):
            if isinstance(each, tuple) and (node, place) not in self.whole:
                self.whole[node, place] = self._together(each, value, node)
                self.at_border[0].add((node, place))
        return tuple(self.whole.get((node, place), each) for place, each in enumerate(found))

    def _together(self, parts: tuple[fx.Node, ...], value: torch.Tensor, at: fx.Node) -> fx.Node:
        """Merge two parts into a complex tensor with the strides of `value`."""
        # `view_as_complex` requires the two parts of each number side by side, so dimensions are permuted around it.
        order = dense_order(value)
        order = order if order is not None and order != sorted(order) else None
        if order is not None:
            parts = tuple(self._call(aten.permute.default, (x, order), at, "part") for x in parts)
        pair = self._call(aten.stack.default, ([*parts], -1), at, "pair")
        if order is not None:
            pair = self._call(aten.permute.default, (pair, [*inverse(order), len(order)]), at, "pair")
        return self._call(PUT_TOGETHER, (pair,), at, "complex")

    def _parts(self, node: fx.Node) -> tuple[fx.Node, fx.Node]:
        """The parts of a complex value, which is split if it is not yet."""
        if node not in self.pairs:
            whole = self.whole[node]
            # `view_as_real` refuses it: "view_as_real doesn't work on unresolved conjugated tensors".
            if metadata(whole).is_conj():
                raise CaptureError(
                    f"{node.name} has the conjugate bit set, and PyTorch has no real view of such a tensor\n"
                    "  to do: pass x.resolve_conj() instead, both when lowering and when calling the model"
                )
            pair = self._call(TAKEN_APART, (whole,), node, "pair")
            self.pairs[node] = (
                # Views of one real tensor: an input is read once.
                self._call(aten.select.int, (pair, -1, 0), node, "real"),
                self._call(aten.select.int, (pair, -1, 1), node, "imag"),
            )
            self.at_border[1].add(node)
        return self.pairs[node]

    # Calls.

    def _call(self, target: Any, args: tuple[Any, ...], at: fx.Node, label: str) -> fx.Node:
        """Add a call whose origin is the source node `at`."""
        new = self.rewrite.add("call_function", target, args, {}, f"{at.name}_{label}", at=at)
        new.meta = inherited_meta(at)
        given, _ = fx.node.map_arg((args, {}), metadata)
        with on_metadata(self.mode):
            new.meta["val"] = target(*given)
        if self.here is not None:
            self.here.add(new)
        return new

    def _stamped(self, node: fx.Node) -> None:
        """Replace a call by its expansion on pairs; keep it complex without one."""
        sparse = [given for given in node.all_input_nodes if _is(given) and metadata(given).layout is not torch.strided]
        if sparse:
            self.why[node] = f"takes {sparse[0].name}, a sparse complex tensor, which has no real view"
            self._copy(node)
            return
        operands = [self._parts(given) if _is(given) else self._real(given) for given in node.all_input_nodes]
        stamp = self.why[node] = self.recorder.stamp(node, operands)
        if isinstance(stamp, str):
            self._copy(node)
            return
        result = self._of_this_region(node, self._put(node, stamp, list(flatten_image(tuple(operands)))))
        self.rewrite.replace(node, result)
        if _is(node):
            self.pairs[node] = result
        else:
            self._note_layout(node, result)

    def _put(self, node: fx.Node, stamp: ExpansionTemplate, values: list[Any]) -> Any:
        """Add the nodes of an expansion; returns the image of its results."""
        metas = [metadata(value) if isinstance(value, fx.Node) else None for value in values]
        kept = inherited_meta(node)
        for i, entry in enumerate(stamp.entries):
            if entry.op == "get_attr":
                new = self._constant(stamp.constants[entry.target], entry.spec, node)
            else:
                args, kwargs = entry.arguments(values)
                # A name of its own, as the value of the source node is a pair of which this is one part.
                name = None if i == stamp.result else f"{node.name}_{entry.suffix}"
                new = self.rewrite.add(entry.op, entry.target, args, kwargs, name, at=node)
                new.meta.update(kept)
                self.chains[new] = entry.chain
                if self.here is not None:
                    self.here.add(new)
                if entry.spec is not None:
                    new.meta["val"] = make_value(entry.spec, self.fakes, metas)
            values.append(new)
            metas.append(metadata(new))
        return stamp.outputs(values)

    def _constant(self, tensor: torch.Tensor, spec: Any, at: fx.Node) -> fx.Node:
        found = self.attributes.get(id(tensor))
        if found is None:
            name = next(f"_part{i}" for i in range(len(self.taken) + 1) if f"_part{i}" not in self.taken)
            self.taken.add(name)
            self.constants[name] = tensor
            found = self.rewrite.add("get_attr", name, (), {}, name, at=at)
            found.meta["val"] = make_value(spec, self.fakes, [])
            self.attributes[id(tensor)] = found
        return found

    def _note_layout(self, node: fx.Node, result: Any) -> None:
        """Record the captured metadata of a real result whose strides differ from it."""
        expected = metadata(node)
        pairs = zip(result, expected) if isinstance(expected, (tuple, list)) else [(result, expected)]
        for new, value in pairs:
            found = metadata(new) if isinstance(new, fx.Node) else None
            if isinstance(found, torch.Tensor) and isinstance(value, torch.Tensor) and not same_layout(found, value):
                self.stale_strides[new] = own_memory(value)


def _inputs_under(node: fx.Node) -> Iterator[fx.Node]:
    """The inputs and attributes whose memory a value shares, or may share."""
    waiting = [node]
    for current in waiting:
        if current.op in ("placeholder", "get_attr"):
            yield current
        waiting += [base for base in view_bases(current) if is_view(current, base) is not False]


def _is(node: fx.Node) -> bool:
    """Whether the value of a node is a complex tensor."""
    value = metadata(node)
    return isinstance(value, torch.Tensor) and value.is_complex()


def flatten_image(operand: Any) -> tuple[Any, ...]:
    """The leaves of an image: the parts of a pair, and of each result in a tuple."""
    return tuple(leaf for each in operand for leaf in flatten_image(each)) if isinstance(operand, tuple) else (operand,)
