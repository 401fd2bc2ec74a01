"""Convolutions at the levels of accuracy, on targets without products of matrices: they are right, and cost little."""

import pytest
import torch
from torch.nn import functional as F

from decomp_rules import targets
from tests.levels import calls, holds


def sample(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X, W, B = sample(2, 3, 7, 8), sample(4, 3, 3, 3, seed=1), sample(4, seed=2)
CONVOLUTIONS = {
    "padded": (lambda x, w, b: F.conv2d(x, w, b, padding=1), (X, W, B), 21),
    "strided and dilated": (lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2), (1, 2)), (X, W, B), 60),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=3), (X, sample(3, 1, 3, 3, seed=1)), 18),
    "grouped": (lambda x, w: F.conv2d(x, w, groups=2), (sample(2, 4, 6, 6), sample(6, 2, 3, 3, seed=1)), 120),
    "of one dimension": (lambda x, w: F.conv1d(x, w, padding=2), (X[0], sample(4, 7, 5, seed=1)), 16),
    "patches": (lambda x, w, b: F.conv2d(x, w, b, 3), (X, W, B), 20),
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
