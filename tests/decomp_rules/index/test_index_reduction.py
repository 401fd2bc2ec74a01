"""Reductions by index and by segment agree with the ops, with duplicates, nothing to reduce, ties and NaN."""

import math

import pytest
import torch

from decomp_rules import RULES
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 0.0, 6.0], [7.0, 8.0, -9.0]])
INDEX = torch.tensor([2, 0, 2, 2])
SOURCE = torch.tensor([[1.0, 2.0, 3.0], [3.0, 0.0, 1.0], [1.0, 2.0, 0.0], [5.0, 2.0, 4.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_reduction_by_index(reduce, include_self, dtype):
    x, source = X.to(dtype), SOURCE.to(dtype)
    agrees(RULES, aten.index_reduce.default, x, 0, INDEX, source, reduce, include_self=include_self)
    agrees(RULES, aten.index_reduce.default, x, -1, INDEX, source.T, reduce, include_self=include_self)


@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "max", "min"])
def test_reduction_of_segments(reduce, initial):
    data = torch.tensor([[1.0, 2.0], [2.0, 2.0], [0.0, 7.0], [4.0, 7.0]])
    lengths, given = torch.tensor([2, 0, 2]), {"initial": initial, "axis": 0, "unsafe": True}
    agrees(RULES, aten.segment_reduce.default, data, reduce, lengths=lengths, gradient=False, **given)
    offsets = torch.tensor([0, 2, 2, 4])
    agrees(RULES, aten.segment_reduce.default, data, reduce, offsets=offsets, gradient=False, **given)
    full = torch.tensor([1, 3])
    agrees(RULES, aten.segment_reduce.default, data, reduce, lengths=full, **given)


def test_segments_of_several_rows():
    data = torch.arange(10.0).reshape(2, 5)
    lengths = torch.tensor([[2, 3], [1, 4]])
    agrees(RULES, aten.segment_reduce.default, data, "mean", lengths=lengths, axis=1)
    data[0, 1] = math.nan
    agrees(RULES, aten.segment_reduce.default, data, "max", lengths=lengths, axis=1, gradient=False)


def test_places_of_what_is_not_zero():
    x = torch.tensor([[0, 3, 0], [1, 0, 2]])
    for size in (0, 2, 3, 5):
        agrees(RULES, aten.nonzero_static.default, x, size=size)
        agrees(RULES, aten.nonzero_static.default, x[0], size=size, fill_value=7)
    agrees(RULES, aten.nonzero_static.default, x[0, 1], size=1)
    agrees(RULES, aten.nonzero_static.default, x[:0], size=2)
    agrees(RULES, aten.nonzero_static.default, torch.tensor([math.nan, 0.0, -0.0, 1.0]), size=3, gradient=False)


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_lowered_to_the_end():
    lowered_agrees(lambda x, source: torch.index_reduce(x, 0, INDEX, source, "mean"), X, SOURCE)
    lowered_agrees(lambda x, n: torch.segment_reduce(x, "sum", lengths=n), X, torch.tensor([1, 2]))
    lowered_agrees(lambda x: torch.nonzero_static(x, size=4), X)
