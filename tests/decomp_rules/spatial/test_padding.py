"""Padding agrees with the ops in every mode, with pads of either sign, and so do the gradients."""

import pytest
import torch

from decomp_rules.spatial import padding
from tests.decomp_rules.rule_agreement import agrees

aten = torch.ops.aten
RULES = padding.RULES
PADS = [(1, 2), (2, 0), (0, 3), (-1, 2), (1, -2), (-1, -1), (0, 0)]


def sample(dims: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 3, *[4, 5, 6][:dims], generator=generator)


@pytest.mark.parametrize("pair", PADS)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("mode", ["reflection", "replication"])
def test_pads_by_name(mode: str, dims: int, pair: tuple[int, int]) -> None:
    x, pads = sample(dims), list(pair) * dims
    op = getattr(aten, f"{mode}_pad{dims}d").default
    agrees(RULES, op, x, pads)
    out = op(x, pads)
    grad = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
    agrees(RULES, getattr(aten, f"{mode}_pad{dims}d_backward").default, grad, x, pads, gradient=False)


def test_gradients_of_mirrored_columns_come_back_mirrored() -> None:
    x, grad = sample(2), torch.linspace(-1, 1, 2 * 3 * 8 * 9).reshape(2, 3, 8, 9)
    agrees(RULES, aten.reflection_pad2d_backward.default, grad, x, [2, 2, 2, 2], gradient=False)


@pytest.mark.parametrize("pair", PADS)
@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_pad_by_mode(mode: str, pair: tuple[int, int]) -> None:
    for dims in (1, 2, 3):
        agrees(RULES, aten.pad.default, sample(dims), list(pair) * dims, mode)
    if mode == "circular":
        agrees(RULES, aten._pad_circular.default, sample(2), list(pair) * 2)


@pytest.mark.parametrize("value", [0, 1.5, float("-inf"), float("nan")])
@pytest.mark.parametrize("pair", PADS)
def test_constant_pad(pair: tuple[int, int], value: float) -> None:
    x = sample(2)
    for each in (x, x.bfloat16()):
        agrees(RULES, aten.constant_pad_nd.default, each, list(pair) * 2, value)
    agrees(RULES, aten.constant_pad_nd.default, x[0, 0], list(pair), value)


def test_constant_pad_of_integers_and_bools() -> None:
    x = sample(2)
    agrees(RULES, aten.constant_pad_nd.default, (x * 3).long(), [1, 2], 7)
    agrees(RULES, aten.constant_pad_nd.default, x > 0, [1, 2], True)


@pytest.mark.parametrize("mode", range(4))
def test_modes_by_number_are_those_of_the_kernel(mode: int) -> None:
    x = sample(1)
    assert torch.equal(padding.pad_enum(x, [1, 2], mode), aten._pad_enum(x, [1, 2], mode))
