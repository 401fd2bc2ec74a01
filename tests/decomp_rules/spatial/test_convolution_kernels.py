"""Convolutions by other names agree with their kernels, and so does the second derivative."""

import pytest
import torch

from decomp_rules.spatial.convolution_kernels import RULES
from tests.decomp_rules.draws import sample
from tests.decomp_rules.rule_agreement import agrees

aten = torch.ops.aten


X, WEIGHT, BIAS = sample(2, 4, 9, 8), sample(6, 4, 3, 2, seed=1), sample(6, seed=2)


def test_kernels_of_images() -> None:
    agrees(RULES, aten.thnn_conv2d.default, X, WEIGHT, [3, 2], BIAS, [2, 1], [1, 0])
    agrees(RULES, aten._slow_conv2d_forward.default, X, WEIGHT, [3, 2], BIAS, [2, 1], [1, 0], gradient=False)
    agrees(RULES, aten.slow_conv_dilated2d.default, X, WEIGHT, [3, 2], BIAS, [2, 1], [1, 0], [2, 2])
    turned = sample(4, 6, 3, 2)
    agrees(RULES, aten.slow_conv_transpose2d.default, X, turned, [3, 2], BIAS, [2, 1], [1, 0], [1, 0], [1, 1])
    agrees(RULES, aten.mkldnn_convolution.default, X, WEIGHT, BIAS, [1, 0], [2, 1], [1, 1], 1, gradient=False)


def test_the_kernel_of_volumes() -> None:
    agrees(
        RULES,
        aten.slow_conv3d.default,
        sample(2, 4, 5, 6, 7),
        sample(6, 4, 3, 2, 2),
        [3, 2, 2],
        BIAS,
        [1, 2, 1],
        [1, 0, 1],
    )


def test_time_first() -> None:
    agrees(RULES, aten.conv_tbc.default, sample(7, 2, 4), sample(3, 4, 5), sample(5), 1)
    agrees(
        RULES,
        aten.conv_tbc_backward.default,
        sample(7, 2, 5),
        sample(7, 2, 4),
        sample(3, 4, 5),
        sample(5),
        1,
        gradient=False,
    )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_second_derivative(transposed: bool, groups: int) -> None:
    weight = sample(4, 6 // groups, 3, 2) if transposed else sample(6, 4 // groups, 3, 2)
    settings = [2, 1], [1, 0], [1, 1], transposed, [0, 0], groups
    grad = torch.randn_like(torch.convolution(X, weight, None, *settings))
    op = aten._convolution_double_backward.default
    for given in ((X.flip(0), weight.flip(0), BIAS), (X.flip(0), None, None)):
        mask = [True, given[1] is not None, True]
        agrees(RULES, op, *given, grad, weight, X, *settings, mask, gradient=False)
