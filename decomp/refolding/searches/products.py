"""Finds linear layers among matrix products in any spelling: `addmm`, `bmm` between views, and sums of broadcast
products."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from decomp.ir.call import metadata
from decomp.ops import aten
from decomp.refolding.found import Findings, FoundCall, RegionSearch
from decomp.refolding.prepared import Operand, reshape_operand
from decomp.refolding.readings import CallReading
from decomp.refolding.regions import is_float, op_schema_name

LINEAR = CallReading(aten.linear.default)

_PRODUCTS = ("aten::mm", "aten::bmm", "aten::matmul")


def product_operands(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The two operands of a node that is a matrix product; None if it is not one."""
    called = op_schema_name(node)
    if called in _PRODUCTS:
        pair = node.args[:2]
    elif called in ("aten::addmm", "aten::baddbmm"):
        pair = node.args[1:3]
    # Targets without matrix products have them as a sum of a product.
    elif called == "aten::sum":
        (product,) = node.args[:1] or (None,)
        pair = product.args[:2] if isinstance(product, fx.Node) and op_schema_name(product) == "aten::mul" else ()
    else:
        return None
    both = len(pair) == 2 and all(isinstance(each, fx.Node) and is_float(each) for each in pair)
    return (pair[0], pair[1]) if both else None


class Products(RegionSearch):
    """The search for linear layers in one graph."""

    finds = {LINEAR.target: ()}

    def search(self) -> Findings:
        """Run the search; returns the findings."""
        for node in self.around.graph.nodes:
            operands = product_operands(node)
            if operands is not None:
                best = self._linear(node, *operands)
                if best is not None:
                    self.take(best)
        return self.findings

    def _linear(self, node: fx.Node, a: fx.Node, b: fx.Node) -> FoundCall | None:
        """The largest linear layer that ends at a product, or at its sum with a bias."""
        below = self.around.views_below(node)
        end = self.around.only_user(below[-1])
        # Largest first: the first that agrees is taken.
        for root, bias in self._ends(node, below, end):
            for x, w in _pairs(self.around.views_above(a), self.around.views_above(b)):
                shown = _fitting(root, x, w)
                if shown and (bias is None or tuple(metadata(bias).shape) == tuple(metadata(w).shape[:1])):
                    args = (shown, w) if bias is None else (shown, w, bias)
                    found = self.agreeing_call(root, "linear", LINEAR, args)
                    if found is not None and not self.around.why_open(found.region):
                        return found
        return None

    def _ends(
        self, node: fx.Node, below: list[fx.Node], end: fx.Node | None
    ) -> Iterator[tuple[fx.Node, fx.Node | None]]:
        """The nodes where the layer may end, farthest first, each with the bias that is added there."""
        if end is not None and op_schema_name(end) == "aten::add":
            others = [given for given in self.around.data_inputs(end) if given is not below[-1]]
            for bias in reversed(self.around.views_above(others[0])) if len(others) == 1 else ():
                for last in reversed(self.around.views_below(end)[:2]):
                    yield last, bias
        inner = node.args[0] if op_schema_name(node) == "aten::addmm" else None
        biases = reversed(self.around.views_above(inner)) if isinstance(inner, fx.Node) else (None,)
        for bias in biases:
            for last in reversed(below):
                yield last, bias


def _pairs(first: list[fx.Node], second: list[fx.Node]) -> Iterator[tuple[fx.Node, fx.Node]]:
    """All pairs of operands in both orders, those farthest up first."""
    for a in reversed(first):
        for b in reversed(second):
            yield a, b
            yield b, a


def _fitting(root: fx.Node, x: fx.Node, w: fx.Node) -> Operand | None:
    """The operand with which a linear layer has the shape of `root`: `x`, or `x` reshaped if only dimensions of size 1
    differ, or None."""
    out, given, weight = (_sizes(each) for each in (root, x, w))
    if out is None or given is None or weight is None or len(weight) != 2 or out[-1:] != weight[:1]:
        return None
    needed = (*out[:-1], weight[1])
    if given == needed:
        return x
    if [size for size in given if size != "1"] != [size for size in needed if size != "1"]:
        return None
    return reshape_operand(x, [*metadata(root).shape[:-1], metadata(w).shape[1]])


def _sizes(node: fx.Node) -> tuple[str, ...] | None:
    """The shape of a node's value as text, so that dynamic sizes are compared by expression without a guard."""
    return tuple(map(str, metadata(node).shape)) if is_float(node) else None
