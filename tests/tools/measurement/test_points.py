"""The points that pointwise ops are measured at."""

import math

import pytest
import torch

from decomp.tools.measurement import points

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_there_are_always_as_many_and_the_same_for_the_same_seed(dtype, count):
    found, again = points.grid(count, dtype, (0.3,), seed=5), points.grid(count, dtype, (0.3,), seed=5)
    assert [(x.dtype, x.shape) for x in found] == [(dtype, (points.COUNT,))] * count
    assert all(a.view(torch.uint8).equal(b.view(torch.uint8)) for a, b in zip(found, again))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_all_there(dtype):
    (found,) = points.grid(1, dtype)
    assert found.view(torch.int16).unique().numel() == 65536


def test_float32_has_every_exponent_of_both_signs_and_the_neighbours_of_what_matters():
    (found,) = points.grid(1, torch.float32, (0.731,))
    bits = found.view(torch.int32)
    assert (bits >> 23).unique().numel() == 512
    assert found.unique().numel() > 60_000
    for mark in (0.0, 1.0, -1.0, 88.72283, 0.731, math.pi):
        near = torch.tensor(mark, dtype=torch.float32)
        assert all((found == x).any() for x in (near, near.nextafter(near + 1), near.nextafter(near - 1)))
    assert {math.inf, -math.inf} <= set(found.tolist()) and found.isnan().any()


def test_pairs_have_all_products_of_special_values():
    x, y = points.grid(2, torch.float32)
    pairs = set(zip(x.tolist(), y.tolist()))
    assert {(0.0, math.inf), (math.inf, -math.inf), (1.0, 1.0), (-math.inf, 0.0)} <= pairs
    assert (x.isnan() & y.isinf()).any() and ((x == y) & x.isfinite()).sum() > 500


def test_no_nan_signals():
    for count in (1, 2):
        bits = torch.cat(points.grid(count, torch.float32)).view(torch.int32) & 0x7FFFFFFF
        assert not ((bits > 0x7F800000) & (bits < 0x7FC00000)).any() and (bits > 0x7FC00000).any()


def test_integers_have_their_limits():
    x, y = points.whole_numbers(2, torch.int32)
    assert {torch.iinfo(torch.int32).min, -1, 0, torch.iinfo(torch.int32).max} <= set(x.tolist())
    assert y.shape == (points.COUNT,)
    assert points.whole_numbers(1, torch.bool)[0].unique().tolist() == [False, True]


def test_moderate_points_are_neither_huge_nor_tiny():
    assert points.moderate(torch.tensor([0.0, 1e-9, 0.5, -100.0, 1e9, math.nan])).tolist() == [
        True,
        False,
        True,
        True,
        False,
        False,
    ]
