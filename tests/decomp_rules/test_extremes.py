"""Finite stays finite: at every level, of operands of every size, on processors that flush subnormal numbers and on
those that do not, no rule makes infinity or NaN of numbers of which the op makes a number; and the quotient of normal
numbers has its digits."""

from collections.abc import Callable, Iterator
import contextlib
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.forms import Holder

OPS: dict[str, Callable[..., Tensor]] = {
    "div": torch.div,
    "hypot": torch.hypot,
    "atan2": torch.atan2,
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    "softsign": lambda x, y: F.softsign(x),
    "cos": lambda x, y: torch.cos(x),
    "sin": lambda x, y: torch.sin(x),
    "tan": lambda x, y: torch.tan(x),
    "tanh": lambda x, y: torch.tanh(x),
    "sigmoid": lambda x, y: torch.sigmoid(x),
    "silu": lambda x, y: F.silu(x),
    "gelu": lambda x, y: F.gelu(x),
    "softplus": lambda x, y: F.softplus(x),
    "exp": lambda x, y: torch.exp(x),
    "log": lambda x, y: torch.log(x),
    "atan": lambda x, y: torch.atan(x),
    "asinh": lambda x, y: torch.asinh(x),
    "erf": lambda x, y: torch.erf(x),
    "rsqrt": lambda x, y: torch.rsqrt(x),
    "sinc": lambda x, y: torch.sinc(x),
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "logaddexp": torch.logaddexp,
    "reciprocal": lambda x, y: torch.reciprocal(x),
    "abs of a complex number": lambda x, y: torch.complex(x, y).abs(),
    "normalize": lambda x, y: F.normalize(torch.stack([x, y]), dim=0),
    "cosine_similarity": lambda x, y: F.cosine_similarity(torch.stack([x, y]), torch.stack([y, x]), dim=0),
}
QUOTIENTS = ("div", "softsign", "atan2", "normalize")


def operands(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Numbers of all exponents, subnormal ones too, and pairs of extremes."""
    info = torch.finfo(dtype)
    lowest, highest = (round(math.log2(limit)) for limit in (info.smallest_normal * info.eps, info.max))
    draw = torch.Generator().manual_seed(0)
    exponents = torch.arange(lowest, highest, dtype=torch.float64).repeat(2)
    line = torch.pow(2.0, exponents) * (1 + torch.rand(exponents.shape, generator=draw, dtype=torch.float64))
    line = torch.where(torch.rand(line.shape, generator=draw) < 0.5, line, -line)
    least, most = info.smallest_normal, info.max
    ends = [most, most / 3.3, least, least * 1.7, 1.3, -1.57079637, least / 2, least * info.eps, 0.0, -0.0, -most]
    pairs = torch.meshgrid([torch.tensor(ends)] * 2, indexing="ij")
    first, second = (side.reshape(-1).double() for side in pairs)
    other = line[torch.randperm(len(line), generator=draw)]
    return torch.cat([line, first]).to(dtype), torch.cat([other, second]).to(dtype)


@contextlib.contextmanager
def flushing() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def flushed(x: Tensor) -> Tensor:
    return torch.where(x.abs() < torch.finfo(x.dtype).smallest_normal, x * 0, x)


@pytest.mark.sampled(24)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal, targets.onnx], ids=lambda target: target.name)
@pytest.mark.parametrize("level", ["fast", "standard", "exact"])
@pytest.mark.parametrize("name", OPS)
def test_finite_stays_finite(name: str, level: str, target: decomp.Target, dtype: torch.dtype) -> None:
    function, args = OPS[name], operands(dtype)
    try:
        wanted = function(*args)
    except RuntimeError:  # complex numbers of bfloat16
        return
    result = decomp.lower(Holder(function), to=target, args=args, accuracy=level, training=False).result
    finite = torch.isfinite(wanted)
    assert torch.isfinite(result(*args))[finite].all()
    with flushing():
        own, found = function(*args), result(*args)
    of_flushed = function(*map(flushed, args))
    finite = finite & torch.isfinite(own) & torch.isfinite(of_flushed)
    assert torch.isfinite(found)[finite].all()
    if name in QUOTIENTS:
        normal = finite & (wanted.abs() > 2 * torch.finfo(wanted.dtype).smallest_normal) & (of_flushed == wanted)
        torch.testing.assert_close(found[normal], wanted[normal], rtol=64 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("level", ["fast", "standard", "exact"])
def test_normal_numbers_are_divided_where_subnormal_ones_are_flushed(level: str) -> None:
    x, y = torch.tensor([3e38, 1.5e-38, 3e38, -2e-38]), torch.tensor([3e38, 1.5e-38, -2e38, 1.0])
    result = decomp.lower(Holder(torch.div), to=targets.tinygrad, args=(x, y), accuracy=level, training=True).result
    with flushing():
        found = result(x, y)
    torch.testing.assert_close(found, x / y, rtol=1e-6, atol=0)


@pytest.mark.parametrize("level", ["fast", "standard"])
def test_cosines_and_tangents_of_the_smallest_and_largest_numbers_are_finite(level: str) -> None:
    x = torch.tensor([1e-40, -1e-45, 0.0, 3e38, -3.4e38, -1.57079637])
    for function in (torch.cos, torch.tan):
        for training in (False, True):
            how = {"accuracy": level, "training": training}
            result = decomp.lower(Holder(function), to=targets.tinygrad, args=(x,), **how).result
            assert torch.isfinite(result(x)).all()
    assert result(torch.tensor([math.inf, -math.inf, math.nan]).repeat(2)).isnan().all()


@pytest.mark.parametrize("level", ["fast", "standard", "exact"])
def test_running_products_whose_parts_overflow_are_finite(level: str) -> None:
    x = torch.tensor([1e-30, 1e-30, 1e30, 1e30, 1e25, 1e-20, 0.0, 1e30, 1e30])
    result = decomp.lower(Holder(lambda x: x.cumprod(0)), to=targets.tinygrad, args=(x,), accuracy=level).result
    torch.testing.assert_close(result(x), x.cumprod(0), rtol=1e-6, atol=0)


def test_powers_of_large_numbers_do_not_overflow_on_the_way() -> None:
    x = torch.tensor([1e30, -2e25, 3e-30, 0.5])
    result = decomp.lower(Holder(torch.pow), to=targets.luminal, args=(x, torch.ones(4)), accuracy="fast").result
    torch.testing.assert_close(result(x, torch.ones(4)), x, rtol=1e-4, atol=0)
