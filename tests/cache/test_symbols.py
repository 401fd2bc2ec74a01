"""Open sizes on disk: a program with other names for its sizes finds what an earlier one recorded, if it knows the same
of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import decomp
from decomp.cache import expansions, portable
from decomp.cache.symbols import NotSerialisable, Symbols
from decomp_rules import RULES, targets

X = torch.randn(3, 6, 4)


class Net(nn.Module):
    def forward(self, x, *others):
        pooled = F.adaptive_avg_pool1d(x, 2).sum()
        return F.layer_norm(x, (4,)).softmax(1), x.flatten(0, 1).repeat(2, 1), F.softsign(x).roll(1, 0) + pooled


@pytest.fixture(autouse=True)
def _all_that_is_found_is_taken(monkeypatch, place):
    # Which one in sixteen is recorded again is drawn.
    monkeypatch.setattr(expansions, "SHARE", 10**9)


def exported(size, args=(X,), model=None):
    shapes = ([{0: size}] * len(args),) if len(args) == 1 else ({0: size}, tuple({0: Dim.AUTO} for _ in args[1:]))
    model = Net() if model is None else model
    return torch.export.export(model, args, dynamic_shapes=shapes[0] if len(args) == 1 else shapes)


def lowered(program, to=targets.tinygrad):
    return decomp.lower(program, to=to, rules=decomp.Rules(RULES.entries))


def test_a_program_with_other_names_for_its_sizes_runs_no_rule():
    first, second = lowered(exported(Dim("batch"))), lowered(exported(Dim("n")))
    assert first.report().runs > 0 and second.report().runs == 0
    other = torch.randn(7, 6, 4)
    for got, expected in zip(second.result.module()(other), Net()(other)):
        torch.testing.assert_close(got, expected)
    assert [str(node.target) for node in first.result.graph.nodes][1:-1] == [
        str(node.target) for node in second.result.graph.nodes
    ][1:-1]


def test_metadata_of_what_is_found_has_the_symbols_of_the_program():
    lowered(exported(Dim("batch")))
    program = exported(Dim("n", max=64))
    found = lowered(exported(Dim("n", max=64))).result
    known = {str(symbol) for symbol in program.range_constraints}
    sizes = [size for node in found.graph.nodes for size in getattr(node.meta.get("val"), "shape", ())]
    open_ones = [size for size in sizes if isinstance(size, torch.SymInt)]
    assert open_ones and {str(each) for size in open_ones for each in size.node.expr.free_symbols} <= known
    assert {id(size.node.shape_env) for size in open_ones} == {id(open_ones[0].node.shape_env)}


def test_a_program_that_knows_something_else_of_its_sizes_runs_rules():
    assert lowered(exported(Dim("n"))).report().runs > 0
    assert lowered(exported(Dim("n", max=64))).report().runs > 0
    assert lowered(exported(2 * Dim("half"), (torch.randn(4, 6, 4),))).report().runs > 0
    assert lowered(exported(Dim("n"), (torch.randn(5, 6, 4),))).report().runs > 0


def test_reasons_name_the_sizes_of_the_program(place):
    def symbols(program):
        values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
        return Symbols(values, values[0].fake_mode.shape_env), values[0].shape[0]

    (one, name), (other, size) = symbols(exported(Dim("n"))), symbols(exported(Dim("n"), (X, X)))
    text = one.unnamed(f"at {name}=4 it returns [{name}, 3], not that of {name}1")
    assert str(name) not in text.replace(f"{name}1", "")
    assert one.named(text) == f"at {name}=4 it returns [{name}, 3], not that of {name}1"
    assert other.written(3) == 3 and other.read(3) == 3
    assert Symbols([], size.node.shape_env).unnamed("at 3 it returns [4]") == "at 3 it returns [4]"


def test_expressions_of_sizes_are_data():
    program = exported(Dim("n"))
    value = next(node.meta["val"] for node in program.graph.nodes if node.op == "placeholder")
    symbols = Symbols([value], value.fake_mode.shape_env)
    n = value.shape[0]
    for size in (n, 2 * n + 1, (n + 1) // 2, n % 3, torch.sym_max(n, 4), n * n):
        again = symbols.read(symbols.written(size))
        assert again.node.expr == size.node.expr and again.node.hint == size.node.hint
    for damaged in (["open", ["Lambda", 1]], ["open", ["__import__", 1]], ["value", 3]):
        with pytest.raises(NotSerialisable):
            symbols.read(damaged)


def test_a_damaged_expression_counts_as_missing(monkeypatch):
    lowered(exported(Dim("batch")))
    monkeypatch.setattr(portable, "_read_spec", lambda spec, symbols: symbols.read(["open", ["symbol", 99]]))
    assert lowered(exported(Dim("n"))).report().runs > 0
