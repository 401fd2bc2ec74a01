"""Products of matrices in 8- and 4-bit floats, whose scales are operands: of a tensor, a row, or a block. Blocks are
those of the microscaling formats (OCP MX 1.0: 32 numbers of a row, by a power of 2), of NVFP4 (16 numbers of a row, by
a number in e4m3, and one float32 for the tensor), and of 128 numbers of a row or 128 by 128 of a matrix, by a float32.

Numbers are decoded to float32, which is exact, and multiplied there; scales of blocks are multiplied into the operands,
those of tensors and rows into the product. The result is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp.results import Declined
from decomp_rules.linalg.grouped_products import grouped_product
from decomp_rules.support.operands import cast

RULES = Rules(level="exact")
register = RULES.register


class Scaling(IntEnum):
    """What has a scale of its own, by PyTorch's numbers (`torch.nn.functional.ScalingType`)."""

    TENSOR_WISE = 0
    ROW_WISE = 1
    BLOCK_1X16 = 2
    BLOCK_1X32 = 3
    BLOCK_1X128 = 4
    BLOCK_128X128 = 5


SWIZZLED = 1
"""Scales in tiles of 128 rows by 4 blocks, each tile laid out as 32 rows of 4 by 4 (`SwizzleType.SWIZZLE_32_4_4`)."""

_LENGTHS = {Scaling.BLOCK_1X16: 16, Scaling.BLOCK_1X32: 32, Scaling.BLOCK_1X128: 128, Scaling.BLOCK_128X128: 128}


