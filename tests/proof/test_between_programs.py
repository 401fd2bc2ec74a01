"""Two programs of which no provenance says how their nodes relate, and the program that a lowering is compared with."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp.errors import CaptureError
from decomp.proof.correspondence import (
    AnotherSource,
    EffectsChanged,
    InventedDependency,
    LostDependency,
    PlaceholdersChanged,
)
from decomp.verification import verify
from decomp_rules import targets

aten = torch.ops.aten
X = torch.randn(3, 2)


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + y


# `run_decompositions` of torch 2.13 deep-copies tree specs through a deprecated class.
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_plain_programs_are_compared_without_provenance() -> None:
    traced = fx.symbolic_trace(Model())
    proof = verify(traced, fx.symbolic_trace(Model()))
    assert proof.nodes == 5 and proof.checks[-2:] == ("equally many effects", "every result depends on the same inputs")
    exported = torch.export.export(Model(), (torch.ones(2), torch.ones(2)))
    verify(exported, exported.run_decompositions({}), full=True)
    verify(traced.graph, traced.graph)
    assert "the same codegen" not in verify(Model(), traced).checks


def test_plain_programs_may_not_differ_in_inputs_or_effects() -> None:
    class Other(nn.Module):
        def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) + z

    class Random(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.bernoulli(x) + y

    with pytest.raises(PlaceholdersChanged):
        verify(fx.symbolic_trace(Model()), fx.symbolic_trace(Other()))
    with pytest.raises(EffectsChanged) as caught:
        verify(fx.symbolic_trace(Model()), fx.symbolic_trace(Random()))
    assert str(caught.value).startswith(
        "the number of effects changed: random draw\n  expected: 0\n  found: 1\n  to do: "
    )


def test_a_program_without_a_graph_cannot_be_verified() -> None:
    with pytest.raises(CaptureError) as caught:
        verify(Model(), Model())
    assert str(caught.value) == "Model has no graph to verify; pass a GraphModule or an ExportedProgram"


def test_another_source_than_the_one_that_was_lowered_is_seen() -> None:
    x = torch.randn(3, 4)
    found = decomp.lower(nn.GELU(), to=targets.tinygrad, args=(x,))
    assert verify(nn.GELU(), found).checks[-1] == "the source has the graph and state of the program that was lowered"
    with pytest.raises(AnotherSource, match="the source has 'relu' where 'gelu' is expected"):
        verify(nn.ReLU(), found)
    unrelated = torch.export.export(nn.Bilinear(2, 3, 4), (torch.randn(1, 2), torch.randn(1, 3)))
    with pytest.raises(AnotherSource):
        verify(unrelated, found)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("scale", torch.randn(2), persistent=False)

    def forward(self, x):
        return F.gelu(self.linear(x)) * self.scale


CAPTURED = {
    "module": lambda model: model,
    "traced": fx.symbolic_trace,
    "exported": lambda model: torch.export.export(model, (X,)),
}


@pytest.mark.parametrize("name", ["linear.weight", "scale"])
@pytest.mark.parametrize("kind", CAPTURED)
def test_the_source_of_a_lowering_has_the_weights_that_were_lowered(kind, name):
    model, captured = Scaled(), CAPTURED[kind]
    found = decomp.lower(captured(model), to=targets.tinygrad, args=None if kind == "exported" else (X,))
    assert verify(captured(copy.deepcopy(model)), found).checks
    other = copy.deepcopy(model)
    owner, _, attribute = name.rpartition(".")
    getattr(other.get_submodule(owner), attribute).data.neg_()
    with pytest.raises(AnotherSource, match=f"the source has other values of '{name}' than the program that was low"):
        verify(captured(other), found)


def pair(build):
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    graph.output(build(graph, a, b))
    return fx.GraphModule({}, graph)


def test_without_provenance_no_dependency_may_be_lost_or_invented():
    both = pair(lambda g, a, b: g.call_function(aten.add.Tensor, (a, b)))
    one = pair(lambda g, a, b: g.call_function(aten.neg.default, (a,)))
    with pytest.raises(LostDependency, match="result 0 does not depend on b, unlike in the source"):
        decomp.verify(both, one)
    with pytest.raises(InventedDependency, match="result 0 depends on b, unlike in the source"):
        decomp.verify(one, both)


def test_a_dependency_on_a_shape_may_go():
    like = pair(lambda g, a, b: g.call_function(aten.zeros_like.default, (a,)))
    full = pair(lambda g, a, b: g.call_function(aten.full.default, ([3, 4], 0.0)))
    assert decomp.verify(like, full).checks[-1] == "every result depends on the same inputs"
