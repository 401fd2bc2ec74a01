"""Gradients at ties: those of torch 2.11 to 2.13 by the rules of `arithmetic`, later ones by `shared_ties`,
each against numbers that these versions gave, whatever is installed."""

import itertools
import math

import pytest
import torch

import decomp
from decomp_rules.pointwise import arithmetic, shared_ties
from decomp_rules.reduce import order_statistics

NAN = math.nan
BEFORE, NOW = arithmetic, shared_ties
POINTS = (0.0, 1.0, 2.0, NAN)


def gradients(function, *values):
    """The value, and the gradient of each operand."""
    tensors = [torch.tensor(value, requires_grad=True) for value in values]
    result = function(*tensors)
    found = torch.autograd.grad(result, tensors, allow_unused=True)
    return [result.item(), *(0.0 if each is None else each.item() for each in found)]


def has_rule(module, name):
    return bool(module.RULES.of(decomp.op(f"aten.{name}")))


@pytest.mark.parametrize(
    "rules, name, x, other, wanted",
    [
        (BEFORE, "fmax", 1.0, 1.0, [1.0, 1.0, 0.0]),
        (BEFORE, "fmin", 1.0, 1.0, [1.0, 1.0, 0.0]),
        (NOW, "fmax", 1.0, 1.0, [1.0, 0.5, 0.5]),
        (NOW, "fmin", 1.0, 1.0, [1.0, 0.5, 0.5]),
        *((rules, "fmax", 0.0, 1.0, [1.0, 0.0, 1.0]) for rules in (BEFORE, NOW)),
        *((rules, "fmin", 0.0, 1.0, [0.0, 1.0, 0.0]) for rules in (BEFORE, NOW)),
        *((rules, name, 1.0, NAN, [1.0, 1.0, 0.0]) for rules in (BEFORE, NOW) for name in ("fmax", "fmin")),
        *((rules, name, NAN, 1.0, [1.0, 0.0, 1.0]) for rules in (BEFORE, NOW) for name in ("fmax", "fmin")),
    ],
)
def test_a_tie_of_fmax_went_to_the_first_and_is_shared(rules, name, x, other, wanted):
    assert gradients(getattr(rules, name), x, other) == wanted


@pytest.mark.parametrize(
    "rules, bounds, wanted",
    [(BEFORE, (0.0, 2.0), [0, 1, 1, 1, 0]), (NOW, (0.0, 2.0), [0, 0, 1, 0, 0])]
    + [(BEFORE, (None, 2.0), [1, 1, 1, 1, 0]), (NOW, (None, 2.0), [1, 1, 1, 0, 0])]
    + [(BEFORE, (2.0, 2.0), [0, 0, 0, 1, 0]), (NOW, (2.0, 2.0), [0, 0, 0, 0, 0])]
    + [(rules, (2.0, 0.0), [0, 0, 0, 0, 0]) for rules in (BEFORE, NOW)],
)
def test_a_bound_that_is_a_number_had_a_gradient_and_has_none(rules, bounds, wanted):
    x = torch.tensor([-1.0, 0.0, 1.0, 2.0, 3.0], requires_grad=True)
    result = rules.clamp(x, *bounds)
    assert torch.autograd.grad(result.sum(), x)[0].tolist() == wanted
    assert torch.equal(result, torch.clamp(x, *bounds))


def test_one_tensor_of_bounds_shares_a_tie():
    assert gradients(lambda x, low: BEFORE.clamp(x, low), 1.0, 1.0) == [1.0, 1.0, 0.0]
    assert gradients(lambda x, low: NOW.clamp(x, low), 1.0, 1.0) == [1.0, 0.5, 0.5]
    assert gradients(lambda x, most: BEFORE.clamp(x, None, most), 1.0, 1.0) == [1.0, 1.0, 0.0]
    assert gradients(lambda x, most: NOW.clamp(x, None, most), 1.0, 1.0) == [1.0, 0.5, 0.5]


