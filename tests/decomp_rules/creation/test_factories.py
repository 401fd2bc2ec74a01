"""Constants, ramps, triangles, casts and copies agree with the ops, value for value."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from decomp_rules.creation import factories as creation
from decomp_rules.pointwise import casts
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
RULES = creation.RULES | casts.RULES
DTYPES = [None, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool]
pytestmark = pytest.mark.usefixtures("seeded")


def test_constants_agree_in_every_dtype():
    x = torch.randn(2, 3)
    for dtype in DTYPES:
        for op in (aten.zeros.default, aten.ones.default):
            agrees(RULES, op, [2, 3], dtype=dtype)
        for op in (aten.zeros_like.default, aten.ones_like.default):
            agrees(RULES, op, x, dtype=dtype)
        for op in (aten.new_zeros.default, aten.new_ones.default):
            agrees(RULES, op, x, [4], dtype=dtype)
        agrees(RULES, aten.full_like.default, x, 1, dtype=dtype)
        agrees(RULES, aten.new_full.default, x, [4], 1, dtype=dtype)
        agrees(RULES, aten.scalar_tensor.default, 1, dtype=dtype)
        agrees(RULES, aten.eye.m, 3, 4, dtype=dtype)
    agrees(RULES, aten.zero.default, x)
    agrees(RULES, aten.eye.default, 3)


def test_uninitialised_tensors_have_the_requested_shape_and_dtype():
    x = torch.randn(2, 3, dtype=torch.float64)
    made = [creation.empty([4], dtype=torch.int32), creation.empty_like(x), creation.new_empty(x, [5])]
    assert [(m.shape, m.dtype) for m in made] == [((4,), torch.int32), ((2, 3), x.dtype), ((5,), x.dtype)]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 9, 10, 16, 17, 99, 100, 101, 1000, 4097])
def test_ramps_of_any_length_agree(length):
    agrees(RULES, aten.arange.default, length)
    agrees(RULES, aten.arange.start, -3, length)
    agrees(RULES, aten.arange.start_step, 2, 2 + 3 * length, 3)


@pytest.mark.parametrize("bounds", [(0, 10, 3), (10, 0, -3), (0.0, 1.0, 0.1), (5, 5, 1), (-1.5, 2, 0.25), (1, 4, 1.5)])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64, torch.int64, torch.int32])
def test_ramps_take_any_bounds(bounds, dtype):
    if dtype in (torch.int64, torch.int32) and not all(isinstance(bound, int) for bound in bounds):
        bounds = (0.0, 7.5, 2.0)
    agrees(RULES, aten.arange.start_step, *bounds, dtype=dtype)


def test_a_ramp_of_symbolic_length_agrees():
    traced = make_fx(lambda x: creation.arange(x.shape[0] + 3, 2, 1), tracing_mode="symbolic")(torch.zeros(20))
    assert not any(node.target is aten.arange.start_step for node in traced.graph.nodes)
    for length in (20, 7):
        assert torch.equal(traced(torch.zeros(length)), torch.arange(2, length + 3))


def test_a_long_ramp_takes_few_steps():
    traced = make_fx(lambda: creation.arange(100_000))()
    assert len([node for node in traced.graph.nodes if node.op == "call_function"]) < 40


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.int64])
@pytest.mark.parametrize("steps", [0, 1, 2, 5, 50])
def test_linspace_is_exact_at_both_ends(steps, dtype):
    agrees(RULES, aten.linspace.default, -1.3, 7.7, steps, dtype=dtype)
    agrees(RULES, aten.linspace.Tensor_Tensor, torch.tensor(-1.0), torch.tensor(2.0), steps, gradient=False)
    agrees(RULES, aten.logspace.default, -1, 2, steps, 2.0)
    if steps > 1:
        made = creation.linspace(-1.3, 7.7, steps)
        assert made[0] == torch.tensor(-1.3) and made[-1] == torch.tensor(7.7)


@pytest.mark.parametrize("diagonal", [-9, -1, 0, 2, 9])
@pytest.mark.parametrize(
    "x", [torch.randn(3, 5), torch.randn(2, 5, 3), torch.ones(4, 4) > 0, torch.arange(9).view(3, 3)]
)
def test_triangles_agree(diagonal, x):
    agrees(RULES, aten.tril.default, x, diagonal)
    agrees(RULES, aten.triu.default, x, diagonal)
    agrees(RULES, aten.tril_indices.default, 3, 5, diagonal)
    agrees(RULES, aten.triu_indices.default, 3, 5, diagonal)


def test_infinities_outside_a_triangle_do_not_leak():
    assert torch.equal(creation.tril(torch.full((2, 2), float("inf")))[0], torch.tensor([float("inf"), 0]))


def test_casts_agree():
    x = torch.tensor([1.7, -2.5, 0.0])
    for dtype in DTYPES[1:]:
        agrees(RULES, aten.to.dtype, x, dtype)
        agrees(RULES, aten._to_copy.default, x, dtype=dtype)
        agrees(RULES, aten.type_as.default, x, torch.zeros(1, dtype=dtype))
        agrees(RULES, aten.to.other, x, torch.zeros(1, dtype=dtype))
    agrees(RULES, aten.to.device, x, torch.device("cpu"), torch.float64)


def test_a_cast_to_what_it_is_already_is_the_tensor_itself():
    x = torch.randn(3)
    assert casts.to(x, torch.float32) is x and casts.contiguous(x) is x and casts.alias(x) is x
    assert casts.to(x, copy=True) is not x and casts.to_copy(x) is not x


def test_copies_agree():
    x = torch.randn(3, 4).t()
    agrees(RULES, aten.contiguous.default, x)
    agrees(RULES, aten.clone.default, x)
    agrees(RULES, aten.lift_fresh_copy.default, x)
    agrees(RULES, aten.copy.default, x, torch.arange(3), gradient=False)
    agrees(RULES, aten.fill.Scalar, x, 2, gradient=False)
    agrees(RULES, aten.fill.Tensor, x, torch.tensor(2), gradient=False)
    assert casts.contiguous(x).is_contiguous()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.arange(x.shape[0]) + torch.arange(0, 1, 0.2) + torch.linspace(0, 1, 5),
        lambda x: x + torch.zeros(5) + x.new_ones(5) + torch.zeros_like(x) + torch.full_like(x, 2) + torch.eye(5),
        lambda x: x.expand(4, 5).tril(1).triu(-1),
        lambda x: x.double().float() + x.half().type_as(x) + x.to(torch.bfloat16).to(x) + x.detach() * x,
    ],
)
def test_programs_reach_the_targets(function):
    lowered_agrees(function, torch.randn(5))
