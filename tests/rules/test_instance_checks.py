"""A rule that asks `isinstance(x, torch.Tensor)` is refused when it is registered, with the line that asks."""

import functools
import linecache

import pytest
import torch
from torch import Tensor, fx

import decomp
from decomp_rules.support.floating import is_tensor


def by_attribute(input, other):
    return input if isinstance(other, torch.Tensor) else input * other


def by_name(input, other):
    if not isinstance(other, (int, Tensor)):
        return input
    return input * other


def is_one(value):
    return isinstance(value, Tensor)


def by_helper(input, other):
    return input if is_one(other) else input * other


def by_function(input, other):
    return input if torch.is_tensor(other) else input * other


def by_parameter(input, other):
    return input if isinstance(other.detach(), torch.nn.Parameter) else input * other


def by_inner_function(input, other):
    return next(filter(lambda value: isinstance(value, Tensor), (other,)), input)


@pytest.mark.parametrize(
    ("rule", "asked", "place"),
    [
        (by_helper, "isinstance(..., torch.Tensor)", is_one),
        (by_function, "torch.is_tensor(...)", by_function),
        (by_parameter, "isinstance(..., torch.Tensor)", by_parameter),
        (by_inner_function, "isinstance(..., torch.Tensor)", by_inner_function),
        (functools.partial(by_function), "torch.is_tensor(...)", by_function),
    ],
)
def test_nor_may_what_it_calls(rule, asked, place):
    with pytest.raises(decomp.errors.RuleError) as caught:
        decomp.Rules({torch.mul: rule})
    first, second, _ = str(caught.value).splitlines()
    assert first.endswith(f"calls {asked}, which is false for the proxies that a rule runs on")
    assert second.startswith(f"  at test_instance_checks.py:{place.__code__.co_firstlineno + 1}: ")


@pytest.mark.parametrize("rule", [by_attribute, by_name])
def test_a_rule_may_not_ask_for_tensors(rule):
    with pytest.raises(decomp.errors.RuleError) as caught:
        decomp.Rules({torch.mul: rule})
    first = rule.__code__.co_firstlineno
    text = linecache.getline(__file__, first + 1).strip()
    assert str(caught.value) == (
        f"rule {rule.__name__} (test_instance_checks.py:{first}): calls isinstance(..., torch.Tensor), which is false "
        "for the proxies that a rule runs on\n"
        f"  at test_instance_checks.py:{first + 1}: {text}\n"
        "  to do: check isinstance(x, (int, float, complex)) for numbers; every other operand is a tensor"
    )


@pytest.mark.parametrize(
    "rule",
    [
        lambda input, other: input if isinstance(other, (int, float)) else input * other,
        lambda input, other: input if isinstance(other, (Tensor, fx.Proxy)) else input * other,
        lambda input, other: input if is_tensor(other) else input * other,
        lambda input, other: input.to(torch.float32) if type(other) is int else torch.Tensor.mul(input, other),
    ],
)
def test_other_questions_may_be_asked(rule):
    assert len(decomp.Rules({torch.mul: rule})) == 1
