"""On a target of fifteen primitives, selection, indexing and comparison come out as the ops have them: special values,
broadcasting, promotion and the gradient of what is not chosen included."""

import math

import pytest
import torch

import decomp
from decomp_rules import targets
from decomp_rules.index import numbering, selection
from decomp_rules.pointwise import bits, comparison
from tests.decomp_rules.rule_agreement import agrees, compare, evaluated
from tests.forms import Holder

aten = torch.ops.aten
INF, NAN = math.inf, math.nan
VALUES = torch.tensor([1.0, -2.0, 0.0, -0.0, INF, -INF, NAN, 1e-45, 3e38, -3e38, 0.5])
ROWS, COLUMNS = VALUES[:, None].expand(11, 11).contiguous(), VALUES.expand(11, 11).contiguous()
MASK = torch.arange(121).view(11, 11) * 7 % 5 < 2
TABLE = torch.arange(60.0).view(3, 4, 5) * 0.5 - 7
SPOTS = torch.tensor([2, 0, -1])
WHOLE = torch.tensor([0, 1, 2, 3, -1, -2, 7, -7, 100, -100])


def lowered(function, *args):
    """The function in luminal's primitives."""
    return decomp.lower(Holder(function), to=targets.luminal, args=args, accuracy="exact").result


def alike(function, *args, gradient=True):
    """Assert that it computes the same there, down to the sign of zero, and has the same gradient."""
    trained = [gradient] * len(args)
    expected, grads = evaluated(function, args, {}, trained)
    found, found_grads = evaluated(lowered(function, *args), args, {}, trained)
    compare(found, expected, 0, "value")
    compare(found_grads, grads, 1e-6, "gradient")
    for mine, theirs in zip(found, expected):
        if theirs.is_floating_point():
            number = torch.isfinite(theirs)
            assert torch.equal(torch.signbit(mine[number]), torch.signbit(theirs[number]))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.where(MASK, x, y),
        lambda x, y: torch.where(MASK, x, 0.0),
        lambda x, y: torch.where(MASK, -0.0, x),
        lambda x, y: torch.where(MASK[:1], x, y[:, :1]),
        lambda x, y: torch.where(MASK, y[3, 3], x),
        lambda x, y: torch.where(MASK, y[3, 3], y[4, 4]),
        lambda x, y: torch.where(MASK[0, 0], x.t(), y),
        lambda x, y: torch.where(MASK[:0], x[:0], y[:0]),
        lambda x, y: torch.where(MASK, x, y.double()),
        lambda x, y: x.masked_fill(MASK, -INF) + y.masked_fill(MASK[0], NAN),
        lambda x, y: torch.cat([x, y, x[:2]]),
        lambda x, y: torch.stack([x, y], 1).flip(0, 2),
    ],
)
def test_what_is_not_chosen_does_not_leak(function):
    alike(function, ROWS, COLUMNS)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8, torch.bool])
def test_whole_numbers_are_blended(dtype):
    x, y = WHOLE.to(dtype), WHOLE.flip(0).to(dtype)
    chosen = WHOLE % 2 == 0
    alike(lambda x, y: torch.where(chosen, x, y), x, y)
    alike(lambda x, y: torch.where(chosen, x, 1), x, y)
    alike(lambda x, y: torch.where(chosen, 0.5, y), x, y)


def test_complex_numbers_are_chosen_with_their_infinities():
    x = torch.complex(ROWS, COLUMNS)
    alike(lambda x: torch.where(MASK, x, x.t()), x, gradient=False)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("op", [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge])
def test_comparisons_know_nan(op, dtype):
    alike(op, ROWS.to(dtype), COLUMNS.to(dtype), gradient=False)
    for number in (0, 1, 0.5, -2.0, 0.1, INF, -INF, NAN, 3.4028234663852886e38, 1e-45):
        alike(lambda x: op(x, number), VALUES.to(dtype), gradient=False)


@pytest.mark.parametrize("op", [torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge])
def test_comparisons_of_whole_numbers(op):
    alike(op, WHOLE[:, None], WHOLE, gradient=False)
    alike(lambda x: op(x, 2), WHOLE, gradient=False)
    alike(lambda x: op(x, 2.5), WHOLE, gradient=False)


def test_truth_and_kinds_of_floats():
    alike(
        lambda x, y: (torch.logical_and(x, y), torch.logical_or(x, y), torch.logical_xor(x, y)),
        ROWS,
        COLUMNS,
        gradient=False,
    )
    alike(lambda x: (torch.logical_not(x), x.isnan(), x.isinf(), x.isfinite(), x.signbit()), VALUES, gradient=False)


