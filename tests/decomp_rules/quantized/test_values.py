"""The ops of quantised programs agree with PyTorch's reference implementation to the bit, in all their overloads and
dtypes, on values that lie between two quantised ones, and on what is not finite."""

from typing import Any

import pytest
import torch

import decomp
from decomp import Rules
from decomp_rules import RULES, targets
from decomp_rules.quantized import parameters, values
from tests.decomp_rules.rule_agreement import agrees

OWN = Rules([*values.RULES.entries, *parameters.RULES.entries])
ops = torch.ops.quantized_decomposed

RANGES = {
    "int8": (-128, 127, torch.int8),
    "uint8": (0, 255, torch.uint8),
    "int4": (-8, 7, torch.int8),
    "int16": (-32768, 32767, torch.int16),
    "uint16": (0, 65535, torch.uint16),
    "int32": (-(2**31), 2**31 - 1, torch.int32),
    "float8": (-448, 448, torch.float8_e4m3fn),
}
ranges = pytest.mark.parametrize("ends", RANGES.values(), ids=RANGES)


def inputs() -> list[torch.Tensor]:
    """Normal numbers; ties for steps of 0.05; what is not finite, huge or subnormal; and both in half types."""
    normal = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)) * 3
    ties = (torch.arange(24) - 12).reshape(4, 6) * 0.05
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e30, 1e-40]).repeat(4, 1)
    return [normal, ties, odd, normal.bfloat16(), normal.half()]


def scales(*shape: int) -> torch.Tensor:
    return torch.linspace(0.02, 0.7, torch.Size(shape).numel()).reshape(shape)


def zeros(*shape: int) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) % 7 - 3).reshape(shape)