@register(aten._scaled_mm)
def _scaled_mm(
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """(M, K) by (K, N); the shapes and dtypes of the scales say what each is a scale of. A result in float8 is divided
    by its own scale on CPUs, where `out_dtype` asks for float8, and multiplied by it on other devices."""
    flat = scale_b.dtype != torch.float32
    sides = ((self, scale_a), (mat2.t(), scale_b if flat else scale_b.t()))
    left, right = (_scaled(x, [scale], [_recipe(scale, x)], [SWIZZLED if flat else 0]) for x, scale in sides)
    product = _product(left, right, bias)
    dtype = self.dtype if out_dtype is None else out_dtype
    if scale_result is not None and dtype.itemsize == 1:
        step = scale_result.reshape(())
        if self.device.type not in ("cpu", "meta"):
            product = product * step
        elif out_dtype is not None:
            product = product / step
    return cast(product, dtype)


@register(aten._scaled_mm_v2)
def _scaled_mm_v2(
    self: Tensor,
    mat2: Tensor,
    scale_a: Sequence[Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Tensor | None,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor | Declined:
    """(M, K) by (K, N), each with one or two scales of what its recipe says."""
    if contraction_dim:
        return decline("which dimensions are contracted is left to the kernel")
    if not {*recipe_a, *recipe_b} <= {*Scaling}:
        return decline(f"one of the scalings {[*recipe_a, *recipe_b]} has no meaning here")
    left = _scaled(self, scale_a, recipe_a, swizzle_a)
    right = _scaled(mat2.t(), scale_b, recipe_b, swizzle_b)
    return cast(_product(left, right, bias), self.dtype if out_dtype is None else out_dtype)


@register(aten._scaled_grouped_mm)
def _scaled_grouped_mm(
    self: Tensor,
    mat2: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor | Declined:
    """A product for each group, as `_grouped_mm` has them, with a scale for each row of the left and each column of the
    right matrices; of two matrices cut along their summands, each group has scales of its own."""
    if bias is not None or scale_result is not None:
        return decline("the kernel has neither a bias nor a scale of the result")
    if scale_a.dtype != torch.float32:
        return decline("how the scales of blocks in groups are laid out is the device's own")
    left, right = _decoded(self), _decoded(mat2.transpose(-1, -2)).transpose(-1, -2)
    dtype = torch.bfloat16 if out_dtype is None else out_dtype
    if self.dim() == 2 and mat2.dim() == 2:
        product = grouped_product(left, right, offs)
        rows, columns = scale_a.reshape(-1, left.shape[0], 1), scale_b.reshape(-1, 1, right.shape[1])
        return cast(product * rows * columns, dtype)
    left = left * scale_a.reshape(*left.shape[:-1], 1)
    right = right * scale_b.reshape(*right.shape[:-2], 1, right.shape[-1])
    return cast(grouped_product(left, right, offs), dtype)


@register(aten._scaled_grouped_mm_v2)
def _scaled_grouped_mm_v2(
    self: Tensor,
    mat2: Tensor,
    scale_a: Sequence[Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor | Declined:
    """`_scaled_grouped_mm`, whose scales are of rows and columns by their recipes."""
    if contraction_dim:
        return decline("which dimensions are contracted is left to the kernel")
    if [*recipe_a, *recipe_b] != [Scaling.ROW_WISE, Scaling.ROW_WISE]:
        return decline("only scales of rows and columns are laid out alike on all devices")
    return _scaled_grouped_mm(self, mat2, scale_a[0], scale_b[0], offs, bias, None, out_dtype)


def _decoded(x: Tensor) -> Tensor:
    """The numbers of (…, K) in float32; of 4-bit floats, (…, K/2) bytes hold two each, the first in the low bits."""
    if x.dtype != torch.float4_e2m1fn_x2:
        return cast(x, torch.float32)
    byte = cast(x.view(torch.uint8), torch.int32)
    code = torch.stack((byte & 15, byte >> 4), -1).flatten(-2)
    size = cast(code & 7, torch.float32)
    # 0, ½, 1, 1½, 2, 3, 4, 6: convex, and so the largest of three lines.
    value = torch.maximum(torch.maximum(size * 0.5, size - 2), size * 2 - 8)
    return torch.where(code >= 8, torch.neg(value), value)


Scaled = tuple[Tensor, list[Tensor]]
"""An operand (rows, K) with the scales of its blocks multiplied in, and the others, (rows, 1) or (1, 1)."""


def _recipe(scale: Tensor, x: Tensor) -> Scaling:
    """What has a scale, by the dtype and the shape of the scales of (rows, K). Larger blocks are rows of blocks."""
    if scale.dtype != torch.float32:
        return Scaling.BLOCK_1X16 if scale.dtype == torch.float8_e4m3fn else Scaling.BLOCK_1X32
    if scale.numel() == 1:
        return Scaling.TENSOR_WISE
    return Scaling.ROW_WISE if tuple(scale.shape) == (x.shape[0], 1) else Scaling.BLOCK_1X128


def _scaled(x: Tensor, scales: Sequence[Tensor], recipes: Sequence[int], swizzles: Sequence[int]) -> Scaled:
    """An operand and its scales. `swizzles` may be shorter than these."""
    x, of_product = _decoded(x), []
    for scale, recipe, swizzle in zip(scales, recipes, [*swizzles, *[0] * len(scales)]):
        if recipe in (Scaling.TENSOR_WISE, Scaling.ROW_WISE):
            of_product.append(scale.reshape(-1, 1))
            continue
        length = _LENGTHS[Scaling(recipe)]
        count = -(-x.shape[1] // length)
        if swizzle == SWIZZLED:
            scale = _unswizzled(scale, x.shape[0], count)
        elif recipe == Scaling.BLOCK_128X128:  # (K/128, a multiple of 4; rows/128)
            scale = scale.t()[:, :count]
        x = _by_block_of_128(x, scale) if length == 128 else _by_block_of_row(x, scale, length)
    return x, of_product


def _product(left: Scaled, right: Scaled, bias: Tensor | None) -> Tensor:
    """(M, K) by (N, K), in float32."""
    product = torch.mm(left[0], right[0].t())
    for scale in (*left[1], *(each.t() for each in right[1])):
        product = product * scale
    return product if bias is None else product + cast(bias, torch.float32)


def _unswizzled(scale: Tensor, rows: int, count: int) -> Tensor:
    """(rows, count) scales out of tiles of 128 rows by 4 blocks, in which the rows r, r + 32, r + 64 and r + 96 are
    one after the other."""
    above, beside = -(-rows // 128), -(-count // 4)
    laid_out = scale.reshape(above, beside, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return laid_out.reshape(above * 128, beside * 4)[:rows, :count]


def _by_block_of_row(x: Tensor, scale: Tensor, length: int) -> Tensor:
    """(rows, K) times (rows, K / length)."""
    parts = x.unflatten(1, (scale.shape[1], length))
    return (parts * cast(scale, torch.float32).unsqueeze(2)).flatten(1)


def _by_block_of_128(x: Tensor, scale: Tensor) -> Tensor:
    """(rows, K) times (rows or rows / 128, K / 128), rounded up."""
    for dim in (0, 1):
        if scale.shape[dim] != x.shape[dim]:
            scale = scale.repeat_interleave(128, dim).narrow(dim, 0, x.shape[dim])
    return x * scale
