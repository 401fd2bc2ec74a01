"""Normalisations and moments at the levels of accuracy: errors, gradients, and what they cost."""

import pytest
import torch
from torch.nn import functional as F

from decomp_rules import targets
from tests.levels import at_level, calls, holds


def sample(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


IMAGE, CHANNELS = sample(2, 4, 5, 6), (sample(4, seed=1), sample(4, seed=2))
MEANS, VARIANCES = sample(4, seed=3), sample(4, seed=4).abs()
ROWS, WIDTH = sample(5, 24), (sample(24, seed=1), sample(24, seed=2))

NORMS = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, [24], w, b), (ROWS, *WIDTH), 13),
    "layer_norm of two dims": (lambda x: F.layer_norm(x, [5, 24]), (ROWS,), 11),
    "rms_norm": (lambda x, w: F.rms_norm(x, [24], w), (ROWS, WIDTH[0]), 8),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (IMAGE, *CHANNELS), 17),
    "instance_norm": (lambda x: F.instance_norm(x), (IMAGE,), 13),
    "batch_norm in training": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (IMAGE, *CHANNELS), 15),
    "batch_norm": (lambda x, w: F.batch_norm(x, MEANS.to(x.dtype), VARIANCES.to(x.dtype), w), (IMAGE, CHANNELS[0]), 9),
}
MOMENTS = {
    "mean": (lambda x: x.mean(-1), 2),
    "var": (lambda x: x.var(-1), 11),
    "var of all": (lambda x: x.var(correction=0), 11),
    "std": (lambda x: x.std(-1), 33),
}


@pytest.mark.parametrize("level", ["standard", "fast"])
@pytest.mark.parametrize("name", NORMS)
def test_normalisations_have_the_error_of_their_kernels_and_right_gradients(name, level):
    function, args, most = NORMS[name]
    holds(function, level, args, row=-1, most=4.0, gradient_most=32.0)
    assert calls(function, args, level) <= most


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("offset,scale", [(10.0, 1.0), (1e4, 1.0), (0.0, 1e-3), (0.0, 1e12)])
def test_rows_far_from_zero_and_of_any_size_are_normalised(name, offset, scale):
    function, args, _ = NORMS[name]
    holds(function, "standard", ((args[0] + offset) * scale, *args[1:]), row=-1, orders=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_normalisations_of_other_dtypes(name, dtype):
    function, args, _ = NORMS[name]
    holds(function, "standard", tuple(x.to(dtype) for x in args), row=-1, orders=int(dtype != torch.float64))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
@pytest.mark.parametrize("name", MOMENTS)
def test_moments_are_right_however_far_from_zero(name, target):
    function, most = MOMENTS[name]
    for offset, scale in ((0.0, 1.0), (1e3, 1.0), (1e5, 1.0), (0.0, 1e-12), (1.0, 1e12)):
        holds(function, "standard", ((sample(3, 100) + offset) * scale,), target, orders=0, row=None if offset else -1)
    holds(function, "standard", (sample(3, 100) + 1,), target, row=-1, gradient_most=16.0)
    if target is targets.tinygrad:
        assert calls(function, (sample(3, 100),), "standard") <= most


def test_the_variance_of_equal_numbers_is_next_to_nothing():
    x = torch.full((2, 7), 0.3)
    assert at_level(lambda x: x.var(-1), (x,), "standard")(x).abs().max() < 1e-15
