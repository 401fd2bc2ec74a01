"""Recorded calls that differ in form from what a rule wrote."""

import pytest
import torch
from torch import fx, nn

import decomp
from decomp.graphs.tracing import Tape
from decomp.metadata.fakes import new_mode
from decomp.torch_internals.fakes import FakeTensorMode
from decomp_rules import targets
from tests.forms import Holder


@pytest.mark.parametrize("dtype, zero", [(torch.float32, "0.0"), (torch.complex64, "0.0"), (torch.int64, "0")])
def test_the_number_0_is_a_float_where_it_multiplies_floats(dtype, zero):
    x = torch.ones(2, dtype=dtype)
    for number, written in ((3, "3"), (0, zero), (3, "3"), (0, zero)):  # known ways are taken without PyTorch
        rules = decomp.Rules({"neg": lambda x, number=number: x * number})
        lowered = decomp.lower(Holder(torch.neg), to=decomp.Target("chip", ["mul"]), rules=rules, args=(x,)).result
        (product,) = (node for node in lowered.graph.nodes if node.op == "call_function")
        assert repr(product.args[1]) == written
        assert torch.equal(lowered(x), x * number) and lowered(x).dtype is dtype


class Fixed(nn.Module):
    """A size is dynamic while the numbers are made of it, and fixed by what follows."""

    def forward(self, x, y):
        flat = torch.flatten(x)
        scaled = flat * flat.shape[0] ** -0.5 + flat / (x.shape[0] / 5)
        x.unbind(0)
        return scaled, y + 1


@pytest.mark.parametrize("to", [None, targets.core_aten, targets.tinygrad])
def test_a_number_computed_from_a_size_that_the_program_fixes(to):
    x, dims = torch.randn(3, 4), ({0: torch.export.Dim.AUTO},) * 2
    program = torch.export.export(Fixed(), (x, torch.ones(5)), dynamic_shapes=dims, strict=False)
    rules = decomp.Rules({torch.mul: lambda x, other: torch.mul(x, other), torch.div: lambda x, other: x / other})
    lowered = decomp.decompose(program, rules) if to is None else decomp.lower(program, to=to).result
    for found, expected in zip(lowered.module()(x, torch.ones(7)), Fixed()(x, torch.ones(7))):
        torch.testing.assert_close(found, expected)


def test_a_constant_that_a_rule_makes_on_another_device_is_there_when_the_program_runs():
    tape, meta = Tape(fx.Graph(), new_mode()), torch.device("meta")
    there = tape.constant(torch.tensor([1.0, 2.0]))
    moved = tape.moved_constant(there, meta)
    assert moved.device == meta and tape.is_constant(moved)
    assert [each.device.type for each in tape.constants.values()] == ["cpu", "meta"]
    assert tape.moved_constant(there, torch.device("cpu")) is None


def test_a_table_that_a_rule_makes_for_an_accelerator_is_no_mutation():
    with FakeTensorMode():
        x = torch.empty(2, 3, device="cuda")
    rules = decomp.Rules({"relu": lambda x: x * torch.tensor([1.0, 0.0, 1.0], device=x.device)})
    lowered = decomp.decompose(nn.ReLU(), rules, args=(x,))
    assert any(node.op == "get_attr" for node in lowered.graph.nodes)
    assert decomp.plan(nn.GELU(), to=targets.tinygrad, args=(x,)).complete
