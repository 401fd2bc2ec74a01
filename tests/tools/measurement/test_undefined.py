"""Undefined integer arithmetic in C++: the cases that certification finds, and those that it excuses."""

import pytest
import torch

import decomp
from decomp import Rules
from decomp.tools.measurement.undefined import watched
from decomp_rules.index import selection
from decomp_rules.pointwise import arithmetic, bits, comparison, exponential, quotient, representation

I32, I64 = torch.iinfo(torch.int32), torch.iinfo(torch.int64)


def found_in(function, *tensors):
    return [f"{each.what}: {each.call}" for each in watched(lambda args: function(*args), tensors).found]


def i32(*values):
    return torch.tensor(values, dtype=torch.int32)


def i64(*values):
    return torch.tensor(values)


def f32(*values):
    return torch.tensor(values)


@pytest.mark.parametrize(
    "function, good, bad, said",
    [
        (torch.add, (i32(I32.max), i32(0)), (i32(I32.max), i32(1)), "overflow: add of int32"),
        (torch.add, (i64(I64.max), i64(-1)), (i64(I64.min), i64(-1)), "overflow: add of int64"),
        (torch.sub, (i64(-1), i64(I64.min)), (i64(0), i64(I64.min)), "overflow: sub of int64"),
        (torch.Tensor.sub_, (i64(-1), i64(I64.min)), (i64(0), i64(I64.min)), "overflow: sub_ of int64"),
        (torch.mul, (i32(-46341), i32(46340)), (i32(46341), i32(46341)), "overflow: mul of int32"),
        (torch.mul, (i64(1 << 62), i64(-2)), (i64(1 << 62), i64(2)), "overflow: mul of int64"),
        (torch.mul, (i64(I64.min), i64(1)), (i64(I64.min), i64(-1)), "overflow: mul of int64"),
        (torch.neg, (i32(I32.max),), (i32(I32.min),), "overflow: neg of int32"),
        (torch.abs, (i64(-I64.max),), (i64(I64.min),), "overflow: abs of int64"),
        (lambda x: x.to(torch.int32), (f32(2147483520.0),), (f32(2.0**31),), "a cast to int32"),
        (lambda x: x.to(torch.int64), (f32(-(2.0**63)),), (f32(torch.nan),), "a cast to int64"),
        (lambda x: x.to(torch.uint8), (f32(-0.5),), (f32(-1.0),), "a cast to uint8"),
        (torch.bitwise_left_shift, (i32(1), i32(30)), (i32(1), i32(31)), "a left shift that overflows"),
        (torch.bitwise_left_shift, (i64(0), i64(63)), (i64(-1), i64(1)), "a left shift that overflows"),
        (torch.bitwise_right_shift, (i64(-5), i64(63)), (i64(-5), i64(64)), "a shift out of range"),
        (torch.remainder, (i64(5), i64(-1)), (i64(5), i64(0)), "division by zero: remainder"),
        (torch.fmod, (i64(-I64.max), i64(-1)), (i64(I64.min), i64(-1)), "a quotient that overflows: fmod"),
        (lambda x: x.sum(0), (i64(I64.max, 0),), (i64(I64.max, I64.max),), "overflow: sum of int64"),
    ],
)
def test_operands_without_a_value_are_found_and_their_neighbours_are_not(function, good, bad, said):
    assert found_in(function, *good) == []
    assert any(each.startswith(said) for each in found_in(function, *bad))


def test_narrow_and_unsigned_integers_wrap():
    byte, short = torch.tensor([200], dtype=torch.uint8), torch.tensor([32767], dtype=torch.int16)
    assert found_in(torch.add, byte, byte) == found_in(torch.mul, short, short) == []


def test_a_rule_that_counts_on_overflow_has_a_fault_that_names_the_input():
    faults = "\n".join(
        decomp.certify(
            Rules({"relu": lambda x: x * (x.view(torch.int32) * 2 >= 0)})["relu"][0], dtypes=(torch.float32,)
        ).faults
    )
    assert "arithmetic: counts on overflow: mul of int32 of " in faults and ", at " in faults


def test_a_rule_that_casts_what_is_no_number_has_a_fault():
    def rule(x):
        return torch.where(x < 0, x.to(torch.int64).to(x.dtype) * 0 + torch.ceil(x), torch.ceil(x))

    assert "counts on a cast to int64 out of range" in "\n".join(
        decomp.certify(Rules({"ceil": rule})["ceil"][0], dtypes=(torch.float32,)).faults
    )


