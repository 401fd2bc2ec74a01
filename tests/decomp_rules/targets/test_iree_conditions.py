"""Calls that IREE refuses or computes otherwise, by one operand beside another, are lowered to others with equal
results."""

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets
from tests.forms import Holder
from tests.installed import converter

SIZES = {"rows": ((2, 3), 3), "an image": ((2, 3, 4, 5), 3), "as wide as it has channels": ((2, 3, 3), 3)}
PRELU = Holder(torch.ops.aten.prelu)


def slopes(name):
    shape, channels = SIZES[name]
    return torch.randn(shape), torch.rand(channels)


@pytest.mark.parametrize("name, kept", [*zip(SIZES, (True, False, False))])
def test_a_prelu_with_slopes_by_channel_stays_in_two_dimensions_alone(name, kept):
    found = decomp.lower(PRELU, to=targets.iree, args=slopes(name), training=False, verify="values").result
    assert ("prelu" in [call.op.short for call in decomp.calls(found)]) is kept


def test_one_slope_for_all_stays():
    x = torch.randn(2, 3, 4)
    found = decomp.lower(PRELU, to=targets.iree, args=(x, torch.rand(1)), training=False).result
    assert [call.op.short for call in decomp.calls(found)] == ["prelu"]


@pytest.mark.parametrize("name", SIZES)
def test_iree_computes_slopes_by_channel(name):
    decomp.convert(PRELU, to=converter("iree"), args=slopes(name))


@pytest.mark.parametrize("size, kept", [(2, False), (3, True), (4, True)])
def test_a_single_window_that_leaves_some_of_the_input_is_another_call(size, kept):
    model, x = nn.Conv2d(4, 8, 3, 2, 1), torch.randn(1, 4, size, size)
    lowering = decomp.lower(model, to=targets.iree, args=(x,), training=False, verify="values")
    found = {call.op.short for call in decomp.calls(lowering.result)}
    assert bool(found & {"conv2d", "convolution"}) is kept


@pytest.mark.parametrize("groups", [1, 4])
def test_iree_computes_a_single_window_that_leaves_some_of_the_input(groups):
    model = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1, groups=groups), nn.Flatten(), nn.Unflatten(1, (4, 2)))
    model.append(nn.Conv1d(4, 4, 1, 3, padding="valid"))
    decomp.convert(model, to=converter("iree"), args=(torch.randn(1, 4, 2, 2),))
