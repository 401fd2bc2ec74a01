"""Which of several equal elements an op gives is open, and that it gives one of them is not."""

import pytest
import torch
from torch import nn

import decomp
from decomp.validation.ties import Choice
from decomp_rules import RULES, targets

aten = torch.ops.aten
FEW = torch.arange(4 * 40).remainder(7).remainder(3).view(4, 40)
"""Of each number many, and more than a kernel sorts by insertion, which keeps their order."""


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sort(-1),
        lambda x: x.argsort(0),
        lambda x: (x > 1).sort(descending=True).indices,
        lambda x: x.relu().topk(6, 1).indices,
        lambda x: x.float().masked_fill(x > 1, -torch.inf).topk(30).indices,
        lambda x: x.kthvalue(3),
        lambda x: x.mode(1),
        lambda x: x.median(1, keepdim=True),
    ],
)
@pytest.mark.parametrize("target", [targets.tinygrad, targets.stablehlo], ids=str)
def test_any_of_several_equal_elements_is_right(function, target):
    decomp.lower(Of(function), to=target, args=(FEW,), verify="values")


def test_gradients_may_go_to_any_of_several_equal_elements():
    x = FEW.float().requires_grad_()
    decomp.lower(Of(lambda x: x.relu().topk(30).values), to=targets.luminal, args=(x,), verify="values")


@pytest.mark.parametrize(
    "places",
    [lambda p: p * 0, lambda p: p.flip(-1), lambda p: p + 1, lambda p: p - 40, lambda p: p.index_select(-1, p[0] * 0)],
    ids=["all the first", "reversed", "the next", "negative", "one for all"],
)
def test_places_of_other_elements_or_of_one_twice_are_wrong(places):
    rules = decomp.Rules()

    @rules.register(aten.sort.default)
    def sort(x, dim=-1, descending=False):
        values, indices = aten.sort.stable(x, stable=True, dim=dim, descending=descending)
        return values, places(indices)

    chip = decomp.Target("chip", ["sort.stable", "mul", "add", "sub", "flip", "select", "index_select"])
    with pytest.raises(decomp.VerificationError, match="rule sort"):
        decomp.lower(Of(lambda x: x.sort(-1)), to=chip, args=(FEW,), rules=rules | RULES, verify="values")


def test_the_other_choice_is_another_place_of_an_equal_element():
    x = torch.tensor([[2.0, 1.0, 2.0, torch.nan], [0.0, torch.nan, -0.0, 3.0]])
    choice = Choice(x, 1, torch.arange(4).expand(2, 4))
    assert choice.other().tolist() == [[2, 1, 0, 3], [2, 1, 0, 3]]
    assert choice.allows(choice.other()).all()
    assert Choice(x.t(), -2, torch.tensor([2, 0])).other().tolist() == [0, 2]
