"""Selection by data, on targets that know nonzero: unique elements and slices, places, masks."""

import math

import pytest
import torch

import decomp
from decomp_rules import targets
from decomp_rules.index import uniqueness
from tests.decomp_rules.rule_agreement import agrees
from tests.forms import Holder

aten = torch.ops.aten
RULES = uniqueness.RULES
X = torch.tensor([[3.0, 1.0, 2.0, 1.0], [3.0, 4.0, 1.0, 4.0], [3.0, 1.0, 2.0, 1.0]])


@pytest.mark.parametrize("inverse", [True, False])
@pytest.mark.parametrize("counts", [True, False])
def test_unique_elements(inverse, counts):
    with_nan = torch.cat([X, torch.full((1, 4), math.nan)])
    for x in (X, with_nan, X.to(torch.int64), X > 2):
        agrees(RULES, aten._unique2.default, x, True, inverse, counts, gradient=False)
        agrees(RULES, aten.unique_consecutive.default, x[:, [0, 0, 1, 1]], inverse, counts, gradient=False)
    agrees(RULES, aten._unique.default, X, True, True, gradient=False)


def test_unique_slices():
    for x, dim in ((X, 0), (X[[0, 2, 1]][:, [0, 1, 0, 3, 2]], 1), (torch.ones(1, 2), 0)):
        agrees(RULES, aten.unique_dim.default, x, dim, True, True, True, gradient=False)
        agrees(RULES, aten.unique_dim_consecutive.default, x, dim, True, True, gradient=False)
    agrees(RULES, aten.unique_consecutive.default, X[[0, 2, 1]], True, True, 0, gradient=False)


@pytest.mark.parametrize("inverse", [True, False])
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("shape", [(0,), (0, 2), (2, 0)])
def test_no_elements(shape, inverse, counts):
    x, dim = torch.empty(shape), shape.index(0)
    agrees(RULES, aten._unique2.default, x, True, inverse, counts, gradient=False)
    agrees(RULES, aten.unique_consecutive.default, x, inverse, counts, gradient=False)
    agrees(RULES, aten.unique_consecutive.default, x, inverse, counts, dim, gradient=False)
    agrees(RULES, aten.unique_dim.default, x, dim, True, inverse, counts, gradient=False)
    agrees(RULES, aten.unique_dim_consecutive.default, x, dim, inverse, counts, gradient=False)


def test_places_and_masks():
    for x in (X - 1, torch.tensor(0.0), torch.tensor(2.0), torch.empty(0, 2)):
        agrees(RULES, aten.argwhere.default, x)
        agrees(RULES, aten.nonzero_numpy.default, x)
    agrees(RULES, aten.masked_select.default, X, X[0] > 1)


def test_masks_as_indices():
    one, rows = torch.stack([X, -X, X + 1]), torch.tensor([True, False, True])
    for mask in (one > 2, one[..., 0] > 1, one[..., 0] > 9, rows, rows.to(torch.uint8)):
        agrees(RULES, aten.index.Tensor, one, [mask])
    agrees(RULES, aten.index.Tensor, one, [None, X > 1])
    agrees(RULES, aten.index.Tensor, one, [rows, None, torch.tensor([3, 0])])
    agrees(RULES, aten.index.Tensor, torch.empty(0, 2), [torch.empty(0, 2) > 0])


@pytest.mark.parametrize(
    "function",
    [
        torch.argwhere,
        lambda x: torch.nonzero(x, as_tuple=True),
        lambda x: torch.unique(x, return_inverse=True, return_counts=True),
        lambda x: torch.unique(x, dim=0),
        lambda x: torch.unique_consecutive(x, return_counts=True),
        lambda x: x.masked_select(x > 1) * 2,
        lambda x: x[x > 1] * 2,
        lambda x: x[:, x[0] > 1] * 2,
    ],
)
def test_lowered_to_core_aten(function):
    module = Holder(function)
    lowered = decomp.lower(module, to=targets.core_aten, args=(X,)).result
    torch.testing.assert_close(lowered(X), module(X))
