"""Views sink below ops where that makes fewer calls, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import decomp
from decomp.ir.module import ProgramGraph
from decomp.proof.correspondence import NotAsRecorded
from decomp.rules.target import MatchAllTarget
from decomp.simplification.checking import check_simplified
from decomp.simplification.laws import Laws
from decomp.simplification.simplifier import LAWS, Settings, Subject, simplify_graph
from decomp.validation.law_runs import run_laws_of_graphs
from decomp_rules import targets
from tests.forms import Holder
from tests.models import build
from tests.simplification.test_near_misses import ops, program

aten = torch.ops.aten
LAW = "view below what was done to it"
X = torch.tensor([[0.0, -0.0, 1.5], [-2.0, float("nan"), float("inf")]])
CUBE = torch.linspace(-3, 3, 24).reshape(2, 3, 4)


def _in_order(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (torch.tanh((x + x * x * x * 0.044715) * 0.79788) + 1.0)


SINKS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "there and back": (lambda x: x.neg().view(6, 4).exp().view(2, 3, 4).sin(), ["neg", "exp", "sin"]),
    "there and back over several calls": (
        lambda x: _gelu(x.neg().view(6, 4)).view(2, 3, 4).sin(),
        ["neg", "mul", "mul", "mul", "mul", "add", "mul", "tanh", "add", "mul", "sin"],
    ),
    "two views of one kind": (
        lambda x: (x.exp().view(6, 4) + x.sin().view(6, 4)).sum(0),
        ["exp", "sin", "add", "view", "sum"],
    ),
    "on to another shape": (lambda x: x.neg().view(6, 4).exp().view(4, 6).sin(), ["neg", "exp", "view", "sin"]),
    "permutations": (lambda x: x.permute(2, 0, 1).exp().permute(1, 2, 0).sin(), ["exp", "sin"]),
    "a copy behind permutations": (
        lambda x: _in_order(x.permute(2, 0, 1).exp().permute(1, 2, 0)).view(-1).sin(),
        ["exp", "view", "sin"],
    ),
    "comparisons and choices": (
        lambda x: torch.where((y := x.neg().view(6, 4)) < 0, torch.zeros(()), y).view(2, 3, 4).sin(),
        ["neg", "lt", "zeros", "where", "sin"],
    ),
    "casts": (lambda x: x.neg().view(24).double().view(2, 3, 4).sin(), ["neg", "_to_copy", "sin"]),
    "along dimensions that stay": (
        lambda x: ((y := x.neg().view(6, 4)) - y.amax(1, keepdim=True)).softmax(-1).view(2, 3, 4).sin(),
        ["neg", "amax", "sub", "softmax", "sin"],
    ),
    "slices of dimensions that stay": (
        lambda x: x.neg().view(6, 4)[:, 1:3].view(3, 2, 2).sin(),
        ["neg", "slice", "view", "sin"],
    ),
    "operands that are broadcast": (
        lambda x: (x.neg().view(6, 4) * torch.arange(4)).view(2, 3, 4).sin(),
        ["neg", "arange", "mul", "sin"],
    ),
    "regions one after the other": (
        lambda x: x.neg().view(6, 4).exp().view(2, 3, 4).permute(1, 0, 2).abs().permute(1, 0, 2).sin(),
        ["neg", "exp", "abs", "sin"],
    ),
    "regions that open each other": (
        lambda x: x.neg().view(6, 4).permute(1, 0).exp().permute(1, 0).view(2, 3, 4).sin(),
        ["neg", "exp", "sin"],
    ),
    "the same twice": (
        lambda x: x.neg().view(24).exp().view(2, 3, 4).sin() + x.neg().view(24).exp().view(2, 3, 4).cos(),
        ["neg", "exp", "sin", "cos", "add"],
    ),
}
STAYS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "what saves nothing": (lambda x: x.neg().view(6, 4).exp().sum(0), ["neg", "view", "exp", "sum"]),
    "a view that is used as it is": (
        lambda x: (y := x.neg().view(6, 4)).exp().sum(0) + y.sum(0),
        ["neg", "view", "exp", "sum", "sum", "add"],
    ),
    "views of two kinds": (
        lambda x: x.neg().view(6, 4).exp() + x.neg().view(4, 6).permute(1, 0),
        ["neg", "view", "exp", "view", "permute", "add"],
    ),
    "along dimensions that change": (
        lambda x: x.neg().view(24).softmax(0).view(2, 3, 4).sin(),
        ["neg", "view", "softmax", "view", "sin"],
    ),
    "broadcasting over dimensions that change": (
        lambda x: (x.neg().view(6, 4) * torch.arange(6).view(6, 1)).view(2, 3, 4).sin(),
        ["neg", "view", "mul", "view", "sin"],
    ),
    "what is returned": (lambda x: x.neg().view(6, 4).exp().view(2, 3, 4), ["neg", "view", "exp", "view"]),
    "other strides": (
        lambda x: _in_order(x.permute(2, 0, 1)).exp().permute(1, 2, 0).sin(),
        ["permute", "clone", "exp", "permute", "sin"],
    ),
    "no elements": (lambda x: x[:0].view(0, 12).exp().view(0, 3, 4).sin(), ["slice", "view", "exp", "view", "sin"]),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", SINKS)
def test_views_sink_where_that_makes_fewer_calls(name):
    function, expected = SINKS[name]
    assert ops(function, CUBE) == expected
    assert len(ops(function, CUBE, passes=["no_ops", "chains", "dead_code"])) > len(expected)


@pytest.mark.parametrize("name", STAYS)
def test_views_stay_where_that_makes_no_fewer_calls_or_other_values(name):
    function, expected = STAYS[name]
    assert ops(function, CUBE) == expected


def _unchanged(function: Callable[..., Any], *args: Any, **how: Any) -> bool:
    before = program(function, *args)
    after = decomp.simplify(before, ["sinking", "chains", "no_ops"], **how)
    return len(before.graph.nodes) == len(after.graph.nodes)


def test_what_is_written_is_read_where_it_was():
    def function(x: torch.Tensor) -> Any:
        y = x.view(6, 4).exp().view(2, 3, 4).sin()
        return y, x.add_(1)

    assert _unchanged(function, CUBE.clone(), training=False)


def test_gradients_of_what_is_broadcast_are_summed_as_they_were():
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.neg().view(6, 4) * w).view(2, 3, 4).sin()

    assert _unchanged(function, CUBE, CUBE[0, 0])
    assert not _unchanged(function, CUBE, CUBE[0, 0], training=False)
    assert not _unchanged(function, CUBE, CUBE[0, 0], exact=False)


def test_gradients_keep_their_bits():
    def function(x: torch.Tensor) -> torch.Tensor:
        return _gelu(x.neg().view(6, 4)).softmax(-1).view(2, 3, 4).sin()

    grown = program(function, CUBE)
    found, gradients = decomp.simplify(grown), []
    assert found.graph_module.meta["simplified"]["removed"] == {"sinking": 1, "no_ops": 1}
    for each in (grown, found):
        x = CUBE.clone().requires_grad_()
        each.module()(x).pow(2).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_sizes_that_vary_keep_their_views():
    rows = {0: torch.export.Dim("rows", min=2)}
    varying = torch.export.export(
        Holder(lambda x: x.flatten(1).exp().view(-1, 3, 4).sin()), (CUBE,), dynamic_shapes=((rows,),)
    ).run_decompositions({})
    called = [call.op.short for call in decomp.calls(decomp.simplify(varying, training=False))]
    assert called.count("view") == 2


def test_calls_that_are_put_above_are_legal():
    exported = program(SINKS["there and back"][0], CUBE)
    flat = decomp.Target("flat", ["neg", "sin", "view"]).legal_if(
        "exp", lambda call: call.arguments["self"].meta["val"].dim() == 2, "x has two dimensions"
    )
    kept, sunk = (decomp.lower(exported, to=to).result for to in (flat, flat | ["exp"]))
    assert [call.op.short for call in decomp.calls(kept)] == ["neg", "view", "exp", "view", "sin"]
    assert [call.op.short for call in decomp.calls(sunk)] == ["neg", "exp", "sin"]


def _found(function: Callable[..., Any], *args: Any, laws: Any = LAWS) -> Any:
    exported = program(function, *args)
    subject = Subject.of(ProgramGraph(exported.graph, exported.graph_module), MatchAllTarget("any"), exported)
    return simplify_graph(subject, Settings(training=False), Laws(laws))


@pytest.mark.parametrize("name", SINKS)
def test_the_record_is_proved_and_the_result_is_a_fixed_point(name):
    found = _found(SINKS[name][0], CUBE)
    assert any(LAW in names for names in found.applied.values())
    check_simplified(found)
    again = Subject.of(ProgramGraph(found.graph, found.subject.root), MatchAllTarget("any"))
    assert simplify_graph(again, Settings(training=False)) is None
    assert "the same to the last bit" in run_laws_of_graphs([found])[0]
    backwards = _found(SINKS[name][0], CUBE, laws=LAWS[::-1])
    assert str(backwards.graph) == str(found.graph)


def test_another_call_above_is_seen():
    found = _found(SINKS["there and back"][0], CUBE)
    (above,) = found.above.values()
    above.target = aten.log.default
    with pytest.raises(NotAsRecorded, match="'exp_inner' is not what 'exp' was simplified to"):
        check_simplified(found)


def test_another_law_above_is_seen():
    found = _found(SINKS["there and back"][0], CUBE)
    found.inner.clear()
    with pytest.raises(NotAsRecorded, match=f"the law '{LAW}' does not hold for 'exp'"):
        check_simplified(found)


def test_provenance_is_that_of_the_call_below_which_a_view_sank():
    found = decomp.lower(program(lambda x: x.neg().view(6, 4).exp().view(2, 3, 4).sin(), CUBE), to=targets.core_aten)
    assert found.provenance("exp_inner").source == "exp"


def test_a_call_above_which_a_view_sank_does_not_say_that_it_has_the_shape_of_the_view():
    source = program(lambda x: x.neg().view(6, 4).exp().view(2, 3, 4).sin(), CUBE)
    assert all("tensor_meta" in node.meta for node in source.graph.nodes if node.op == "call_function")
    exp = next(n for n in decomp.simplify(source).graph.nodes if n.target is aten.exp.default)
    assert exp.meta["val"].shape == CUBE.shape and "tensor_meta" not in exp.meta


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name, before, after", [("gpt2", 117, 111), ("bert", 117, 113)])
def test_views_around_activations_of_models_go(name, before, after):
    model, args = build(name)
    plain = decomp.lower(model.eval(), to=targets.core_aten, args=args, simplify=False)
    passes = [each for each in decomp.simplification.simplifier.PASSES if each != "sinking"]
    assert len(decomp.calls(decomp.simplify(plain, passes).result)) == before
    assert len(decomp.calls(decomp.simplify(plain).result)) == after


def test_a_module_that_is_not_exported_keeps_its_views():
    found = decomp.simplify(torch.fx.symbolic_trace(nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Unflatten(1, (3, 4)))))
    assert [node.op for node in found.graph.nodes].count("call_module") == 3
