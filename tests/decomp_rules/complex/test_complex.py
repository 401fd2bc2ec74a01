"""Complex numbers on targets that know none: exact parts for any values, and functions as accurate as PyTorch's,
on both sides of their cuts, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

import pytest
import torch

import decomp
from decomp_rules import targets
from decomp_rules.complex import functions as complex_functions
from tests.decomp_rules.rule_agreement import agrees
from tests.forms import Holder

INF, NAN = float("inf"), float("nan")
PLACES = [complex(a, b) for a in (0.0, 1.0, -2.5, INF, -INF, NAN, 1e38, 1e-40) for b in (0.0, -3.0, INF, NAN, 1e-40)]
TARGETS = ("core_aten", "tinygrad", "luminal")


def lowered(function: Callable[..., Any], target: str, *args: torch.Tensor, accuracy: str = "exact") -> Any:
    return decomp.lower(Holder(function), to=getattr(targets, target), args=args, accuracy=accuracy).result


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    for x, y in zip(*(map(torch.view_as_real, (found, expected)) if expected.is_complex() else ([found], [expected]))):
        torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


def spread(low: float, high: float, count: int = 200) -> torch.Tensor:
    """Complex numbers of all moduli between two powers of ten, and many whose modulus or a part is next to 1."""
    generator = torch.Generator().manual_seed(0)

    def part(low: float, high: float) -> torch.Tensor:
        size = 10 ** (torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low)
        return torch.where(torch.rand(count, generator=generator) < 0.5, -size, size)

    wide = torch.complex(part(low, high), part(low, high))
    circle = torch.polar(1 + part(-6, -1), part(-1, 0.5))
    corner = torch.complex(1 + part(-6, -1), part(-6, -1))
    return torch.cat([wide, circle, corner, -corner, corner * 1j]).to(torch.complex64)


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error in units of the last place of the modulus."""
    size = exact.abs()
    regular = (size > 1e-37) & (size < 1e38)
    return float(((found.to(exact.dtype) - exact).abs() / size)[regular].max() / 2**-24)


@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
def test_parts_are_exact_for_any_values(target: str) -> None:
    z = torch.tensor(PLACES, dtype=torch.complex64)
    found = lowered(lambda z: (z.real + 0, z.imag + 0, torch.view_as_real(z) + 0), target, z)(z)
    for part, expected in zip(found, (z.real, z.imag, torch.view_as_real(z))):
        same(part, expected)


def test_a_target_with_real_and_imag_takes_numbers_apart_by_them() -> None:
    z = torch.tensor(PLACES, dtype=torch.complex64)
    found = decomp.lower(Holder(lambda z: torch.view_as_real(z) + 0), to=targets.stablehlo, args=(z,)).result
    same(found(z), torch.view_as_real(z))


@pytest.mark.parametrize("target", TARGETS)
def test_complex_numbers_are_built_from_parts_exactly(target: str) -> None:
    z = torch.tensor(PLACES, dtype=torch.complex64)
    parts = torch.view_as_real(z).clone()
    same(lowered(torch.complex, target, parts[..., 0], parts[..., 1])(parts[..., 0], parts[..., 1]), z)
    same(lowered(lambda x: torch.view_as_complex(x).clone(), target, parts)(parts), z)


@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
def test_conjugates_are_exact(target: str) -> None:
    z = torch.tensor(PLACES, dtype=torch.complex64)
    for found in lowered(lambda z: (torch.conj_physical(z), z.conj().clone()), target, z)(z):
        same(found, z.conj().resolve_conj())


def test_the_sign_of_a_zero_tells_the_side_of_a_cut() -> None:
    z = torch.tensor([complex(-2.0, 0.0), complex(-2.0, -0.0), complex(2.0, 0.0), complex(2.0, -0.0)])
    functions = (torch.angle, torch.log, torch.asin, torch.acos, torch.acosh, torch.atanh)
    found = lowered(lambda z: tuple(function(z) for function in functions), "tinygrad", z)(z)
    for part, function in zip(found, functions):
        torch.testing.assert_close(part, function(z))


