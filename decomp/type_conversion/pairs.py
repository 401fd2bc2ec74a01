"""Rewrites a graph so that complex calls compute on pairs of real tensors. Complex inputs are split at their first use,
and complex outputs merged before they are returned, so that callers see the same dtypes. Calls that cannot be computed
on pairs stay complex, with a merge before and a split after; the planner decides whether they are legal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import torch
from torch import fx

from decomp.errors import CaptureError
from decomp.graphs.template import ExpansionTemplate, make_value
from decomp.ir.aliases import is_view, view_bases
from decomp.ir.call import inherited_meta, is_projection, metadata
from decomp.ir.effects import is_discharged_assertion
from decomp.metadata.fakes import Fakes
from decomp.metadata.strides import dense_order, inverse
from decomp.ops import aten
from decomp.type_conversion.conversion import TypeConversion
from decomp.type_conversion.pair_recording import PairRecorder, is_complex_call, reads_sizes

# Views where memory allows it, so that the border costs no copy of an input.
SPLIT_COMPLEX, MERGE_COMPLEX = aten.view_as_real.default, aten.view_as_complex.default


def complex_as_real(
    source: fx.Graph, recorder: PairRecorder, kept: Collection[fx.Node], written: Collection[fx.Node], taken: Any
) -> ComplexAsReal:
    """`source` with pairs of real numbers. `kept` calls stay complex; `written`: see `TypeConversion.walk`. `taken` are
    the names of attributes in use."""
    conversion = ComplexAsReal(source, recorder, kept, set(taken))
    conversion.walk(written)
    return conversion


class ComplexAsReal(TypeConversion):
    """A conversion of complex tensors, whose images are pairs of nodes."""

    def __init__(self, source: fx.Graph, recorder: PairRecorder, kept: Collection[fx.Node], taken: set[str]) -> None:
        super().__init__(source)
        self.recorder, self.kept, self.taken, self.fakes = recorder, kept, taken, Fakes(self.mode)
        self.why: dict[fx.Node, ExpansionTemplate | str] = {}
        """By complex call of the source: its expansion, or why it has none and stays complex."""
        self.chains: dict[fx.Node, tuple[Any, ...]] = {}
        """For each node of an expansion: the rules that emitted it."""
        self.constants: dict[str, torch.Tensor] = {}
        """Tensors that rules use, by attribute."""
        self.here: set[fx.Node] | None = None
        """The calls of the current region (no_grad, autocast); None before the first region."""
        self.attributes: dict[int, fx.Node] = {}

    def converts(self, node: fx.Node) -> bool:
        value = metadata(node)
        return isinstance(value, torch.Tensor) and value.is_complex()

    def concerns(self, node: fx.Node) -> bool:
        return is_complex_call(node) and (node not in self.kept or is_discharged_assertion(node))

    def reads_sizes(self, node: fx.Node) -> bool:
        return reads_sizes(node)

    def any_form(self, value: fx.Node) -> Any:
        image = self.image(value)
        return image[0] if self.converts(value) else image

    def enter_region(self) -> None:
        super().enter_region()
        self.here = set()

    def note(self, node: fx.Node, new: Any) -> None:
        if not isinstance(new, fx.Node):
            return
        if self.converts(node):
            self.originals[node] = new
        # A projection belongs to the region of its call.
        outside = new.op in ("placeholder", "get_attr") or is_projection(node) and new.args[0] not in (self.here or ())
        if self.here is not None and not outside:
            self.here.add(new)

    def emit(self, target: Any, args: tuple[Any, ...], at: fx.Node, label: str, **kwargs: Any) -> fx.Node:
        new = super().emit(target, args, at, label, **kwargs)
        if self.here is not None:
            self.here.add(new)
        return new

    def _of_this_region(self, node: fx.Node, result: Any) -> Any:
        """The image of a call, with copies of nodes from other regions. A part of the image may be an operand, which
        can have a gradient where the result of the call has none."""
        if self.here is None:
            return result
        leaves = {leaf: leaf for leaf in flatten_image((result,)) if isinstance(leaf, fx.Node)}
        for leaf in leaves:
            if leaf not in self.here and isinstance(metadata(leaf), torch.Tensor):
                # A view that is taken under no_grad still reports requires_grad; a clone does not.
                leaves[leaf] = self.emit(aten.clone.default, (leaf,), node, "own")
        return fx.node.map_arg(result, leaves.__getitem__)

    def leaving(self, node: fx.Node) -> Any:
        """The node returned for a value: merged if complex, and cloned if it shares memory with an input that the
        source did not. (The real part of a pair can be an input, to which the caller or the program may write.)"""
        value = self.original(node)
        if not isinstance(value, fx.Node) or self.converts(node):
            return value
        # By name, as one set is of new nodes and the other of source nodes.
        shared = {given.name for given in _inputs_under(value)} - {given.name for given in _inputs_under(node)}
        return self.emit(aten.clone.default, (value,), node, "own") if shared else value

    def project(self, node: fx.Node) -> None:
        if isinstance(self.rewrite.values[node.args[0]], fx.Node):
            self.copy(node)  # of a call that stays complex
            return
        value = self.rewrite.copy(node)
        if self.converts(node):
            self.converted[node] = value

    def original(self, value: fx.Node) -> Any:
        """A value in its own dtype; a tuple of results with its pairs merged."""
        found, expected = super().original(value), metadata(value)
        if isinstance(found, fx.Node) or not isinstance(expected, (tuple, list)):
            return found
        results = list(found)
        for place, (image, of) in enumerate(zip(found, expected)):
            if isinstance(image, tuple):
                make = partial(self._together, image, of, value)
                results[place] = self.made_once(self.originals, (value, place), make)
        return tuple(results)

    def make_original(self, value: fx.Node) -> fx.Node:
        return self._together(self.converted[value], metadata(value), value)

    def _together(self, parts: tuple[fx.Node, ...], value: torch.Tensor, at: fx.Node) -> fx.Node:
        """Merge two parts into a complex tensor with the strides of `value`."""
        # `view_as_complex` requires the two parts of each number side by side, so dimensions are permuted around it.
        order = dense_order(value)
        order = order if order is not None and order != sorted(order) else None
        if order is not None:
            parts = tuple(self.emit(aten.permute.default, (x, order), at, "part") for x in parts)
        pair = self.emit(aten.stack.default, ([*parts], -1), at, "pair")
        if order is not None:
            pair = self.emit(aten.permute.default, (pair, [*inverse(order), len(order)]), at, "pair")
        return self.emit(MERGE_COMPLEX, (pair,), at, "complex")

    def make_image(self, value: fx.Node) -> tuple[fx.Node, fx.Node]:
        whole = self.originals[value]
        # `view_as_real` refuses it: "view_as_real doesn't work on unresolved conjugated tensors".
        if metadata(whole).is_conj():
            raise CaptureError(
                f"{value.name} has the conjugate bit set, and PyTorch has no real view of such a tensor\n"
                "  to do: pass x.resolve_conj() instead, both when lowering and when calling the model"
            )
        # Views of one real tensor: an input is read once.
        pair = self.emit(SPLIT_COMPLEX, (whole,), value, "pair")
        real = self.emit(aten.select.int, (pair, -1, 0), value, "real")
        return real, self.emit(aten.select.int, (pair, -1, 1), value, "imag")

    # Calls.

    def convert(self, node: fx.Node) -> None:
        """Replace a call by its expansion on pairs; keep it complex without one."""
        complexes = filter(self.converts, node.all_input_nodes)
        sparse = [given for given in complexes if metadata(given).layout is not torch.strided]
        if sparse:
            self.why[node] = f"takes {sparse[0].name}, a sparse complex tensor, which has no real view"
            self.copy(node)
            return
        operands = [self.image(given) for given in node.all_input_nodes]
        template = self.why[node] = self.recorder.template_of(node, operands)
        if isinstance(template, str):
            self.copy(node)
            return
        result = self._of_this_region(node, self._put(node, template, list(flatten_image(tuple(operands)))))
        self.rewrite.replace(node, result)
        if self.converts(node):
            self.converted[node] = result
            return
        expected = metadata(node)
        several = isinstance(expected, (tuple, list))
        for new, value in zip(result, expected) if several else [(result, expected)]:
            self.note_strides(new, value)

    def _put(self, node: fx.Node, template: ExpansionTemplate, values: list[Any]) -> Any:
        """Add the nodes of an expansion; returns the image of its results."""
        metas = [metadata(value) if isinstance(value, fx.Node) else None for value in values]
        kept = inherited_meta(node)
        for i, entry in enumerate(template.entries):
            if entry.op == "get_attr":
                new = self._constant(template.constants[entry.target], entry.spec, node)
            else:
                args, kwargs = entry.arguments(values)
                # A name of its own, as the value of the source node is a pair of which this is one part.
                name = None if i == template.result else f"{node.name}_{entry.suffix}"
                new = self.rewrite.add(entry.op, entry.target, args, kwargs, name, at=node)
                new.meta.update(kept)
                self.chains[new] = entry.chain
                if self.here is not None:
                    self.here.add(new)
                if entry.spec is not None:
                    new.meta["val"] = make_value(entry.spec, self.fakes, metas)
            values.append(new)
            metas.append(metadata(new))
        return template.outputs(values)

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


def _inputs_under(node: fx.Node) -> Iterator[fx.Node]:
    """The inputs and attributes whose memory a value shares, or may share."""
    waiting = [node]
    for current in waiting:
        if current.op in ("placeholder", "get_attr"):
            yield current
        waiting += [base for base in view_bases(current) if is_view(current, base) is not False]


def flatten_image(operand: Any) -> tuple[Any, ...]:
    """The leaves of an image: the parts of a pair, and of each result in a tuple."""
    return tuple(leaf for each in operand for leaf in flatten_image(each)) if isinstance(operand, tuple) else (operand,)
