"""Parts of another rank, which have no elements, are left out of concatenations for converters that refuse them."""

import pytest
import torch

import decomp
from decomp_rules import targets
from decomp_rules.targets import concatenation
from tests.forms import Holder
from tests.installed import converter

X = torch.arange(6.0).view(2, 3)
CACHED = Holder(lambda x: torch.cat([torch.empty(0), x, x + 1], -2))


@pytest.mark.parametrize("name", concatenation.TARGETS)
def test_empty_parts_are_left_out(name):
    found = decomp.lower(CACHED, to=targets.get(name), args=(X,), training=False, verify="values").result
    (call,) = found.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    assert [part.meta["val"].shape for part in call.args[0]] == [X.shape, X.shape]


@pytest.mark.parametrize("name", concatenation.TARGETS)
def test_an_empty_part_is_converted(name):
    decomp.convert(CACHED, to=converter(name), args=(X,))
