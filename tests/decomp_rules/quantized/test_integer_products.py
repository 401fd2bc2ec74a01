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
