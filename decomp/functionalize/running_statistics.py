"""Functional variants of normalizations that update running statistics: the kernel that also returns the new statistics
where PyTorch has one; otherwise the op without statistics, and ops that compute them."""

from __future__ import annotations

from dataclasses import dataclass
import operator
from typing import Any

import torch
from torch import fx

from decomp.graphs.graph_builder import Emitter
from decomp.ir.call import Call, metadata
from decomp.ops import aten


@dataclass(frozen=True, slots=True)
class Normalized:
    """The results of the functional variant of a normalization."""

    whole: fx.Node
    """The node that replaces the call."""
    is_tuple: bool
    """Whether the call returns several results."""
    mean: fx.Node | None
    """The new statistic; None if it is not updated."""
    var: fx.Node | None

    @property
    def statistics(self) -> list[tuple[str, fx.Node]]:
        """The new statistics, by the argument to which they are written."""
        pairs = (("running_mean", self.mean), ("running_var", self.var))
        return [(name, new) for name, new in pairs if new is not None]


def functional_form(emit: Emitter, node: fx.Node, call: Call, args: dict[str, Any]) -> Normalized | None:
    """The functional variant of a normalization in training mode, or None; `args` are nodes of the functional graph."""
    if call.op.short == "batch_norm" and _is_empty(args["input"]):
        return _of_nothing(emit, node, args)
    if call.op.short in ("batch_norm", "native_batch_norm", "_native_batch_norm_legit"):
        return _batch_norm(emit, node, call, args)
    if call.op.short == "_batch_norm_with_update":
        return _with_update(emit, node, args)
    return _instance_norm(emit, node, args) if call.op.short == "instance_norm" else None


def _batch_norm(emit: Emitter, node: fx.Node, call: Call, args: dict[str, Any]) -> Normalized:
    operands = [args.get(name) for name in ("input", "weight", "bias", "running_mean", "running_var")]
    settings = (True, args.get("momentum"), args.get("eps"))
    kernel = _kernel_call(emit, node, aten._native_batch_norm_legit_functional.default, (*operands, *settings))
    mean, var = (_item(emit, node, kernel, index, call.arguments[name].name) for index, name in _STATISTICS_AT[3])
    if call.op.short != "batch_norm":
        return Normalized(_first_results(emit, node, kernel, 3), True, mean, var)
    result = emit.like(node, "call_function", operator.getitem, (kernel, 0), {})
    return Normalized(result, False, mean, var)


def _is_empty(node: fx.Node) -> bool:
    """Whether a tensor is known to have no elements."""
    value = metadata(node)
    return isinstance(value, torch.Tensor) and any(type(size) is int and size == 0 for size in value.shape)


def _of_nothing(emit: Emitter, node: fx.Node, args: dict[str, Any]) -> Normalized:
    """Batch norm of an empty batch: even in training it leaves the statistics unchanged, and runs no kernel."""
    operands = [args.get(name) for name in ("input", "weight", "bias", "running_mean", "running_var")]
    settings = (False, args.get("momentum", 0.1), args.get("eps", 1e-5), args.get("cudnn_enabled", False))
    target = aten.batch_norm.default if emit.is_aten else torch.batch_norm
    return Normalized(emit.like(node, "call_function", target, (*operands, *settings), {}), False, None, None)


def _with_update(emit: Emitter, node: fx.Node, args: dict[str, Any]) -> Normalized:
    names = ("input", "weight", "bias", "running_mean", "running_var", "momentum", "eps")
    operands = tuple(args[name] for name in names)
    kernel = _kernel_call(emit, node, aten._batch_norm_with_update_functional.default, operands)
    mean, var = (_item(emit, node, kernel, index, args[name].name) for index, name in _STATISTICS_AT[4])
    return Normalized(_first_results(emit, node, kernel, 4), True, mean, var)


_STATISTICS_AT = {at: ((at, "running_mean"), (at + 1, "running_var")) for at in (3, 4)}
"""Indices of the new statistics among a kernel's results, by the number of results before them."""


def _kernel_call(emit: Emitter, node: fx.Node, target: Any, args: tuple[Any, ...]) -> fx.Node:
    return emit.node("call_function", target, args, {}, at=node)


def _first_results(emit: Emitter, node: fx.Node, whole: fx.Node, count: int) -> fx.Node:
    """The results that the call has, without the statistics: sliced off only if a user takes the whole tuple."""
    # Items have the same indices in both, so that the longer tuple does no harm to them.
    if all(user.target is operator.getitem for user in node.users):
        return whole
    return emit.node("call_function", operator.getitem, (whole, slice(0, count)), {}, at=node)


def _item(emit: Emitter, node: fx.Node, whole: fx.Node, index: int, label: str) -> fx.Node:
    return emit.node("call_function", operator.getitem, (whole, index), {}, at=node, label=label)


def _instance_norm(emit: Emitter, node: fx.Node, args: dict[str, Any]) -> Normalized:
    """Instance norm uses the statistics of each instance; the running statistics move towards their mean over the
    batch, with the unbiased variance."""
    names = ("input", "weight", "bias")
    kept = (None, None, True, args["momentum"], args["eps"], args.get("cudnn_enabled", False))
    operands = (*(args.get(name) for name in names), *kept)
    target = aten.instance_norm.default if emit.is_aten else torch.instance_norm
    result = emit.like(node, "call_function", target, operands, {})
    # The update of running statistics is not differentiated.
    rows = emit.call("detach", (args["input"],), at=node)
    rows = emit.call("flatten", (rows, 2), at=node)
    wanted, own = metadata(args["running_mean"]), metadata(rows)
    if isinstance(wanted, torch.Tensor) and isinstance(own, torch.Tensor) and wanted.dtype != own.dtype:
        rows = emit.call("to_dtype", (rows, wanted.dtype), at=node)
    mean = emit.call("mean", (rows, [2]), at=node)
    var = emit.call("var", (rows, [2]), {"correction": 1}, at=node)
    updated = []
    for name, statistic in (("running_mean", mean), ("running_var", var)):
        average = emit.call("mean", (statistic, [0]), at=node)
        updated.append(emit.call("lerp", (args[name], average, args["momentum"]), at=node, label=args[name].name))
    return Normalized(result, False, *updated)
