"""Long lines are put in order by a network, on targets that cannot sort."""

import math

import pytest
import torch

from decomp_rules import targets
from decomp_rules.index.sorting_networks import topk_one_by_one
from tests.levels import at_level


def line(length, *shape):
    x = torch.randint(-50, 50, (*shape, length), generator=torch.Generator().manual_seed(0)).float()
    x.view(-1)[[5, 77]], x.view(-1)[9], x.view(-1)[11] = math.nan, -math.inf, -0.0
    return x


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_eight_thousand_elements_take_a_network_and_no_pairs():
    x = line(8000)
    lowered = at_level(lambda x: tuple(x.sort(stable=True)), (x,), "standard")
    same(lowered(x), tuple(x.sort(stable=True)))
    sizes = [node.meta["val"].numel() for node in lowered.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert max(sizes) <= 2**13
    assert sum(node.op == "call_function" for node in lowered.graph.nodes) <= 14 * 91 + 20


@pytest.mark.sampled(1)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("level", ["exact", "standard"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8, torch.float64, torch.int64])
def test_equal_elements_stay_in_order(dtype, level, descending):
    x = line(1030)
    x = x if dtype.is_floating_point else x.nan_to_num(3.0).clamp(0, 60)
    x = x.to(dtype)

    def function(x):
        return tuple(x.sort(stable=True, descending=descending))

    same(at_level(function, (x,), level)(x), function(x))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.argsort(dim=1, stable=True),
        lambda x: x.median(dim=1)[0],
        lambda x: x.topk(40, dim=1)[0],
        lambda x: x.kthvalue(500, dim=-2)[0],
    ],
)
def test_what_rests_on_order_along_any_dimension(function):
    x = line(3, 2, 600)
    same(at_level(function, (x,), "standard")(x), function(x))


def test_the_gradient_goes_along():
    x = torch.randn(1100, generator=torch.Generator().manual_seed(1)).requires_grad_()
    lowered = at_level(lambda x: x.sort()[0], (x,), "standard")
    weights = torch.arange(1100.0)
    own, mine = (torch.autograd.grad((f(x) * weights).sum(), x)[0] for f in (lambda x: x.sort()[0], lowered))
    same(mine, own)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
def test_a_few_of_the_largest(largest, target):
    x = line(8000)
    lowered = at_level(lambda x: x.topk(5, largest=largest)[0], (x,), "standard", target)
    same(lowered(x), x.topk(5, largest=largest)[0])
    if target is targets.tinygrad:
        assert sum(node.op == "call_function" for node in lowered.graph.nodes) <= 60


def test_tiny_numbers_are_distinguished():
    x = torch.arange(64.0)[torch.arange(64) * 37 % 64] * 1e-12
    same(topk_one_by_one(x, 5), tuple(x.topk(5)))


def test_a_few_of_the_largest_have_their_places_and_gradients():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    lowered = at_level(lambda x: tuple(x.topk(5)), (x,), "standard")
    same(lowered(x), tuple(x.topk(5)))
    own, mine = (torch.autograd.grad(f(x)[0].square().sum(), x)[0] for f in (lambda x: x.topk(5), lowered))
    same(mine, own)
