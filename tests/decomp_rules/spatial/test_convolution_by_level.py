"""Convolutions at the levels of accuracy, on targets without products of matrices: they are right, and cost little."""

import pytest
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.decomp_rules.draws import sample
from tests.levels import calls, holds

X, W, B = sample(2, 3, 7, 8), sample(4, 3, 3, 3, seed=1), sample(4, seed=2)
CONVOLUTIONS = {
    "padded": (lambda x, w, b: F.conv2d(x, w, b, padding=1), (X, W, B), 20),
    "strided and dilated": (lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2), (1, 2)), (X, W, B), 19),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=3), (X, sample(3, 1, 3, 3, seed=1)), 18),
    "grouped": (lambda x, w: F.conv2d(x, w, groups=2), (sample(2, 4, 6, 6), sample(6, 2, 3, 3, seed=1)), 16),
    "of one dimension": (lambda x, w: F.conv1d(x, w, padding=2), (X[0], sample(4, 7, 5, seed=1)), 16),
    "patches": (lambda x, w, b: F.conv2d(x, w, b, 3), (X, W, B), 18),
    "wide and strided": (lambda x, w: F.conv2d(x, w, None, 3, 2), (sample(1, 2, 11, 10), sample(4, 2, 5, 5)), 17),
    "of points": (lambda x, w, b: F.conv2d(x, w, b, 2), (X, sample(4, 3, 1, 1, seed=1), B), 11),
    "with gaps": (lambda x, w: F.conv2d(x, w, None, (5, 3)), (X, sample(4, 3, 2, 3, seed=1)), 16),
}


@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_summed_at_once(name, target):
    function, args, most = CONVOLUTIONS[name]
    holds(function, "standard", args, target, row=-1, orders=1, gradient_most=16.0)
    if target is targets.tinygrad:
        assert calls(function, args, "standard") <= most


def test_halves_are_summed_in_float32():
    function, args, _ = CONVOLUTIONS["padded"]
    holds(function, "standard", tuple(x.bfloat16() for x in args), row=-1, orders=0, most=0.51)


@pytest.mark.parametrize("name", ["padded", "strided and dilated", "wide and strided"])
def test_products_of_matrices_take_one_product(name):
    function, args, _ = CONVOLUTIONS[name]
    chip = targets.tinygrad | decomp.Target("products", ["bmm"])
    holds(function, "standard", args, chip, row=-1, orders=1, gradient_most=16.0)
    assert calls(function, args, "standard", chip) <= 23


def test_any_number_of_windows_is_taken():
    images, kernels = sample(1, 2, 24, 24), [sample(3, 2, k, k) for k in (3, 11)]
    few, many = (calls(lambda x, w: F.conv2d(x, w, stride=2), (images, kernel), "standard") for kernel in kernels)
    assert few == many


IMAGES = sample(2, 3, 9, 10)
POOLS = {
    "means in a row": (lambda x: F.avg_pool1d(x, 4, 1, 2), IMAGES[0], 12),
    "means": (lambda x: F.avg_pool2d(x, 3, 1, 1), IMAGES, 12),
    "means of what there is": (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), IMAGES, 18),
    "means by a number": (lambda x: F.avg_pool2d(x, 3, 1, divisor_override=7), IMAGES, 11),
}


@pytest.mark.parametrize("name", POOLS)
def test_pools_take_all_windows_at_once(name):
    function, x, most = POOLS[name]
    holds(function, "standard", (x,), row=-1, orders=1)
    assert calls(function, (x,), "standard") <= most
