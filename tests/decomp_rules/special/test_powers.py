"""Powers, roots and remainders at the levels standard and fast, without a native power: errors, special values, and
what they cost."""

from functools import partial
import itertools
import math

import pytest
import torch

import decomp
from decomp.tools.measurement.undefined import OperandWatch
from decomp_rules import targets
from decomp_rules.support.short_logarithm import short_logarithm
from tests.levels import at_level, calls, holds, of_every_exponent, ulps

X, Y = of_every_exponent(40, -20, 20, seed=1), of_every_exponent(40, -20, 20, seed=2)
BASE = 0.1 + 3 * torch.rand(400, generator=torch.Generator().manual_seed(0))
EXPONENT = 8 * torch.rand(400, generator=torch.Generator().manual_seed(1)) - 4
SPECIAL = (
    0.0, 1.0, 2.0, 0.5, 3.0, 2.5, math.inf, 1e30, 3.4e38, 1e-30, 1.2e-38, 2.0**24, 2.0**24 - 1, 1 + 2.0**-23,
    1 - 2.0**-24,
)  # fmt: skip # packed numbers
EVERY_SPECIAL = torch.tensor([*SPECIAL, *(-x for x in SPECIAL), math.nan])
NUMBERS = (2.4, 1 / 3, -0.01, 7.0, -4.0, 33.3, 100.0)
FACTORS = (-3.0, 5.0, 6.0, -1.5, -1.25, -0.75, -0.25, 0.25, 0.75, 1.25, 1.5, 1.75, 2.25, 2.5, 3.5)
BASES = (10000.0, 0.3, 1e-30, 1 + 2.0**-20, 10.0)
TINY = 2.0**-126


def forward(function, args, level="standard"):
    """The program of `function` on luminal for such arguments, without gradients."""
    return decomp.lower(Of(function), to=targets.luminal, args=tuple(args), accuracy=level, training=False).result


