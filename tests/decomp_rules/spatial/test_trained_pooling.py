"""Max pooling by comparison with the maximum: values, signs of zero and gradients are PyTorch's own."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from decomp_rules.spatial import trained_pooling
from tests.forms import Holder

POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
BOXES = [(2, 2, 0, 1, False), (3, 2, 1, 1, True), (3, 1, 1, 2, False), (2, 3, 0, 1, True), (2, 5, 1, 1, True)]
LOW, ODD, ZERO = (-torch.inf, 0.8), (torch.nan, 0.1), (-0.0, 0.5)


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("value, share", [LOW, ODD, ZERO])
@pytest.mark.parametrize("dims", POOLS)
@pytest.mark.parametrize("lead", [(2, 3), (3,)])
def test_values_and_gradients_are_those_of_pytorch(box, value, share, dims, lead):
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-2, 3, [*lead, *[7, 6, 6][:dims]], generator=generator).float()
    x = torch.where(torch.rand(x.shape, generator=generator) < share, value, x).requires_grad_()
    expected = POOLS[dims](x, *box)
    found = trained_pooling.RULES[getattr(torch.ops.aten, f"max_pool{dims}d")][0].function(x, *box)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit() & ~found.isnan(), expected.signbit() & ~expected.isnan())
    weights = torch.where(expected.isnan(), 0.0, (torch.arange(expected.numel()) % 5 + 1.0).view(expected.shape))
    assert torch.equal(*(torch.autograd.grad(y, x, weights)[0] for y in (found, expected)))


def test_a_compiler_that_fuses_gets_it_where_windows_overlap_and_calls_do_not():
    pool, x = Holder(lambda x: F.max_pool2d(x, 3, 2, 1)), torch.randn(2, 3, 16, 16)
    fused = decomp.lower(pool, to=targets.tinygrad, args=(x,), cost=decomp.costs.fused).result
    few = decomp.lower(pool, to=targets.tinygrad, args=(x,), cost=decomp.costs.calls).result
    assert decomp.calls(fused, "maximum") and not decomp.calls(few, "maximum")
    torch.testing.assert_close(fused(x), pool(x), rtol=0, atol=0)
