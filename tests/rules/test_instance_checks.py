"""A rule that asks `isinstance(x, torch.Tensor)` is refused when it is registered, with the line that asks."""

import linecache

import pytest
import torch
from torch import Tensor, fx

import decomp


def by_attribute(input, other):
    return input if isinstance(other, torch.Tensor) else input * other


def by_name(input, other):
    if not isinstance(other, (int, Tensor)):
        return input
    return input * other


@pytest.mark.parametrize("rule", [by_attribute, by_name])
def test_a_rule_may_not_ask_for_tensors(rule):
    with pytest.raises(decomp.RuleError) as caught:
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
        lambda input, other: input.to(torch.float32) if type(other) is int else torch.Tensor.mul(input, other),
    ],
)
def test_other_questions_may_be_asked(rule):
    assert len(decomp.Rules({torch.mul: rule})) == 1
