"""Products with 4-bit weights that are packed for one kind of processor. A program holds the packed bytes and does not
say for which processor they were packed, so its author declares the layout: `rules("avx512") | decomp_rules.RULES`.
These rules are not part of `decomp_rules.RULES`.

A number q from 0 to 15 represents (q − 8) s + z, with an s and a z for each group of a row. It is decoded to float32,
in which products are summed, and the result is rounded once, as the kernels do; CUDA's rounds the decoded weight to
bfloat16 first. On CPUs bytes go along the rows of blocks of N: a byte has the numbers of two rows, for one k."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from decomp import Rules, decline, errors
from decomp.ops import aten
from decomp.results import Declined
from decomp_rules.quantized import dynamic_products
from decomp_rules.support.operands import cast


@dataclass(frozen=True)
class BlockLayout:
    """How CPU kernels lay out (N, K): blocks of `rows`, and what is left of N as one more block."""

    rows: int
    halves: bool
    """Whether a byte has the rows j and j + rows / 2 of a full block, the first in the low bits; else, and always in
    what is left, the rows 2 j and 2 j + 1."""


CPU_LAYOUTS = {"avx512": BlockLayout(64, True), "avx2": BlockLayout(32, True), "scalar": BlockLayout(32, False)}
"""By the names of `torch.backends.cpu.get_cpu_capability()` on x86, where "scalar" is its DEFAULT (torch 2.11 to 2.15;
`ATen/native/cpu/int4mm_kernel.cpp`)."""
CUDA = "cuda"
"""The tiles of NVIDIA's tensor cores (`m16n8k16`), for any number of inner tiles (`ATen/native/cuda/int4mm.cu`)."""
LAYOUTS = (*CPU_LAYOUTS, CUDA)


def rules(layout: str) -> Rules:
    """Rules for weights of this layout, one of `LAYOUTS`: for `_weight_int4pack_mm_for_cpu`,
    `_convert_weight_to_int4pack_for_cpu` and `_dyn_quant_matmul_4bit`, or, where it is `"cuda"`, for
    `_weight_int4pack_mm` and `_convert_weight_to_int4pack`. Raises `ArgumentError`."""
    if layout not in LAYOUTS:
        raise errors.ArgumentError(
            f"no layout of 4-bit weights is called {layout!r}; there are {', '.join(LAYOUTS)}\n"
            "  to do: name the processor that packed the weights; layout_here() has that of this one"
        )
    return _cuda_rules() if layout == CUDA else _cpu_rules(CPU_LAYOUTS[layout]) | dynamic_products.RULES


def layout_here() -> str:
    """The layout in which this process packs 4-bit weights on the CPU, found by packing numbered ones. Raises
    `ArgumentError` for a layout that is not in `CPU_LAYOUTS`."""
    rows, columns = 80, 2
    place = torch.arange(rows * columns, dtype=torch.int32).reshape(rows, columns)
    for name, layout in CPU_LAYOUTS.items():
        digits = ((place >> shift) & 15 for shift in (0, 4))
        packed = ((aten._convert_weight_to_int4pack_for_cpu(each, 2), each) for each in digits)
        if all(torch.equal(unpacked(found, layout), each) for found, each in packed):
            return name
    raise errors.ArgumentError(
        f"this processor ({torch.backends.cpu.get_cpu_capability()}) packs 4-bit weights in none of the layouts "
        f"{', '.join(CPU_LAYOUTS)}\n  to do: pack the weights on x86, or quantise with weights that are not packed"
    )


def _cpu_rules(layout: BlockLayout) -> Rules:
    found = Rules(level="exact")

    @found.register(aten._weight_int4pack_mm_for_cpu)
    def _weight_int4pack_mm_for_cpu(
        self: Tensor, mat2: Tensor, qGroupSize: int, qScaleAndZeros: Tensor
    ) -> Tensor | Declined:
        """x wᵀ; x: (M, K); mat2: uint8, (N, K / 2); scales and zeros: (K / group, N, 2)."""
        if mat2.shape[0] % 16:
            return decline("the kernel packs rows by sixteens")
        return _product(self, unpacked(mat2, layout), qGroupSize, qScaleAndZeros, torch.float32)

    @found.register(aten._convert_weight_to_int4pack_for_cpu)
    def _convert_weight_to_int4pack_for_cpu(self: Tensor, innerKTiles: int) -> Tensor | Declined:
        """(N, K) int32, from 0 to 15, → (N, K / 2) uint8. The number of tiles is CUDA's and has no meaning here."""
        if self.shape[0] % 16:
            return decline("the kernel packs rows by sixteens")
        return packed(self, layout)

    return found


