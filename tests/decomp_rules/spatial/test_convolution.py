"""Convolutions agree with the ops in value and gradient, for any stride, padding, dilation, groups and direction."""

import pytest
import torch

import decomp
from decomp_rules import targets
from decomp_rules.spatial import convolution
from tests.decomp_rules.draws import sample
from tests.decomp_rules.rule_agreement import agrees

aten = torch.ops.aten
RULES = convolution.RULES
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-4, torch.bfloat16: 1e-1}
SIDES = [7, 6, 5]

FORWARD = [  # kernel, stride, padding, dilation, groups
    (3, 1, 1, 1, 1),
    (3, 2, 1, 1, 1),
    (3, 2, 0, 2, 2),
    (1, 1, 0, 1, 1),
    (1, 2, 0, 1, 2),
    (2, 2, 0, 1, 1),
    (2, 3, 1, 1, 1),
    (3, 1, 1, 1, 4),
    (1, 1, 1, 1, 1),
]
TRANSPOSED = [  # kernel, stride, padding, dilation, groups, output padding
    (3, 1, 1, 1, 1, 0),
    (3, 2, 1, 1, 1, 1),
    (3, 2, 0, 2, 2, 1),
    (2, 2, 0, 1, 1, 0),
    (2, 2, 1, 1, 1, 1),
    (2, 3, 1, 1, 2, 2),
    (1, 1, 0, 1, 1, 0),
    (3, 1, 2, 1, 4, 0),
    (3, 3, 3, 1, 1, 0),
]


def arguments(dims: int, stride: int, padding: int, dilation: int, transposed: bool, extra: int, groups: int) -> tuple:
    return [stride] * dims, [padding] * dims, [dilation] * dims, transposed, [extra] * dims, groups


@pytest.mark.parametrize("dims, dtype", [(1, torch.float64), (2, torch.float32), (2, torch.bfloat16)])
@pytest.mark.parametrize("kernel, stride, padding, dilation, groups", FORWARD)
def test_convolution(
    dims: int, dtype: torch.dtype, kernel: int, stride: int, padding: int, dilation: int, groups: int
) -> None:
    x, bias = sample(2, 4, *SIDES[:dims], dtype=dtype), sample(8, dtype=dtype, seed=2)
    weight = sample(8, 4 // groups, *[kernel] * dims, dtype=dtype, seed=1)
    rest = arguments(dims, stride, padding, dilation, False, 0, groups)
    agrees(RULES, aten.convolution.default, x, weight, bias, *rest, tolerance=TOLERANCE[dtype])
    check_backward(x, weight, rest, dtype)


@pytest.mark.parametrize("dims, dtype", [(1, torch.float64), (2, torch.float32), (3, torch.float64)])
@pytest.mark.parametrize("kernel, stride, padding, dilation, groups, extra", TRANSPOSED)
def test_transposed_convolution(
    dims: int, dtype: torch.dtype, kernel: int, stride: int, padding: int, dilation: int, groups: int, extra: int
) -> None:
    x, bias = sample(2, 4, *SIDES[:dims], dtype=dtype), sample(8, dtype=dtype, seed=2)
    weight = sample(4, 8 // groups, *[kernel] * dims, dtype=dtype, seed=1)
    rest = arguments(dims, stride, padding, dilation, True, extra, groups)
    agrees(RULES, aten.convolution.default, x, weight, bias, *rest, tolerance=TOLERANCE[dtype])
    check_backward(x, weight, rest, dtype)


def check_backward(x: torch.Tensor, weight: torch.Tensor, rest: tuple, dtype: torch.dtype) -> None:
    grad = sample(*torch.convolution(x, weight, None, *rest).shape, dtype=dtype, seed=3)
    for mask in ([True, True, True], [False, True, False]):
        agrees(
            RULES,
            aten.convolution_backward.default,
            grad,
            x,
            weight,
            [8],
            *rest,
            mask,
            gradient=False,
            tolerance=TOLERANCE[dtype] * 4,
        )


@pytest.mark.parametrize("dims, op", [(1, aten.conv1d), (2, aten.conv2d), (3, aten.conv3d)])
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_padding_by_name_and_a_missing_batch(dims: int, op: object) -> None:
    x, weight, bias = sample(2, 4, *SIDES[:dims]), sample(8, 4, *[2] * dims, seed=1), sample(8, seed=2)
    for padding in ("same", "valid"):
        agrees(RULES, op.padding, x, weight, bias, [1] * dims, padding, [2] * dims, tolerance=2e-4)
        agrees(RULES, op.padding, x, weight, bias, [1] * dims, padding, tolerance=2e-4)
    agrees(RULES, op.default, x[0], weight, bias, [2] * dims, [1] * dims, tolerance=2e-4)


@pytest.mark.parametrize(
    "dims, op", [(1, aten.conv_transpose1d.default), (2, aten.conv_transpose2d.input), (3, aten.conv_transpose3d.input)]
)
def test_transposed_convolution_by_rank(dims: int, op: object) -> None:
    x, weight, bias = sample(2, 4, *SIDES[:dims]), sample(4, 8, *[3] * dims, seed=1), sample(8, seed=2)
    agrees(RULES, op, x, weight, bias, [2] * dims, [1] * dims, [1] * dims, tolerance=2e-4)
    agrees(RULES, op, x[0], weight, bias, tolerance=2e-4)


class Convolution(torch.nn.Module):
    def __init__(self, *args: int, **kwargs: int) -> None:
        super().__init__()
        self.inner = torch.nn.Conv2d(*args, **kwargs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def lowered_size(channels: int, **kwargs: int) -> int:
    model, x = Convolution(channels, channels, **kwargs), sample(2, channels, 12, 12)
    low = decomp.lower(model, to=targets.tinygrad, args=(x,))
    return len(low.result.graph.nodes)


def test_the_number_of_ops_depends_on_neither_the_kernel_nor_channels() -> None:
    assert lowered_size(4, kernel_size=5) == lowered_size(16, kernel_size=5) == lowered_size(4, kernel_size=7)


def test_patches_cost_one_product_for_any_size() -> None:
    assert lowered_size(4, kernel_size=2, stride=2) == lowered_size(4, kernel_size=4, stride=4) < 30


@pytest.mark.parametrize("shape", [(2, 3, 7, 6), (3, 7, 6)])
@pytest.mark.parametrize("box", [(3, 1, 1, 2), (2, 2, 0, 1), (3, 1, 0, 1)])
def test_windows_as_columns_and_back(shape: tuple[int, ...], box: tuple[int, ...]) -> None:
    pairs = [[n] * 2 for n in box]
    x = sample(*shape)
    agrees(RULES, aten.im2col.default, x, *pairs)
    agrees(RULES, aten.col2im.default, aten.im2col(x, *pairs), list(shape[-2:]), *pairs)


def test_complex_convolutions_need_no_kernel_for_complex_numbers() -> None:
    x, weight = torch.randn(2, 4, 9, dtype=torch.complex64), torch.randn(6, 4, 3, dtype=torch.complex64)
    rule = next(rule for rule in RULES if "conv1d" in str(rule.op))
    torch.testing.assert_close(rule.function(x, weight, stride=2, padding=1), torch.conv1d(x, weight, None, 2, 1))
