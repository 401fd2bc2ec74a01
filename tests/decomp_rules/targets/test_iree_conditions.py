"""Calls that IREE refuses or computes otherwise, by one operand beside another, are lowered to others with equal
results."""

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets
from tests.forms import Holder
from tests.installed import converter

aten = torch.ops.aten

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


class Masked(nn.Module):
    """Writes where a mask says, which here is nowhere, and somewhere."""

    def forward(self, x):
        y = x.clone()
        y[x > 100] = 0.0
        y[x[:, 0] > 0] = x[0]
        return y


@pytest.mark.parametrize("name", ["iree", "torch_mlir"])
def test_no_mask_is_an_index_that_is_written_to(name):
    x = torch.tensor([[1.0, 2.0], [-1.0, 2.0]])
    found = decomp.lower(Masked(), to=targets.get(name), args=(x,), training=False, verify="values").result
    assert "index_put" not in [call.op.short for call in decomp.calls(found)]
    places = decomp.lower(Holder(lambda x: x.index_put((torch.tensor([1]),), x[:1])), to=targets.get(name), args=(x,))
    assert "index_put" in [call.op.short for call in decomp.calls(places.result)]


SELECTIONS = [
    lambda x: x[x > 1] * 2,
    lambda x: x[:, x[0] > 1],
    lambda x: x.masked_select(x > 9),
    lambda x: x.masked_scatter(x > 1, x[x > 1] * 2),
]


@pytest.mark.parametrize("function", SELECTIONS)
@pytest.mark.parametrize("name", ["iree", "torch_mlir"])
def test_what_a_mask_selects_is_taken_by_places(name, function):
    x = torch.tensor([[1.0, 2.0], [3.0, 2.0]])
    found = decomp.lower(Holder(function), to=targets.get(name), args=(x,), training=False).result
    indices = [node.args[1] for node in found.graph.find_nodes(op="call_function", target=aten.index.Tensor)]
    assert [each.meta["val"].dtype for one in indices for each in one if each is not None] == [torch.int64]
    torch.testing.assert_close(found(x), function(x))


@pytest.mark.parametrize("function", SELECTIONS)
@pytest.mark.parametrize("name", ["iree", "torch_mlir"])
def test_what_a_mask_selects_is_converted(name, function):
    decomp.convert(Holder(function), to=converter(name), args=(torch.tensor([[1.0, 2.0], [3.0, 2.0]]),))


class Parts(nn.Module):
    def forward(self, x, rows):
        first, second = rows.tolist()
        return [part.sum(0) for part in x.split([first, second])]


def test_parts_of_sizes_that_are_data_are_slices():
    args = (torch.arange(12.0).view(4, 3), torch.tensor([1, 3]))
    found = decomp.lower(Parts(), to=targets.iree, args=args, training=False).result
    called = {node.target for node in found.graph.nodes}
    assert aten.slice.Tensor in called and aten.split_with_sizes.default not in called
    torch.testing.assert_close(found(*args), Parts()(*args))


def test_iree_takes_parts_of_sizes_that_are_data():
    decomp.convert(Parts(), to=converter("iree"), args=(torch.arange(12.0).view(4, 3), torch.tensor([1, 3])))


def test_iree_writes_nowhere_under_a_mask_that_selects_nothing():
    decomp.convert(Masked(), to=converter("iree"), args=(torch.tensor([[1.0, 2.0], [-1.0, 2.0]]),))
