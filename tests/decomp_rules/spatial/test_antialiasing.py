"""Antialiased resampling agrees with the kernels, enlarging and shrinking."""

import pytest
import torch

from decomp_rules.spatial.antialiasing import FILTERS, RULES
from tests.decomp_rules.draws import sample
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
OPS = [name for name in FILTERS if hasattr(aten, f"_upsample_{name}2d_aa")]
FILTER = pytest.mark.parametrize("name", OPS)


def kernel(name: str, suffix: str = "") -> torch._ops.OpOverloadPacket:
    return getattr(aten, f"_upsample_{name}2d_aa{suffix}")


@FILTER
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("wanted", [[4, 3], [12, 13], [1, 1], [9, 7], [2, 20]])
def test_sizes(name: str, wanted: list[int], align_corners: bool) -> None:
    for size in ((9, 7), (4, 11), (13, 3)):
        agrees(RULES, kernel(name).default, sample(2, 3, *size), wanted, align_corners)


@FILTER
def test_scales(name: str) -> None:
    agrees(RULES, kernel(name).vec, sample(2, 3, 13, 5), None, False, [0.7, 1.7])
    agrees(RULES, kernel(name).default, sample(2, 3, 13, 5), [7, 6], False, 0.61, 1.21)


@FILTER
def test_infinities_stay_under_their_filters(name: str) -> None:
    x = sample(1, 1, 8, 8)
    x[0, 0, 3, 4], x[0, 0, 0, 0] = float("inf"), float("nan")
    agrees(RULES, kernel(name).default, x, [5, 6], False, gradient=False)


@FILTER
def test_backward(name: str) -> None:
    agrees(RULES, kernel(name, "_backward").default, sample(2, 3, 4, 5), [4, 5], [2, 3, 9, 3], False, gradient=False)


def test_interpolate_lowered() -> None:
    lowered_agrees(
        lambda x: torch.nn.functional.interpolate(x, (3, 9), mode="bilinear", antialias=True), sample(1, 2, 7, 5)
    )


def test_a_nan_gradient_reaches_only_the_operands_of_its_output() -> None:
    grad = torch.ones(1, 1, 3, 4)
    grad[..., 0, 0] = float("nan")
    args = grad, [3, 4], [1, 1, 5, 8], False, None, None
    agrees(RULES, kernel("bilinear", "_backward").default, *args, gradient=False)
