"""What IREE's and torch-mlir's importer misreads is in another form while it reads a program, and only then."""

import pytest
import torch
from torch import nn

from decomp_rules.support.fx_importer import Importable


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("wide", torch.tensor([[True, False, True, True]]))
        self.register_buffer("high", torch.tensor([[False], [True]]), persistent=False)

    def forward(self, x):
        first, second = torch.where(self.wide & self.high, x, 0.0).split(1)
        return first + second, self.wide


X = torch.arange(8.0).view(2, 4)


def metadata(program):
    return [(node.name, dict(node.meta)) for node in program.graph.nodes]


def test_constants_of_bools_are_integers_that_are_cast():
    program = torch.export.export(Masked(), (X,))
    with Importable(program) as importable:
        held = [*importable.state_dict.values(), *importable.constants.values()]
        assert {tensor.dtype for tensor in held} == {torch.int8}
        values = [node.meta["val"].dtype for node in importable.graph.nodes if node.op == "placeholder"]
        assert values == [torch.int8, torch.int8, torch.float32]
        importable.graph.lint()
        found = importable.module(check_guards=False)(X)
    for mine, own in zip(found, Masked()(X), strict=True):
        torch.testing.assert_close(mine, own)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([[1.0, torch.inf, -0.0, 0.3]], dtype=torch.bfloat16))

    def forward(self, x):
        return x.to(torch.bfloat16) * self.scale, self.scale


def test_constants_of_bfloat16_are_integers_of_the_same_bits():
    program = torch.export.export(Scaled(), (X,))
    with Importable(program) as importable:
        (held,) = importable.state_dict.values()
        assert held.dtype is torch.int16
        importable.graph.lint()
        found = importable.module(check_guards=False)(X)
    for mine, own in zip(found, Scaled()(X), strict=True):
        torch.testing.assert_close(mine, own, rtol=0, atol=0, equal_nan=True)


def test_nodes_have_no_tensor_meta_and_the_results_of_a_split_are_a_list():
    program = torch.export.export(Masked(), (X,))
    split = next(node for node in program.graph.nodes if node.target is torch.ops.aten.split.Tensor)
    split.meta["val"] = tuple(split.meta["val"])
    with Importable(program) as importable:
        assert not any("tensor_meta" in node.meta for node in importable.graph.nodes)
        assert type(split.meta["val"]) is list


class Indexed(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.tensor([1, 0]), persistent=False)

    def forward(self, x):
        return x[self.rows, x.argmax(1)]


def test_a_constant_in_a_list_is_copied_and_a_buffer_that_is_not_persistent_is_in_the_state():
    program = torch.export.export(Indexed(), (X,))
    with Importable(program) as importable:
        index = next(node for node in importable.graph.nodes if node.target is torch.ops.aten.index.Tensor)
        assert [operand.op for operand in index.args[1]] == ["call_function", "call_function"]
        assert importable.state_dict["rows"] is importable.constants["rows"]
        torch.testing.assert_close(importable.module(check_guards=False)(X), Indexed()(X))
    assert "rows" not in program.state_dict


@pytest.mark.parametrize("model", [Masked, Indexed, Scaled])
def test_afterwards_the_program_is_as_it_was(model):
    program = torch.export.export(model(), (X,))
    before, known, held = str(program), metadata(program), program.constants | program.state_dict
    with Importable(program):
        assert str(program) != before
    assert str(program) == before and metadata(program) == known
    now = program.constants | program.state_dict
    assert all(now[name] is tensor for name, tensor in held.items())
