"""Preparation of control-flow bodies for PyTorch's re-tracing of them (torch 2.13): by AOTAutograd for gradients, and
by Inductor for compilation."""

from __future__ import annotations

from collections.abc import Sequence
import sys
from typing import Any

import torch
from torch import fx

from decomp.ir.aliases import attribute, bodies, view_chain
from decomp.ir.call import metadata
from decomp.ir.dtypes import number_in
from decomp.ir.op_facts import DISTINCT_OPERANDS
from decomp.ir.spellings import MIRRORED
from decomp.metadata.fakes import require_grad_like
from decomp.metadata.strides import is_in_order
from decomp.metadata.symbolic_sizes import expression
from decomp.ops import aten
from decomp.torch_internals.fakes import unset_fake_temporarily


def prepare_bodies(module: fx.GraphModule) -> None:
    """Rewrite bodies of higher-order ops, and calls of them, so that AOTAutograd can re-trace them (torch 2.13)."""
    for inner in [inner for inner in module.modules() if isinstance(inner, fx.GraphModule)]:
        _separate_operands(inner)
        _copy_returned_operands(inner)
        for node in inner.graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond):
            for _, branch in bodies(node, inner):
                _lay_out_gradients(branch)
        for node in inner.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph):
            for _, body in bodies(node, inner):
                _require_gradients(body, metadata(node))
        if inner is not module:
            _hide_constants(inner)


def _require_gradients(body: fx.GraphModule, of_call: Sequence[Any]) -> None:
    """Let results of a compile region require gradients, as those of a call do. PyTorch reads from the metadata of a
    body which results have one (`get_output_metadata`, torch 2.13), and that of lowered calls does not tell."""
    # A body is shared by calls, of which one may be on inputs without gradients: what one sets, no other resets.
    for result, like in zip(body.graph.output_node().args[0], of_call):
        if isinstance(result, fx.Node) and isinstance(like, torch.Tensor) and like.requires_grad:
            result.meta["val"] = metadata(result).detach()
            require_grad_like(result.meta["val"], like)


def _hide_constants(body: fx.GraphModule) -> None:
    """AOTAutograd lifts buffers to inputs of the program, including those of bodies, to which they are then not passed:
    constants of a body are made plain attributes, which it does not see."""
    names = {str(node.target) for node in body.graph.nodes if node.op == "get_attr"}
    for name in names & body._buffers.keys():
        value = body._buffers.pop(name)
        body._non_persistent_buffers_set.discard(name)
        # `nn.Module.__setattr__` would register an `nn.Buffer` again.
        object.__setattr__(body, name, value)
    lift_constants(body)


def _separate_operands(module: fx.GraphModule) -> None:
    """PyTorch requires the operands of control flow to be distinct tensors; rules may have merged them."""
    # Else AOTAutograd refuses the call, as a body "might be aliasing the input or the output" (torch 2.13).
    calls = [node for node in module.graph.nodes if getattr(node.target, "__name__", "") in DISTINCT_OPERANDS]
    for node in calls:
        seen: set[fx.Node] = set()

        def own(operand: fx.Node, node: fx.Node = node, seen: set[fx.Node] = seen) -> fx.Node:
            if operand not in seen or not isinstance(operand.meta.get("val"), torch.Tensor):
                seen.add(operand)
                return operand
            with module.graph.inserting_before(node):
                copied = module.graph.call_function(aten.clone.default, (operand,))
            copied.meta = dict(operand.meta)
            return copied

        node.args = fx.node.map_arg(node.args, own)
    if calls:
        module.recompile()


def _copy_returned_operands(module: fx.GraphModule) -> None:
    """The forward of a custom function may return a view of an operand. AOTAutograd takes an output that is a view of
    that view for a view of the operand, and drops the custom backward (torch 2.11 to 2.15); so the function returns a
    copy. (PyTorch does not allow such a view to be written, so that the copy is not seen.)"""
    origins = {view_chain(node)[-1] for node in module.graph.output_node().all_input_nodes}
    for node in origins:
        if getattr(node.target, "__name__", "") != "autograd_function_apply":
            continue
        # PyTorch compiles a forward that returns its argument itself as wrongly, or did:
        # https://github.com/pytorch/pytorch/issues/102970.
        forward = bodies(node, module)[0][1]
        for result in forward.graph.output_node().all_input_nodes:
            if view_chain(result)[-1].op == "placeholder" and isinstance(metadata(result), torch.Tensor):
                _return_copy(forward, result)
        forward.recompile()


