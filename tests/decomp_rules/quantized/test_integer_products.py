"""Linear layers on quantised values as products of integers: the product of real numbers but for the last bits, taken
where they cost less, and never where the bits of the reference are asked for."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import RULES, targets
from decomp_rules.patterns import INTEGER_PRODUCTS

ops = torch.ops.quantized_decomposed
INT8, UINT8 = (-128, 127, torch.int8), (0, 255, torch.uint8)


class Quantised(torch.nn.Module):
    """A linear layer between quantised values, `ends` being those of what comes in."""

    def __init__(self, ends: Any, zeros: torch.Tensor | None, bias: bool, features: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.ends, self.zeros = ends, zeros
        self.weight = torch.nn.Buffer(torch.randint(-128, 128, (8, features), dtype=torch.int8))
        self.scales = torch.nn.Buffer(torch.rand(8) / 100 + 0.001)
        self.bias = torch.nn.Buffer(torch.randn(8)) if bias else None

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        x = ops.dequantize_per_tensor(q, 0.017, 3, *self.ends)
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, *INT8)
        return F.linear(x, weight, self.bias)

    def real(self, q: torch.Tensor) -> torch.Tensor:
        """The same in float64."""
        zeros = 0 if self.zeros is None else self.zeros.reshape(-1, 1)
        weight = (self.weight - zeros).double() * self.scales.double().reshape(-1, 1)
        return F.linear((q.double() - 3) * 0.017, weight, None if self.bias is None else self.bias.double())


def values(ends: Any, *shape: int) -> torch.Tensor:
    return torch.randint(ends[0], ends[1] + 1, shape).to(ends[2])


@pytest.mark.parametrize("ends", [INT8, UINT8], ids=["int8", "uint8"])
@pytest.mark.parametrize("zeros", [None, torch.arange(8) - 4], ids=["symmetric", "asymmetric"])
def test_they_are_the_product_of_real_numbers_but_for_the_last_bits(ends: Any, zeros: torch.Tensor | None) -> None:
    for bias, shape in ((False, (4, 64)), (True, (2, 5, 64))):
        model, q = Quantised(ends, zeros, bias), values(ends, *shape)
        program = decomp.decompose(torch.export.export(model, (q,)), INTEGER_PRODUCTS, verify="full")
        assert len(decomp.calls(program, "_int_mm")) == 1 and not decomp.calls(program, "linear")
        real = model.real(q)
        error = (program.module()(q).double() - real).abs().max() / real.abs().max()
        assert error < 2**-22


@pytest.mark.parametrize("bias", [False, True])
def test_they_have_the_values_that_the_layer_has(bias: bool) -> None:
    model, q = Quantised(INT8, torch.arange(8) - 4, bias), values(INT8, 4, 64)
    program = decomp.decompose(model, INTEGER_PRODUCTS, args=(q,), verify="values")
    assert decomp.calls(program, "_int_mm")


def test_they_are_taken_where_they_cost_less() -> None:
    model, q = Quantised(INT8, None, True, 512), values(INT8, 64, 512)
    chip = targets.core_aten | ["_int_mm"]
    lower = {"to": chip, "args": (q,), "rules": INTEGER_PRODUCTS | RULES}
    assert len(decomp.calls(decomp.lower(model, cost=decomp.costs.flops, **lower).result, "_int_mm")) == 1
    assert not decomp.calls(decomp.lower(model, **lower).result, "_int_mm")  # counted in calls


def test_they_are_not_taken_for_the_bits_of_the_reference() -> None:
    model, q = Quantised(INT8, None, True, 512), values(INT8, 64, 512)
    lowered = decomp.lower(
        model,
        to=targets.core_aten | ["_int_mm"],
        args=(q,),
        rules=INTEGER_PRODUCTS | RULES,
        cost=decomp.costs.flops,
        accuracy="exact",
    ).result
    assert not decomp.calls(lowered, "_int_mm") and torch.equal(lowered(q), model(q))


def test_sums_that_may_not_fit_are_declined() -> None:
    model, q = Quantised(INT8, None, False, 2**14 + 1), values(INT8, 1, 2**14 + 1)
    program = decomp.decompose(torch.export.export(model, (q,)), INTEGER_PRODUCTS)
    assert not decomp.calls(program, "_int_mm")


class Given(torch.nn.Module):
    """A linear layer on quantised values, whose weight, scales and zero points are inputs."""

    def forward(
        self, q: torch.Tensor, p: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, bias: Any = None
    ) -> torch.Tensor:
        x = ops.dequantize_per_tensor(q, 0.05, 3, *INT8)
        return F.linear(x, ops.dequantize_per_channel(p, scales, zeros, 0, *INT8), bias)


def operands(scales: torch.dtype, zeros: torch.Tensor) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return values(INT8, 4, 16), values(INT8, 8, 16), torch.rand(8).to(scales), zeros


@pytest.mark.parametrize(
    "zeros",
    [
        torch.arange(-1, 7, dtype=torch.int32) * 2**28,
        torch.arange(-4, 4) * 2**40 + 1,
        torch.arange(8) * 100 - 400,
    ],
    ids=["beyond int32 sums", "beyond int32", "about 8 bits"],
)
def test_zero_points_of_any_size_give_the_product_of_real_numbers(zeros: torch.Tensor) -> None:
    q, p, scales, _ = args = operands(torch.float32, zeros)
    program = decomp.decompose(torch.export.export(Given(), args), INTEGER_PRODUCTS)
    assert decomp.calls(program, "_int_mm")
    weight = (p.double() - zeros.double()[:, None]) * scales.double()[:, None]
    found, real = program.module()(*args).double(), F.linear((q.double() - 3) * 0.05, weight)
    assert ((found - real).abs() / real.abs().amax(0)).max() < 2**-22


DECLINED = {
    "the zero points of the weight are torch.float32, not int32 or int64": (torch.float32, torch.rand(8) * 5),
    # The kernel subtracts these in int8, where the difference wraps.
    "the zero points of the weight are torch.int8, not int32 or int64": (torch.float32, values(INT8, 8)),
    "the scales of the weight are torch.bfloat16, in which the kernel rounds": (torch.bfloat16, torch.arange(8)),
    "the scales of the weight are torch.float64, in which the kernel rounds": (torch.float64, torch.arange(8)),
}


@pytest.mark.parametrize("reason", DECLINED)
def test_what_is_no_product_of_integers_is_declined(reason: str) -> None:
    args = operands(*DECLINED[reason])
    program = torch.export.export(Given(), args)
    assert not decomp.calls(decomp.decompose(program, INTEGER_PRODUCTS), "_int_mm")
    assert reason in str(decomp.plan(program, to=targets.core_aten, rules=INTEGER_PRODUCTS | RULES))


class Dynamic(torch.nn.Module):
    """A linear layer whose input is quantised by its own range, as dynamic quantisation does it."""

    def forward(self, x: torch.Tensor, p: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
        s, z = ops.choose_qparams.tensor(x, -128, 127, 1e-6, torch.int8)
        q = ops.quantize_per_tensor.tensor(x, s, z, *INT8)
        x = ops.dequantize_per_tensor.tensor(q, s, z, *INT8)
        return F.linear(x, ops.dequantize_per_channel(p, scales, zeros, 0, *INT8))


def test_a_zero_point_that_is_known_at_run_time_only_is_declined() -> None:
    _, *weights = operands(torch.float32, torch.zeros(8, dtype=torch.int64))
    program = torch.export.export(Dynamic(), (torch.randn(4, 16), *weights))
    assert not decomp.calls(decomp.decompose(program, INTEGER_PRODUCTS), "_int_mm")
    said = str(decomp.plan(program, to=targets.core_aten, rules=INTEGER_PRODUCTS | RULES))
    assert "the zero point is known at run time only, and may not fit 8 bits" in said
