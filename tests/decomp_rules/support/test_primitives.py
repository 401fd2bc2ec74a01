"""Programs come down to PyTorch's prims and compute there what they did."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import decomp
from decomp_rules import targets
from tests.decomp_rules.rule_agreement import compare
from tests.forms import Holder

X = torch.linspace(-3, 3, 60).view(3, 4, 5)
WHOLE = torch.arange(-30, 30).view(3, 4, 5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.exp(x) + torch.log1p(x.abs()) * torch.tanh(x) - torch.rsqrt(x.abs() + 1),
        lambda x: (x / 2, 1 / x, x**2.5, x > 0, x <= x.mean(), -x, x.round(), torch.atan2(x, x[:1])),
        lambda x: torch.where(x > 0, x, 0.5) + x.clamp(-1, 1) + x.masked_fill(x > 1, 9.0),
        lambda x: (x.sum(), x.sum(1), x.amax((0, 2), keepdim=True), x.prod(0), x.mean(-1), x.var(1)),
        lambda x: (x.permute(2, 0, 1).reshape(4, -1), x.flip(1), x.expand(2, 3, 4, 5), x.unsqueeze(1).squeeze(1)),
        lambda x: (x[:, 1:], x[..., ::2], x[1], F.pad(x, (1, 2, 0, 1), value=3.0), F.pad(x, (-1, 1))),
        lambda x: (torch.cat([x, x[:, :2]], 1), torch.stack([x, x]), torch.arange(2, 9, 3), torch.full((2,), 3.0)),
        lambda x: (x[:, torch.tensor([0, 2])], x.gather(1, x.argsort(1)), x.cumsum(1), x.softmax(1)),
        lambda x: F.layer_norm(F.gelu(x @ x.transpose(1, 2)), (4,)) + F.relu(x[..., :4]),
        lambda x: x.bfloat16().sigmoid(),
    ],
)
def test_floats(function):
    reaches(function, X)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1, x * x[0], x - 2, x // 7, x % 7, torch.div(x, 4, rounding_mode="trunc"), x / 3),
        lambda x: (x & 6, x | 1, x ^ x[0], ~x, x.abs(), x.exp(), x > 0, (x > 0) & (x < 5), (x > 0) + (x < 5)),
        lambda x: (x.sum(1), x.to(torch.int32).sum(), x.any(), x.max(1), x.sign(), x.to(torch.uint8)),
    ],
)
def test_whole_numbers(function):
    reaches(function, WHOLE)


def test_squares_of_large_complex_numbers_are_products():
    z = torch.tensor([1.8446742974197924e19j, 2 - 3j])
    lowered = decomp.lower(Holder(lambda z: z**2), to=targets.prims, args=(z,)).result
    assert torch.equal(lowered(z), z * z) and bool(lowered(z).isfinite().all())


def reaches(function, x):
    """Assert that the function is lowered to prims, and agrees."""
    lowered = decomp.lower(Holder(function), to=targets.prims, args=(x,)).result
    with torch.no_grad():
        compare(
            pytree.tree_leaves(lowered(x)),
            pytree.tree_leaves(function(x)),
            2e-6 if x.is_floating_point() else 0,
            "value",
        )


def test_no_other_target_is_led_to_primitives():
    lowered = decomp.lower(Holder(lambda x: x.exp() / 2), to=targets.tinygrad, args=(X,)).result
    assert "prims" not in lowered.code