class Of(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def to(number):
    """The power of a tensor to a number; the number is a float32, as it is to PyTorch beside a float32."""
    return partial(_to, float(torch.tensor(number)))


def of(number):
    return partial(_of, float(torch.tensor(number)))


def _to(number, x):
    return torch.pow(x, number)


def _of(number, y):
    return torch.pow(number, y)


def size_of(program):
    return sum(node.op == "call_function" for node in program.graph.nodes)


def require_standard(function, args):
    """Within 4 ULP where the arguments and the result are normal numbers; NaN, ∞ and 0 where the op in float64 has
    them, or a result that is less than any normal number."""
    found, exact = forward(function, args)(*args), function(*(x.double() for x in args))
    limits = torch.finfo(torch.float32)
    normal = (exact.abs() >= TINY) & (exact.abs() <= limits.max)
    assert float(torch.where(normal, ulps(found, exact, torch.float32), 0.0).max()) <= 4
    assert torch.equal(found.isnan(), exact.isnan())
    beyond = exact.abs() > limits.max
    torch.testing.assert_close(found[beyond].double(), exact[beyond].sign() * math.inf, rtol=0, atol=0)
    assert bool((found[exact.abs() < TINY].abs() <= TINY).all())


def bases_next_to(number, count, seed):
    """Positive numbers whose distance to a number has every exponent, and exponents with which the power is normal."""
    random = torch.Generator().manual_seed(seed)
    away = torch.exp2(-24 * torch.rand(count, generator=random, dtype=torch.float64))
    sign = torch.randint(0, 2, (count,), generator=random) * 2 - 1
    x = (number * (1 + away * sign * 0.5)).float()
    exponent = (2 * torch.rand(count, generator=random, dtype=torch.float64) - 1) * 128 / torch.log2(x.double())
    return x, torch.where(exponent.isfinite(), exponent, 1.0).float()


@pytest.mark.parametrize("near", [1.0, 2.0, 1.5, 1e-37, 2e38])
def test_powers_of_two_tensors_have_all_digits_next_to_every_number(near):
    require_standard(torch.pow, bases_next_to(near, 40_000, 3))


def test_powers_of_two_tensors_over_all_numbers_and_special_ones():
    bits = torch.randint(-(2**31), 2**31, (2, 100_000), generator=torch.Generator().manual_seed(5)).to(torch.int32)
    x, y = bits.view(torch.float32) * 1
    normal = ((x.abs() >= TINY) | x.isnan()) & ((y.abs() >= TINY) | y.isnan())
    require_standard(torch.pow, (x[normal], y[normal]))
    x, y = torch.cartesian_prod(EVERY_SPECIAL, EVERY_SPECIAL).T.contiguous()
    kept = ~((x == 0) & (y < 0))  # the sign of such an infinity is that of the zero
    require_standard(torch.pow, (x[kept], y[kept]))


@pytest.mark.parametrize("number", [*NUMBERS, *FACTORS])
def test_powers_to_a_number(number):
    points = of_every_exponent(200, seed=7)
    reach = points.sign() * points.abs() ** min(1.0, 1 / abs(number))
    require_standard(to(number), (torch.cat([points, reach, EVERY_SPECIAL[EVERY_SPECIAL != 0]]),))


@pytest.mark.parametrize("number", BASES)
def test_powers_of_a_number(number):
    inside = (2 * torch.rand(50_000, generator=torch.Generator().manual_seed(9)) - 1) * 130 / math.log2(number)
    require_standard(of(number), (torch.cat([inside, of_every_exponent(100, seed=8), EVERY_SPECIAL]),))


def test_gradients_of_powers_without_a_native_one():
    x, y = bases_next_to(1.5, 2_000, 4)
    y = y * 0.7
    holds(torch.pow, "standard", (x, y), targets.luminal)
    whole = torch.tensor([-3.0, 2.0, 5.0, 12.0]).repeat(500)
    holds(lambda x: torch.pow(x, whole.to(x.dtype)), "standard", (-x,), targets.luminal)
    for number in (2.4, -4.0, 7.0, 5.0):
        holds(to(number), "standard", (x if number == 2.4 else x - 2,), targets.luminal)
    holds(of(10.0), "standard", (y.clamp(-30, 30),), targets.luminal)


def test_gradients_where_the_base_is_zero_and_where_the_power_overflows():
    x = torch.tensor([0.0, 0.0, 0.0, 0.0, 1e30, 1e-35, 3.0]).requires_grad_()
    y = torch.tensor([1.0, 2.0, 3.0, 2.5, 1.5, 1.1, 0.0])
    program = at_level(torch.pow, (x, y), "standard", targets.luminal)
    (first,) = torch.autograd.grad(program(x, y).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first[:4].sum(), x)
    torch.testing.assert_close(first.detach(), torch.tensor([1.0, 0.0, 0.0, 0.0, 1.5e15, 1.1 * 1e-35**0.1, 0.0]))
    torch.testing.assert_close(second[:4], torch.tensor([0.0, 2.0, 0.0, 0.0]))
    wide = torch.tensor([0.0, 1e30]).requires_grad_()
    program = at_level(to(1.4), (wide,), "standard", targets.luminal)
    (slope,) = torch.autograd.grad(program(wide).sum(), wide)
    torch.testing.assert_close(slope, torch.tensor([0.0, 1.4e12]), rtol=1e-5, atol=0)


def test_what_powers_cost_without_a_native_one():
    x = BASE
    assert size_of(forward(torch.pow, (x, EXPONENT))) <= 95
    assert size_of(forward(to(2.4), (x,))) <= 62
    assert size_of(forward(to(2.5), (x,))) <= 7
    assert size_of(forward(to(5.0), (x,))) <= 3
    assert size_of(forward(of(10.0), (x,))) <= 16
    for number, most in ((2.4, 3), (2.5, 3), (7.0, 4), (-9.0, 5)):
        assert size_of(forward(to(number), (x,), "fast")) <= most
    assert size_of(forward(of(10.0), (x,), "fast")) <= 2


def test_powers_of_positive_numbers_with_both_gradients():
    holds(torch.pow, "fast", (BASE, EXPONENT), targets.luminal, gradient_most=256.0, orders=1)
    assert calls(torch.pow, (BASE, EXPONENT), "fast", targets.luminal) <= 20


def test_powers_to_and_of_numbers_at_fast():
    for number in (7.0, -9.0, 16.0, -24.0):
        holds(to(number), "fast", (BASE - 1.5,), targets.luminal, gradient_most=256.0, orders=1)
    exact = torch.pow(BASE.double(), 2.2)
    assert float(ulps(forward(to(2.2), (BASE,), "fast")(BASE), exact, torch.float32).max()) <= 64
    holds(of(10.0), "fast", (EXPONENT,), targets.luminal, gradient_most=256.0, orders=1)


def test_whole_powers_of_numbers_of_either_sign():
    args = torch.tensor([*itertools.product((-2.5, -1.0, 0.5, 3.0), range(-3, 4))]).T.contiguous()
    torch.testing.assert_close(
        at_level(torch.pow, args, "fast", targets.luminal)(*args), torch.pow(*args), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("near", [1.0, 1e-37, 2e38])
def test_powers_by_exponentials_of_another_base(near):
    chip = targets.luminal - ["exp2", "log2"] | ["exp", "log"]
    x, y = bases_next_to(near, 20_000, 6)
    program = decomp.lower(Of(torch.pow), to=chip, args=(x, y), training=False).result
    exact = torch.pow(x.double(), y.double())
    normal = (exact >= TINY) & (exact <= torch.finfo(torch.float32).max)
    assert float(torch.where(normal, ulps(program(x, y), exact, torch.float32), 0.0).max()) <= 4
    assert size_of(program) <= 220


def test_floats_that_are_not_integers_are_not_converted():
    watch = OperandWatch()
    with watch:
        short_logarithm(EVERY_SPECIAL)
    assert watch.looked_at and not watch.found


def test_hypotenuses():
    holds(torch.hypot, "fast", (X, Y), orders=1)
    assert calls(torch.hypot, (X, Y), "fast") <= 16
