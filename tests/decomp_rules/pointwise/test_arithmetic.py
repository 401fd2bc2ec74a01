"""Arithmetic, comparison and logic agree with the ops, special values, promotion and gradients at ties included."""

import pytest
import torch

import decomp
from decomp.ops import changes
from decomp_rules import targets
from decomp_rules.pointwise import arithmetic, bits, comparison, shared_ties
from tests.decomp_rules.draws import sample
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees

aten = torch.ops.aten
RULES = arithmetic.RULES | shared_ties.RULES | comparison.RULES | bits.RULES
INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, INF, -INF, NAN, 1e-40, 3e38])
PAIRS = torch.cartesian_prod(SPECIAL, SPECIAL)
LEFT, RIGHT = PAIRS[:, 0].contiguous(), PAIRS[:, 1].contiguous()
WHOLE = torch.tensor([-128, -7, -1, 0, 1, 2, 7, 127], dtype=torch.int8)
BINARY = [aten.sub, aten.rsub, aten.minimum, aten.fmax, aten.fmin, aten.eq, aten.ge, aten.gt, aten.le]


def overload(packet):
    return packet.Tensor if "Tensor" in packet.overloads() else packet.default


@pytest.mark.parametrize("packet", [*BINARY, aten.logical_and, aten.logical_or, aten.logical_xor], ids=str)
def test_binary_ops_agree_on_special_values(packet):
    agrees(RULES, overload(packet), LEFT, RIGHT, gradient=False)


@pytest.mark.parametrize("packet", BINARY, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8], ids=str)
def test_binary_ops_broadcast_in_every_dtype(packet, dtype):
    x, y = (10 * sample(3, 1, 4)).to(torch.int64).to(dtype), (10 * sample(5, 1, seed=1)).to(torch.int64).to(dtype)
    agrees(RULES, overload(packet), x, y)


@pytest.mark.parametrize("packet", [aten.sub, aten.eq, aten.ge, aten.gt, aten.le], ids=str)
@pytest.mark.parametrize("number", [0, 2, -1.5, INF, NAN, True])
@pytest.mark.parametrize("x", [SPECIAL, WHOLE, SPECIAL.to(torch.bfloat16)], ids=["float", "int8", "bfloat16"])
def test_numbers_are_promoted_as_pytorch_does(packet, number, x):
    if packet is aten.sub and isinstance(number, bool):
        pytest.skip("PyTorch does not subtract booleans")
    agrees(RULES, packet.Scalar, x, number, gradient=False)


def test_mixed_dtypes_are_promoted_before_they_are_negated():
    small, large = torch.tensor([3, 200], dtype=torch.uint8), torch.tensor([1, 2], dtype=torch.int32)
    agrees(RULES, aten.sub.Tensor, large, small)
    agrees(RULES, aten.rsub.Tensor, small, large)
    agrees(RULES, aten.sub.Tensor, sample(2), small, gradient=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_alpha_scales_and_half_types_round_once(dtype):
    x, y = sample(64, dtype=dtype), sample(64, dtype=dtype, seed=1)
    for op in (aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor):
        agrees(RULES, op, x, y, alpha=0.3)
    assert torch.equal(arithmetic.add(x, y, 0.3), (x.float() + 0.3 * y.float()).to(dtype))
    agrees(RULES, aten.add.Tensor, torch.tensor([1, 2]), torch.tensor([3, 4]), alpha=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fused_products_agree(dtype):
    x, a, b = (sample(3, 4, dtype=dtype, seed=seed) for seed in range(3))
    agrees(RULES, aten.addcmul.default, x, a, b, value=0.5)
    agrees(RULES, aten.addcdiv.default, x, a, b.abs() + 1, value=-2)
    agrees(RULES, aten.lerp.Scalar, x, a, 0.7)
    agrees(RULES, aten.lerp.Tensor, x, a, torch.sigmoid(b))


def test_lerp_is_exact_at_both_ends():
    x, end = sample(8), 1e6 * sample(8, seed=1)
    assert torch.equal(arithmetic.lerp(x, end, 1.0), end) and torch.equal(arithmetic.lerp(x, end, 0.0), x)


@pytest.mark.parametrize("op", [aten.abs.default, aten.sign.default, aten.sgn.default, aten.neg.default], ids=str)
def test_signs_agree_and_have_the_right_gradient_at_zero(op):
    agrees(RULES, op, SPECIAL, gradient=False)
    agrees(RULES, op, torch.tensor([0.0, -0.0, 2.0, -3.0]))
    agrees(RULES, op, WHOLE)
    agrees(RULES, op, sample(3, 4).t())


def test_abs_clears_the_sign_of_zero():
    assert not torch.signbit(arithmetic.absolute(torch.tensor([-0.0]))).item()


def test_sign_bits_are_read_and_written():
    agrees(RULES, aten.signbit.default, SPECIAL, gradient=False)
    agrees(RULES, aten.copysign.Tensor, torch.tensor([1.0, -2.0, 3.0]), torch.tensor([-0.0, 0.0, -INF]))
    agrees(RULES, aten.copysign.Scalar, sample(4), -1.0)


def test_ties_share_the_gradient_as_the_op_does():
    x, y = torch.tensor([1.0, 2.0, 2.0, NAN]), torch.tensor([1.0, 1.0, 3.0, 1.0])
    for op in (aten.minimum.default, aten.max.other, aten.min.other):
        agrees(RULES, op, x, y)
    ordered = 3 if changes.nan_shares_gradients else 4
    for op in (aten.fmax.default, aten.fmin.default):
        agrees(RULES, op, x[:ordered], y[:ordered])


def test_minimum_does_not_overflow():
    low = torch.tensor([torch.iinfo(torch.int64).min, 5])
    assert torch.equal(arithmetic.minimum(low, torch.tensor([0, 0])), torch.tensor([low[0], 0]))


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (None, 1.0), (-1.0, None), (1.0, -1.0), (NAN, None), (None, NAN)])
def test_clamp_agrees_at_its_bounds(bounds):
    x = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])
    agrees(RULES, aten.clamp.default, SPECIAL, *bounds, gradient=False)
    agrees(RULES, aten.clamp.default, x, *bounds, gradient=NAN not in bounds)
    agrees(RULES, aten.clamp.default, torch.tensor([-3, 0, 3]), *bounds)


