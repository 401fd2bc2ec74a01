"""A planned program returns the same bits as the one that was planned, for any strides of its inputs."""

import copy

import pytest
import torch
from torch import nn
from torch.export import Dim

import decomp
from decomp_rules import targets


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(96))

    def forward(self, x):
        return x.softmax(-1) * self.scale + x.t().softmax(0).t()


def layouts(size):
    yield torch.randn(size, size)
    yield torch.randn(size, size).t()
    yield torch.randn(size, 1).expand(size, size)
    yield torch.randn(2 * size, size)[::2]
    yield torch.randn(size, size + 3)[:, 3:]


MADE = {"itself": lambda module: module, "copied": copy.deepcopy}


@pytest.mark.parametrize("sizes", [None, ({0: Dim.AUTO},)], ids=["fixed", "open"])
@pytest.mark.parametrize("made", MADE)
def test_a_planned_program_gives_the_same_bits_for_any_strides(made, sizes):
    torch.manual_seed(0)
    lowering = decomp.lower(Both(), to=targets.tinygrad, args=(torch.randn(96, 96),), dynamic_shapes=sizes)
    planned = MADE[made](decomp.memory_plan(lowering).apply())
    assert planned.state_dict().keys() == lowering.result.state_dict().keys()
    with torch.no_grad():
        for x in layouts(96):
            assert torch.equal(planned(x), lowering.result(x))


def test_inputs_of_other_strides_are_computed_with_the_parameters_of_the_planned_program():
    lowering = decomp.lower(Both(), to=targets.tinygrad, args=(torch.randn(96, 96),))
    planned = copy.deepcopy(decomp.memory_plan(lowering).apply())
    with torch.no_grad():
        planned.scale.zero_()
        x = torch.randn(96, 96).t()
        torch.testing.assert_close(planned(x), x.t().softmax(0).t())
    assert not planned(x).requires_grad
    with pytest.raises(decomp.DecompError, match="requires a gradient"):
        planned(x.requires_grad_())
