"""How much is tried and run to find ops: what is alike is tried once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import decomp
from decomp.refolding import found as searches, searching
from decomp.refolding.found import WantedCalls
from decomp.refolding.prepared import run_fake
from decomp.refolding.regions import GraphIndex
from decomp.refolding.trials import Runner
from decomp_rules import targets
from decomp_rules.samples.models import model
from tests.refolding.test_finding import X, erf_gelu, exported, found, rms_norm, shifted_softmax


def deep(layers):
    """The program of many layers of one structure."""

    def forward(x):
        for _ in range(layers):
            x = erf_gelu(rms_norm(x)) + x
        return x

    return exported(forward, X)


def test_layers_of_one_structure_are_tried_once():
    def counted(layers):
        program = deep(layers)
        tried = []

        class Counting(Runner):
            def _compared(self, *args):
                tried.append(args)
                return super()._compared(*args)

        around = GraphIndex(program.graph, program.graph_module)
        from decomp.refolding.searches.functions import Functions

        findings = Functions(around, Counting(around), WantedCalls()).search()
        return len(tried), len(findings.found)

    few, many = counted(3), counted(30)
    assert many[0] <= few[0] + 2 and many[1] >= 60


def test_a_constant_whose_parts_are_used_twice_is_identified_by_its_steps():
    """Spelled out, it would be longer than any memory."""

    def forward(x):
        scale = torch.ones(8)
        for _ in range(64):
            scale = scale + scale
        return erf_gelu(x) * (scale / 2.0**64)

    assert found(exported(forward, X)) == {"gelu": 1}


def test_constants_that_differ_deep_inside_are_two():
    def forward(x):
        ones, twos = torch.ones(8), torch.ones(8) * 2
        return torch.sigmoid(x) * x * (ones + 0 * ones), torch.sigmoid(x) * x * (twos + 0 * twos)

    around = GraphIndex(exported(forward, X).graph, nn.Module())
    last = next(node for node in around.graph.nodes if node.op == "output").args[0]
    given = [[each for each in node.all_input_nodes if each not in around.constant] for node in last]
    first, second = (around.structures.of(inputs, (node,)) for inputs, node in zip(given, last))
    assert first != second


def test_what_calls_of_one_signature_give_is_found_out_once(monkeypatch):
    def counted(layers):
        runs = []
        monkeypatch.setattr(searches, "run_fake", lambda *args: runs.append(args) or run_fake(*args))
        refolding = decomp.refold(deep(layers))
        values = [n.meta["val"] for n in refolding.result.graph.nodes if "gelu" in str(n.target)]
        assert len({value.untyped_storage()._cdata for value in values}) == len(values) == layers
        return len(runs)

    assert counted(3) == counted(12)


@pytest.fixture
def searched(monkeypatch):
    """The searches that are made, by name, and the overloads that each finds."""
    made = []

    def counting(kind):
        def search(self):
            findings = kind.search(self)
            made.append((kind.__name__, {each.spelling.target for each in findings.found}))
            return findings

        return type(kind.__name__, (kind,), {"search": search})

    monkeypatch.setattr(searching, "SEARCHES", tuple(map(counting, searching.SEARCHES)))
    return made


def test_a_program_is_searched_once_where_nothing_is_taken_back(searched):
    assert found(deep(2), to=targets.core_aten) == {"gelu": 2}
    names = [name for name, _ in searched]
    assert names == ["Functions", "Weights"]  # the rest finds nothing that Core ATen has


@pytest.mark.parametrize("more", [False, True])
def test_a_program_is_searched_again_where_something_is_taken_back(searched, more):
    def forward(q, k, v):
        return shifted_softmax(q @ k.mT) @ (shifted_softmax(v) if more else erf_gelu(v))

    ops = ["gelu", "scaled_dot_product_attention"]
    assert found(exported(forward, X, X + 1, X + 2), to=ops) == dict.fromkeys(ops[more:], 1)
    assert [name for name, _ in searched] == ["Functions", "Attentions"] * (1 + more)
    assert torch.ops.aten.softmax.int in searched[0][1]


@pytest.mark.parametrize("name", ["encoder", "resnet", "vit"])
@pytest.mark.parametrize("to", [targets.tinygrad, targets.core_aten], ids=lambda to: to.name)
def test_searches_say_what_they_may_find(searched, name, to):
    module, args = model(name)
    decomp.refold(decomp.lower(torch.export.export(module.eval(), args), to=to).result)
    kinds = {kind.__name__: kind for kind in searching.SEARCHES}
    assert any(overloads for _, overloads in searched)
    for kind, overloads in searched:
        assert overloads <= set(kinds[kind].finds)
