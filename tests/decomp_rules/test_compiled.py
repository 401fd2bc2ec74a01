"""Lowered programs compiled by Inductor: C++, in which signed overflow and the like have no value."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.forms import Holder
from tests.pytorch_differences import BYTES_ARE_COMPILED_RIGHT


def compiled_and_eager(function: Any, args: tuple[Any, ...], target: Any) -> tuple[Any, Any]:
    lowered = decomp.lower(Holder(function), to=target, args=args).result
    return torch.compile(lowered, dynamic=False)(*args), lowered(*args)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("length", [2, 5])
def test_softmax_of_a_few_numbers_on_tinygrad_is_finite(length: int) -> None:
    x = torch.randn(3, length, generator=torch.Generator().manual_seed(0))
    found, eager = compiled_and_eager(lambda x: F.softmax(x, -1), (x,), targets.tinygrad)
    torch.testing.assert_close(found, eager)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("function", [torch.exp, torch.cosh], ids=lambda function: function.__name__)
def test_the_gradient_of_an_exponential_that_overflows_is_infinite_and_no_nan(function: Any, dtype: Any) -> None:
    edges = torch.tensor([1.0, -1.0, 11.0, 88.0, 709.0, torch.inf])
    x = torch.cat([edge + torch.linspace(0, 4, 401, dtype=torch.float64) for edge in edges]).to(dtype)
    lowered = decomp.lower(Holder(function), to=targets.tinygrad, args=(x,)).result
    (found,) = torch.autograd.grad(lowered(x.requires_grad_()).sum(), x)
    assert not found.isnan().any()
    assert found[x > math.log(torch.finfo(dtype).max) + 1].isinf().all()


@pytest.mark.parametrize("dtype", [torch.int64, *([torch.uint8] if BYTES_ARE_COMPILED_RIGHT else [])])
def test_bits_of_integers_on_luminal_divide_by_nothing_that_is_not_there(dtype: Any) -> None:
    x = torch.tensor([5, 1, 7, 0, 126], dtype=dtype)
    found, eager = compiled_and_eager(lambda x: x & 3, (x,), targets.luminal)
    assert eager.tolist() == (x & 3).tolist()
    # Inductor (torch 2.13) adds bytes wrongly where it has vectors, also where the model itself calls sum.
    assert dtype is torch.uint8 or found.tolist() == eager.tolist()
