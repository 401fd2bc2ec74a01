"""Targets whose arithmetic takes numbers alone compute with bools as PyTorch does."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.forms import Holder

X = torch.tensor([[0.5, -1.0, 2.0], [0.0, 3.0, -0.0]])
OPS = "add clone amax amin constant_pad_nd eq maximum minimum mul ne where"
CHIP = decomp.Target("chip", "logical_and logical_or logical_not any all gt lt to _to_copy select full_like".split())
CALLS = {
    "mask of floats": lambda x: (x > 0) * x,
    "mask of integers": lambda x: x.int() * (x > 0),
    "times a number": lambda x: (x > 0) * 0.5,
    "times a whole number": lambda x: 3 * (x > 0),
    "product": lambda x: (x > 0) * (x > 1),
    "sum": lambda x: (x > 0) + (x > 1),
    "sum with floats": lambda x: x + (x > 0),
    "sum with a number": lambda x: (x > 0) + 1,
    "larger": lambda x: torch.maximum(x > 0, x > 1),
    "smaller": lambda x: torch.minimum(x > 0, x > 1),
    "largest": lambda x: (x > 0).amax((0, 1)),
    "smallest": lambda x: (x > 0).amin(-1, keepdim=True),
    "largest of one": lambda x: (x[0, 0] > 0).amax(),
    "equal to true": lambda x: (x > 0) == True,  # noqa: E712  a comparison of tensors
    "equal to two": lambda x: (x > 0) == 2,
    "unequal to false": lambda x: (x > 0) != False,  # noqa: E712  a comparison of tensors
    "copy": lambda x: (x > 0).clone(),
    "choice": lambda x: torch.where(x > 0, x > 1, x < -0.5),
    "padding": lambda x: F.pad(x > 0, (1, 2), value=1.0),
}


@pytest.fixture(scope="module")
def chip():
    target = CHIP
    for op in OPS.split():
        target = (target | {op}).legal_if(op, _has_no_bools, "no tensor is a bool")
    return target


def _has_no_bools(call):
    return all(getattr(call.arguments.get(name), "dtype", None) != torch.bool for name in ("self", "other"))


@pytest.mark.parametrize("name", CALLS)
def test_bools_are_computed_with_as_pytorch_computes(name, chip):
    lowered = decomp.lower(Holder(CALLS[name]), to=chip, args=(X,), verify="values").result
    expected = CALLS[name](X)
    assert torch.equal(lowered(X), expected) and lowered(X).dtype == expected.dtype


@pytest.mark.parametrize("name", ["tvm", "torch_onnx", "openvino", "coremltools"])
def test_converters_take_arithmetic_on_bools(name):
    for function in CALLS.values():
        decomp.lower(Holder(function), to=targets.get(name), args=(X,), training=False)
