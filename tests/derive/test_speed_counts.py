"""The speed of lowering, as counts: rules run once per signature, nothing is propagated, each node is visited a fixed
number of times."""

from __future__ import annotations

import collections
import operator
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from benchmarks import programs
import decomp


def counted_rules() -> tuple[decomp.Rules, collections.Counter]:
    """The benchmark's rules, and how often each was run."""
    runs: collections.Counter = collections.Counter()
    rules = decomp.Rules()

    @rules.register(F.linear)
    def linear(x, weight, bias):
        runs["linear"] += 1
        return programs.linear(x, weight, bias)

    @rules.register(F.layer_norm)
    def layer_norm(x, normalized_shape, weight, bias, eps=1e-5):
        runs["layer_norm"] += 1
        return programs.layer_norm(x, normalized_shape, weight, bias, eps)

    @rules.register(F.gelu)
    def gelu(x):
        runs["gelu"] += 1
        return programs.gelu(x)

    return rules, runs


@pytest.mark.parametrize("build", [programs.stack, programs.exported_stack])
@pytest.mark.parametrize("layers", [1, 5])
def test_a_rule_runs_once_a_signature(build, layers):
    program = build(layers)
    rules, runs = counted_rules()
    target = programs.target(program.graph)
    assert decomp.lower(program, to=target, rules=rules).report().runs == 3
    assert decomp.lower(program, to=target, rules=rules).report().runs == 0
    assert runs == {"linear": 1, "layer_norm": 1, "gelu": 1}


def test_another_shape_is_another_signature():
    class Model(torch.nn.Module):
        def forward(self, x):
            return F.gelu(x), F.gelu(x + 1), F.gelu(x.sum(0)), F.gelu(x.double())

    program = torch.export.export(Model(), (torch.ones(2, 3),))
    rules, runs = counted_rules()
    decomp.decompose(program, rules)
    assert runs == {"gelu": 3}


def test_nothing_is_propagated_with_warm_expansions(monkeypatch):
    program = programs.exported_stack(4)
    rules, target = programs.rules(), programs.target(program.graph)
    decomp.lower(program, to=target, rules=rules)
    seen: list[object] = []
    dispatch = FakeTensorMode.dispatch

    def counting(self, func, *args, **kwargs):
        seen.append(func)
        return dispatch(self, func, *args, **kwargs)

    monkeypatch.setattr(FakeTensorMode, "dispatch", counting)
    with FakeTensorMode():
        torch.ones(1)
    assert len(seen) == 1
    low = decomp.lower(program, to=target, rules=rules)
    assert len(seen) == 1 and len(low.result.graph.nodes) > 80
    assert all("val" in node.meta for node in low.result.graph.nodes if node.op == "call_function")


@pytest.mark.parametrize("build", [programs.stack, programs.exported_stack])
def test_calls_grow_no_faster_than_the_program(build):
    few, many = (_calls(build(layers)) for layers in (8, 32))
    assert many < 4.2 * few


def _calls(program: object) -> int:
    """How many Python functions and builtins a warm lowering calls."""
    rules, target = programs.rules(), programs.target(program.graph)
    decomp.lower(program, to=target, rules=rules)
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        decomp.lower(program, to=target, rules=rules)
    finally:
        sys.setprofile(before)
    return count


def test_a_chain_of_operators_is_no_recursion():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for _ in range(2000):
        x = graph.call_function(operator.add, (x, x))
    graph.output(graph.call_function(F.gelu, (x,)))
    program = torch.fx.GraphModule({}, graph)
    low = decomp.lower(program, to=programs.target(graph), rules=programs.rules())
    assert len(low.result.graph.nodes) == 2000 + 5 + 2


def frames_of(rule) -> int:
    """How many calls of Python functions of this project it takes to run a rule for a relu."""
    model, entered = torch.nn.ReLU(), 0
    program = torch.export.export(model, (torch.ones(3),))

    def count(frame, event, _):
        nonlocal entered
        entered += event == "call" and "/decomp/" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        chip = decomp.Target("chip", ["add", "view", "slice"])
        decomp.lower(program, to=chip, rules=decomp.Rules({F.relu: rule}), verify=False)
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.parametrize("table", [lambda n: [*range(n)], lambda n: [[[place]] for place in range(n)]])
def test_a_long_table_costs_no_more_calls_than_a_short_one(table):
    def with_table(n):
        numbers = table(n)
        return lambda x: x + torch.tensor(numbers, dtype=torch.float32).view(-1)[:3]

    frames_of(with_table(100))
    assert frames_of(with_table(30_000)) <= frames_of(with_table(100)) + 20


def test_a_value_in_a_long_table_is_still_refused():
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(41),))
    rules = decomp.Rules({F.relu: lambda x: x + torch.tensor([0.0] * 40 + [x.sum()])})
    with pytest.raises(decomp.errors.RuleError, match="makes a concrete tensor of values"):
        decomp.lower(program, to=decomp.Target("chip", ["add", "sum"]), rules=rules)