def places(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(24).reshape(4, 6).mul(5).to(dtype)


def same(overload: Any, *args: Any, **kwargs: Any) -> None:
    agrees(OWN, overload, *args, gradient=False, tolerance=0, **kwargs)


def test_every_op_has_a_rule_or_a_reason() -> None:
    names = {
        name.partition("::")[2].partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("quantized_decomposed::")
    }
    assert len(names) >= 15
    for name in names:
        op = decomp.op(getattr(ops, name))
        assert RULES.of(op) or name == "choose_qparams_per_token", name


@ranges
def test_quantised_with_one_scale(ends: tuple[int, int, torch.dtype]) -> None:
    zero = 3 if ends[0] <= 3 else 0
    low, high, dtype = ends
    for x in inputs():
        same(ops.quantize_per_tensor.default, x, 0.05, zero, *ends)
        same(ops.quantize_per_tensor.tensor, x, torch.tensor([0.05]), torch.tensor([zero]), *ends)
        same(ops.quantize_per_tensor.tensor, x, torch.tensor(0.05, dtype=torch.float64), torch.tensor(zero), *ends)
        same(
            ops.quantize_per_tensor.tensor2,
            x,
            torch.tensor(0.037),
            torch.tensor(zero),
            torch.tensor(low),
            torch.tensor(high),
            dtype,
        )


@ranges
@pytest.mark.parametrize("out", [None, torch.bfloat16, torch.float16, torch.float64])
def test_dequantised_with_one_scale(ends: tuple[int, int, torch.dtype], out: torch.dtype | None) -> None:
    (low, high, dtype), q = ends, places(ends[2])
    same(ops.dequantize_per_tensor.default, q, 0.1, 3, *ends, out_dtype=out)
    same(ops.dequantize_per_tensor.tensor, q, torch.tensor(0.1), torch.tensor([3]), *ends, out_dtype=out)
    same(
        ops.dequantize_per_tensor.tensor2,
        q,
        torch.tensor(0.1).double(),
        torch.tensor(3),
        torch.tensor(low),
        torch.tensor(high),
        dtype,
        out_dtype=out,
    )


@ranges
def test_a_scale_for_each_channel(ends: tuple[int, int, torch.dtype]) -> None:
    for x in inputs():
        same(ops.quantize_per_channel.default, x, scales(6), zeros(6), 1, *ends)
        same(ops.quantize_per_channel.default, x, scales(4).double(), zeros(4).float(), -2, *ends)
    if ends[2].is_floating_point:
        return  # PyTorch does not promote them
    q = places(ends[2])
    kinds = (torch.float32,) if ends[2] == torch.uint16 else (torch.int64, torch.int32, torch.int8, torch.float32)
    for kind in kinds:
        same(ops.dequantize_per_channel.default, q, scales(6), zeros(6).to(kind), 1, *ends)
    same(ops.dequantize_per_channel.default, q, scales(4), None, 0, *ends, out_dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_scale_for_each_token_or_group(kind: torch.dtype) -> None:
    int8, int4, q = RANGES["int8"], RANGES["int4"], places(torch.int8)
    for x in inputs():
        same(ops.quantize_per_token.default, x, scales(4, 1).to(kind), zeros(4, 1), *int8)
        if not x.isnan().any():  # for which the reference raises an error
            same(ops.quantize_per_channel_group.default, x, scales(4, 2).to(kind), zeros(4, 2).int(), *int4, 3)
            same(ops.quantize_per_channel_group.default, x, scales(4, 1).to(kind), zeros(4, 1).int(), *int4, 128)
    same(ops.dequantize_per_token.default, q, scales(4, 1).to(kind), zeros(4, 1), *int8, torch.float16)
    for zero in (zeros(4, 2).int(), None):
        same(ops.dequantize_per_channel_group.default, q, scales(4, 2).to(kind), zero, *int4, 3, torch.float32)


@pytest.mark.parametrize("ends", [RANGES["int8"], RANGES["uint8"], RANGES["int32"]])
def test_scales_chosen_from_values(ends: tuple[int, int, torch.dtype]) -> None:
    low, high, dtype = ends
    for x in [*inputs(), torch.zeros(3, 4), -inputs()[0].abs()]:
        same(ops.choose_qparams.tensor, x, low, high, 1e-5, dtype)
        same(ops.choose_qparams_symmetric.tensor, x, low, high, 1e-5, dtype)
        same(ops.choose_qparams_per_token_asymmetric.default, x, torch.int8)
        same(ops._choose_qparams_per_token_asymmetric_impl.default, x, torch.int8)


def test_fake_quantisation_has_its_gradient() -> None:
    for x in inputs()[:2]:
        agrees(
            OWN, ops.fake_quant_per_channel.default, x, scales(6), zeros(6).int(), 1, -20, 20, tolerance=0, fixed=(1, 2)
        )


def test_a_cast_that_is_not_fused() -> None:
    same(ops.convert_element_type.no_fuse, inputs()[0], torch.bfloat16)


@pytest.mark.parametrize(
    "name, args, reason",
    [
        (
            "quantize_per_tensor",
            (torch.zeros(2, dtype=torch.float64), 0.1, 0, -128, 127, torch.int8),
            "only float32 and half types are quantised",
        ),
        (
            "quantize_per_tensor",
            (torch.zeros(2), 0.1, 0, -129, 127, torch.int8),
            "the range from -129 to 127 is beyond torch.int8",
        ),
        (
            "dequantize_per_tensor",
            (torch.zeros(2, dtype=torch.int16), 0.1, 0, -128, 127, torch.int8),
            "the values are torch.int16, and the call says torch.int8",
        ),
        (
            "quantize_per_channel_group",
            (torch.zeros(2, 6), scales(2, 2), zeros(2, 2), -8, 7, torch.int8, 4),
            "the rows are no whole number of groups",
        ),
    ],
)
def test_what_the_reference_refuses_is_declined(name: str, args: Any, reason: str) -> None:
    declined = getattr(values, name)(*args)
    assert isinstance(declined, decomp.results.Declined) and declined.reason == reason


@pytest.mark.parametrize("target", ["core_aten", "tinygrad", "luminal"])
def test_lowered_they_agree_to_the_bit(target: str) -> None:
    class Quantised(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            scale, zero = ops.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
            q = ops.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
            return scale, zero, q, ops.dequantize_per_tensor.tensor(q, scale, zero, -128, 127, torch.int8)

    x = inputs()[0]
    lowering = decomp.lower(Quantised(), to=getattr(targets, target), args=(x,), accuracy="exact")
    for found, wanted in zip(lowering.result(x), Quantised()(x)):
        assert torch.equal(found, wanted)


def test_a_target_may_keep_them() -> None:
    class Quantised(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = ops.quantize_per_tensor(torch.nn.functional.gelu(x), 0.1, 3, -128, 127, torch.int8)
            return ops.dequantize_per_tensor(q, 0.1, 3, -128, 127, torch.int8)

    known = ["quantized_decomposed.quantize_per_tensor", "quantized_decomposed.dequantize_per_tensor"]
    chip = decomp.Target("chip", ["mul", "add", "erf", *known])
    lowered = decomp.lower(Quantised(), to=chip, args=(inputs()[0],)).result
    assert [str(call.op) for call in decomp.calls(lowered)][-2:] == known
