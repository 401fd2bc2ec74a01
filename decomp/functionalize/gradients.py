"""Gradient flow in a functional graph. In PyTorch a tensor overwritten by `copy_` or `fill_` still depends on its old
value, with a gradient of zero; this module decides where the functional graph must restore that dependence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn

from decomp.functionalize.writes import can_require_grad, input_requires_grad
from decomp.ir.aliases import attribute, spelling_of
from decomp.ir.call import kind_of, metadata
from decomp.ir.op_facts import DIFFERENTIABLE_IN_FIRST, WITHOUT_GRADIENT


def gradient_inputs(graph: fx.Graph, root: nn.Module | None, state: Mapping[str, Any]) -> set[fx.Node]:
    """The inputs of a graph that may require a gradient at run time: parameters and buffers that require one now, and
    all other floating-point tensors. `state` has, by name, the parameters and buffers that are inputs or are no
    attributes of `root`."""
    found: set[fx.Node] = set()
    for node in graph.find_nodes(op="placeholder"):
        known = state.get(node.name)
        if can_require_grad(metadata(node)) if known is None else bool(getattr(known, "requires_grad", False)):
            found.add(node)
    # These are known now, and require what they require; inputs of another call may require what the example does not.
    for node in graph.find_nodes(op="get_attr"):
        known = state.get(str(node.target), attribute(root, str(node.target)) if root is not None else None)
        if getattr(known, "requires_grad", False):
            found.add(node)
    return found


def reaches(result: fx.Node, operand: fx.Node, before: fx.Node) -> bool:
    """Whether a gradient flows from `result` to `operand` through the nodes after `before`."""
    reached = {result}
    for node in reversed(result.graph.nodes):
        if node is before or operand in reached:
            break
        if node in reached:
            reached.update(_differentiable_operands(node))
    return operand in reached


def depends_on(result: fx.Node) -> set[fx.Node]:
    """The nodes to which a gradient flows from `result`."""
    found, stack = {result}, [result]
    while stack:
        new = set(_differentiable_operands(stack.pop())) - found
        found |= new
        stack += new
    return found


class GradientSources:
    """Answers which nodes of a functional graph may require a gradient at run time."""

    def __init__(self, root: nn.Module | None) -> None:
        self.root = root
        self.inputs: set[fx.Node] = set()
        """The inputs that may."""
        self._answers: dict[fx.Node, bool] = {}

    def may_require_grad(self, node: fx.Node) -> bool:
        """Whether a gradient may flow from `node` to an input or parameter."""
        stack = [node]
        while stack:
            one = stack[-1]
            if one in self._answers:
                stack.pop()
                continue
            operands = list(_differentiable_operands(one))
            # An explicit stack instead of recursion: chains of thousands of nodes would exceed Python's recursion
            # limit.
            unanswered = [n for n in operands if n not in self._answers]
            if unanswered and not any(self._answers.get(n) for n in operands):
                stack.extend(unanswered)
                continue
            self._answers[one] = self._is_source(one) or any(self._answers.get(n) for n in operands)
        return self._answers[node]

    def _is_source(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return input_requires_grad(node, self.root)
        return node in self.inputs and _is_plain(metadata(node))


def _differentiable_operands(node: fx.Node) -> Iterator[fx.Node]:
    """The operands to which a gradient flows from the result of `node`."""
    if not node.op.startswith("call") or kind_of(node) == "host" or not _is_plain(metadata(node)):
        return
    name = spelling_of(node).op.short if node.op != "call_module" else ""
    if name not in WITHOUT_GRADIENT:
        yield from node.all_input_nodes[:1] if name in DIFFERENTIABLE_IN_FIRST else node.all_input_nodes


def _is_plain(value: object) -> bool:
    """Whether a value may require a gradient, and is not of an 8-bit dtype, for which there is no arithmetic."""
    narrow = isinstance(value, torch.Tensor) and value.dtype.itemsize == 1
    return can_require_grad(value) and not narrow
