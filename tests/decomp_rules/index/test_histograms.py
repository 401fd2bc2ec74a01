"""Histograms agree with the ops: edges, weights, densities, values on an edge, outside, or NaN."""

import math

import pytest
import torch

from decomp_rules import RULES
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
NAN = math.nan


def fall(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor([[1.0, 2.0, 3.0, 2.0], [0.5, 3.0, 0.0, 2.25]], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_histograms(dtype):
    x = fall(dtype)
    agrees(RULES, aten.histogram.bin_ct, x, 3, gradient=False)
    agrees(RULES, aten.histogram.bin_ct, x, 5, density=True, gradient=False)
    agrees(RULES, aten.histogram.bin_ct, x, 3, range=[0.5, 2.0], weight=x + 1, gradient=False)
    edges = torch.tensor([0.0, 0.5, 2.0, 3.0], dtype=dtype)
    agrees(RULES, aten.histogram.bins_tensor, x, edges, gradient=False)
    agrees(RULES, aten.histogram.bins_tensor, x, edges, weight=x, density=True, gradient=False)


def test_histograms_of_nothing_of_one_value_and_of_nan():
    agrees(RULES, aten.histogram.bin_ct, torch.empty(0), 2, gradient=False)
    agrees(RULES, aten.histogram.bin_ct, torch.full((3,), 2.0), 2, gradient=False)
    agrees(RULES, aten.histogram.bin_ct, torch.tensor([1.0, NAN, 3.0, math.inf]), 3, range=[0.0, 3.0], gradient=False)
    agrees(RULES, aten.histogram.bin_ct, torch.tensor([7.0]), 3, range=[0.0, 3.0], density=True, gradient=False)


def test_histograms_over_a_grid():
    x = torch.tensor([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0], [1.0, 1.0], [2.0, NAN]])
    agrees(RULES, aten.histogramdd.default, x[:4], [2, 3], gradient=False)
    agrees(RULES, aten.histogramdd.int_bins, x, 2, [0.0, 1.0, 0.0, 0.75], gradient=False)
    agrees(RULES, aten.histogramdd.default, x[:4], [2, 3], weight=x[:4, 0], density=True, gradient=False)
    edges = [torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.0, 1.0])]
    agrees(RULES, aten.histogramdd.TensorList_bins, x, edges, gradient=False)


def test_whole_numbers_stay_in_their_bins():
    x = torch.arange(50.0)
    for bins in (5, 7, 10, 49, 50):
        agrees(RULES, aten.histc.default, x, bins, gradient=False)
        agrees(RULES, aten.histogram.bin_ct, x, bins, gradient=False)
        lowered_agrees(lambda x, bins=bins: torch.histc(x, bins, 0, 49), x)


def test_lowered_to_the_end():
    lowered_agrees(lambda x: torch.histogram(x.detach(), 4), fall())
    lowered_agrees(lambda x: torch.histogram(x.detach(), 4, range=(0.0, 2.0), density=True), fall())
    lowered_agrees(lambda x: torch.histogramdd(x.detach(), [2, 3, 1, 2]), fall())