def test_clamp_with_tensors_agrees():
    x, low = torch.tensor([1.0, 2.0, 3.0, NAN, 5.0]), torch.tensor([1.0, 3.0, NAN, 0.0, 4.0])
    agrees(RULES, aten.clamp.Tensor, x, low, low + 1, gradient=False)
    agrees(RULES, aten.clamp.Tensor, x[:2], low[:2], low[:2] + 0.5)
    agrees(RULES, aten.clamp_min.Tensor, x[:2], low[:2])
    agrees(RULES, aten.clamp_max.default, x, 2.0)


@pytest.mark.parametrize("mode", ["trunc", "floor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_quotients_are_rounded_as_the_op_rounds(mode, dtype):
    normal = ~((RIGHT != 0) & (RIGHT.abs() < 1e-38))  # fmod by a subnormal is NaN if vectorised, torch 2.13
    x, y = LEFT[normal].to(dtype), RIGHT[normal].to(dtype)
    agrees(RULES, aten.div.Tensor_mode, x, y, rounding_mode=mode, gradient=False)
    agrees(
        RULES, aten.div.Tensor_mode, 9 * sample(50, dtype=dtype), sample(50, dtype=dtype, seed=1), rounding_mode=mode
    )


def test_a_floored_quotient_is_exact_where_the_rounded_one_is_not():
    assert arithmetic.div_rounded(torch.tensor(6.0), 0.1, "floor").item() == 59.0


def test_nan_to_num_replaces_what_is_not_finite():
    agrees(RULES, aten.nan_to_num.default, SPECIAL)
    agrees(RULES, aten.nan_to_num.default, SPECIAL, 7.0, 8.0, -9.0)
    agrees(RULES, aten.nan_to_num.default, WHOLE)


@pytest.mark.parametrize(
    "op", [aten.isnan, aten.isinf, aten.isfinite, aten.isposinf, aten.isneginf, aten.logical_not], ids=str
)
def test_predicates_agree(op):
    for x in (SPECIAL, WHOLE, WHOLE > 0, SPECIAL.to(torch.float16)):
        agrees(RULES, op.default, x, gradient=False)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64], ids=str)
def test_bits_agree(dtype):
    x = WHOLE.to(dtype)
    agrees(RULES, aten.bitwise_not.default, x)
    agrees(RULES, aten.bitwise_not.default, x > 0)
    counts = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7]).to(dtype)
    agrees(RULES, aten.bitwise_left_shift.Tensor, x, counts)
    agrees(RULES, aten.bitwise_right_shift.Tensor, x, counts + 2)
    agrees(RULES, aten.bitwise_right_shift.Tensor_Scalar, x, 3)
    for name in ("__and__", "__or__", "__xor__"):
        agrees(RULES, getattr(aten, name).Tensor, x, counts)
        agrees(RULES, getattr(aten, name).Scalar, x, 3)


def test_where_takes_numbers():
    condition = torch.tensor([True, False, True])
    agrees(RULES, aten.where.ScalarOther, condition, sample(3), 1)
    agrees(RULES, aten.where.ScalarSelf, condition, 2.5, torch.tensor([1, 2, 3]))
    agrees(RULES, aten.where.Scalar, condition, 1, 2)
    agrees(RULES, aten.where.Scalar, condition, 1.0, 2.0)


