"""Data-dependent ops are declared as limitations with a reason; those whose size is given are lowered."""

import pytest
import torch

import decomp
from decomp_rules import RULES, targets
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees
from tests.forms import Holder

aten = torch.ops.aten
X = torch.arange(6.0).reshape(2, 3)
MASK = torch.tensor([[True, False, True], [False, False, True]])


@pytest.mark.parametrize(
    "function, args, reason",
    [
        (torch.masked_select, (X, MASK), "the shape of the result depends on data"),
        (torch.argwhere, (X,), "the shape of the result depends on data"),
        (torch.unique, (X,), "the shape of the result depends on data"),
        (torch.bincount, (torch.tensor([1, 2, 2]),), "the shape of the result depends on data"),
        (lambda x, mask: x[mask], (X, MASK), "the shape of the result depends on data"),
        (torch.repeat_interleave, (X, torch.tensor([2])), "the shape of the result depends on data"),
        (torch.Tensor.to_sparse, (X,), "the tensors are sparse: how many elements they store is data"),
    ],
)
def test_a_size_that_is_data_is_declared(function, args, reason):
    with pytest.raises(decomp.NotLowered) as raised:
        decomp.lower(Holder(function), to=targets.tinygrad, args=args)
    assert [blocker.limitation for blocker in raised.value.blockers] == [reason]


def test_repeats_of_known_number():
    agrees(RULES, aten.repeat_interleave.Tensor, torch.tensor([2, 0, 3]), output_size=5)
    agrees(RULES, aten.repeat_interleave.self_Tensor, X, torch.tensor([2, 0, 3]), 1, output_size=5)
    agrees(RULES, aten.repeat_interleave.self_Tensor, X, torch.tensor([2]), output_size=12)


def test_a_part_that_starts_where_data_says():
    agrees(RULES, aten.narrow.Tensor, X, 1, torch.tensor(1), 2)


def test_values_for_the_places_of_a_mask():
    values = torch.tensor([10.0, 20.0, 30.0])
    agrees(RULES, aten.index_put.default, X, [MASK], values)
    agrees(RULES, aten.index_put.default, X, [MASK], values, True)
    agrees(RULES, aten.index_put.default, X, [MASK[:, 0]], values[None])
    agrees(RULES, aten.index_put.default, X, [torch.tensor([True, True])], torch.stack([values, -values]))


def test_lowered_to_the_end():
    repeats = torch.tensor([1, 2, 0])
    lowered_agrees(lambda x, n: torch.repeat_interleave(x, n, 1, output_size=3), X, repeats)
    lowered_agrees(lambda x, mask, v: x.index_put((mask,), v), X, MASK, torch.tensor([1.0, 2.0, 3.0]))


class Masked(torch.nn.Module):
    def forward(self, x, mask):
        x = x.clone()
        x[mask] = 2.0
        return x


def test_a_mask_whose_sizes_export_does_not_know_to_be_those_of_what_it_indexes():
    auto = {0: torch.export.Dim.AUTO}
    lowered = decomp.lower(Masked(), to=targets.tinygrad, args=(X, X > 0), dynamic_shapes=(auto, auto)).result
    wide = torch.linspace(-1, 1, 5 * X.shape[1]).reshape(5, -1)
    assert torch.equal(lowered(wide, wide > 0), Masked()(wide, wide > 0))
