"""Taking floats apart, scaling them, stepping to the next, divisors and multiples: exactly the ops, at every edge."""

import math

import pytest
import torch

from decomp_rules.pointwise import representation
from decomp_rules.special import number_theory
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees
from tests.pytorch_differences import NEXTAFTER_HAS_A_GRADIENT

aten = torch.ops.aten
RULES = representation.RULES | number_theory.RULES
HALVES = [torch.bfloat16, torch.float16]


def every_half(dtype):
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def edges(dtype):
    info = torch.finfo(dtype)
    powers = torch.pow(2.0, torch.arange(-149.0, 128.0, dtype=torch.float64)).to(dtype)
    few = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, info.max, info.smallest_normal, 1.5], dtype=dtype)
    near = torch.nextafter(powers, torch.zeros((), dtype=dtype))
    return torch.cat([powers, -powers, near, -near, few])


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_come_apart_and_step(dtype):
    x = every_half(dtype)
    agrees(RULES, aten.frexp.Tensor, x, gradient=False, tolerance=0)
    for aim in (math.inf, -math.inf, 0.0, math.nan):
        agrees(RULES, aten.nextafter.default, x, torch.tensor(aim, dtype=dtype), gradient=False, tolerance=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_come_apart_and_step(dtype):
    x = edges(dtype)
    agrees(RULES, aten.frexp.Tensor, x, gradient=False, tolerance=0)
    for aim in (math.inf, -math.inf, 0.0, -0.0, 1.0, math.nan):
        agrees(RULES, aten.nextafter.default, x, torch.tensor(aim, dtype=dtype), gradient=False, tolerance=0)


def test_a_step_to_zero_keeps_the_sign():
    least = torch.tensor([-(2.0**-149), 2.0**-149])
    for step in (representation.nextafter, representation.nextafter_by_bits):
        assert torch.equal(torch.signbit(step(least, torch.zeros(2))), torch.tensor([True, False]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_scaling_rounds_once(dtype):
    x = edges(dtype)
    for exponent in (-400, -277, -150, -149, -24, -1, 0, 3, 127, 128, 140, 277, 400):
        agrees(RULES, aten.ldexp.Tensor, x, torch.tensor([exponent]), gradient=False, tolerance=0)
    agrees(RULES, aten.ldexp.Tensor, torch.tensor([1.5, -2.0]), torch.tensor([3, 0]))
    agrees(RULES, aten.ldexp.Tensor, torch.tensor([1.5, -2.0]), torch.tensor([0.5, -3.0]))
    agrees(RULES, aten.ldexp.Tensor, torch.tensor([3, -2]), torch.tensor([2, -3]))


def test_scaling_down_has_a_gradient_where_the_op_has_lost_it():
    # 2 ** -3 is 0 among integers, and so is the op's own gradient in torch 2.13.
    x = torch.tensor([1.5, -2.0], requires_grad=True)
    (grad,) = torch.autograd.grad(representation.ldexp(x, torch.tensor([3, -3])).sum(), x)
    assert grad.tolist() == [8.0, 0.125]


def test_the_significand_has_a_gradient():
    agrees(RULES, aten.frexp.Tensor, torch.tensor([3.0, -0.1, 1e-40, 1e38]))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_divisors_and_multiples(dtype):
    torch.manual_seed(0)
    info = torch.iinfo(dtype)
    fibonacci = [1, 1]
    while sum(fibonacci[-2:]) <= info.max:
        fibonacci.append(sum(fibonacci[-2:]))
    a, b = torch.randint(info.min // 2, info.max // 2, (2, 500), dtype=dtype)
    a = torch.cat([a, torch.tensor([0, 0, 6, *fibonacci[-2:]], dtype=dtype)])
    b = torch.cat([b, torch.tensor([0, 6, 0, *reversed(fibonacci[-2:])], dtype=dtype)])
    agrees(RULES, aten.gcd.default, a, b)
    agrees(RULES, aten.lcm.default, a, b)


def test_divisors_and_multiples_of_the_least_integer():
    least = torch.tensor([-(2**63)])
    for other in (-1, 1, 3, 6, 7, 0, -(2**63)):
        agrees(RULES, aten.gcd.default, least, torch.tensor([other]))
        agrees(RULES, aten.gcd.default, torch.tensor([other]), least)
    agrees(RULES, aten.lcm.default, least, torch.tensor([1, -1, 3, 6]))


def test_lowered_to_the_end():
    x, y = torch.tensor([1.5, -3e-40, 7e37]), torch.tensor([2.0, -1.0, 0.0])
    lowered_agrees(lambda x: torch.frexp(x), x)
    lowered_agrees(lambda x, n: torch.ldexp(x, n), x, torch.tensor([3, 0, 5]))
    lowered_agrees(lambda x, y: torch.nextafter(x.detach(), y.detach()), x, y)
    lowered_agrees(torch.gcd, torch.tensor([12, -18]), torch.tensor([18, 4]))
    lowered_agrees(torch.lcm, torch.tensor([12, -18], dtype=torch.int8), torch.tensor([18, 4], dtype=torch.int8))


def test_a_neighbour_passes_the_gradient_of_the_number_unless_the_two_are_equal():
    x = torch.tensor([1.0, -0.0, 2.0, float("nan")], requires_grad=True)
    other = torch.tensor([2.0, 1.0, 2.0, 0.0])
    for rule in (representation.nextafter, representation.nextafter_by_bits):
        assert torch.autograd.grad(rule(x, other).sum(), x)[0].tolist() == [1.0, 1.0, 0.0, 1.0]


def test_pytorch_passes_the_same_gradient_or_refuses_it():
    x = torch.tensor([1.0, -0.0, 2.0, float("nan")], requires_grad=True)
    result = torch.nextafter(x, torch.tensor([2.0, 1.0, 2.0, 0.0])).sum()
    if NEXTAFTER_HAS_A_GRADIENT:
        assert torch.autograd.grad(result, x)[0].tolist() == [1.0, 1.0, 0.0, 1.0]
    else:
        with pytest.raises(NotImplementedError, match="the derivative for 'nextafter' is not implemented"):
            torch.autograd.grad(result, x)