def _cuda_rules() -> Rules:
    found = Rules(level="exact")

    @found.register(aten._weight_int4pack_mm)
    def _weight_int4pack_mm(self: Tensor, mat2: Tensor, qGroupSize: int, qScaleAndZeros: Tensor) -> Tensor | Declined:
        """x wᵀ; x: bfloat16, (M, K); mat2: int32, (N / 8, K / (16 tiles), 32, tiles / 2); scales and zeros:
        (K / group, N, 2)."""
        if mat2.dim() != 4 or self.dtype != torch.bfloat16:
            return decline("the kernel of CUDA takes bfloat16, and weights in tiles")
        return _product(self, unpacked_tiles(mat2), qGroupSize, qScaleAndZeros, torch.bfloat16)

    @found.register(aten._convert_weight_to_int4pack)
    def _convert_weight_to_int4pack(self: Tensor, innerKTiles: int) -> Tensor | Declined:
        """(N, K / 2) uint8, the first of two numbers in the high bits, → (N / 8, K / (16 tiles), 32, tiles / 2)."""
        if self.shape[0] % 8:
            return decline("the rows are no whole number of tiles of 8")
        return packed_tiles(self, innerKTiles)

    return found


def unpacked(packed: Tensor, layout: BlockLayout) -> Tensor:
    """(N, K / 2) uint8, laid out for a CPU → (N, K) int32, from 0 to 15."""
    columns, parts = packed.shape[1] * 2, []
    for start, end, block, halves in _blocks(packed.shape[0], layout):
        byte = cast(packed[start:end].reshape(-1, columns, block // 2), torch.int32)
        by_row = torch.stack((byte & 15, byte >> 4), 2 if halves else 3).reshape(-1, columns, block)
        parts.append(by_row.transpose(1, 2).reshape(end - start, columns))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def packed(weight: Tensor, layout: BlockLayout) -> Tensor:
    """(N, K) int32, from 0 to 15 → (N, K / 2) uint8, laid out for a CPU."""
    columns, parts = weight.shape[1], []
    for start, end, block, halves in _blocks(weight.shape[0], layout):
        by_row = weight[start:end].reshape(-1, block, columns).transpose(1, 2)
        pairs = by_row.unflatten(2, (2, block // 2) if halves else (block // 2, 2))
        low, high = pairs.unbind(2 if halves else 3)
        parts.append(cast(low | (high << 4), torch.uint8).reshape(end - start, columns // 2))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _blocks(rows: int, layout: BlockLayout) -> Iterator[tuple[int, int, int, bool]]:
    """Where full blocks, and what is left, start and end; the rows of a block; whether its bytes have halves."""
    full = rows // layout.rows * layout.rows
    if full:
        yield 0, full, layout.rows, layout.halves
    if rows > full:
        yield full, rows, rows - full, False


def unpacked_tiles(packed: Tensor) -> Tensor:
    """(N / 8, K / (16 tiles), 32, tiles / 2) int32 → (N, K) int32, from 0 to 15. A word has eight numbers of one row:
    of four pairs of neighbours, 8 apart, first those of even k, from the low bits."""
    above, beside, _, words = packed.shape
    codes = torch.stack([(packed >> shift) & 15 for shift in range(0, 32, 4)], -1)
    by_lane = codes.reshape(above, beside, 8, 4, words, 2, 4)  # …, row, pair of 4, word, odd, eight of k
    return by_lane.permute(0, 2, 1, 4, 6, 3, 5).reshape(above * 8, beside * words * 32)


def packed_tiles(byte: Tensor, tiles: int) -> Tensor:
    """(N, K / 2) uint8, the first of two numbers in the high bits → (N / 8, K / (16 tiles), 32, tiles / 2) int32."""
    byte = cast(byte, torch.int32)
    above, beside, words = byte.shape[0] // 8, byte.shape[1] * 2 // (tiles * 16), tiles // 2
    codes = torch.stack((byte >> 4, byte & 15), -1).reshape(above, 8, beside, words, 4, 4, 2)
    by_lane = codes.permute(0, 2, 1, 5, 3, 6, 4).reshape(above, beside, 32, words, 8)
    word = by_lane[..., 0]
    for place in range(1, 8):
        word = word | (by_lane[..., place] << (4 * place))
    return word


def _product(x: Tensor, code: Tensor, size: int, scales_and_zeros: Tensor, decoded: torch.dtype) -> Tensor | Declined:
    """x wᵀ in float32, rounded to the dtype of x; the weight is rounded to `decoded`. `size`: of a group."""
    rows, columns = code.shape
    if tuple(scales_and_zeros.shape) != (columns // size, rows, 2) or columns % size:
        return decline(f"the scales and zeros are not ({columns} / {size}, {rows}, 2)")
    scale, zero = (cast(each.t(), torch.float32).unsqueeze(2) for each in scales_and_zeros.unbind(2))
    groups = cast(code - 8, torch.float32).unflatten(1, (-1, size))
    weight = cast(cast(groups * scale + zero, decoded), torch.float32).flatten(1)
    return cast(torch.mm(cast(x, torch.float32), weight.t()), x.dtype)
