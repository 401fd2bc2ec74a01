"""Products in 8- and 4-bit floats agree with PyTorch's kernels, where a CPU has them, and with the formats."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets
from decomp_rules.linalg import scaled_products
from tests.decomp_rules.rule_agreement import agrees
from tests.pytorch_differences import ROWS_HAVE_SCALES

aten = torch.ops.aten
RULES = scaled_products.RULES
E4M3, E5M2, E8M0, E2M1 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
TARGETS = [targets.core_aten, targets.tinygrad, targets.luminal]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers(rows: int, columns: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Numbers of either sign; of 4-bit floats as many bytes, of two numbers each."""
    if dtype == E2M1:
        return torch.randint(256, (rows, columns), dtype=torch.uint8, generator=generator(seed)).view(E2M1)
    return torch.randn(rows, columns, generator=generator(seed)).to(dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 2) -> torch.Tensor:
    if dtype == E8M0:
        return torch.randint(117, 137, shape, dtype=torch.uint8, generator=generator(seed)).view(E8M0)
    return (torch.rand(shape, generator=generator(seed)) + 0.25).to(dtype)


SCALES = {
    "tensor": (torch.tensor(0.37), torch.tensor([[1.3]])),
    "row": (positive(16, 1), positive(1, 24, seed=3)),
    "beyond the range": (torch.tensor(370.0), torch.tensor(1.3)),
}


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("result", [None, torch.bfloat16, torch.float16, torch.float32, E5M2])
@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E5M2, E4M3)], ids=str)
def test_scales_of_tensors_and_rows(dtypes: Any, result: torch.dtype | None, scales: str) -> None:
    if scales == "row" and not ROWS_HAVE_SCALES:
        pytest.skip("the kernel of this version takes one scale for a tensor")
    left, right = numbers(16, 32, dtypes[0]), numbers(24, 32, dtypes[1], seed=1).t()
    wide = result is not None and result.itemsize > 1
    bias = torch.randn(24, generator=generator(4)).to(result if wide else torch.bfloat16)
    given: Any = (left, right, *SCALES[scales])
    tolerance = 1e-3 if scales == "beyond the range" and result == torch.float32 else None  # of sums about 1,000
    for options in ({}, {"bias": bias}, {"scale_result": torch.tensor(1.7)}):
        agrees(RULES, aten._scaled_mm.default, *given, out_dtype=result, gradient=False, tolerance=tolerance, **options)
    if not ROWS_HAVE_SCALES:
        return
    recipe = int(scaled_products.Scaling.ROW_WISE if scales == "row" else scaled_products.Scaling.TENSOR_WISE)
    sides = [([scale], [recipe], [0]) for scale in SCALES[scales]]
    given = (left, right, *sides[0], *sides[1], None, result)
    agrees(RULES, aten._scaled_mm_v2.default, *given, gradient=False, tolerance=tolerance)


