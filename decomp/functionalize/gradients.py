"""Through which nodes of a functional graph gradients may flow. In PyTorch a tensor that is overwritten by `copy_` or
`fill_` still depends on its old value, with a gradient of zero; here it is decided where that must be restored."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from torch import fx, nn

from decomp.functionalize.writes import can_require_grad, input_requires_grad
from decomp.ir.aliases import spelling_of
from decomp.ir.call import kind_of, metadata
from decomp.ir.op_facts import DIFFERENTIABLE_IN_FIRST, WITHOUT_GRADIENT


def reaches(result: fx.Node, operand: fx.Node, before: fx.Node) -> bool:
    """Whether a gradient flows from `result` to `operand` through the nodes after `before`."""
    reached = {result}
    for node in reversed(result.graph.nodes):
        if node is before or operand in reached:
            break
        if node in reached:
            reached.update(_differentiable_operands(node))
    return operand in reached


class GradientSources:
    """Which nodes of a functional graph may require a gradient when it runs."""

    def __init__(self, root: nn.Module | None, state: Collection[str]) -> None:
        """`state`: names of the placeholders of parameters and buffers. Other inputs may require a gradient when the
        program runs, even if the example inputs did not."""
        self.root, self.state = root, state
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
            unanswered = [n for n in operands if n not in self._answers]
            if unanswered and not any(self._answers.get(n) for n in operands):
                stack.extend(unanswered)
                continue
            self._answers[one] = self._is_source(one) or any(self._answers.get(n) for n in operands)
        return self._answers[node]

    def _is_source(self, node: fx.Node) -> bool:
        if node.op == "placeholder" and node.name not in self.state:
            return _is_plain(metadata(node))
        return node.op in ("placeholder", "get_attr", "call_module") and input_requires_grad(node, self.root)


def _differentiable_operands(node: fx.Node) -> Iterator[fx.Node]:
    """The operands that get a gradient from the result of `node`."""
    if not node.op.startswith("call") or kind_of(node) == "host" or not _is_plain(metadata(node)):
        return
    name = spelling_of(node).op.short if node.op != "call_module" else ""
    if name not in WITHOUT_GRADIENT:
        yield from node.all_input_nodes[:1] if name in DIFFERENTIABLE_IN_FIRST else node.all_input_nodes


def _is_plain(value: object) -> bool:
    """Whether a value may require a gradient, and is not of an 8-bit dtype, which has no arithmetic."""
    narrow = isinstance(value, torch.Tensor) and value.dtype.itemsize == 1
    return can_require_grad(value) and not narrow
