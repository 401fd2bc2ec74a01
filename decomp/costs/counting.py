"""Costs counted from the metadata of a call: calls, floating-point operations, bytes read and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import math
from typing import Any

import torch

from decomp.costs.model import CostModel
from decomp.costs.sizes import nbytes, numel, operands, results, returns_view, size
from decomp.ir.arguments import nodes_in
from decomp.ir.call import Call
from decomp.ir.op_facts import FACTORIES, UNINITIALISED


@dataclass(frozen=True)
class Calls(CostModel):
    """1 for each call, including views: the cheapest program is the shortest."""

    unit = "calls"
    aim = "fewest calls"

    def __call__(self, call: Call) -> float:
        return 1.0

    def __repr__(self) -> str:
        return "decomp.costs.calls"


@dataclass(frozen=True)
class Bytes(CostModel):
    """Bytes that a call reads and writes. A view moves none; an operand that is passed twice, or whose elements are
    repeated by a stride of 0, is read once; a gather reads only as much as it returns."""

    unit = "bytes"
    aim = "fewest bytes read and written"

    def __call__(self, call: Call) -> float:
        if returns_view(call):
            return 0.0
        written = 0 if call.op.short in UNINITIALISED else sum(map(nbytes, results(call)))
        read = [nbytes(tensor) for tensor in operands(call)] if call.op.short not in _UNREAD else []
        # The table is the first operand; indices are read whole.
        if call.op.short in _GATHERS and read:
            read[0] = min(read[0], written)
        return float(sum(read) + written)

    def __repr__(self) -> str:
        return "decomp.costs.bytes"


@dataclass(frozen=True)
class Flops(CostModel):
    """Operations of a call: two for each multiply-add of a matrix product, a convolution or an attention; for any other
    op, one for each element of its result or of its largest operand, whichever is more, no matter if an addition or a
    logarithm (`decomp.costs.table` distinguishes them). Ops that only move, repeat or create numbers are free.
    """

    unit = "operations"
    aim = "fewest operations"

    def __call__(self, call: Call) -> float:
        short = call.op.short
        if short in _MOVES or short in FACTORIES or returns_view(call):
            return 0.0
        counted = _COUNTED.get(short)
        found = counted(call) if counted is not None else None
        return float(found if found is not None else _elementwise(call))

    def __repr__(self) -> str:
        return "decomp.costs.flops"


CALLS, FLOPS, BYTES = Calls(), Flops(), Bytes()

_GATHERS = frozenset("gather index _unsafe_index index_select embedding take take_along_dim".split())
_UNREAD = UNINITIALISED | frozenset(
    "full_like zeros_like ones_like rand_like randn_like randint_like new_full new_zeros new_ones fill".split()
)
_MOVES = (
    _GATHERS
    | _UNREAD
    | frozenset(
        "clone _to_copy to type type_as contiguous copy cat concat stack hstack vstack constant_pad_nd pad flip roll "
        "rot90 repeat tile repeat_interleave reshape flatten put index_put index_copy index_fill masked_fill "
        "masked_scatter masked_select scatter select_scatter slice_scatter diagonal_scatter as_strided_scatter "
        "tril triu diag_embed split_copy unfold_copy nonzero lift_fresh_copy".split()
    )
)
"""Ops that do no arithmetic."""


def _elementwise(call: Call) -> int:
    # A reduction reads more than it returns, a broadcast returns more than it reads.
    return max(map(numel, (*operands(call), *results(call))), default=0)


def _tensor(call: Call, *names: str) -> torch.Tensor | None:
    """The first argument with one of these names that is a tensor."""
    found = (call.argument(name) for name in names if name in call.arguments)
    return next((value for value in found if isinstance(value, torch.Tensor)), None)


def _written(call: Call) -> int:
    return sum(map(numel, results(call)[:1]))


def _product(*names: str, added: bool = False) -> Callable[[Call], int | None]:
    """For a product whose inner dimension is the last of the first matrix; `added`: plus a third operand."""

    def count(call: Call) -> int | None:
        left = _tensor(call, *names)
        if left is None:
            return None
        written = _written(call)
        return 2 * written * (size(left.shape[-1]) if left.dim() else 1) + (written if added else 0)

    return count


def _reducing_product(call: Call) -> int | None:
    """For products that are also summed over a batch (`addbmm`)."""
    left = _tensor(call, "batch1")
    return None if left is None else 2 * _written(call) * size(left.shape[0]) * size(left.shape[-1])


def _convolution(call: Call) -> int | None:
    moved, weight = _tensor(call, "input", "self"), _tensor(call, "weight")
    if moved is None or weight is None:
        return None
    transposed = call.op.short.startswith("conv_transpose") or call.arguments.get("transposed") is True
    # Multiplications for one element of the result: input channels of a group times the kernel. A transposed one has
    # input channels first, and as many for one element of its operand.
    a_channel = numel(weight) // max(size(weight.shape[0]), 1)
    return 2 * a_channel * (numel(moved) if transposed else _written(call))


def _attention(call: Call) -> int | None:
    query, key, value = (_tensor(call, name) for name in ("query", "key", "value"))
    if query is None or key is None or value is None:
        return None
    # One product for the scores and one with the values; softmax in between is not counted, as is usual.
    scores = numel(query) // max(size(query.shape[-1]), 1) * size(key.shape[-2])
    return 2 * scores * (size(query.shape[-1]) + size(value.shape[-1]))


def _pooling(call: Call) -> int | None:
    kernel = call.arguments.get("kernel_size")
    if kernel is None or next(nodes_in(kernel), None) is not None:
        return None
    # `avg_pool2d` with kernel_size=3 has 3 × 3.
    spatial = int("".join(c for c in call.op.short if c.isdigit())[:1] or 1)
    edges = [size(k) for k in kernel] if isinstance(kernel, (list, tuple)) else [size(kernel)]
    return _written(call) * math.prod(edges if len(edges) > 1 else edges * spatial)


def _sorting(call: Call) -> int | None:
    """n log₂ n for each row, where n is the length of the last dimension."""
    given = _tensor(call, "self")
    rows = size(given.shape[-1]) if given is not None and given.dim() else 1
    return None if given is None else numel(given) * max(math.ceil(math.log2(max(rows, 2))), 1)


def _fourier(call: Call) -> int:
    """5 n log₂ n, the usual measure of transforms (http://www.fftw.org/speed/)."""
    count = _elementwise(call)
    return 5 * count * math.ceil(math.log2(max(count, 2)))


def _factorizing(call: Call) -> int:
    """The order of the cost of a factorization, n³ for n × n."""
    largest = max(operands(call), key=numel)
    return numel(largest) * (size(largest.shape[-1]) if largest.dim() else 1)


def _named(function: Any, names: str) -> Mapping[str, Any]:
    return dict.fromkeys(names.split(), function)


_COUNTED: Mapping[str, Callable[[Call], int | None]] = {
    **_named(_product("self", "input"), "mm bmm matmul mv dot vdot inner linear _int_mm"),
    **_named(_product("mat1", "batch1", "mat", added=True), "addmm baddbmm addmv"),
    "addbmm": _reducing_product,
    **_named(
        _convolution,
        "convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d _convolution",
    ),
    **_named(
        _attention,
        "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention",
    ),
    **_named(_pooling, "avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool2d_with_indices"),
    **_named(_sorting, "sort argsort topk msort"),
    **_named(_fourier, "_fft_c2c _fft_r2c _fft_c2r"),
    **_named(_fourier, " ".join(f"fft_{kind}fft{dims}" for kind in ("", *"irh", "ir", "ih") for dims in ("", *"2n"))),
    **_named(
        _factorizing,
        "linalg_inv_ex linalg_inv inverse linalg_lu linalg_lu_factor_ex linalg_cholesky_ex cholesky linalg_qr "
        "_linalg_svd _linalg_eigh linalg_eig _linalg_solve_ex linalg_solve_triangular triangular_solve _linalg_det",
    ),
}
"""By op, the function that counts its operations; it returns None for arguments of another form."""