def swizzled(scales: torch.Tensor) -> torch.Tensor:
    """Scales where a GPU looks for each: tiles of 128 by 4, in which (r, c) is at 16 (r mod 32) + 4 ⌊r / 32⌋ + c."""
    rows, count = scales.shape
    beside = -(-count // 4)
    found = torch.zeros(-(-rows // 128) * beside * 512, dtype=torch.uint8)
    for r in range(rows):
        for c in range(count):
            tile, r_in, c_in = (r // 128) * beside + c // 4, r % 128, c % 4
            found[tile * 512 + (r_in % 32) * 16 + (r_in // 32) * 4 + c_in] = scales.view(torch.uint8)[r, c]
    return found.view(scales.dtype)


def decoded(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != E2M1:
        return x.double()
    byte = x.view(torch.uint8).int()
    return FP4[torch.stack([byte % 16, byte // 16], -1).flatten(1)].double()


def product(left: torch.Tensor, right: torch.Tensor, scales: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    """(M, K) by (N, K), each block of K by its scale, in float64."""
    total = torch.zeros(left.shape[0], right.shape[0], dtype=torch.float64)
    for at in range(0, left.shape[1], length):
        part = left[:, at : at + length] @ right[:, at : at + length].t()
        a, b = (scale[:, at // length].double() for scale in scales)
        total += part * a.unsqueeze(1) * b
    return total


FORMATS = {
    "mxfp8": (E4M3, E8M0, 32),
    "mxfp8 e5m2": (E5M2, E8M0, 32),
    "mxfp4": (E2M1, E8M0, 32),
    "nvfp4": (E2M1, E4M3, 16),
}


def operands(name: str, m: int = 160, k: int = 192, n: int = 32) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What the kernel of a format is called with, and the exact product."""
    dtype, of_scales, length = FORMATS[name]
    packed = k // 2 if dtype == E2M1 else k
    left, right = numbers(m, packed, dtype), numbers(n, packed, dtype, seed=1)
    scales = positive(m, k // length, dtype=of_scales), positive(n, k // length, dtype=of_scales, seed=3)
    exact = product(decoded(left), decoded(right), [scale.float() for scale in scales], length)
    return [left, right.t(), *map(swizzled, scales)], exact


def close(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether no element differs by more than float32 sums of these magnitudes do."""
    return bool(((found.double() - exact).abs() <= 1e-5 * exact.abs().max()).all())


@pytest.mark.parametrize("name", FORMATS)
def test_scales_of_blocks_are_found_in_tiles(name: str) -> None:
    given, exact = operands(name)
    found = scaled_products._scaled_mm(*given, out_dtype=torch.float32)
    assert close(found, exact)
    length = FORMATS[name][2]
    recipe = int(scaled_products.Scaling.BLOCK_1X16 if length == 16 else scaled_products.Scaling.BLOCK_1X32)
    sides = [([scale], [recipe], [scaled_products.SWIZZLED]) for scale in given[2:]]
    assert torch.equal(scaled_products._scaled_mm_v2(*given[:2], *sides[0], *sides[1], None, torch.float32), found)
    if name == "nvfp4":
        sides = [([*s, torch.tensor(0.3)], [*r, 0], [*w, 0]) for s, r, w in sides]
        found = scaled_products._scaled_mm_v2(*given[:2], *sides[0], *sides[1], None, torch.float32)
        assert close(found, exact * 0.3 * 0.3)


class Scaled(nn.Module):
    """A layer in a format of 4 bits, as a program spells it: no CPU runs it."""

    def __init__(self, name: str, weight: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        self.weight, self.scale = nn.Buffer(weight), nn.Buffer(scale)
        recipes = nn.functional.ScalingType
        self.recipe = recipes.BlockWise1x16 if name == "nvfp4" else recipes.BlockWise1x32

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        tiles = nn.functional.SwizzleType.SWIZZLE_32_4_4
        scales = (scale, self.recipe, self.scale, self.recipe)
        return nn.functional.scaled_mm(x, self.weight, *scales, tiles, tiles, output_dtype=torch.float32)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_a_module_with_weights_of_4_bits_is_lowered_by_the_definition_of_its_format(name: str) -> None:
    # 128 to a row, as the meta kernel of torch 2.13 counts bytes of MXFP4 for numbers, and asks for too few tiles.
    (x, weight, of_x, of_weight), exact = operands(name, k=128)
    lowered = decomp.lower(Scaled(name, weight, of_weight), to=targets.tinygrad, args=(x, of_x)).result
    assert close(lowered(x, of_x), exact)


def test_scales_of_blocks_of_128() -> None:
    m, k, n = 256, 384, 128
    left, right = numbers(m, k, E4M3), numbers(n, k, E4M3, seed=1)
    rows, of_n, tiles = positive(m, k // 128), positive(n, k // 128, seed=3), positive(n // 128, k // 128, seed=4)
    exact = product(left.double(), right.double(), (rows, of_n), 128)
    assert close(scaled_products._scaled_mm(left, right.t(), rows, of_n.t(), out_dtype=torch.float32), exact)
    by_tile = product(left.double(), right.double(), (rows, tiles.repeat_interleave(128, 0)), 128)
    assert close(scaled_products._scaled_mm(left, right.t(), rows, tiles.t(), out_dtype=torch.float32), by_tile)
    padded = nn.functional.pad(tiles, (0, 1)).t()
    of_row, of_both = int(scaled_products.Scaling.BLOCK_1X128), int(scaled_products.Scaling.BLOCK_128X128)
    both = [rows], [of_row], [0], [padded], [of_both], [0]
    assert close(scaled_products._scaled_mm_v2(left, right.t(), *both, None, torch.float32), by_tile)


def test_groups_have_scales_of_rows_and_columns() -> None:
    ends = torch.tensor([3, 8], dtype=torch.int32)
    left, right = numbers(8, 16, E4M3), torch.stack([numbers(4, 16, E4M3, seed=s).float() for s in (1, 2)]).to(E4M3)
    rows, columns = positive(8), positive(2, 4, seed=3)
    found = scaled_products._scaled_grouped_mm(
        left, right.transpose(1, 2), rows, columns, ends, out_dtype=torch.float32
    )
    by_recipe = scaled_products._scaled_grouped_mm_v2(
        *(left, right.transpose(1, 2), [rows], [1], [0], [columns], [1], [0], ends), out_dtype=torch.float32
    )
    assert torch.equal(by_recipe, found)
    for start, end, group in ((0, 3, 0), (3, 8, 1)):
        exact = left[start:end].double() @ right[group].double().t() * rows[start:end, None] * columns[group]
        assert close(found[start:end], exact)
    summands = scaled_products._scaled_grouped_mm(
        left.t(), numbers(8, 4, E4M3, seed=5), positive(32), positive(8, seed=4), ends, out_dtype=torch.float32
    )
    sides = left.double().t(), numbers(8, 4, E4M3, seed=5).double()
    exact = torch.stack([sides[0][:, a:b] @ sides[1][a:b] for a, b in ((0, 3), (3, 8))])
    assert close(summands, exact * positive(32).view(2, 16, 1) * positive(8, seed=4).view(2, 1, 4))


def test_groups_with_scales_of_blocks_are_declined() -> None:
    scales = [positive(8, 1, dtype=E8M0)], [3], [1]
    found = scaled_products._scaled_grouped_mm_v2(numbers(8, 32, E4M3), numbers(8, 32, E4M3).t(), *scales, *scales)
    assert found.reason == "only scales of rows and columns are laid out alike on all devices"


class Product(nn.Module):
    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(*operands, out_dtype=torch.float32)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("name", FORMATS)
def test_programs_that_no_cpu_runs_are_lowered_to_what_it_runs(name: str, target: Any) -> None:
    given, exact = operands(name)
    program = torch.export.export(Product(), tuple(given))
    with pytest.raises((ValueError, RuntimeError)):  # torch 2.11 raises the latter
        program.module()(*given)
    if FORMATS[name][0] == E2M1 and "view.dtype" not in target:
        with pytest.raises(decomp.errors.NotLowered, match="add view.dtype: all lower"):
            decomp.lower(program, to=target)
        target |= {"view.dtype"}  # bytes of two numbers are read by no other op
    assert close(decomp.lower(program, to=target).result.module()(*given), exact)
