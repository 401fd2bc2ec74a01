"""Max pooling of programs that are not trained: values are PyTorch's own for any window."""

import itertools

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from decomp_rules.spatial import untrained_pooling
from tests.forms import Holder

POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
WINDOWS = list(itertools.product((1, 2, 3, 5), (1, 2, 3, 4), (0, 1, 2), (False, True), (5, 6, 11)))


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("dims", POOLS)
def test_values_are_those_of_pytorch(dims, way):
    rule = untrained_pooling.RULES[getattr(torch.ops.aten, f"max_pool{dims}d")][way].function
    generator, seen = torch.Generator().manual_seed(dims), 0
    for size, step, pad, ceil, extent in WINDOWS:
        if pad > size // 2:
            continue
        x = torch.randn([2, *[extent + d for d in range(dims)]], generator=generator)
        x = torch.where(torch.rand(x.shape, generator=generator) < 0.02, torch.nan, x)
        # The other sides have another window, and another step.
        box = [size, *[2] * (dims - 1)], [step, *[3] * (dims - 1)], [pad, *[1] * (dims - 1)], 1, ceil
        expected = POOLS[dims](x, *box)
        torch.testing.assert_close(rule(x, *box), expected, rtol=0, atol=0, equal_nan=True)
        seen += 1
    assert seen == 192


def test_a_target_takes_phases_or_strided_slices_by_what_they_cost():
    pool, x = Holder(lambda x: F.max_pool2d(x, 3, 2, 1)), torch.randn(2, 3, 16, 16)
    strided = targets.tinygrad | {"slice"}  # its own slices move by one
    few, many = (decomp.lower(pool, to=to, args=(x,), training=False) for to in (targets.tinygrad, strided))
    assert "max_pool2d_by_phases" in str(few.plan) and len(decomp.calls(few.result)) == 18
    assert "max_pool2d_by_maximum" in str(many.plan) and len(decomp.calls(many.result)) == 13
    for lowering in (few, many):
        torch.testing.assert_close(lowering.result(x), pool(x), rtol=0, atol=0)
    trained = decomp.lower(pool, to=targets.tinygrad, args=(x.requires_grad_(),))
    assert "by_phases" not in str(trained.plan) and "by_maximum" not in str(trained.plan)


@pytest.mark.parametrize("window", [{"dilation": 2}, {"kernel_size": (3, 1), "stride": (1, 4)}])
def test_windows_with_gaps_and_steps_over_elements_are_right(window):
    pool, x = torch.nn.MaxPool2d(**{"kernel_size": 3, "stride": 2, **window}), torch.randn(2, 3, 13, 17)
    lowered = decomp.lower(pool, to=targets.tinygrad, args=(x,), training=False).result
    torch.testing.assert_close(lowered(x), pool(x), rtol=0, atol=0)
