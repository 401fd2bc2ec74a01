"""Which values a gradient may flow through, as far as a functional graph tells: a tensor that is wholly overwritten has
a gradient of zero in what it was, and requires one if that did."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import fx, nn

from decomp.functionalize.functional_ops import PREDICATES, RANDOM
from decomp.functionalize.writes import can_require_grad, input_requires_grad
from decomp.ir.aliases import spelling_of
from decomp.ir.call import kind_of, metadata

_WITHOUT_GRADIENT = PREDICATES | {name.removesuffix("_") for name in RANDOM} | frozenset(
    "zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones new_full new_empty "
    "new_tensor new_empty_strided normal_functional detach data size shape sym_size argmax argmin isnan isinf".split()
)
"""Ops whose results have no gradient, or have shape and dtype alone of their operands."""

_OF_THE_FIRST = frozenset("expand_as view_as reshape_as type_as to sum_to_size".split())
"""Ops whose second operand gives shape or dtype."""


def reaches(result: fx.Node, operand: fx.Node, before: fx.Node) -> bool:
    """Whether a gradient flows from `result` to `operand` by the nodes of the graph that follow `before`."""
    reached = {result}
    for node in reversed(result.graph.nodes):
        if node is before or operand in reached:
            break
        if node in reached:
            reached.update(_passed_to(node))
    return operand in reached


class Sources:
    """Which nodes of a functional graph may require a gradient when it runs."""

    def __init__(self, root: nn.Module | None, state: Collection[str]) -> None:
        """`state`: placeholders that stand for parameters and buffers. Other inputs may require a gradient when the
        program runs though the example did not."""
        self.root, self.state = root, state
        self._known: dict[fx.Node, bool] = {}

    def may_require_grad(self, node: fx.Node) -> bool:
        """Whether a gradient may flow from `node` to an input or parameter."""
        waiting = [node]
        while waiting:
            one = waiting[-1]
            if one in self._known:
                waiting.pop()
                continue
            above = list(_passed_to(one))
            unknown = [n for n in above if n not in self._known]
            if unknown and not any(self._known.get(n) for n in above):
                waiting.extend(unknown)
                continue
            self._known[one] = self._is_source(one) or any(self._known.get(n) for n in above)
        return self._known[node]

    def _is_source(self, node: fx.Node) -> bool:
        if node.op == "placeholder" and node.name not in self.state:
            return _is_plain(metadata(node))
        return node.op in ("placeholder", "get_attr") and input_requires_grad(node, self.root)


def _passed_to(node: fx.Node) -> Iterator[fx.Node]:
    """The operands that a gradient of the result of `node` flows to."""
    if not node.op.startswith("call") or kind_of(node) == "host" or not _is_plain(metadata(node)):
        return
    name = spelling_of(node).op.short if node.op != "call_module" else ""
    if name not in _WITHOUT_GRADIENT:
        yield from node.all_input_nodes[:1] if name in _OF_THE_FIRST else node.all_input_nodes


def _is_plain(value: object) -> bool:
    """Whether a value may require a gradient, in a dtype that has arithmetic."""
    narrow = isinstance(value, torch.Tensor) and value.dtype.itemsize == 1
    return can_require_grad(value) and not narrow
