"""Pooling agrees with the ops: values, indices and gradients, at ties, at NaN, at −∞ and at every edge."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from decomp_rules.spatial import adaptive_pooling, pooling
from tests.decomp_rules.rule_agreement import agrees
from tests.forms import Holder
from tests.levels import at_level, calls
from tests.pytorch_differences import POOLS_KEEP_PARITY

aten = torch.ops.aten
RULES = pooling.RULES | adaptive_pooling.RULES
SIDES = [7, 6, 5]
MAX = {1: aten.max_pool1d_with_indices, 2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}
BOXES = [  # kernel, stride, padding, dilation, ceil
    (2, 2, 0, 1, False),
    (3, 2, 1, 1, False),
    (3, 2, 1, 1, True),
    (3, 1, 1, 2, False),
    (2, None, 1, 1, True),
    (2, 3, 0, 1, True),
    (1, 2, 0, 1, False),
]


def sample(kind: str, dims: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = [2, 3, *SIDES[:dims]]
    x = torch.randint(-2, 3, shape, generator=generator).to(dtype)
    chance = torch.rand(shape, generator=generator)
    if kind == "nan":
        return torch.where(chance < 0.2, torch.full_like(x, float("nan")), x)
    if kind == "low":
        return torch.where(chance < 0.8, torch.full_like(x, float("-inf")), x)
    return x


@pytest.mark.parametrize("kernel, stride, padding, dilation, ceil", BOXES)
@pytest.mark.parametrize("kind", ["ties", "nan", "low"])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_max_pool(
    dims: int, kind: str, kernel: int, stride: int | None, padding: int, dilation: int, ceil: bool
) -> None:
    x = sample(kind, dims)
    if dims == 3 and dilation == 2:
        x = x[:, :, :6, :6, :5]
    box = ([kernel] * dims, [] if stride is None else [stride] * dims, [padding] * dims, [dilation] * dims, ceil)
    agrees(RULES, MAX[dims].default, x, *box)
    if dims > 1:
        agrees(RULES, getattr(aten, f"max_pool{dims}d").default, x, *box)
        values, indices = MAX[dims](x, *box)
        grad = torch.linspace(-1, 1, values.numel()).reshape(values.shape)
        full = (box[0], box[1] or box[0], *box[2:])
        backward = getattr(aten, f"max_pool{dims}d_with_indices_backward").default
        agrees(RULES, backward, grad, x, *full, indices, gradient=False)


def test_the_first_of_equal_maxima_takes_the_gradient() -> None:
    x = torch.ones(1, 1, 2, 2, requires_grad=True)
    rule = RULES[aten.max_pool2d_with_indices][0].function
    values, indices = rule(x, [2, 2])
    assert indices.item() == 0
    assert torch.autograd.grad(values.sum(), x)[0].flatten().tolist() == [1, 0, 0, 0]


def test_max_pool_of_integers_and_bfloat16() -> None:
    agrees(RULES, aten.max_pool2d_with_indices.default, sample("ties", 2, torch.int64), [3, 3], [2, 2], [1, 1])
    agrees(RULES, aten.max_pool2d_with_indices.default, sample("ties", 2, torch.bfloat16), [3, 3], [2, 2], [1, 1])


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("kernel, stride, padding, dilation, ceil", BOXES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_avg_pool(
    dims: int, kernel: int, stride: int | None, padding: int, dilation: int, ceil: bool, include: bool
) -> None:
    x = sample("ties", dims)
    box = ([kernel] * dims, [] if stride is None else [stride] * dims, [padding] * dims, ceil, include)
    op = getattr(aten, f"avg_pool{dims}d").default
    agrees(RULES, op, x, *box)
    if dims > 1:
        agrees(RULES, op, x, *box, 5)
        values = op(x, *box)
        grad = torch.linspace(-1, 1, values.numel()).reshape(values.shape)
        full = (box[0], box[1] or box[0], *box[2:])
        agrees(RULES, getattr(aten, f"avg_pool{dims}d_backward").default, grad, x, *full, None, gradient=False)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 9])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_adaptive_avg_pool(dims: int, size: int) -> None:
    x, output = sample("ties", dims), [size] * dims
    agrees(RULES, getattr(aten, f"adaptive_avg_pool{dims}d").default, x, output)
    if dims > 1:
        agrees(RULES, getattr(aten, f"_adaptive_avg_pool{dims}d").default, x, output)
        grad = torch.linspace(-1, 1, 6 * size**dims).reshape(2, 3, *output)
        backward = getattr(aten, f"_adaptive_avg_pool{dims}d_backward").default
        agrees(RULES, backward, grad, x, gradient=False)


@pytest.mark.parametrize("kind", ["ties", "nan", "low"])
@pytest.mark.parametrize("size", [1, 3, 4, 9])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_adaptive_max_pool(dims: int, size: int, kind: str) -> None:
    x, output = sample(kind, dims), [size] * dims
    op = getattr(aten, f"adaptive_max_pool{dims}d").default
    agrees(RULES, op, x, output)
    if dims > 1:
        values, indices = op(x, output)
        grad = torch.linspace(-1, 1, values.numel()).reshape(values.shape)
        backward = getattr(aten, f"adaptive_max_pool{dims}d_backward").default
        agrees(RULES, backward, grad, x, indices, gradient=False)


def test_max_unpool() -> None:
    for dims in (2, 3):
        x = torch.randn(2, 3, *[6] * dims)
        values, indices = MAX[dims](x, [2] * dims)
        more = ([2] * dims, [0] * dims) if dims == 3 else ()
        agrees(RULES, getattr(aten, f"max_unpool{dims}d").default, values, indices, [6] * dims, *more)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_averages_of_integers_are_cut_off(dims: int) -> None:
    op = (aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d)[dims - 1].default
    agrees(RULES, op, sample("plain", dims, torch.int64) * 7, [3] * dims, [2] * dims, [1] * dims, gradient=False)


def test_an_element_that_is_put_twice_takes_both_gradients() -> None:
    x, index = torch.tensor([[[[1.0, 2.0, 3.0]]]]), torch.tensor([[[[0, 4, 4]]]])
    agrees(RULES, aten.max_unpool2d.default, x, index, [2, 3], fixed=(1,))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("op", [F.adaptive_avg_pool2d, lambda x, size: F.adaptive_max_pool2d(x, size, True)[1]])
def test_adaptive_pooling_of_any_size(op: Callable[..., torch.Tensor]) -> None:
    class Pool(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return op(x, (2, 3))

    auto = torch.export.Dim.AUTO
    program = torch.export.export(Pool(), (torch.randn(1, 2, 9, 7),), dynamic_shapes=({2: auto, 3: auto},))
    module = decomp.lower(program, to=targets.tinygrad).result.module()
    for shape in ((1, 2, 9, 7), (1, 2, 11, 8)):
        x = torch.randn(shape).round()
        torch.testing.assert_close(module(x), op(x, (2, 3)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=str)
@pytest.mark.parametrize("op", [lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: F.avg_pool2d(x, 3, 2, 1)])
def test_overlapping_windows_of_any_number(op: Callable[..., torch.Tensor], target: decomp.Target) -> None:
    class Pool(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return op(x)

    auto = torch.export.Dim.AUTO
    program = torch.export.export(Pool(), (torch.randn(2, 2, 9, 7),), dynamic_shapes=({0: auto, 2: auto},))
    module = decomp.lower(program, to=target).result.module()
    for shape in ((2, 2, 9, 7), (3, 2, 13 if POOLS_KEEP_PARITY else 12, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(module(x), op(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.max_pool1d(x[0], 4),
        lambda x: F.max_pool2d(x, (4, 2)),
    ],
)
def test_at_standard_windows_that_do_not_overlap_are_one_maximum(function):
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    x[0, 0, 1, 1] = torch.nan
    lowered = at_level(function, (x,), "standard")
    torch.testing.assert_close(lowered(x), function(x), rtol=0, atol=0, equal_nan=True)
    assert calls(function, (x,), "standard") <= 5


def test_at_standard_an_index_of_a_maximum_that_is_read_is_found():
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    both = lambda x: F.max_pool2d(x, 2, return_indices=True)
    torch.testing.assert_close(at_level(both, (x,), "standard")(x), both(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool1d(x[0], 3, 2, 1, 2),
        lambda x: F.max_pool2d(x, 3, 2, 1, 1, True),
        lambda x: F.max_pool3d(x, (2, 3, 2), 1, (1, 1, 0)),
    ],
)
def test_what_is_not_trained_takes_one_maximum_an_element_of_a_side(function):
    x = torch.randn(2, 3, 8, 9, generator=torch.Generator().manual_seed(0))
    x[0, 0, 1, 1], x[1, :, 5:] = torch.nan, -torch.inf
    found = decomp.lower(Holder(function), to=targets.tinygrad, args=(x,), training=False)
    torch.testing.assert_close(found.result(x), function(x), rtol=0, atol=0, equal_nan=True)
    assert 2 <= len(decomp.calls(found.result, "maximum")) <= 4 and not decomp.calls(found.result, "lt")
