"""Two programs run on the same inputs."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.proof.correspondence import GradientsDiffer
from decomp.validation.whole_programs import whole_programs
from decomp_rules import targets


def x():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Faint(nn.Module):
    """Its ReLU is given subnormal numbers."""

    def __init__(self, slope=1.0):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1e-40))
        self.slope = slope

    def forward(self, x):
        return F.relu(x * self.scale) * 1e30 * self.slope + x


@pytest.mark.parametrize("accuracy", ["exact", "standard", "fast"])
def test_gradients_at_subnormal_numbers_are_judged_by_what_the_level_promises(accuracy):
    given = x().requires_grad_()
    lowering = decomp.lower(Faint(), to=targets.tinygrad, args=(given,), accuracy=accuracy, verify="values")
    told = "which differ where subnormal numbers are flushed to 0: no more is promised there"
    assert lowering.proof.checks[-1].endswith(told) is (accuracy != "exact")


def test_another_program_is_seen_at_subnormal_numbers_too():
    given = (x().requires_grad_(),)
    assert "2 gradients within" in whole_programs(Faint(), Faint(), given, {}, subnormals=False)
    with pytest.raises(GradientsDiffer):
        whole_programs(Faint(), Faint(1000.0), given, {}, subnormals=False)


class Tied(nn.Module):
    def __init__(self, order=("first", "second"), weight=None):
        super().__init__()
        for name in order:
            self.add_module(name, nn.Linear(4, 4, bias=False))
        self.first.weight = self.second.weight = nn.Parameter(torch.ones(4, 4)) if weight is None else weight

    def forward(self, x):
        return self.second(self.first(x))


def test_a_parameter_of_several_names_is_the_same_whichever_comes_first():
    source = Tied()
    other = Tied(("second", "first"), source.first.weight)
    assert next(iter(dict(source.named_parameters()))) != next(iter(dict(other.named_parameters())))
    assert "1 gradients within" in whole_programs(source, other, (x(),), {})
    other.first.weight = nn.Parameter(torch.ones(4, 4))  # half of the gradient is another parameter's now
    with pytest.raises(GradientsDiffer, match="parameter first.weight of the lowered program differs"):
        whole_programs(source, other, (x(),), {})