def _return_copy(body: fx.GraphModule, result: fx.Node) -> None:
    """Return a copy of a result of `body` in place of it."""
    with body.graph.inserting_before(body.graph.output_node()):
        copied = body.graph.call_function(aten.clone.default, (result,))
    copied.meta = dict(result.meta)
    body.graph.output_node().replace_input_with(result, copied)


def _lay_out_gradients(branch: fx.GraphModule) -> None:
    """The gradients of all branches must have equal strides. That of an operand that is viewed as one dimension and
    back is contiguous, regardless of the branch. Where PyTorch cannot simplify sizes to see that (s·s·t divided by s,
    torch 2.13), the operand is sliced in full instead: the gradient of a slice is written into contiguous zeros."""
    inputs = branch.graph.find_nodes(op="placeholder")
    viewed = [node for node in inputs if node.users and _has_rows(metadata(node))]
    for node in viewed:
        flat, users = _flat(metadata(node)), list(node.users)
        if flat is None:
            with branch.graph.inserting_after(inputs[-1]):
                again = branch.graph.call_function(aten.slice.Tensor, (node, 0, 0, sys.maxsize))
        else:
            with branch.graph.inserting_after(inputs[-1]):
                first = branch.graph.call_function(aten.view.default, (node, [-1]))
            with branch.graph.inserting_after(first):
                again = branch.graph.call_function(aten.view_as.default, (first, node))
            first.meta = {"val": flat}
        again.meta = dict(node.meta)
        for user in users:
            user.replace_input_with(node, again)
    if viewed:
        branch.recompile()


def _flat(value: torch.Tensor) -> torch.Tensor | None:
    """A tensor as one dimension, if PyTorch knows that viewing it back restores its strides."""
    flat = value.view(-1)
    pairs = zip(flat.view(value.shape).stride(), value.stride())
    return flat if all(expression(again) == expression(own) for again, own in pairs) else None


def _has_rows(value: object) -> bool:
    """Whether a value is contiguous but its gradient may not be."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 1 and is_in_order(value)


def lift_constants(module: fx.GraphModule) -> None:
    """Wrap constants as PyTorch's own graphs do: Inductor runs graphs on fake tensors, which accept a real tensor only
    as the argument of this op (torch 2.13)."""
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(attribute(module, str(node.target)), torch.Tensor):
            with module.graph.inserting_after(node):
                lifted = module.graph.call_function(aten.lift_fresh_copy.default, (node,))
            lifted.meta = dict(node.meta)
            node.replace_all_uses_with(lifted, lambda user: user is not lifted)
    module.recompile()


def compare_with_numbers(module: fx.GraphModule) -> None:
    """Compare with numbers instead of constant-filled tensors: PyTorch's partitioner takes a comparison of two tensors
    for a reduction, and saves its mask for the backward (torch 2.13)."""
    for inner in [inner for inner in module.modules() if isinstance(inner, fx.GraphModule)]:
        for node in inner.graph.nodes:
            for place, target in enumerate(_BY_NUMBER.get(node.target, ())):
                # `should_ban_recomputation` takes what has less than a quarter of its operands' bytes for a reduction:
                # a mask has an eighth of two float32 tensors, and a quarter of one.
                number = _number_for(*node.args[:: 1 - 2 * place])
                if number is not None:
                    node.target, node.args = target, (node.args[1 - place], number)
                    break
        inner.recompile()


_BY_NUMBER = {
    getattr(aten, name).Tensor: (getattr(aten, MIRRORED[name]).Scalar, getattr(aten, name).Scalar)
    for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
"""By comparison, the overloads with a number instead of the first operand, and of the second."""


def _number_for(full: Any, other: Any) -> Any:
    """The number that fills a zero-dimensional tensor, if it is compared with one of its dtype."""
    if not isinstance(full, fx.Node) or full.target is not aten.full.default or not isinstance(other, fx.Node):
        return None
    value, number = metadata(full), full.args[1]
    alike = isinstance(value, torch.Tensor) and not value.dim() and metadata(other).dtype == value.dtype
    if not alike or not isinstance(number, (bool, int, float)):
        return None
    # Inductor calls this under a fake mode, in which the number would be a fake tensor.
    with unset_fake_temporarily():
        return number_in(number, value.dtype)