def test_masked_fill_broadcasts_and_keeps_the_dtype():
    mask = torch.tensor([[True], [False]])
    agrees(RULES, aten.masked_fill.Scalar, sample(2, 3), mask, -INF)
    agrees(RULES, aten.masked_fill.Scalar, sample(2, 3, dtype=torch.float16), mask, -65504.0)
    agrees(RULES, aten.masked_fill.Tensor, sample(3), mask, torch.tensor(2.0))
    agrees(RULES, aten.masked_fill.Scalar, torch.tensor([1, 2, 3]), mask, 7)


def test_the_rest_agrees():
    agrees(RULES, aten.heaviside.default, torch.tensor([-1.0, 0.0, 2.0, NAN]), torch.tensor(0.5), gradient=False)
    agrees(RULES, aten.diff.default, sample(4, 6), 2, 1, sample(4, 1, seed=1))
    agrees(RULES, aten.diff.default, torch.tensor([True, False, False]))
    agrees(RULES, aten.isclose.default, LEFT, RIGHT, equal_nan=True, gradient=False)
    agrees(RULES, aten.isclose.default, torch.complex(LEFT, RIGHT), torch.complex(LEFT, LEFT), gradient=False)
    agrees(RULES, aten.isin.Tensor_Tensor, WHOLE, torch.tensor([7, 0], dtype=torch.int8), invert=True)
    agrees(RULES, aten.isin.Tensor_Scalar, WHOLE, 7)
    agrees(RULES, aten.floor_divide.default, torch.tensor([-7, 7]), torch.tensor([2, -2]))


def test_isclose_of_complex_numbers_is_decided_by_the_last_digit():
    x = torch.tensor([complex(9.99999993922529e-09, -8.5e-31)], dtype=torch.complex64)
    y = torch.tensor([complex(-1.0236571636429575e-28, 2.5616258246541346e-12)], dtype=torch.complex64)
    assert torch.isclose(x, y) and comparison.isclose_by_parts(x, y)


def test_a_part_beside_an_infinite_one_is_added_to_a_complex_quotient():
    x, y = torch.tensor([complex(-8388608.0, NAN)]), torch.tensor([complex(-10.0, 1e-38)])
    found = arithmetic.addcdiv(x, y, torch.tensor([1e-38j]))
    assert found.real == -8388607


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x - y + torch.sub(x, y, alpha=0.5) + (1 - x) + torch.add(x, y, alpha=2),
        lambda x, y: x.abs() + x.sign() * y + torch.minimum(x, y) + x.clamp(-0.5, 0.5) + y.clamp_min(0.1),
        lambda x, y: ((x >= y) & (x > 0) | (x <= 0.1) | (x == y)).float() * x + (~(x > 0)).long(),
        lambda x, y: x.masked_fill(x > 0, -2.0) + torch.where(y > 0, x, 0.0) + torch.nan_to_num(y),
        lambda x, y: (
            torch.lerp(x, y, 0.3) + torch.addcmul(x, x, y, value=2) + torch.addcdiv(x, y, x) + torch.fmax(x, y)
        ),
        lambda x, y: torch.div(x, y, rounding_mode="floor") + torch.div(x, 2, rounding_mode="trunc"),
        lambda x, y: x.diff(append=y[:, :1]) + (x > y).bitwise_not() + x.isfinite(),
    ],
)
def test_programs_reach_the_targets(function):
    lowered_agrees(function, sample(3, 4), sample(3, 4, seed=1))


@pytest.mark.parametrize("value", [1, 3])
def test_integers_beside_floats_do_not_wrap_around(value):
    factors = torch.tensor([1, 16, 100, 255], dtype=torch.uint8)
    agrees(RULES, aten.addcmul.default, sample(4), factors, factors, value=value, gradient=False)


@pytest.mark.parametrize("number", [2.5, 3, True, 1 + 2j])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize(
    "op",
    [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.floor_divide.default, aten.copy.default],
    ids=str,
)
def test_a_number_in_the_place_of_a_tensor_is_one(op, dtype, number):
    """Those that PyTorch's dispatcher takes there, as AOTAutograd writes them."""
    if isinstance(number, complex) and op in (aten.floor_divide.default, aten.copy.default):
        return
    x = torch.tensor([[1.0, -2.0], [4.0, 5.0]]).to(dtype)
    for function in (lambda x: op(x, number), lambda x: op(number, x))[: 1 if op is aten.copy.default else 2]:
        lowered_agrees(function, x)


def test_a_number_is_copied_into_a_part_of_an_input_under_torch_compile():
    class Write(torch.nn.Module):
        def forward(self, x):
            x[0].copy_(1.0)
            return x[:1]

    torch._dynamo.reset()
    x = torch.full((4, 3), 3.0)
    found = torch.compile(Write(), backend=decomp.backend(to=targets.tinygrad))(x)
    assert found.tolist() == [[1.0] * 3] and x.tolist() == [[1.0] * 3] + [[3.0] * 3] * 3
