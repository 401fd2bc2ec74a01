"""Paddings below 0, which some converters refuse or compute otherwise without a word, are slices in front of them."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.forms import Holder
from tests.installed import converter

PADS = {"a shift": [0, 0, 1, -1], "cut off": [-1, -2], "both": [2, -1, -1, 0]}
NAMES = ["coremltools", "executorch", "iree", "torch_mlir"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pad", PADS.values(), ids=PADS)
def test_no_padding_below_0_is_left(name, pad):
    model = Holder(lambda x: (F.pad(x, pad), torch.constant_pad_nd(x, pad, 0.5)))
    lowering = decomp.lower(model, to=targets.get(name), args=(torch.randn(2, 3, 5),), training=False, verify="values")
    left = [call.argument("pad") for call in decomp.calls(lowering.result) if "pad" in call.op.short]
    assert all(min(numbers) >= 0 for numbers in left)


@pytest.mark.parametrize("name", NAMES)
def test_converters_pad_by_numbers_below_0(name):
    model = Holder(lambda x: (*(F.pad(x, pad) for pad in PADS.values()), F.pad(x, [1, -1], "replicate")))
    decomp.convert(model, to=converter(name), args=(torch.randn(2, 3, 5),))


def test_executorch_pads_several_dimensions_itself():
    model, x = Holder(lambda x: torch.constant_pad_nd(x, [1, 2, 0, 1], 0.5)), torch.randn(2, 3, 5)
    found = decomp.lower(model, to=targets.executorch, args=(x,), training=False).result
    assert [call.op.short for call in decomp.calls(found)] == ["constant_pad_nd"]


def test_iree_pads_by_reflection_and_around_the_circle():
    x = torch.randn(2, 3, 5, 5)
    model = Holder(lambda x: (F.pad(x, [1, -1, -1, 0], "reflect"), F.pad(x, [1, 1, 1, 1], "circular")))
    decomp.convert(model, to=converter("iree"), args=(x,))
