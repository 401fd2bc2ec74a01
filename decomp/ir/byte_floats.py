"""Calls in floats of a byte: float8, and float4 in pairs. PyTorch stores such numbers, moves them and casts them, and
has next to no kernel that computes in them (torch 2.13, on CPUs), while fake tensors take any dtype. So a call that a
rule records in them is looked up here: a lowering that PyTorch cannot run cannot be verified either."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from decomp.ir.aliases import view_bases
from decomp.ir.call import Call, call_if_bound, is_free, metadata
from decomp.ir.dtypes import BYTE_FLOATS, name_of
from decomp.ir.op_facts import BYTE_FLOATS_CAST, BYTE_FLOATS_FILLED, BYTE_FLOATS_MOVED, BYTE_FLOATS_REDUCED
from decomp.torch_internals.pytree import tensors_in

_OF_PYTORCH = ("aten", "prims")


def has_byte_floats(node: fx.Node) -> bool:
    """Whether an operand or a result of a call is known to be in floats of a byte."""
    return any(dtype in BYTE_FLOATS for dtype in _dtypes(node))


def without_kernel(node: fx.Node) -> torch.dtype | None:
    """The floats of a byte, if there are any, in which PyTorch has no kernel for a call. Ops of other libraries have
    kernels of their own."""
    found = next((dtype for dtype in _dtypes(node) if dtype in BYTE_FLOATS), None)
    target = node.target
    if found is None or not isinstance(target, torch._ops.OpOverload) or target.namespace not in _OF_PYTORCH:
        return None
    call = None if is_free(target) or view_bases(node) else call_if_bound(node)
    return None if call is None or _is_computed(call, found, metadata(node)) else found


def missing_kernel(node: fx.Node, own: Collection[str]) -> str | None:
    """Why a call is not to be emitted, in floats of a byte for which PyTorch has no kernel; None if it may be. `own`:
    the names of the dtypes for which a target says that it has kernels."""
    dtype = without_kernel(node)
    if dtype is None or name_of(dtype) in own:
        return None
    return (
        f"emits {node.target} in {name_of(dtype)}, for which PyTorch has no kernel; "
        f'a target that has one names the dtype: dtypes=["{name_of(dtype)}", ...]'
    )


def _dtypes(node: fx.Node) -> list[torch.dtype]:
    values = [metadata(each) for each in (*node.all_input_nodes, node)]
    return [tensor.dtype for tensor in tensors_in(values)]


def _is_computed(call: Call, dtype: torch.dtype, result: Any) -> bool:
    name, is_float8 = call.op.short, dtype != torch.float4_e2m1fn_x2
    if name in BYTE_FLOATS_MOVED:
        return True
    if name in BYTE_FLOATS_FILLED:
        return _is_filled(dtype, call.arguments)
    if name in BYTE_FLOATS_REDUCED:  # in another dtype, to which they are cast first
        return is_float8 and all(tensor.dtype not in BYTE_FLOATS for tensor in tensors_in(result))
    if name == "mul":  # of a tensor and a number, or of 0-d ones, there is no product
        operands = call.tensors
        return is_float8 and len(operands) == 2 and all(each.dtype == dtype and each.dim() for each in operands)
    has_own = name in ("abs", "index_put", "_unsafe_index_put") and dtype != torch.float8_e8m0fnu
    return is_float8 and (has_own or name in BYTE_FLOATS_CAST or name == "convert_element_type")


def _is_filled(dtype: torch.dtype, arguments: Mapping[str, Any]) -> bool:
    """Whether a tensor of a dtype is filled with the number that a call says."""
    names = ("fill_value", "value", "s")
    number = next((arguments[name] for name in names if isinstance(arguments.get(name), (int, float))), 1)
    try:
        torch.full((1,), number, dtype=dtype)
    except (RuntimeError, NotImplementedError):
        return False
    return True