def test_what_the_op_itself_overflows_is_no_fault_of_the_rule():
    certified = decomp.certify(Rules({"neg": lambda x: x * -1})["neg"][0], dtypes=(torch.float32,))
    assert certified.ok, certified.faults


# the rules of the library, where they would be asked: exact, and without a value nowhere

EDGES = (0, 1, 2, 3, 7, 31, -1, -2, -3, I32.max, I32.min, 1 << 20, -(1 << 30))
WIDE = tuple(EDGES) + (I64.max, I64.min, I64.max - 1, I64.min + 1, (1 << 62) + 1, -(1 << 53))


def pairs(dtype):
    values = torch.tensor(WIDE if dtype is torch.int64 else EDGES, dtype=dtype)
    return values.repeat_interleave(len(values)), values.repeat(len(values))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "rule, op",
    [
        (bits.bitwise_and, torch.bitwise_and),
        (bits.bitwise_or, torch.bitwise_or),
        (bits.bitwise_xor, torch.bitwise_xor),
        (comparison.eq_of_integers, torch.eq),
        (comparison.ne_of_integers, torch.ne),
        (bits.left_shift_of_integers, torch.bitwise_left_shift),
        (bits.bitwise_right_shift, torch.bitwise_right_shift),
    ],
    ids=lambda value: value.__name__,
)
def test_integers_at_the_ends_of_their_range(rule, op, dtype):
    x, y = pairs(dtype)
    assert torch.equal(rule(x, y), op(x, y))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_differences_overflow_only_where_they_are_beyond_the_dtype(dtype):
    x, y = pairs(dtype)
    info, exact = torch.iinfo(dtype), [a - b for a, b in zip(x.tolist(), y.tolist())]
    fits = torch.tensor([info.min <= difference <= info.max for difference in exact])
    x, y = x[fits], y[fits]
    for rule in (arithmetic.sub, arithmetic.sub_of_complement):
        assert torch.equal(rule(x, y), x - y)
    assert torch.equal(arithmetic.rsub(y, x), x - y)
    for rule in (arithmetic.sub, arithmetic.rsub, bits.bitwise_and, bits.bitwise_or, bits.bitwise_xor):
        assert found_in(rule, *((y, x) if rule is arithmetic.rsub else (x, y))) == []
    assert found_in(bits.bitwise_not, x) == []
    assert found_in(lambda x, y: torch.bitwise_not(torch.bitwise_not(x) + y), x, y) == []


def test_powers_overflow_only_where_the_result_does():
    x, e = i64(3, -3, 2, 1, -1, 0, 7, -1, 2, 5), i64(39, 39, 62, I64.max, I64.max, I64.max, 0, -3, -1, 1)
    assert torch.equal(bits.power_of_integers(x, e), torch.pow(x, e))
    assert found_in(bits.power_of_integers, x, e) == []


def test_quotients_of_the_largest_integers_are_exact_and_nothing_on_the_way_overflows():
    x, y = pairs(torch.int64)
    x, y = x[(y != 0) & ((y != -1) | (x != I64.min))], y[(y != 0) & ((y != -1) | (x != I64.min))]
    for mode in ("trunc", "floor"):
        assert torch.equal(bits.integer_quotient(x, y, mode), torch.div(x, y, rounding_mode=mode))
    assert found_in(lambda x, y: bits.integer_quotient(x, y, "trunc"), x, y) == []


def test_where_keeps_integers_whose_difference_overflows():
    x, y = pairs(torch.int64)
    assert torch.equal(selection.where_of_integers(x > y, x, y), torch.where(x > y, x, y))
    assert found_in(selection.where_of_integers, x > y, x, y) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_read_as_integers_overflow_nowhere(dtype):
    ends = [0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, -torch.nan, torch.finfo(dtype).max, 1e-310, 3e38]
    x = torch.tensor(ends, dtype=dtype)
    x, y = x.repeat_interleave(len(x)), x.repeat(len(x))
    assert found_in(exponential.exp_by_bits, x) == []
    assert found_in(representation.nextafter_by_bits, x, y) == []
    assert found_in(quotient.fmod, x, y) == []