@pytest.mark.parametrize(
    "x, least, most, before, now",
    [
        (0.0, 0.0, 0.0, [1, 0, 0], [1, 0, 0]),
        (0.0, 0.0, 1.0, [1, 0, 0], [0.5, 0.5, 0]),
        (1.0, 0.0, 1.0, [1, 0, 0], [0.5, 0, 0.5]),
        (0.0, 1.0, 1.0, [0, 0, 0], [0, 1, 0]),
        (2.0, 1.0, 1.0, [0, 0, 1], [0, 0, 1]),
        (1.0, 2.0, 0.0, [0, 0, 1], [0, 0, 1]),
        (0.0, 1.0, 2.0, [0, 1, 0], [0, 1, 0]),
        (NAN, 0.0, 1.0, [0, 0, 0], [1, 0, 0]),
        (NAN, 1.0, 0.0, [0, 0, 1], [1, 0, 1]),
        (1.0, NAN, 2.0, [0, 0, 0], [1, 0, 0]),
        (0.0, 1.0, NAN, [0, 0, 0], [0, 0, 0]),
    ],
)
def test_two_tensors_of_bounds_share_ties_where_they_do_not_meet(x, least, most, before, now):
    assert gradients(BEFORE.clamp, x, least, most)[1:] == before
    assert gradients(NOW.clamp, x, least, most)[1:] == now


@pytest.mark.parametrize("name, bounds", [("clamp", 2), ("clamp", 1), ("fmax", 1), ("fmin", 1)])
def test_the_rules_of_the_installed_version_have_the_gradients_of_its_op(name, bounds):
    module = NOW if has_rule(NOW, name) else BEFORE
    for values in itertools.product(POINTS, repeat=1 + bounds):
        if name != "clamp" and NAN in values and torch.__version__.startswith("2.14"):
            continue  # PyTorch 2.14 alone gives both operands the whole gradient there: `changes.nan_shares_gradients`
        found, wanted = gradients(getattr(module, name), *values), gradients(getattr(torch, name), *values)
        assert torch.allclose(torch.tensor(found), torch.tensor(wanted), 0, 0, equal_nan=True), values


def test_of_each_op_with_another_meaning_one_side_is_registered():
    for name in ("clamp", "fmax", "fmin"):
        assert has_rule(BEFORE, name) != has_rule(NOW, name)


def test_clamp_of_whole_numbers_is_that_of_the_op():
    x, low, high = torch.tensor([-3, 0, 3]), torch.tensor([-1, 0, 5]), torch.tensor([1, 0, 4])
    for bounds in ((-1, 1), (None, 1), (low, high), (low, None), (0.5, None)):
        assert torch.equal(NOW.clamp(x, *bounds), torch.clamp(x, *bounds))
    assert NOW.fmax(x, low).dtype == torch.int64 and torch.equal(NOW.fmin(x, low), torch.fmin(x, low))


def weights(rule, *q):
    """How much of each of eleven elements in order a quantile is."""
    x = torch.arange(11.0, requires_grad=True)
    found = torch.autograd.grad(rule(x, *q).sum(), x)[0]
    return {place: weight for place, weight in enumerate(found.tolist()) if weight}


@pytest.mark.parametrize(
    "before, now", [("quantile_at_number", "quantile_at_wide_number"), ("quantile", "wide_quantile")]
)
def test_a_quantile_at_tenths_was_an_element_and_lies_beside_it(before, now):
    assert weights(getattr(order_statistics, before), 0.3) == {3: 1.0}
    assert weights(getattr(order_statistics, now), 0.3) == {3: 1 - 2**-23, 4: 2**-23}
    assert weights(getattr(order_statistics, before), 0.7) == {7: 1.0}
    assert weights(getattr(order_statistics, now), 0.7) == {6: 2**-23, 7: 1 - 2**-23}


def test_a_quantile_without_nan_at_tenths_was_an_element_and_lies_beside_it():
    assert weights(order_statistics.nanquantile, 0.3) == {3: 1.0}
    assert weights(order_statistics.wide_nanquantile, 0.3) == {3: 1 - 2**-23, 4: 2**-23}
