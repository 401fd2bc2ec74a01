"""`verify="values"` measures rules at the limits of their operands' dtypes."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp.proof.correspondence import ValuesDiffer
from decomp.validation.limits import integer_limits, of_integers
from decomp.validation.operands import special_operands
from decomp_rules import targets
from tests.forms import Holder

CHIP = decomp.Target(
    "chip", "where lt gt eq ne le ge mul neg full add sub rsub abs div clamp floor bitwise_and bitwise_or".split()
)
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
Y = X.flip(0)
WHOLE = torch.arange(-12, 12).reshape(4, 6)
DIVISORS = torch.where(WHOLE == 0, 5, WHOLE).flip(0)
TINY = torch.finfo(torch.float32).tiny


def lowered(op, function, rule, args, accuracy="standard"):
    rules = decomp.Rules()
    rules.register(op)(rule)
    to = CHIP - [op]
    return decomp.lower(Holder(function), to=to, args=args, rules=rules, accuracy=accuracy, verify="values")


def at(values, right):
    """A rule that is `right` but at these values."""
    return lambda x, *more: torch.where(values(x), right(x, *more) * 0 + 3, right(x, *more))


aten = torch.ops.aten
WRONG = {
    "sign of the smallest integer": (
        aten.sign,
        torch.sign,
        lambda x: torch.where(x > 0, 1, torch.where(-x > 0, -1, 0)),
        (WHOLE,),
    ),
    "comparison by a difference that overflows": (aten.lt, torch.lt, lambda x, y: x - y <= -1, (WHOLE, DIVISORS)),
    "maximum of the largest integer": (
        aten.maximum,
        torch.maximum,
        lambda x, y: torch.where(x - y > 0, x, y),
        (WHOLE, DIVISORS),
    ),
    "ReLU of the largest integer": (aten.relu, F.relu, lambda x: torch.clamp(x, 0, 2**40), (WHOLE,)),
    "ReLU of subnormal numbers": (
        aten.relu,
        F.relu,
        at(lambda x: (x > 0) & (x < TINY), lambda x: torch.where(x > 0, x, 0.0)),
        (X,),
    ),
    "sign of subnormal numbers": (aten.sign, torch.sign, lambda x: torch.clamp(x * 2.0**126, -1, 1), (X,)),
    "maximum of subnormal numbers": (
        aten.maximum,
        torch.maximum,
        lambda x, y: torch.where(torch.abs(x) * 2.0**-30 + torch.abs(y) * 2.0**-30 > 0, torch.where(x > y, x, y), 1.0),
        (X, Y),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_that_is_wrong_at_a_limit_of_the_dtype_is_named(name):
    with pytest.raises(ValuesDiffer, match="instead of .* on limits of the dtype"):
        lowered(*WRONG[name])


@pytest.mark.parametrize("right", [True, False])
def test_integers_of_open_sizes_are_measured_at_their_limits(right):
    """The sizes of the example say which pairs occur."""
    rows = torch.export.Dim("rows")
    program = torch.export.export(Holder(torch.lt), (WHOLE, DIVISORS), dynamic_shapes=(({0: rows}, {0: rows}),))
    rules = decomp.Rules()
    rules.register(aten.lt)(lambda x, y: y > x if right else x - y <= -1)
    if right:
        decomp.lower(program, to=CHIP - ["lt"], rules=rules, verify="values")
        return
    with pytest.raises(ValuesDiffer, match="instead of .* on limits of the dtype"):
        decomp.lower(program, to=CHIP - ["lt"], rules=rules, verify="values")


def _truncated(x):
    """Right but for the sign of a zero."""
    return torch.where(x > 0, torch.floor(x), 0 - torch.floor(0 - x))


@pytest.mark.parametrize("accuracy", ("exact", "standard"))
@pytest.mark.parametrize(
    "case",
    [
        (aten.neg, torch.neg, lambda x: 0.0 - x, (X,)),
        (aten.trunc, torch.trunc, _truncated, (X,)),
    ],
    ids=("negation", "truncation"),
)
def test_the_sign_of_a_zero_counts_at_the_level_exact_alone(case, accuracy):
    if accuracy == "standard":
        lowered(*case, accuracy=accuracy)
        return
    with pytest.raises(ValuesDiffer, match="gives 0 instead of -0 at"):
        lowered(*case, accuracy=accuracy)


OVERFLOWING = {
    "negation": (aten.neg, torch.neg, lambda x: torch.where(x < 1 - 2**63, 5, 0 - x), (WHOLE,)),
    "absolute value": (
        aten.abs,
        torch.abs,
        lambda x: torch.where(x <= -(2**63), 2**63 - 1, torch.where(x < 0, 0 - x, x)),
        (WHOLE,),
    ),
    "sum, saturated": (
        aten.add,
        torch.add,
        lambda x, y, **_: torch.where(
            (x > 0) & (y > 2**63 - 1 - x), 2**63 - 1, torch.where((x < 0) & (y < -(2**63) - x), -(2**63), x - (0 - y))
        ),
        (WHOLE, DIVISORS),
    ),
}


@pytest.mark.each_row
@pytest.mark.parametrize("name", OVERFLOWING)
def test_any_result_is_right_where_the_op_itself_overflows(name):
    proof = lowered(*OVERFLOWING[name]).proof
    assert "limits of the dtype" in " ".join(proof.checks)


LIBRARY = {
    "exp": (torch.exp, (X,)),
    "log": (torch.log, (X,)),
    "tanh": (torch.tanh, (X,)),
    "round": (torch.round, (X,)),
    "reciprocal": (torch.reciprocal, (X,)),
    "sign": (torch.sign, (X,)),
    "division": (torch.div, (X, Y)),
    "atan2": (torch.atan2, (X, Y)),
    "copysign": (torch.copysign, (X, Y)),
    "fmod": (torch.fmod, (X, Y)),
    "integers' sign": (torch.sign, (WHOLE,)),
    "integers' absolute value": (torch.abs, (WHOLE,)),
    "integers' maximum": (torch.maximum, (WHOLE, DIVISORS)),
    "integers' power": (lambda x: x**3, (WHOLE,)),
    "integers' quotient": (torch.floor_divide, (WHOLE, DIVISORS)),
    "quotient by -1": (lambda x: x // -1, (WHOLE,)),
    "integers' remainder": (torch.remainder, (WHOLE, DIVISORS)),
    "divisor": (torch.gcd, (WHOLE, DIVISORS)),
    "multiple": (torch.lcm, (WHOLE, DIVISORS)),
    "shift": (lambda x: x << 2, (WHOLE,)),
}


@pytest.mark.parametrize("accuracy", ("exact", "standard"))
@pytest.mark.parametrize("name", LIBRARY)
def test_rules_of_the_library_are_right_at_the_limits_of_the_dtype(name, accuracy):
    function, args = LIBRARY[name]
    decomp.lower(Holder(function), to=targets.tinygrad, args=args, accuracy=accuracy, verify="values")


@pytest.mark.parametrize("shapes", [((4, 6), (4, 6)), ((4, 1), (6,))])
def test_the_smallest_integer_is_never_divided_by_minus_one(shapes):
    program = torch.export.export(Holder(torch.floor_divide), tuple(torch.ones(s, dtype=torch.int32) for s in shapes))
    (node,) = [node for node in program.graph.nodes if node.op == "call_function"]
    assert of_integers(node)
    smallest = torch.iinfo(torch.int32).min
    met = set()
    for turn in range(4):
        for one, other in integer_limits(node, turn):
            pairs = torch.broadcast_tensors(one, other)
            met |= set(zip(*(each.flatten().tolist() for each in pairs)))
        assert (other != 0).all()
    largest = torch.iinfo(torch.int32).max
    assert {(smallest, largest), (largest, smallest), (-1, largest), (0, 1)} <= met and (smallest, -1) not in met


@pytest.mark.parametrize("exact", [False, True])
def test_special_values_meet_each_other_in_all_pairs(exact):
    x, y = torch.randn(21, 21), torch.randn(21, 21)
    program = decomp.lower(Holder(torch.maximum), to=decomp.Target("maximum", ["maximum"]), args=(x, y)).result
    call = next(node for node in program.graph.nodes if node.op == "call_function")
    first, second = next(special_operands(call, exact))
    kinds = len({repr(number) for number in first.flatten().tolist()})
    pairs = set(zip(map(repr, first.flatten().tolist()), map(repr, second.flatten().tolist())))
    assert len(pairs) == kinds**2
