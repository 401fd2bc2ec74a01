"""Exported programs that come back are real ones, although their code is not generated before they are run."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.fx._lazy_graph_module import _LazyGraphModule

import decomp
from decomp.capture import rebuild_exported
from decomp_rules import targets


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 8).view(2, 4)


@pytest.fixture
def source(x: torch.Tensor) -> torch.export.ExportedProgram:
    model = nn.Sequential(nn.Linear(4, 4), nn.Softplus(), nn.LayerNorm(4))
    return torch.export.export(model, (x,))


def lowered(source: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    return decomp.lower(source, to=targets.tinygrad).result


def test_code_is_generated_when_the_program_is_first_run(source, x):
    module = lowered(source).graph_module
    assert isinstance(module, _LazyGraphModule) and type(module)._needs_recompile()
    assert "def forward" in module.code
    assert not type(module)._needs_recompile()


def test_the_module_runs_and_trains(source, x):
    before, after = source.module(), lowered(source).module()
    torch.testing.assert_close(after(x), before(x))
    after(x).square().sum().backward()
    assert all(p.grad is not None for p in after.parameters())


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # run_decompositions of torch 2.13 copies tree specs
def test_it_can_be_copied_saved_lowered_again_and_decomposed(source, x, tmp_path):
    program, expected = lowered(source), source.module()(x)
    torch.export.save(program, tmp_path / "lowered.pt2")
    again = torch.export.load(tmp_path / "lowered.pt2")
    for found in (again, lowered(program), program.run_decompositions({})):
        torch.testing.assert_close(found.module()(x), expected)
    assert "def forward" in copy.deepcopy(program.graph_module).code


def test_the_source_is_left_alone(source):
    state, code = dict(vars(source)), source.graph_module.code
    program = lowered(source)
    assert all(vars(source)[name] is value for name, value in state.items())
    assert source.graph_module.code == code
    for name in (
        "_graph_module",
        "_graph_signature",
        "_state_dict",
        "_constants",
        "_module_call_graph",
        "_verifiers",
        "_range_constraints",
        "_guards_code",
    ):
        assert vars(program)[name] is not vars(source)[name], name


def test_what_torch_verifies_is_verified(source, monkeypatch):
    seen: list[int] = []
    monkeypatch.setattr(torch.export.ExportedProgram, "validate", lambda program: seen.append(id(program)))
    program = lowered(source)
    assert id(program) in seen


def test_a_program_that_keeps_more_goes_through_the_constructor(source, x):
    source._something_new = 1
    assert not rebuild_exported._is_known(source, {})
    program = lowered(source)
    assert not isinstance(program.graph_module, _LazyGraphModule)
    torch.testing.assert_close(program.module()(x), source.module()(x))


class Indices(torch.nn.Module):
    def forward(self, x):
        return torch.tril_indices(3, 3), x + 1


@pytest.mark.parametrize("target", ["core_aten", "tinygrad", "luminal"])
def test_a_constant_of_a_rule_may_be_what_the_program_returns(target):
    exported = torch.export.export(Indices(), (torch.ones(2),), strict=False)
    result = decomp.lower(exported, to=getattr(targets, target)).result
    assert torch.equal(result.module()(torch.ones(2))[0], torch.tril_indices(3, 3))


class NamedAsBuiltins(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, input, sum):
        input.add_(1)
        self.total.add_(input.mean(0))
        return torch.softmax(input, -1) + sum, input


def test_a_deep_copy_whose_inputs_have_other_names_is_lowered():
    def given():
        return torch.ones(3, 4), torch.arange(4.0)

    copied = copy.deepcopy(torch.export.export(NamedAsBuiltins(), given()))
    assert [spec.arg.name for spec in copied.graph_signature.input_specs][1:] == ["input", "sum"]  # and not input_1
    lowered = decomp.lower(copied, to=targets.tinygrad, verify="values")
    decomp.verify(copied, lowered)
    found, wanted = given(), given()
    torch.testing.assert_close(lowered.result.module()(*found), copied.module()(*wanted))
    torch.testing.assert_close(found, wanted)
    assert decomp.plan(copy.deepcopy(lowered.result), to=targets.tinygrad).complete


def test_a_program_whose_calls_are_all_in_a_region_is_in_overloads():
    class Region(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.norm(x)

    model, x = Region(), torch.randn(3, 4)
    exported = torch.export.export(copy.deepcopy(model), (x,))
    found = decomp.lower(exported, to=targets.luminal).result.module()(x)
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exported", [True, False], ids=["exported", "module"])
@pytest.mark.parametrize("name", ["_constant0", "_frozen0", "_part0"])
def test_a_buffer_may_have_the_name_that_a_constant_of_a_rule_would_get(name, exported, x):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer(name, torch.arange(4.0), persistent=name != "_constant0")

        def forward(self, x):
            buffer = getattr(self, name)
            return torch.fft.rfft(x + buffer).abs() + torch.special.i0e(x).sum() + buffer.cumsum(0).sum()

    model = Named()
    lowered = decomp.lower(
        torch.export.export(model, (x,)) if exported else model, to=targets.luminal, args=None if exported else (x,)
    ).result
    torch.testing.assert_close((lowered.module() if exported else lowered)(x), model(x))
