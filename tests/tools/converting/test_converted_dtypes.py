"""Models of 16 bits, and operands of several dtypes, in front of converters."""

import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.tools.converting.conversion import conversion
from decomp_rules import targets
from tests.installed import converter

SIXTEEN_BITS = [
    *((name, torch.float16) for name in ("iree", "torch_mlir", "torch_onnx", "tvm")),
    *((name, torch.bfloat16) for name in ("iree", "tvm")),
]


class Mixed(nn.Module):
    """A convolution and a norm, attention and a GELU."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv1d(4, 6, 3, padding=1), nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x):
        y = self.norm(self.conv(x).mT)
        return F.softmax(F.gelu(self.linear(F.scaled_dot_product_attention(y, y, y))), -1)


@pytest.mark.parametrize(("name", "dtype"), SIXTEEN_BITS)
def test_a_model_of_sixteen_bits_is_converted_and_right(name, dtype):
    found = conversion(
        Mixed().to(dtype), converter(name), (torch.randn(2, 4, 5).to(dtype),), None, None, None, True, {}
    )
    assert "1 result within" in found.verified


def test_a_model_of_sixteen_bits_for_litert_is_refused_with_the_remedy_first():
    program = torch.export.export(Mixed().half(), (torch.randn(2, 4, 5).half(),))
    with pytest.raises(decomp.NotLowered) as raised:
        decomp.lower(program, to=targets.litert, training=False)
    assert "    1. compute in float32: model.float(), with float32 inputs\n" in str(raised.value)


class Promoted(nn.Module):
    """Operands of several dtypes, from integers."""

    def forward(self, i, j):
        powers = i**j, i ** j.int(), i.abs() ** (j / 3), (i > 0) ** j
        return *powers, i // 2.5, i * 2.5, i < 5.5, torch.where(i > 2, i, j.int()), i.softmax(0, dtype=torch.float32)


@pytest.mark.parametrize("name", ["torch_onnx", "tvm"])
def test_operands_of_several_dtypes_are_promoted(name):
    given = torch.tensor([-2, 5, 9]), torch.tensor([2, 5, 3])
    assert "9 results within" in conversion(Promoted(), converter(name), given, None, None, None, True, {}).verified


class Ordered(nn.Module):
    """Booleans in order, beside numbers and tensors."""

    def forward(self, b, i, x):
        ordered = operator.lt, operator.le, operator.gt, operator.ge
        return [order(b, other) for order in ordered for other in (-2, 0.5, i, x, ~b)]


@pytest.mark.parametrize("name", ["iree", "torch_mlir"])
def test_booleans_are_ordered_beside_numbers(name):
    given = torch.tensor([True, False, True]), torch.tensor([-7, 5, 1]), torch.tensor([-7.0, 0.5, 1.0])
    assert "20 results within" in conversion(Ordered(), converter(name), given, None, None, None, True, {}).verified
