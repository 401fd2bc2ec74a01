"""Calls that look redundant and are not, next to those that are: each law at the limits of its validity."""

from __future__ import annotations

from collections.abc import Callable
import copy
import functools
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import decomp
from decomp.ir.module import ProgramGraph
from decomp.proof.correspondence import EffectsChanged, NotAsRecorded
from decomp.rules.target import MatchAllTarget
from decomp.simplification.checking import check_simplified
from decomp.simplification.laws import Laws
from decomp.simplification.simplifier import LAWS, PASSES, Settings, Subject, simplify_graph
from decomp_rules import targets
from tests.regions import move_out, sine_with_and_without_gradients

aten = torch.ops.aten
pad = aten.constant_pad_nd.default
X = torch.tensor([[0.0, -0.0, 1.5], [-2.0, float("nan"), float("inf")]])


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


@functools.cache  # what it is simplified to is another program
def program(function: Callable[..., Any], *args: Any) -> Any:
    return torch.export.export(Of(function), args or (X,)).run_decompositions({})


def ops(function: Callable[..., Any], *args: Any, **how: Any) -> list[str]:
    """The calls of a function's program, simplified for inference; its results keep their bits."""
    args = args or (X,)
    before = program(function, *args)
    after = decomp.simplify(before, **{"training": False, **how})
    if how.get("exact", True):
        found, expected = (each.module()(*args) for each in (after, before))
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(_bits(found), _bits(expected))
    return [str(node.target).split(".")[1] for node in after.graph.nodes if node.op == "call_function"]


def _bits(result: Any) -> torch.Tensor:
    first = result[0] if isinstance(result, tuple) else result
    return torch.nan_to_num(first.contiguous()).view(torch.uint8) if first.is_floating_point() else first


KEPT: dict[str, tuple[Callable[..., Any], list[str]]] = {
    # -0.0 + 0.0 is 0.0
    "plus 0 in floats": (lambda x: (x + 0).neg(), ["add", "neg"]),
    "minus negative 0": (lambda x: (x - -0.0).neg(), ["sub", "neg"]),
    "a clone that is returned": (lambda x: x.clone(), ["clone"]),
    "a clone with other strides": (
        lambda x: x.permute(1, 0).clone(memory_format=torch.contiguous_format).view(-1) * 2,
        ["permute", "clone", "view", "mul"],
    ),
    "a clone of what is written": (lambda x: (x.clone(), x.add_(1))[0] * 2, ["clone", "add", "mul"]),
    "a cast that is returned": (lambda x: aten._to_copy.default(x, dtype=x.dtype), ["_to_copy"]),
    "a cast through a narrower dtype": (lambda x: x.half().float().neg(), ["_to_copy", "_to_copy", "neg"]),
    "of integers through float32": (
        lambda x: x.float().to(torch.int64).neg(),
        ["_to_copy", "_to_copy", "neg"],
    ),
    "two copies that are both returned": (lambda x: (x * 2, x * 2), ["mul", "mul"]),
    "1 and 1.0": (lambda x: (x + 1).float() * (x + 1.0), ["add", "_to_copy", "add", "mul"]),
    "0.0 and -0.0": (lambda x: (x * 0.0) / (x * -0.0), ["mul", "mul", "div"]),
    "two draws": (lambda x: torch.rand_like(x) * 0 + torch.rand_like(x) * 0, ["rand_like", "mul"] * 2 + ["add"]),
    "a slice of another dimension": (lambda x: x[:, 1:][1:].neg(), ["slice", "slice", "neg"]),
    "padding with another number": (
        lambda x: pad(pad(x, [1, 0], 0.0), [1, 0], 1.0).neg(),
        ["constant_pad_nd", "constant_pad_nd", "neg"],
    ),
    "the negation of <": (lambda x: torch.logical_not(x < 0), ["lt", "logical_not"]),
    "1 times a complex number": (lambda x: (x * 1.0).neg(), ["mul", "neg"]),
    "memory that nobody has written": (lambda x: (x.new_empty(0), x.new_empty(0)), ["new_empty", "new_empty"]),
}
GONE: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "minus 0": (lambda x: (x - 0).neg(), ["neg"]),
    "plus negative 0": (lambda x: (x + -0.0).neg(), ["neg"]),
    "times 1": (lambda x: (x * 1).neg(), ["neg"]),
    "a clone": (lambda x: x.clone().neg(), ["neg"]),
    "a cast there and back": (lambda x: x.double().float().neg(), ["neg"]),
    "two casts to a wider dtype": (lambda x: x.half().float().double().neg(), ["_to_copy", "_to_copy", "neg"]),
    "detach": (lambda x: x.detach().neg(), ["neg"]),
    "the same twice": (lambda x: (x * 2) + (x * 2), ["mul", "add"]),
    "what nobody uses": (lambda x: (x.exp(), x.neg())[1], ["neg"]),
    "views of views": (lambda x: x.view(6).view(3, 2).view(2, 3).neg(), ["neg"]),
    "permutations": (lambda x: x.permute(1, 0).permute(1, 0).neg(), ["neg"]),
    "a slice of a slice": (lambda x: x[:, 1:][:, 1:].neg(), ["slice", "neg"]),
    "a padding of a padding": (lambda x: pad(pad(x, [1, 0]), [0, 2]).neg(), ["constant_pad_nd", "neg"]),
    "the negation of ==": (lambda x: torch.logical_not(x == 0), ["ne"]),
    "a tensor full of a number": (lambda x: x * torch.full((3,), 2.0), ["mul"]),
    "sums of full tensors": (
        lambda x: torch.maximum(x, torch.full((3,), 2.0) + torch.full((3,), 1.0)),
        ["full", "maximum"],
    ),
    "an operand that is expanded": (lambda x: x * x[:1].expand(2, 3), ["slice", "mul"]),
}