def test_ties_and_nan_of_the_larger():
    alike(torch.maximum, *(x.nan_to_num(2.0) for x in (ROWS, COLUMNS)))
    assert torch.isnan(lowered(torch.minimum, ROWS, COLUMNS)(ROWS, COLUMNS)[6]).all()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.index_select(0, SPOTS.abs()) + x.index_select(0, SPOTS.abs()),
        lambda x: x.index_select(-1, SPOTS.abs()),
        lambda x: x[SPOTS] * 2,
        lambda x: x[:, SPOTS],
        lambda x: x[SPOTS, SPOTS - 1],
        lambda x: x[SPOTS, :, SPOTS - 1],
        lambda x: x[:, SPOTS[:, None], SPOTS],
        lambda x: x[:, :0][SPOTS],
        lambda x: x[SPOTS[:0]],
        lambda x: x.take(SPOTS - 5),
        lambda x: x.gather(1, (SPOTS.abs().view(3, 1, 1)).expand(3, 2, 4)),
        lambda x: x.gather(0, SPOTS.abs().view(3, 1, 1)),
        lambda x: x[0, 0, 0].gather(0, torch.tensor([0, 0])),
        lambda x: x.index_put([SPOTS], x[:, :1] * 2),
        lambda x: x.index_put([SPOTS], x * 2, True),
        lambda x: x.index_copy(1, SPOTS.abs(), x[:, 1:]),
        lambda x: x.index_fill(2, SPOTS.abs(), 9.0),
        lambda x: x.scatter(1, SPOTS.abs().view(3, 1, 1), 2.5).scatter_add(2, SPOTS.abs().view(1, 1, 3), x[:1, :1, :3]),
        lambda x: x.sort(1, descending=True)[0] + x.topk(2, 0)[0][:1] + x.max(2, keepdim=True)[0],
        lambda x: x.cumsum(1) + x.select_scatter(x[:, :, 0], 2, 1) + x.diagonal_scatter(x[0, :, :3], 0, 0, 2)[0, 0, 0],
    ],
)
def test_indices_become_row_major_numbers(function):
    alike(function, TABLE)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_whole_numbers_divide_exactly(dtype):
    limits, generator = torch.iinfo(dtype), torch.Generator().manual_seed(3)
    some = torch.randint(limits.min, limits.max, (60,), generator=generator, dtype=torch.int64)
    edges = torch.tensor([1, 2, 3, 7, 100, limits.max, limits.max - 1, limits.min, limits.min + 1])
    less = some >> torch.arange(60) % (8 * dtype.itemsize)
    values = torch.cat([edges, some, less]).to(dtype)
    values = values[values != 0]
    x, y = (side.reshape(-1) for side in torch.meshgrid(values, values, indexing="ij"))
    defined = ~((x == limits.min) & (y == torch.tensor(-1, dtype=torch.int64).to(dtype)))
    x, y = x[defined], y[defined]
    alike(lambda x, y: torch.div(x, y, rounding_mode="trunc"), x, y)
    alike(lambda x, y: torch.div(x, y, rounding_mode="floor"), x, y)
    alike(torch.remainder, x, y)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.int8, torch.uint8, torch.bool])
def test_bits_are_sums(dtype):
    x, y = (side.to(dtype) for side in (WHOLE[:, None] * 12345678901, WHOLE * 987654321))
    alike(lambda x, y: (x & y, x | y, x ^ y, ~x), x, y)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_powers_and_shifts_wrap(dtype):
    count = torch.tensor([0, 1, 3, 7, 8, 63, 64] + [-1] * dtype.is_signed).to(dtype)
    alike(lambda x, y: (x << y, x >> y), WHOLE[:, None].to(dtype), count)
    alike(torch.pow, WHOLE[:, None].to(dtype), count)


def test_the_rules_agree_one_by_one():
    rules = selection.RULES | numbering.RULES | bits.RULES | comparison.RULES
    agrees(rules, aten.where.self, MASK, ROWS.nan_to_num(), COLUMNS.nan_to_num())
    agrees(rules, aten.cat.default, [ROWS, COLUMNS], 1, gradient=False)
    agrees(rules, aten.index_put.default, TABLE, [SPOTS], TABLE * 2)
    agrees(rules, aten.gather.default, TABLE, 1, SPOTS.abs().view(3, 1, 1))
