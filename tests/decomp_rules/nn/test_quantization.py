"""Fake quantisation agrees with the kernels to the bit, in its gradients too; products of 8-bit matrices do as well."""

import pytest
import torch

from decomp_rules.nn.quantization import RULES
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
CASES = [(0.1, 3, -10, 20), (0.037, 0, -128, 127), (0.5, 100, 0, 255)]
RANGES = pytest.mark.parametrize("scale, zero, low, high", CASES)


def sample(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 3


def whole(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(1))


@RANGES
def test_one_scale(scale: float, zero: int, low: int, high: int) -> None:
    x = sample(4, 5, 6)
    agrees(RULES, aten.fake_quantize_per_tensor_affine_cachemask.default, x, scale, zero, low, high)
    agrees(RULES, aten.fake_quantize_per_tensor_affine.default, x, scale, zero, low, high)
    agrees(
        RULES,
        aten.fake_quantize_per_tensor_affine.tensor_qparams,
        x,
        torch.tensor([scale]),
        whole(zero),
        low,
        high,
        fixed=(1, 2),
    )


@pytest.mark.parametrize("enabled", [0, 1])
def test_a_switch_that_is_data(enabled: int) -> None:
    agrees(
        RULES,
        aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default,
        sample(4, 5),
        torch.tensor([0.1]),
        whole(3),
        torch.tensor([enabled]),
        -10,
        20,
        fixed=(1, 2),
    )


def test_what_is_not_finite_goes_to_an_end_of_the_range() -> None:
    x = torch.tensor([float("inf"), float("-inf"), float("nan"), 1e20, -0.0])
    agrees(RULES, aten.fake_quantize_per_tensor_affine_cachemask.default, x, 0.1, 3, -10, 20, gradient=False)


@pytest.mark.parametrize("zeros", [whole(1, 2, 0, 3, 5), torch.linspace(-3, 4, 5)], ids=["int", "float"])
@RANGES
def test_a_scale_for_each_channel(scale: float, zero: int, low: int, high: int, zeros: torch.Tensor) -> None:
    scales = torch.linspace(0.05, 0.3, 5)
    agrees(
        RULES, aten.fake_quantize_per_channel_affine.default, sample(4, 5, 6), scales, zeros, 1, low, high, fixed=(1, 2)
    )


@RANGES
def test_learnt_scales(scale: float, zero: int, low: int, high: int) -> None:
    x, one = sample(4, 5, 6), (torch.tensor([scale]), torch.tensor([zero + 0.3]))
    many = torch.linspace(0.05, 0.3, 5), torch.linspace(low, low + 10, 5)
    agrees(RULES, aten._fake_quantize_learnable_per_tensor_affine.default, x, *one, low, high, 0.7)
    agrees(RULES, aten._fake_quantize_learnable_per_channel_affine.default, x, *many, 1, low, high, 0.7)
    agrees(
        RULES,
        aten._fake_quantize_learnable_per_tensor_affine_backward.default,
        x.flip(0),
        x,
        *one,
        low,
        high,
        0.7,
        gradient=False,
    )
    agrees(
        RULES,
        aten._fake_quantize_learnable_per_channel_affine_backward.default,
        x.flip(0),
        x,
        *many,
        1,
        low,
        high,
        0.7,
        gradient=False,
    )


def test_products_of_bytes() -> None:
    agrees(RULES, aten._int_mm.default, bytes_of(32, 16), bytes_of(16, 8), gradient=False)
    agrees(
        RULES,
        aten._weight_int8pack_mm.default,
        sample(4, 32).bfloat16(),
        bytes_of(8, 32),
        torch.rand(8).bfloat16(),
        gradient=False,
    )


def test_fake_quantisation_lowered() -> None:
    lowered_agrees(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -10, 20), sample(4, 5))
