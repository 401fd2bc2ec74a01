"""Products with packed 4-bit weights agree with PyTorch's kernels on the processor whose layout is declared, and those
for CUDA with the layout as its kernel writes it."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import RULES, targets
from decomp_rules.quantized import packing
from tests.decomp_rules.rule_agreement import agrees

aten = torch.ops.aten
capability = torch.backends.cpu.get_cpu_capability()
on_x86 = pytest.mark.skipif(
    capability not in ("AVX512", "AVX2", "DEFAULT"), reason=f"kernels of {capability} have a layout of their own"
)


def codes(*shape: int) -> torch.Tensor:
    return torch.randint(16, shape, dtype=torch.int32, generator=torch.Generator().manual_seed(0))


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Linear(nn.Module):
    """A layer with weights that this processor has packed, in groups of 32."""

    def __init__(self, rows: int = 80, columns: int = 64, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Buffer(aten._convert_weight_to_int4pack_for_cpu(codes(rows, columns), 2))
        self.scales = nn.Buffer(numbers(columns // 32, rows, 2).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return aten._weight_int4pack_mm_for_cpu(x, self.weight, 32, self.scales)


@on_x86
@pytest.mark.parametrize("rows", [16, 64, 96, 112])
def test_weights_are_packed_and_unpacked_as_this_processor_does(rows: int) -> None:
    rules, weight = packing.rules(packing.layout_here()), codes(rows, 32)
    agrees(rules, aten._convert_weight_to_int4pack_for_cpu.default, weight, 2, gradient=False, tolerance=0)
    packed = aten._convert_weight_to_int4pack_for_cpu(weight, 2)
    assert torch.equal(packing.unpacked(packed, packing.CPU_LAYOUTS[packing.layout_here()]), weight)


@on_x86
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_those_of_the_kernel(dtype: torch.dtype) -> None:
    layer = Linear(dtype=dtype)
    given = numbers(3, 64, seed=2).to(dtype), layer.weight, 32, layer.scales
    agrees(packing.rules(packing.layout_here()), aten._weight_int4pack_mm_for_cpu.default, *given, gradient=False)


@pytest.mark.skipif(capability != "AVX512", reason="a processor that has AVX512 has the others too")
@pytest.mark.parametrize("name, layout", [("avx2", "avx2"), ("default", "scalar")])
def test_layouts_are_those_of_the_kernels_for_other_processors(name: str, layout: str) -> None:
    code = "from decomp_rules.quantized import packing; print(packing.layout_here())"
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": name}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == layout


@on_x86
@pytest.mark.parametrize("target", ["core_aten", "tinygrad", "onnxruntime"])
def test_programs_are_lowered_by_the_layout_that_is_declared(target: str) -> None:
    layer, x = Linear(), numbers(3, 64, seed=2)
    here = packing.layout_here()
    for layout in (here, *(name for name in packing.CPU_LAYOUTS if name != here)):  # each from the cache of its own
        lowered = decomp.lower(layer, to=getattr(targets, target), args=(x,), rules=packing.rules(layout) | RULES)
        error = (lowered.result(x) - layer(x)).abs().max()
        assert error < 1e-4 if layout == here else error > 1


def test_without_a_layout_they_are_blocked_with_what_to_declare() -> None:
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(Linear(), to=targets.core_aten, args=(numbers(3, 64),))
    assert (
        "aten._weight_int4pack_mm_for_cpu: how 4-bit weights are packed depends on the processor that packed them, "
        "which a program does not say: name it, rules=decomp_rules.quantized.packing.rules(LAYOUT) | decomp_rules.RULES"
    ) in str(caught.value)


@pytest.mark.parametrize("rules", [packing.rules("avx2") | RULES, RULES | packing.rules("avx2")])
def test_with_a_layout_the_error_says_why_its_rule_declines(rules: decomp.Rules) -> None:
    layer = Linear()
    layer.scales = layer.scales[:1]
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(layer, to=targets.core_aten, args=(numbers(3, 64),), rules=rules)
    assert "aten._weight_int4pack_mm_for_cpu: the scales and zeros are not (64 / 32, 80, 2)" in str(caught.value)
    assert "depends on the processor" not in str(caught.value)


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(decomp.errors.ArgumentError) as caught:
        packing.rules("neon")
    assert str(caught.value) == (
        "no layout of 4-bit weights is called 'neon'; there are avx512, avx2, scalar, cuda\n"
        "  to do: name the processor that packed the weights; layout_here() has that of this one"
    )


def test_scales_of_other_groups_are_declined() -> None:
    rule = packing.rules("avx2")[aten._weight_int4pack_mm_for_cpu][0].function
    weight = torch.zeros(16, 32, dtype=torch.uint8)
    for groups, size in ((3, 32), (2, 16), (2, 24)):
        declined = rule(numbers(2, 64), weight, size, torch.ones(groups, 16, 2))
        assert declined.reason == f"the scales and zeros are not (64 / {size}, 16, 2)"


def in_tiles(byte: torch.Tensor, tiles: int) -> torch.Tensor:
    """What CUDA's kernel writes, thread by thread: a lane reads four bytes of a row, and packs high bits first."""
    beside = byte.shape[1] // (tiles * 8)
    out = torch.zeros(byte.shape[0] // 8, beside, 32, tiles // 2, dtype=torch.int64)
    for row in range(out.shape[0]):
        for outer in range(beside):
            for lane in range(32):
                for inner in range(0, tiles, 2):
                    start = (outer * tiles + inner) * 8 + lane % 4
                    read = [int(byte[row * 8 + lane // 4, start + step]) for step in (0, 4, 8, 12)]
                    nibbles = [each >> 4 for each in read] + [each & 15 for each in read]
                    out[row, outer, lane, inner // 2] = sum(each << (4 * at) for at, each in enumerate(nibbles))
    return out.to(torch.int32)


@pytest.mark.parametrize("tiles", [2, 4, 8])
def test_tiles_of_cuda(tiles: int) -> None:
    weight, rules = codes(16, 128), packing.rules("cuda")
    byte = ((weight[:, ::2] << 4) | weight[:, 1::2]).to(torch.uint8)
    pack = rules[aten._convert_weight_to_int4pack][0].function
    packed = pack(byte, tiles)
    assert torch.equal(packed, in_tiles(byte, tiles)) and torch.equal(packing.unpacked_tiles(packed), weight)
    x, scales = numbers(3, 128, seed=2).bfloat16(), numbers(4, 16, 2).bfloat16()
    groups = (weight - 8).double().unflatten(1, (4, 32))
    scale, zero = scales.double().permute(1, 0, 2).unsqueeze(2).unbind(-1)
    exact = x.double() @ (groups * scale + zero).flatten(1).t()
    found = rules[aten._weight_int4pack_mm][0].function(x, packed, 32, scales)
    assert found.dtype == torch.bfloat16 and ((found.double() - exact).abs() < 0.01 * exact.abs().max()).all()


@pytest.mark.skipif(torch.backends.kleidiai.is_available(), reason="KleidiAI packs in a layout of its own")
@pytest.mark.parametrize("block", [32, 64])
@pytest.mark.parametrize("bias", [None, numbers(24)], ids=["", "bias"])
def test_products_of_values_quantised_as_they_come(block: int, bias: torch.Tensor | None) -> None:
    weight, scales = codes(24, 64)[:, ::2].to(torch.uint8) * 17, numbers(24, 64 // block).abs()
    packed = aten._dyn_quant_pack_4bit_weight(weight, scales, bias, block, 64, 24)
    x = numbers(5, 64, seed=2)
    ties = (torch.arange(128).reshape(2, 64) - 63.5) * 2
    for each in (x, x.abs(), -x.abs() * 1e4, torch.zeros(2, 64), torch.full((2, 64), 3.0), ties):
        given = each, packed, block, 64, 24
        agrees(packing.rules("scalar"), aten._dyn_quant_matmul_4bit.default, *given, gradient=False)


def test_what_kleidiai_packed_is_declined() -> None:
    rule = packing.rules("scalar")[aten._dyn_quant_matmul_4bit][0].function
    declined = rule(numbers(2, 64), torch.zeros(99, dtype=torch.uint8), 32, 64, 24)
    assert declined.reason == "weights that KleidiAI packed are laid out for the processor that packed them"
