"""Row-wise calls: each row of the result, in its leading dimensions, depends only on the same row of the operands. Such
a call can run in blocks of rows with the same results bit for bit. Kernels compute the rows of a reduction one by one,
and the elements of exactly rounded ops independently. Other ops may round the elements after the last whole vector
differently (scalar code instead of SIMD), so their blocks must end at a whole vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from decomp.ir.aliases import short_name
from decomp.ir.call import call_if_bound, metadata
from decomp.ir.op_facts import EXACTLY_ROUNDED, ROW_REDUCTIONS, ROW_VIEWS, SUMS
from decomp.memory.forms import find_form, is_static

# 64 elements of int8 in an AVX-512 register, in loops unrolled by two; all wider elements divide it.
VECTOR = 128
"""Elements: a multiple of the width of any vector unit, in loops unrolled by two."""
ROW_DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def count_row_dims(node: fx.Node) -> int:
    """In how many leading dimensions a call is row-wise; 0 if in none, or unknown."""
    value, overload = metadata(node), node.target
    if node.op != "call_function" or not isinstance(overload, torch._ops.OpOverload) or not _is_plain(value):
        return 0
    if not all(_is_plain(metadata(used)) for used in node.all_input_nodes):
        return 0
    name = short_name(overload)
    if name in ROW_VIEWS:
        return _kept_by_view(node, name)
    # Blocks of other layouts are laid out otherwise than the whole, and kernels follow strides.
    if find_form(node).out is None or not value.is_contiguous():
        return 0
    if name in ROW_REDUCTIONS:
        return _kept_by_reduction(node)
    # Matrix products are in neither set: BLAS chooses a kernel by the number of rows, and with it the bits of each row.
    # https://github.com/pytorch/pytorch/issues/45422
    return int(value.dim()) if find_form(node).elementwise else 0


def _is_plain(value: Any) -> bool:
    known = isinstance(value, torch.Tensor) and value.layout is torch.strided and is_static(value)
    return known and value.dtype in ROW_DTYPES and value.numel() > 0


def is_view(node: fx.Node) -> bool:
    """Whether a row-wise call is a view, which computes nothing."""
    return short_name(node.target) in ROW_VIEWS


def _operand(node: fx.Node) -> torch.Tensor:
    found: torch.Tensor = metadata(node.args[0])
    return found


def _kept_by_view(node: fx.Node, name: str) -> int:
    """The number of leading dimensions that a view does not change."""
    given, made = _operand(node), metadata(node)
    if not given.dim():
        return 0
    call = call_if_bound(node)
    arguments = call.arguments if call is not None else {}
    if "dim0" in arguments:
        return min(int(arguments[each]) % int(given.dim()) for each in ("dim0", "dim1"))
    if "dims" in arguments:
        return next((i for i, dim in enumerate(arguments["dims"]) if dim % given.dim() != i), given.dim())
    if "dim" in arguments:
        dims = arguments["dim"] if isinstance(arguments["dim"], (list, tuple)) else [arguments["dim"]]
        among = int(given.dim()) + (name == "unsqueeze")
        return min((int(dim) % among for dim in dims), default=int(given.dim()))
    if name == "view" and "dtype" in arguments:
        return int(given.dim()) if given.element_size() == made.element_size() else 0
    # A reshape of other memory may copy, and regroup rows.
    if name in ("view", "reshape", "_unsafe_view") and not given.is_contiguous():
        return 0
    if name == "squeeze":
        return 0
    same = (i for i, (a, b) in enumerate(zip(given.shape, made.shape)) if a != b)
    kept = next(same, min(given.dim(), made.dim()))
    # New leading dimensions push the old ones back.
    return kept if name != "expand" or given.dim() == made.dim() else 0


def _kept_by_reduction(node: fx.Node) -> int:
    """The number of dimensions before the reduced ones, if these are the innermost in memory."""
    given, call = _operand(node), call_if_bound(node)
    dims = call.arguments.get("dim") if call is not None else None
    dims = [dims] if isinstance(dims, int) else dims
    # Without `dim` all elements are added, in an order that depends on their number.
    if not dims or not given.dim() or not given.is_contiguous():
        return 0
    reduced = sorted(int(dim) % given.dim() for dim in dims)
    return reduced[0] if reduced == list(range(reduced[0], given.dim())) else 0


def needs_whole_vectors(node: fx.Node) -> bool:
    """Whether the blocks of a call must end at a whole vector."""
    name = short_name(node.target)
    scaled = "alpha" in node.kwargs or len(node.args) > 2 and name in SUMS
    # The vector kernel fuses alpha·b + a to one rounding
    # (`vec::fmadd` in BinaryOpsKernel.cpp), the scalar one need not.
    return find_form(node).elementwise and (name not in EXACTLY_ROUNDED or scaled)


def row_mask(operand: torch.Tensor, made: torch.Tensor, rows: tuple[int, ...]) -> tuple[bool, ...] | None:
    """A mask over the dimensions `rows` of a result: whether an operand has the same rows there (or broadcasts one
    row). None if the operand has these dimensions elsewhere; `()` if it has none of them."""
    missing = made.dim() - operand.dim()
    if missing >= len(rows) or operand.numel() == 1:
        return ()
    if missing:
        return () if all(size == 1 for size in operand.shape[: len(rows) - missing]) else None
    sizes = list(zip(operand.shape, rows))
    if all(size == 1 for size, _ in sizes):
        return ()
    return tuple(size == row for size, row in sizes) if all(size in (1, row) for size, row in sizes) else None