def _in_order(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


# Of a program as it is exported: conversions and reshapes that copy only where they must.
EXPORTED: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "to the same dtype": (lambda x: x.to(torch.float32).contiguous().type_as(x).neg(), ["neg"]),
    "a copy that is asked for": (lambda x: x.to(torch.float32, copy=True).neg(), ["neg"]),
    "a copy that is asked for and returned": (lambda x: x.to(torch.float32, copy=True), ["to"]),
    "another dtype": (lambda x: x.to(torch.float64).neg(), ["to", "neg"]),
    "a wider dtype and back": (lambda x: x.to(torch.float64).to(torch.float32).neg(), ["neg"]),
    "a narrower dtype and back": (lambda x: x.to(torch.float16).to(torch.float32).neg(), ["to", "to", "neg"]),
    "contiguous after transposition": (lambda x: x.t().contiguous().view(-1).neg(), ["t", "contiguous", "view", "neg"]),
    "contiguous twice": (lambda x: x.t().contiguous().contiguous().view(-1).neg(), ["t", "contiguous", "view", "neg"]),
    "a reshape to the same shape": (lambda x: x.reshape(2, 3).flatten(1).neg(), ["neg"]),
    "a reshape of a view": (lambda x: x.view(6).reshape(3, 2).neg(), ["reshape", "neg"]),
    "reshapes that copy": (lambda x: x.t().reshape(6).reshape(2, 3).neg(), ["t", "reshape", "neg"]),
    "a transposition there and back": (lambda x: x.t().transpose(0, -1).neg(), ["neg"]),
    "three transpositions": (
        lambda x: x[None].transpose(0, 1).transpose(1, 2).neg(),
        ["unsqueeze", "permute", "neg"],
    ),
    "an expansion of an expansion": (
        lambda x: x[:1].expand(2, 3).expand(4, 2, 3).contiguous().neg(),
        ["slice", "expand", "contiguous", "neg"],
    ),
    "a copy by the strides of attention": (
        lambda x: _in_order(F.scaled_dot_product_attention(*[x.view(1, 2, 1, 3)] * 3).transpose(1, 2)).view(-1).neg(),
        ["view", "scaled_dot_product_attention", "transpose", "clone", "view", "neg"],
    ),
}
OTHER_INPUTS = {
    "of integers through float32": torch.tensor([2**24 + 1, 3]),
    "1 and 1.0": torch.tensor([1, 2]),
    "1 times a complex number": torch.tensor([complex(1, 2), complex(3, -0.0)]),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_not_redundant_stays(name):
    function, expected = KEPT[name]
    if name in OTHER_INPUTS:
        assert _calls(function, OTHER_INPUTS[name]) == expected
    elif name in ("two draws", "a clone of what is written", "memory that nobody has written"):
        assert _calls(function, X.clone()) == expected
    else:
        assert ops(function) == expected


def _calls(function: Callable[..., Any], *args: Any) -> list[str]:
    found = decomp.simplify(program(function, *args), training=False)
    names = [str(node.target).split(".")[1] for node in found.graph.nodes if node.op == "call_function"]
    return [name.removesuffix("_") for name in names]


@pytest.mark.parametrize("name", GONE)
def test_what_is_redundant_goes(name):
    function, expected = GONE[name]
    assert ops(function) == expected


@pytest.mark.parametrize("name", EXPORTED)
def test_conversions_and_reshapes_go_where_they_change_nothing(name):
    function, expected = EXPORTED[name]
    before = torch.export.export(Of(function), (X,))
    after = decomp.simplify(before, training=False)
    found, given = after.module()(X), before.module()(X)
    assert found.stride() == given.stride() and torch.equal(_bits(found), _bits(given))
    called = (str(node.target).split(".")[1] for node in after.graph.nodes if node.op == "call_function")
    assert [name for name in called if name != "_assert_tensor_metadata"] == expected


def test_what_rounds_otherwise_goes_where_that_is_allowed():
    assert ops(lambda x: (x + 0).neg(), exact=False) == ["neg"]


def test_gradients_keep_what_they_need():
    def function(x: Any) -> Any:
        return x.detach() * x + (x.sin() + x.sin())

    assert ops(function, training=None) == ["detach", "mul", "sin", "sin", "add", "add"]
    assert ops(function) == ["mul", "sin", "add", "add"]


def test_what_has_no_gradient_needs_no_detach():
    index = torch.tensor([1, 2])
    assert ops(lambda i: i.detach() + i, index, training=None) == ["add"]


def _simplified(traced: Any) -> Any:
    return simplify_graph(
        Subject.of(ProgramGraph(traced.graph, traced), MatchAllTarget("any")), Settings(training=False)
    )


def test_regions_are_not_crossed():
    found = _simplified(sine_with_and_without_gradients())
    assert [node.target for node in found.graph.nodes].count(aten.sin.default) == 2
    check_simplified(found)
    move_out(found.graph)
    with pytest.raises(EffectsChanged, match="'sin_default' moved out of its no_grad or autocast region"):
        check_simplified(found)


def test_reads_stay_on_their_side_of_a_write():
    def function(x: Any) -> Any:
        copy = x.clone()
        return (copy.sin() + copy.sin()) + copy.add_(1)

    found = _simplified(make_fx(function, tracing_mode="fake")(X))
    check_simplified(found)
    read, write = (next(n for n in found.graph.nodes if n.name == name) for name in ("sin", "add_"))
    read.prepend(write)
    with pytest.raises(EffectsChanged, match="'sin' moved past a write"):
        check_simplified(found)


def test_the_order_of_laws_is_of_no_matter_where_what_was_read_is_written_later():
    def function(x: Any) -> Any:
        copy = x.clone()
        again = copy.neg().permute(1, 0).permute(1, 0)
        return again.sin() + copy.add_(1)

    traced = make_fx(function, tracing_mode="fake")(X)
    for laws in (LAWS, LAWS[::-1]):
        found = simplify_graph(
            Subject.of(ProgramGraph(traced.graph, traced), MatchAllTarget("any")), Settings(training=False), Laws(laws)
        )
        called = [str(node.target).split(".")[1] for node in found.graph.nodes if node.op == "call_function"]
        assert called == ["clone", "neg", "sin", "add_", "add"]


def test_one_pass_alone_does_its_part_alone():
    def function(x: Any) -> Any:
        return (x.clone() * 2) + (x.clone() * 2)

    assert ops(function, passes=["common_subexpressions"]) == ["clone", "mul", "add"]
    assert ops(function, passes=["no_ops"]) == ["mul", "mul", "add"]
    assert set(PASSES) >= {"dead_code", "no_ops", "chains", "broadcasting", "scalars", "constants"}


def test_calls_that_are_made_are_legal():
    class Model(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.unsqueeze(0).unsqueeze(0) * 2

    only = decomp.Target("only", ["unsqueeze", "mul"])
    found = decomp.lower(torch.export.export(Model(), (X,)), to=only)
    assert [call.op.short for call in decomp.calls(found.result)] == ["unsqueeze", "unsqueeze", "mul"]
    found = decomp.lower(torch.export.export(Model(), (X,)), to=only | decomp.Target("view", ["view"]))
    assert [call.op.short for call in decomp.calls(found.result)] == ["view", "mul"]


def test_freezing_is_refused_for_training():
    with pytest.raises(decomp.errors.ArgumentError, match="leave out training=True"):
        decomp.simplify(program(lambda x: x * 2), freeze=True, training=True)


def test_unknown_passes_are_named():
    with pytest.raises(decomp.errors.ArgumentError, match="no pass 'cse'; there are dead_code, "):
        decomp.simplify(program(lambda x: x * 2), passes=["cse"])
    with pytest.raises(decomp.errors.ArgumentError, match="takes names, not 3; there are dead_code, "):
        decomp.simplify(program(lambda x: x * 2), passes=3)


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        self.count.add_(1)
        return F.linear(x, self.linear.weight * 2) + self.linear.bias.exp() + self.count.exp()


def test_what_depends_on_weights_alone_is_computed_once():
    model, x = Weighted(), torch.ones(2, 3)
    found = decomp.lower(model, to=targets.core_aten, args=(x,), freeze=True, verify="values")
    called = [call.op.short for call in decomp.calls(found.result)]
    # The buffer is written: what depends on it is not a constant.
    assert called.count("exp") == 1 and "mul" not in called
    expected = copy.deepcopy(model)(x)
    torch.testing.assert_close(found.result(x), expected, rtol=0, atol=0)
    assert "constants" in found.report().simplified


def _causal(x: Any) -> Any:
    places = torch.arange(x.shape[-1])
    return torch.where(places[:, None] >= places[None], x[..., None, :], 0.0).sum(-1)


def test_values_computed_only_from_factories_are_constants_in_training_too():
    model = nn.Sequential(nn.Linear(3, 3), Of(_causal))
    found = decomp.lower(model, to=targets.core_aten, args=(X[:1].clone(),), verify="values")
    called = [call.op.short for call in decomp.calls(found.result)]
    assert "arange" not in called and "ge" not in called and "permute" in called  # weights are no constants
    assert found.result.state_dict().keys() == model.state_dict().keys()
    plain = decomp.lower(model, to=targets.core_aten, args=(X[:1].clone(),), simplify=False)
    assert len(decomp.calls(plain.result)) > len(called) == len(decomp.calls(decomp.simplify(plain).result))


def test_the_state_of_a_graph_module_is_that_of_its_source():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("scale", torch.ones(3), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _causal(self.linear(x) * self.scale)

    model = Masked()
    exported = torch.export.export(model, (X,)).module()
    lowered = decomp.lower(exported, to=targets.core_aten).result
    assert any(name.startswith("_frozen") for name, _ in lowered.named_buffers())
    assert lowered.state_dict().keys() == exported.state_dict().keys() == model.state_dict().keys()
    lowered.load_state_dict(model.state_dict())


def test_an_exported_program_keeps_such_constants_when_it_is_saved():
    saved = io.BytesIO()
    torch.export.save(decomp.lower(program(_causal), to=targets.core_aten).result, saved)
    saved.seek(0)
    again = torch.export.load(saved)
    assert not {"arange", "ge"} & _names(again)
    torch.testing.assert_close(again.module()(X), _causal(X), equal_nan=True)


def _names(exported: Any) -> set[str]:
    return {str(node.target).split(".")[1] for node in exported.graph.nodes if node.op == "call_function"}


FACTORIES: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "positions": (lambda x: x + torch.arange(3) * 2, ["add"]),
    "a factory alone": (lambda x: x + torch.arange(3), ["arange", "add"]),
    "a large one": (lambda x: x[0, 0] + torch.arange((1 << 16) + 1) * 2, ["select", "select", "arange", "mul", "add"]),
    "a small one of what is large": (
        lambda x: x + (torch.arange((1 << 16) + 1) * 2)[:3],
        ["arange", "mul", "slice", "add"],
    ),
    "chance": (lambda x: torch.where(torch.rand(3) < 2, x, 0.0), ["rand", "lt", "where"]),
    "what is returned": (lambda x: (x * 2, torch.arange(3) * 2), ["mul", "arange", "mul"]),
}


@pytest.mark.parametrize("case", FACTORIES)
def test_of_factories_only_what_is_small_and_not_drawn_is_kept(case):
    function, left = FACTORIES[case]
    assert ops(function) == left


def test_sizes_that_vary_make_no_constants():
    varying = torch.export.export(Of(_causal), (X,), dynamic_shapes=(({1: torch.export.Dim("n", min=2)},),))
    lowered = decomp.lower(varying, to=targets.core_aten).result
    assert {"arange", "ge"} <= _names(lowered)
    wider = torch.randn(2, 5)
    torch.testing.assert_close(lowered.module()(wider), _causal(wider))


def test_another_constant_is_seen():
    found = decomp.lower(program(_causal), to=targets.core_aten)
    (simplified,) = (piece.record("simplify") for piece in found.internals.pieces)
    (name,) = simplified.constants
    simplified.constants[name][0, 0] = False
    with pytest.raises(NotAsRecorded, match=f"the constant '{name}' is not what 'ge' computes"):
        decomp.verify(found.internals.model, found)


def test_a_lowering_is_simplified_again():
    plain = decomp.lower(program(lambda x: F.softmax(x, -1)), to=targets.tinygrad, simplify=False)
    assert plain.report().simplified == "" and "simplify" not in plain.report().seconds
    simple = decomp.simplify(plain, training=False)
    assert len(decomp.calls(simple.result)) < len(decomp.calls(plain.result))
    decomp.verify(plain.internals.model, simple)


def test_a_law_that_did_not_hold_is_seen():
    found = decomp.lower(program(lambda x: x.permute(1, 0).permute(1, 0).exp()), to=targets.tinygrad, training=False)
    (simplified,) = (piece.record("simplify") for piece in found.internals.pieces)
    node = next(iter(simplified.applied))
    simplified.applied[node] = ("slice of a slice",)
    with pytest.raises(NotAsRecorded, match="the law 'slice of a slice' does not hold for"):
        decomp.verify(found.internals.model, found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_a_number_has_the_digits_that_the_full_tensor_had(dtype):
    def scaled(x):
        return torch.full((), 0.6366197723675814, dtype=x.dtype) * x + torch.full((), 2**53 - 1, dtype=x.dtype)

    x = torch.arange(1, 9).to(dtype)
    program = torch.export.export(Of(scaled), (x,))
    simpler = decomp.simplify(program).module()
    assert torch.equal(simpler(x), scaled(x))


def test_strides_of_dimensions_of_size_one_may_differ_between_calls_that_become_one():
    class Largest(nn.Module):
        def forward(self, x):
            return x.unflatten(1, (-1, 2)).cummax(-5)[0] + 1

    x = torch.randn(4, 1, 4, 2).permute(1, 3, 0, 2)
    lowered = decomp.lower(torch.fx.symbolic_trace(Largest()), to=targets.tinygrad, args=(x,)).result
    torch.testing.assert_close(lowered(x), Largest()(x))
