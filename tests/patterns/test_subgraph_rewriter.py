"""The cases of `torch.fx.subgraph_rewriter.replace_pattern` and its own tests: what it replaces rightly is replaced
alike, and what it gets wrong is not."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.fx.subgraph_rewriter import replace_pattern
from torch.nn import functional as F

import decomp

x, y, w = torch.rand(4, 4) - 0.5, torch.rand(4, 4), torch.rand(4, 4)


@fx.wrap
def gemm_and_product(a, w, b):
    out = F.linear(a, w, b)
    return out, out * a


@fx.wrap
def twice(v):
    return 2 * v


def ours(function, pattern, replacement, **options):
    rules = decomp.Rules()
    rules.pattern(pattern, **options)(replacement)
    return decomp.decompose(fx.symbolic_trace(function), rules)


def theirs(function, pattern, replacement):
    traced = fx.symbolic_trace(function)
    replace_pattern(traced, pattern, replacement)
    return traced


def calls(program):
    return sum(node.op.startswith("call") for node in program.graph.nodes)


RIGHT = {
    "the same logic": (
        lambda x: (v := torch.neg(x) + torch.relu(x)) + v,
        lambda x: torch.neg(x) + torch.relu(x),
        lambda x: torch.neg(x) + torch.relu(x),
    ),
    "one line": (lambda x: (v := torch.neg(x)) + v, lambda x: torch.neg(x), lambda x: torch.relu(x)),
    "one match": (
        lambda x: (v := torch.neg(x) + torch.relu(x)) + v,
        lambda x: torch.neg(x) + torch.relu(x),
        lambda x: torch.sigmoid(x),
    ),
    "several matches": (
        lambda x, y: x + torch.cat([x, y]).sum() + torch.cat([x, y]).sum(),
        lambda a, b: torch.cat([a, b]).sum(),
        lambda a, b: torch.stack([a, b]).mean(),
    ),
    "order of arguments": (lambda x, y: torch.mm(x, y), lambda a, b: torch.mm(a, b), lambda a, b: torch.mm(b, a)),
    "part of an expression": (
        lambda x, y: torch.neg(y) + torch.relu(x),
        lambda x: torch.relu(x),
        lambda x: torch.sigmoid(x),
    ),
    "the whole graph": (
        lambda x: (a := torch.neg(x)) + a,
        lambda x: (a := torch.neg(x)) + a,
        lambda x: torch.cat([torch.sigmoid(x)] * 2),
    ),
    "an output with other users": (
        lambda x: torch.neg(v := torch.relu(x)) - v,
        lambda x: torch.relu(x),
        lambda x: torch.sigmoid(x),
    ),
    "a variable that is an expression": (
        lambda x: torch.sigmoid((x + 3).exp()).to(torch.float16),
        lambda v: torch.sigmoid(v.exp()).to(torch.float16),
        lambda v: v.to(torch.float16),
    ),
    "one after the other": (
        lambda x: torch.sigmoid(torch.sigmoid(torch.sigmoid(x))),
        lambda x: torch.sigmoid(x),
        lambda x: torch.exp(x),
    ),
    "matches that overlap": (
        lambda x: x.sigmoid().sigmoid().sigmoid().sigmoid(),
        lambda x: x.sigmoid().sigmoid(),
        lambda x: torch.neg(x),
    ),
    "several outputs": (
        lambda x: torch.sigmoid(x) + torch.relu(x),
        lambda a: (torch.sigmoid(a), torch.relu(a)),
        lambda a: (torch.exp(a), torch.abs(a)),
    ),
    "one value for two outputs": (
        lambda x, y: torch.sigmoid(v := x - y) + torch.relu(v),
        lambda a, b: (torch.sigmoid(v := a - b), torch.relu(v), v),
        lambda a, b: ((v := torch.abs(b)), v, torch.exp(a)),
    ),
    "an input that nobody uses": (lambda x, y, w: x + w, lambda a, b: a + b, lambda a, b: a - b),
    "methods": (
        lambda x: x.exp().sigmoid().to(torch.float16),
        lambda v: v.exp().sigmoid().to(torch.float16),
        lambda v: v.to(torch.float16),
    ),
    "keywords": (
        lambda x, y, w: x * F.linear(x, w, bias=y) + x,
        lambda a, w, bias: ((v := F.linear(a, w, bias=bias)), a * v),
        gemm_and_product,
    ),
    "a way that leads nowhere first": (
        lambda x, y, w: (v := F.linear(x, w)) * torch.sigmoid(v) + y * F.linear(x, y),
        lambda a, w, c: ((v := F.linear(a, w)), c * v),
        lambda a, w, c: ((v := torch.mm(a, w.t())), c * v),
    ),
    "functions that are wrapped": (
        lambda x: torch.relu(twice(x)),
        lambda v: torch.relu(twice(v)),
        lambda v: torch.sigmoid(v),
    ),
    "lists": (
        lambda x: torch.ops.aten.as_strided_copy.default(x, [1, 2], [2, 1]),
        lambda v, a, b: torch.ops.aten.as_strided_copy.default(v, a, b),
        lambda v, a, b: torch.ops.aten.as_strided_copy.default(v, b, a),
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_it_replaces_is_replaced_alike(case):
    function, pattern, replacement = RIGHT[case]
    given = (x, y, w)[: function.__code__.co_argcount]
    result = ours(function, pattern, replacement)
    torch.testing.assert_close(result(*given), theirs(function, pattern, replacement)(*given))


def test_inner_values_with_other_users_are_left_alone_as_it_does():
    def function(x, y):
        one, other = torch.cat([x, y]), torch.cat([y, x])
        return torch.mm(one, other.t()) + torch.sum(other)

    pattern = lambda a, b: torch.mm(torch.cat([a, b]), torch.cat([b, a]).t())
    assert calls(ours(function, pattern, lambda a, b: a)) == calls(fx.symbolic_trace(function))


def test_a_condition_on_what_was_matched_decides():
    function = lambda x, y: torch.relu(torch.add(x, 2)) + torch.relu(torch.add(x, y))
    result = ours(
        function,
        lambda v, k: torch.relu(torch.add(v, k)),
        lambda v, k: torch.mul(v, k),
        where=lambda match: isinstance(match["k"], int),
    )
    torch.testing.assert_close(result(x, y), x * 2 + torch.relu(x + y))


SPELLED = {
    "a method for a function": (lambda x: x.neg().relu(), lambda x: torch.relu(torch.neg(x))),
    "an operator for a function": (lambda x, y: torch.relu(x + y), lambda a, b: torch.relu(torch.add(a, b))),
    "keywords for positions": (lambda x, w: F.linear(input=x, weight=w).relu(), lambda a, w: F.linear(a, w).relu()),
    "a default that is written": (lambda x, y: torch.relu(torch.add(x, y, alpha=1)), lambda a, b: torch.relu(a + b)),
    "the other order": (lambda x, y: torch.exp(x) + torch.relu(y), lambda a, b: torch.relu(a) + torch.exp(b)),
    "a module": (torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Sigmoid()), lambda a: torch.sigmoid(torch.relu(a))),
}


@pytest.mark.parametrize("case", SPELLED)
def test_other_spellings_are_found_which_it_does_not(case):
    function, pattern = SPELLED[case]
    assert calls(ours(function, pattern, lambda *values: torch.tanh(values[0]))) == 1
    names = [*pattern.__code__.co_varnames]
    assert not replace_pattern(fx.symbolic_trace(function), pattern, pattern), names


def test_a_match_across_a_write_is_made_on_what_was_read():
    def function(x):
        v = x.clone()
        inner = v * 2
        v.add_(1)
        return torch.relu(inner) + v

    result = ours(function, lambda v: torch.relu(v * 2), lambda v: torch.relu(v) * 2)
    wrong = theirs(function, lambda v: torch.relu(v * 2), lambda v: torch.relu(v) * 2)
    torch.testing.assert_close(result(x), function(x))
    assert not torch.allclose(wrong(x), function(x))


def test_a_match_into_another_autograd_region_is_refused():
    graph = fx.Graph()
    given = graph.placeholder("x")
    inner = graph.call_function(torch.mul, (given, 2))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    outer = graph.call_function(torch.relu, (inner,))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output(outer)
    found = decomp.match(fx.GraphModule(torch.nn.Module(), graph), lambda v: torch.relu(v * 2))
    assert not found and "region begins or ends between mul and relu" in str(found)


def test_a_variable_that_stands_twice_is_one_value():
    function = lambda x, y: torch.relu(x) * y
    assert calls(ours(function, lambda v: torch.relu(v) * v, lambda v: torch.exp(v))) == 2
    assert calls(ours(lambda x: torch.relu(x) * x, lambda v: torch.relu(v) * v, lambda v: torch.exp(v))) == 1
