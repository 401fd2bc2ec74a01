"""How the arguments of a call reach the parameters of a rule, in both dialects, with and without metadata."""

import inspect

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp.ir.ops import of_function
from decomp.ir.python_signatures import python_signature
from tests.forms import anywhere, check, decomposed, ops, outcome, same, x

# Arguments.


@anywhere
def test_defaults_of_the_op_are_filled_in(form):
    def leaky(x, negative_slope):
        return torch.where(x > 0, x, x * negative_slope)

    result = check(lambda x: F.leaky_relu(x), {F.leaky_relu: leaky}, form)
    assert ops(result) == ["gt", "mul", "where"]


@anywhere
@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.leaky_relu(x, 0.5),
        lambda x: F.leaky_relu(x, negative_slope=0.5),
        lambda x: F.leaky_relu(input=x, negative_slope=0.5),
        lambda x: F.leaky_relu(x, 0.5, False),
    ],
)
def test_positional_and_keyword_arguments_reach_the_rule_alike(call, form):
    def leaky(x, negative_slope=7.0):
        return torch.where(x > 0, x, x * negative_slope)

    result = check(call, {F.leaky_relu: leaky}, form)
    assert ops(result) == ["gt", "mul", "where"]


@anywhere
def test_a_keyword_only_parameter_is_bound_by_name(form):
    def add(x, other, *, alpha=1):
        return torch.sub(x, other, alpha=-alpha)

    result = check(lambda x: torch.add(x, x, alpha=2), {torch.add: add}, form)
    assert ops(result) == ["sub"]


@anywhere
def test_a_default_of_the_rule_serves_what_the_overload_lacks(form):
    def total(x, dim=None, keepdim=False, dtype=None):
        return torch.mean(x) if dim is None else torch.mean(x, dim, keepdim)

    result = check(lambda x: torch.sum(x), {torch.sum: total}, form, expected=lambda x: x.mean())
    assert ops(result) == ["mean"]


@anywhere
def test_an_argument_that_the_rule_does_not_take_passes_it_over(form):
    def softplus(x):
        return torch.log1p(torch.exp(x))

    result = check(lambda x: F.softplus(x, beta=2.0), {F.softplus: softplus}, form)
    assert ops(result) == ["softplus"]


@anywhere
def test_an_argument_at_its_default_does_not_need_to_be_taken(form):
    def softplus(x):
        return x * 2

    result = check(
        lambda x: F.softplus(x, beta=1, threshold=20), {F.softplus: softplus}, form, expected=lambda x: x * 2
    )
    assert ops(result) == ["mul"]


@anywhere
def test_a_list_of_tensors_is_a_list(form):
    def stack(tensors, dim=0):
        assert len(tensors) == 3
        return torch.cat([t.unsqueeze(dim) for t in tensors], dim)

    result = check(lambda x: torch.stack([x, x + 1, x], 1), {torch.stack: stack}, form)
    assert ops(result) == ["add", "unsqueeze", "unsqueeze", "unsqueeze", "cat"]


@anywhere
def test_a_rule_may_take_any_arguments_of_the_call(form):
    def anything(*args, **kwargs):
        return torch.mul(*args, **kwargs)

    result = check(lambda x: x + x, {torch.add: anything}, form, expected=lambda x: x * x)
    assert ops(result) == ["mul"]


@anywhere
@pytest.mark.parametrize(
    "call",
    [
        lambda x: x - 2,
        lambda x: 2 - x,
        lambda x: x * 2.5,
        lambda x: 2.5 * x,
        lambda x: 3 / x,
        lambda x: x / 3,
        lambda x: x**2,
        lambda x: 2**x,
    ],
)
def test_numbers_stand_on_either_side_of_an_operator_inside_a_rule(call, form):
    check(torch.relu, {F.relu: call}, form, expected=call)


@anywhere
@pytest.mark.parametrize("call", [lambda x: x - 2, lambda x: 2 - x, lambda x: torch.sub(x, 2), lambda x: x.sub(2)])
def test_numbers_stand_on_either_side_of_an_operator_outside(call, form):
    def sub(x, other, alpha=1):
        return x * 10 + other

    def rsub(x, other, alpha=1):
        return x * 100 + other

    result = decomposed(call, {torch.sub: sub, torch.rsub: rsub}, (x(),), form)
    found = outcome(result, x())
    assert same(found, x() * 10 + 2) or same(found, x() * 100 + 2) or same(found, 2 * 10 + x())


# Names of the spelling, and what is not named.


@anywhere
def test_parameters_may_have_the_names_of_the_function_registered_with(form):
    def dropout(input, p, training, inplace):
        assert (p, training, inplace) == (0.25, False, False)
        return input * 2

    check(lambda x: F.dropout(x, 0.25, False), {F.dropout: dropout}, form, expected=lambda x: x * 2)


@anywhere
@pytest.mark.parametrize("call", [lambda x: F.leaky_relu(x, 0.5), lambda x: F.leaky_relu(x)])
def test_a_rule_may_take_what_it_does_not_name_as_keywords(call, form):
    def leaky(x, **others):
        return torch.where(x > 0, x, x * others.get("negative_slope", 0.01))

    check(call, {F.leaky_relu: leaky}, form)


@anywhere
def test_keywords_have_the_names_of_the_function_registered_with(form):
    seen = []

    def dropout(x, **others):
        seen.append(others)
        return x * 2

    check(lambda x: F.dropout(x, 0.25, False), {F.dropout: dropout}, form, expected=lambda x: x * 2)
    assert seen[0]["p"] == 0.25 and seen[0]["training"] is False


@anywhere
def test_a_rule_that_cannot_be_called_with_the_arguments_is_passed_over(form):
    rules = {torch.add: lambda x, *others: x * 2}
    result = check(lambda x: torch.add(x, x, alpha=3), rules, form)
    assert ops(result) == ["add"]


PYTHON = [f for name, f in vars(F).items() if inspect.isfunction(f) and not name.startswith("_")]
SPELLED = [f for f in PYTHON if of_function(f).op.packet is not None and python_signature(f) is not None]


@pytest.mark.parametrize("function", SPELLED, ids=lambda f: f.__name__)
def test_every_function_s_own_parameter_names_are_accepted(function):
    parameters = python_signature(function).parameters.values()
    names = ", ".join(f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name for p in parameters)
    scope = {}
    exec(f"def rule({names}):\n    return 0", scope)
    assert function in decomp.Rules({function: scope["rule"]})
