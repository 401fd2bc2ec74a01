"""Programs with numbers that are not finite run: the code that fx generates for them names what there is."""

import math

import pytest
import torch
from torch import fx

import decomp
from decomp.metadata.nonfinite_constants import EndlessComplex, spelled
from decomp_rules import targets
from tests.forms import Holder

ENDLESS = [complex(math.nan, math.inf), complex(-math.inf, 1.0), complex(0.0, -math.inf), complex(math.nan, -0.0)]
Z = torch.tensor([1 + 2j, -3.0 + 0.5j, 0.25j])


@pytest.mark.parametrize("number", ENDLESS, ids=repr)
def test_a_number_prints_as_code_that_makes_it(number):
    again = eval(repr(spelled(number)))
    assert type(again) is complex and repr(again) == repr(number)


def test_finite_numbers_are_left_alone():
    assert type(spelled(1 + 2j)) is complex and type(spelled(ENDLESS[0])) is EndlessComplex


CALLS = {
    "argument": lambda z: z * ENDLESS[0],
    "keyword": lambda z: torch.add(z, z, alpha=complex(math.nan, math.nan)),
    "both branches": lambda z: torch.where(z.real > 0, ENDLESS[0], z),
    "full": lambda z: torch.full((3,), ENDLESS[2]) + z,
    "like": lambda z: torch.full_like(z, ENDLESS[0]),
    "tensor": lambda z: z + torch.tensor([ENDLESS[0], 1, 2]),
    "filled": lambda z: z.masked_fill(z.real > 0, ENDLESS[0]),
    "written": lambda z: z.clone().fill_(ENDLESS[1]),
    "padding": lambda z: torch.constant_pad_nd(z, [1, 1], ENDLESS[0]),
    "power": lambda z: torch.pow(z, z),
    "ldexp": lambda z: torch.ldexp(z, z),
    "isreal": lambda z: torch.isreal(z),
    "logspace": lambda z: z + torch.logspace(1j, 1.0, 3, dtype=torch.complex64),
    "minus zero, NaN": lambda z: torch.where(z.real > 0, math.nan, z.real * -0.0) * math.inf,
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("target", ["core_aten", "tinygrad", "luminal"])
@pytest.mark.parametrize("call", CALLS)
def test_a_program_with_endless_numbers_runs_once_it_is_lowered(call, target):
    function = CALLS[call]
    lowered = decomp.lower(Holder(function), to=targets.get(target), args=(Z,), partial=True).result
    torch.testing.assert_close(lowered(Z), function(Z), equal_nan=True)


def test_so_does_an_exported_program_that_does_not_run_itself():
    exported = torch.export.export(Holder(CALLS["argument"]), (Z,))
    lowered = decomp.lower(exported, to=targets.core_aten).result.module()
    torch.testing.assert_close(lowered(Z), CALLS["argument"](Z), equal_nan=True)


def test_so_does_a_traced_graph_with_such_numbers_in_lists_and_keywords():
    graph = fx.Graph()
    z = graph.placeholder("z")
    summed = graph.call_function(torch.add, (z, z), {"alpha": ENDLESS[1]})
    graph.output((graph.call_function(torch.relu, (graph.call_method("abs", (summed,)),)), [ENDLESS[1]]))
    source = fx.GraphModule(torch.nn.Module(), graph)
    lowered = decomp.decompose(source, {torch.relu: lambda x: torch.where(x > 0, x, ENDLESS[0].real)})
    found, numbers = lowered(Z)
    assert not found.isfinite().any() and numbers == [ENDLESS[1]]
    assert graph.find_nodes(op="output")[0].args[0][1] == [ENDLESS[1]]  # the source is left alone