@pytest.mark.parametrize("target", TARGETS)
def test_empty_and_single_numbers(target: str) -> None:
    for shape in ((0,), (2, 0), (), (1, 1)):
        z = torch.full(shape, complex(3, -4), dtype=torch.complex64)
        found = lowered(lambda z: (torch.abs(z), torch.conj_physical(z), torch.view_as_real(z) * 1), target, z)(z)
        for part, expected in zip(found, (z.abs(), z.conj().resolve_conj(), torch.view_as_real(z))):
            torch.testing.assert_close(part, expected)


def test_layouts_that_are_not_contiguous_keep_their_order() -> None:
    base = torch.randn(3, 4, dtype=torch.complex64)
    for z in (base.t(), base[:, ::2], base[:1].expand(3, 4)):
        for target in ("core_aten", "tinygrad"):
            torch.testing.assert_close(lowered(torch.conj_physical, target, z)(z), z.conj().resolve_conj())


FUNCTIONS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "abs": (torch.abs, -30, 30), "angle": (torch.angle, -30, 30), "sgn": (torch.sgn, -30, 30),
    "exp": (torch.exp, -30, 1.9), "exp2": (torch.exp2, -30, 1.9), "expm1": (torch.expm1, -30, 1.9),
    "log": (torch.log, -30, 30), "log2": (torch.log2, -30, 30), "log10": (torch.log10, -30, 30),
    "log1p": (torch.log1p, -30, 30), "sigmoid": (torch.sigmoid, -30, 1.5), "rsqrt": (torch.rsqrt, -30, 30),
    "reciprocal": (torch.reciprocal, -30, 30), "cube": (lambda z: z**3, -9, 9), "power": (lambda z: z**-1.5, -9, 9),
    "quotient": (lambda z: z / z.flip(0), -18, 18), "sinc": (torch.sinc, -3, 1),
    "sin": (torch.sin, -30, 1.9), "cos": (torch.cos, -30, 1.9), "tan": (torch.tan, -30, 1.9),
    "sinh": (torch.sinh, -30, 1.9), "cosh": (torch.cosh, -30, 1.9), "tanh": (torch.tanh, -30, 1.9),
    "asin": (torch.asin, -30, 30), "acos": (torch.acos, -30, 30), "atan": (torch.atan, -30, 30),
    "asinh": (torch.asinh, -30, 30), "acosh": (torch.acosh, -30, 30), "atanh": (torch.atanh, -30, 30),
}  # fmt: skip # packed functions


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_as_accurate_as_the_kernels_and_so_are_gradients(name: str) -> None:
    function, low, high = FUNCTIONS[name]
    z = spread(low, high)
    exact = function(z.to(torch.complex128))
    program = lowered(function, "tinygrad", z)
    assert distance(program(z), exact) <= max(6.0, 2 * distance(function(z), exact))
    z = spread(-1, 0.3, 2).repeat(100).requires_grad_()  # in the shape that was lowered
    out = function(z)
    weights = torch.linspace(0.5, 1.5, len(z)).to(out.dtype) * (1 + 0.5j if out.is_complex() else 1)
    expected, found = (torch.autograd.grad(f(z), z, weights)[0] for f in (function, program))
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_moments_and_norms(target: str) -> None:
    z = torch.randn(4, 5, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(lowered(moments, target, z)(z), moments(z), rtol=1e-5, atol=1e-5)


def moments(z: torch.Tensor) -> tuple[Any, ...]:
    turned = z.flip(0)
    return (
        z.mean(1),
        z.var(0),
        z.std(dim=1, correction=0, keepdim=True),
        *torch.var_mean(z, 1),
        *torch.std_mean(z, 0),
        z.norm(dim=1),
        torch.logsumexp(z, 1),
        torch.vdot(z[0], z[1]),
        torch.linalg.vecdot(z, turned),
        z.mH @ z,
        torch.nn.functional.l1_loss(z, turned),
        torch.isfinite(z / 0),
        torch.isreal(z),
        z == turned,
        torch.logaddexp(z, turned),
    )


def test_the_modulus_has_no_slope_at_zero() -> None:
    z = torch.tensor([0j, 3 + 4j], requires_grad=True)
    program = lowered(torch.abs, "tinygrad", z.detach())
    torch.testing.assert_close(torch.autograd.grad(program(z).sum(), z)[0], torch.tensor([0j, 0.6 + 0.8j]))


def test_convolutions_of_complex_numbers() -> None:
    conv = torch.nn.Conv1d(4, 6, 3, padding="same", groups=2, dtype=torch.complex64)
    z = torch.randn(2, 4, 9, dtype=torch.complex64)
    for target in (targets.core_aten, targets.tinygrad):
        torch.testing.assert_close(decomp.lower(conv, to=target, args=(z,)).result(z), conv(z), rtol=1e-5, atol=1e-5)


def test_lines_of_complex_numbers() -> None:
    for steps in (0, 1, 2, 7):
        module = Holder(lambda x: torch.linspace(1 + 2j, -3j, steps) * x)
        x = torch.tensor(2.0)
        torch.testing.assert_close(decomp.lower(module, to=targets.tinygrad, args=(x,)).result(x), module(x))


@pytest.mark.parametrize("target", TARGETS)
def test_the_gradient_of_polar_coordinates_is_nan_where_the_number_is_not_finite(target: str) -> None:
    size = torch.tensor([INF, NAN, 2.0, 0.0, INF], requires_grad=True)
    angle = torch.tensor([0.0, 1.0, 1.0, 0.5, 2.0], requires_grad=True)
    found, expected = (
        torch.autograd.grad(torch.view_as_real(function(size, angle)).sum(), (size, angle))
        for function in (lowered(torch.polar, target, size, angle), torch.polar)
    )
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("target", TARGETS)
def test_the_gradient_of_the_largest_polar_coordinates_is_finite(target: str) -> None:
    size, angle = torch.tensor([3e38, 1.8e38]), torch.tensor([1.5, -2.0], requires_grad=True)
    found = torch.view_as_real(lowered(torch.polar, target, size, angle)(size, angle))[:, 0].sum()
    torch.testing.assert_close(torch.autograd.grad(found, angle)[0], -size * torch.sin(angle.detach()))


@pytest.mark.parametrize("target", TARGETS)
def test_a_finite_number_over_an_infinite_one_is_nothing(target: str) -> None:
    z, infinite = torch.tensor([3 - 3j, -1e38 + 0j]), torch.tensor([complex(-INF, 1e-8), complex(INF, -2.0)])
    assert lowered(torch.div, target, z, infinite)(z, infinite).tolist() == [0, 0]
    far = torch.tensor([complex(-INF, 0.0), complex(-200.0, 0.0)])
    assert lowered(torch.sigmoid, target, far)(far).tolist() == [0, 0]


@pytest.mark.parametrize("target", TARGETS)
def test_questions_about_numbers_beside_infinities(target: str) -> None:
    ends = (0.0, -0.0, 2.0, 3e38, INF, -INF, NAN)
    z = torch.tensor([complex(a, b) for a in ends for b in ends])
    for question in (torch.isnan, torch.isinf, torch.isreal, torch.isfinite):
        assert torch.equal(lowered(question, target, z)(z), question(z)), question
    far = torch.tensor([complex(NAN, -INF), complex(-INF, 3.0), complex(NAN, 3.0)])
    same(lowered(torch.abs, target, far)(far), torch.abs(far))


@pytest.mark.parametrize("target", TARGETS)
def test_arithmetic_keeps_what_is_infinite(target: str) -> None:
    z, w = torch.tensor([complex(-INF, 10.0), 1 + 1j, 3 - 2j]), torch.tensor([1 + 2j, complex(INF, -2.0), 1j])
    weight = torch.tensor([0.5 + 0.9j, 0.1 - 0.2j, 2 - 1j])
    for function in (torch.lerp, torch.addcmul, lambda z, w, weight: z - w, lambda z, w, weight: z / weight):
        found, expected = lowered(function, target, z, w, weight)(z, w, weight), function(z, w, weight)
        assert bool((found.abs().isinf() | ~expected.abs().isinf()).all())
        torch.testing.assert_close(found[2], expected[2])


def test_lerp_takes_real_and_complex_weights() -> None:
    x, end, weight = (torch.view_as_complex(part) for part in torch.linspace(-3, 3, 48).sin().view(3, 2, 4, 2))
    for number in (0.2 + 0.3j, 0.6 - 2j, 0.3, 0.7, -2.0):
        agrees(complex_functions.RULES, torch.ops.aten.lerp.Scalar, x, end, number, tolerance=1e-6)
    agrees(complex_functions.RULES, torch.ops.aten.lerp.Tensor, x, end, weight, tolerance=1e-6)


def test_powers_of_infinite_numbers_on_luminal() -> None:
    z, w = torch.tensor([complex(-INF, -3.0)] * 2), torch.tensor([-2 + 1j, 2 + 1j])
    found = lowered(torch.pow, "luminal", z, w)(z, w).abs()
    assert found.tolist() == [0, INF]


@pytest.mark.parametrize("name", "exp sigmoid sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh".split())
def test_gradients_on_both_axes(name: str) -> None:
    function, z = getattr(torch, name), torch.tensor([0.5, -0.3, 2.0, 0.7j, -0.2j, 2.5j, 1e-3j, 0.0])
    z = z[z.real != 2] if name in ("asin", "acos") else z  # on the cut PyTorch takes the other side (torch 2.13)
    found, expected = (
        torch.autograd.functional.jacobian(lambda z: torch.view_as_real(run(z)).sum(0), z)
        for run in (lowered(function, "tinygrad", z), function)
    )
    finite = expected.isfinite()
    torch.testing.assert_close(found[finite], expected[finite], rtol=1e-5, atol=1e-6)


def test_the_gradient_of_a_power_by_an_exponent_of_nothing() -> None:
    z, w = torch.tensor([0.5 + 1j, 2.0, 0.0]), torch.zeros(3, dtype=torch.complex64)
    found, expected = (
        torch.autograd.functional.jacobian(lambda w: torch.view_as_real(run(z, w)).sum(0), w)
        for run in (lowered(torch.pow, "luminal", z, w), torch.pow)
    )
    torch.testing.assert_close(found, expected)


def test_polar_coordinates() -> None:
    size, angle = torch.tensor([2.0, 0.0, INF]), torch.tensor([math.pi / 3, 1.0, 0.5])
    for target in TARGETS:
        found = lowered(torch.polar, target, size, angle)(size, angle)
        torch.testing.assert_close(found, torch.polar(size, angle), equal_nan=True)


def test_powers_of_complex_nothing() -> None:
    z, exponents = torch.zeros(5, dtype=torch.complex64), torch.tensor([1j, 1 + 1j, -1 + 0j, -2 - 1j, 2 + 0j])
    found = lowered(torch.pow, "luminal", z, exponents)(z, exponents)
    same(found, torch.pow(z, exponents))


def test_numbers_over_tensors_in_a_symbolic_trace() -> None:
    class Over(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return 1 / z + (2 + 1j) / z + (1 == z)

    z = torch.tensor([1 + 1j, 2.0, -3j])
    traced = torch.fx.symbolic_trace(Over())
    torch.testing.assert_close(decomp.lower(traced, to=targets.tinygrad, args=(z,)).result(z), Over()(z))


def test_what_is_infinitely_small_adds_nothing() -> None:
    z, w = torch.tensor([3 + 1j, -INF + 0j]), torch.tensor([-INF + 0j, 3 + 1j])
    for target in TARGETS:
        torch.testing.assert_close(lowered(torch.logaddexp, target, z, w)(z, w), torch.tensor([3 + 1j, 3 + 1j]))


def test_imaginary_parts_by_a_transform_are_exact_beside_infinities() -> None:
    z = torch.tensor([complex(INF, 3.4e38), complex(-INF, -1e-45), complex(1.0, -0.0)])
    found = lowered(torch.view_as_real, "core_aten", z)(z)
    assert found[:, 1].tolist() == torch.view_as_real(z)[:, 1].tolist()
    assert bool(torch.signbit(found[2, 1]))


def test_the_far_ends_of_inverse_functions_are_finite() -> None:
    z = torch.tensor([complex(1.7e38, 3.4e38), complex(-3.4e38, 1.7e38)])
    for function in (torch.asin, torch.acos, torch.asinh, torch.acosh, torch.log2):
        torch.testing.assert_close(lowered(function, "tinygrad", z)(z), function(z), rtol=1e-6, atol=1e-6)


def test_a_line_between_complex_numbers_is_complex() -> None:
    for function in (torch.linspace, torch.logspace):
        found = lowered(lambda x: x * function(0.5 - 1j, 1 + 2j, 7), "tinygrad", torch.ones(7))(torch.ones(7))
        torch.testing.assert_close(found, function(0.5 - 1j, 1 + 2j, 7))


@pytest.mark.parametrize("target", ["core_aten", "tinygrad", "luminal"])
def test_parts_and_numbers_keep_the_signs_of_zeros(target: str) -> None:
    pairs = torch.tensor([[a, b] for a in (0.0, -0.0, 2.0, -2.0) for b in (0.0, -0.0, 3.0, -3.0)])
    z, signs = torch.view_as_complex(pairs.clone()), pairs.signbit()
    assert torch.equal(lowered(lambda z: torch.view_as_real(z) + -0.0, target, z)(z).signbit(), signs)
    joined = lowered(lambda x: torch.complex(x[:, 0], x[:, 1]), target, pairs)(pairs)
    assert torch.equal(torch.view_as_real(joined).signbit(), signs)
    turned = torch.view_as_real(lowered(torch.conj_physical, target, z)(z)).signbit()
    assert torch.equal(turned, signs ^ torch.tensor([False, True]))


def test_a_backward_graph_has_the_conjugate_of_a_number() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("z")
    number = graph.call_function(torch.ops.aten._conj.default, (2 + 3j,))
    graph.output(graph.call_function(torch.ops.aten.mul.Tensor, (x, number)))
    z = torch.tensor([1 - 1j, 3j])
    low = decomp.lower(torch.fx.GraphModule({}, graph), to=targets.luminal, args=(z,)).result
    torch.testing.assert_close(low(z), z * (2 - 3j))


def test_logarithms_that_are_infinite_have_an_angle_in_luminal() -> None:
    z = torch.tensor([0j, complex(-0.0, 0.0), complex(-0.0, -0.0), complex(2.0, INF), complex(-2.0, -INF)])
    for function in (torch.log, torch.log10):
        found = lowered(function, "luminal", z)(z)
        torch.testing.assert_close(torch.view_as_real(found), torch.view_as_real(function(z)))


@pytest.mark.parametrize("level", ["exact", "standard"])
@pytest.mark.parametrize(
    "function",
    [
        lambda z, x: z / 0,
        lambda z, x: z / -0.0,
        lambda z, x: z / x,
        lambda z, x: torch.div(z, 0j),
        lambda z, x: z / torch.zeros_like(z),
        lambda z, x: torch.isinf(z / 0),
        lambda z, x: torch.addcdiv(z, z, x + 0j),
        lambda z, x: z * INF,
        lambda z, x: z**x,
    ],
)
def test_quotients_by_zero_are_infinite(function, level: str) -> None:
    z = torch.tensor([1 + 2j, -1j, 3, 0, -2 - 3j])
    x = torch.tensor([0.0, -0.0, 0.0, 0.0, -0.0])
    same(lowered(function, "tinygrad", z, x, accuracy=level)(z, x), function(z, x))
