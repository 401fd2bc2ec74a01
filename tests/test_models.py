"""Whole models, lowered in full mode: the same outputs, gradients and buffers, and nothing but what the target
knows."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram

import decomp
from decomp_rules import targets
from tests.models import MODELS, build

TARGETS = ("core_aten", "tinygrad")


def exported(model: nn.Module, args: tuple[Any, ...], **kwargs: Any) -> ExportedProgram:
    return torch.export.export(model, args, strict=False, **kwargs)


def gradients(model: nn.Module, args: tuple[Any, ...]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The output, and the gradient of each parameter of a fixed projection of it."""
    out = model(*args)
    weights = torch.arange(out.numel(), dtype=torch.float64).reshape(out.shape).cos().to(out.dtype)
    parameters = {n.removeprefix("model."): p for n, p in model.named_parameters()}
    found = torch.autograd.grad((out * weights).sum(), list(parameters.values()), allow_unused=True)
    return out.detach(), {n: g for n, g in zip(parameters, found) if g is not None}


def assert_near(got: torch.Tensor, wanted: torch.Tensor, ulps: float, scale: float | None = None) -> None:
    """Within some ULP of the largest value: sums of many terms are compared by their scale."""
    got, wanted = got.detach(), wanted.detach()
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    reach = scale if scale is not None else float(wanted.abs().max())
    assert float((got - wanted).abs().max()) <= ulps * torch.finfo(wanted.dtype).eps * max(reach, 1e-3)


def assert_only(target: decomp.Target, module: nn.Module) -> None:
    """Every call of every graph in `module` is legal in `target`."""
    for call in decomp.calls(module):
        free = isinstance(call.op.name, str) and call.op.name.startswith(("higher_order.", "aten._assert", "aten.sym_"))
        assert free or target.why_illegal(call) is None, f"{call.op}.{call.overload}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", (*TARGETS, "luminal"))
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_the_same_on_its_target(name: str, target: str) -> None:
    model, args = build(name)
    reference = copy.deepcopy(model)
    low = decomp.lower(exported(model, args), to=getattr(targets, target))

    assert isinstance(low.result, ExportedProgram)
    assert low.blockers == ()
    assert_only(getattr(targets, target), low.result.graph_module)
    lowered = low.result.module(check_guards=False)
    out, grads = gradients(lowered, args)
    wanted_out, wanted = gradients(reference, args)
    assert_near(out, wanted_out, ulps=64)
    scale = max(float(g.abs().max()) for g in wanted.values())
    assert grads.keys() <= wanted.keys()
    for parameter, gradient in grads.items():
        assert_near(gradient, wanted[parameter], ulps=128, scale=scale)
    for (_, got), (_, buffer) in zip(lowered.named_buffers(), reference.named_buffers()):
        assert torch.equal(got, buffer) if not got.is_floating_point() else bool(torch.isclose(got, buffer).all())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_a_program_without_mutation_lowers_to_a_program_without_mutation(name: str) -> None:
    model, args = build(name)
    reference = copy.deepcopy(model)
    program = exported(model, args).run_decompositions({})
    low = decomp.lower(program, to=targets.tinygrad)
    assert low.result.graph_signature.buffers_to_mutate.keys() == {
        output.arg.name for output in low.result.graph_signature.output_specs if output.kind.name == "BUFFER_MUTATION"
    }
    lowered = low.result.module()
    assert_near(lowered(*args), reference(*args), ulps=64)
    for (_, got), (_, buffer) in zip(lowered.named_buffers(), reference.named_buffers()):
        assert torch.allclose(got, buffer, rtol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_a_lowered_program_is_saved_and_loaded(name: str) -> None:
    model, args = build(name)
    reference = copy.deepcopy(model)
    file = io.BytesIO()
    torch.export.save(decomp.lower(exported(model, args), to=targets.tinygrad).result, file)
    file.seek(0)
    loaded = torch.export.load(file)
    assert_near(loaded.module()(*args), reference(*args), ulps=64)
    again = decomp.lower(loaded, to=targets.tinygrad)
    assert again.report().runs == 0
    assert [n.name for n in again.result.graph.nodes] == [n.name for n in loaded.graph.nodes]


def test_a_module_with_example_inputs_becomes_a_graph_module() -> None:
    model, args = build("gpt2")
    low = decomp.lower(model, to=targets.tinygrad, args=args)
    assert isinstance(low.result, fx.GraphModule)
    assert_near(low.result(*args), model(*args), ulps=64)
    shared = {id(p) for p in model.parameters()}
    assert {id(p) for p in low.result.parameters()} <= shared
    low.result.eval()
    low.result.train()


@pytest.mark.parametrize("name", ["encoder", "resnet"])
def test_the_module_of_an_exported_program_is_lowered(name: str) -> None:
    model, args = build(name)
    reference = copy.deepcopy(model)
    low = decomp.lower(exported(model, args).module(), to=targets.tinygrad)
    assert isinstance(low.result, fx.GraphModule)
    assert_near(low.result(*args), reference(*args), ulps=64)
    for (_, got), (_, buffer) in zip(low.result.named_buffers(), reference.named_buffers()):
        assert torch.allclose(got, buffer, rtol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["resnet", "unet"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_graph_in_the_torch_dialect_is_lowered_with_example_inputs(name: str, target: str) -> None:
    model, args = build(name)
    reference = copy.deepcopy(model)
    traced = fx.symbolic_trace(model)
    before = str(traced.graph)
    low = decomp.lower(traced, to=getattr(targets, target), args=args)
    assert str(traced.graph) == before
    assert not any("val" in node.meta for node in traced.graph.nodes)
    assert_near(low.result(*args), reference(*args), ulps=64)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "encoder"])
def test_dynamic_dimensions_stay_dynamic(name: str) -> None:
    model, args = build(name)
    batch = tuple({0: Dim("batch", min=2, max=64)} for _ in args)
    program = exported(model, args, dynamic_shapes=(batch,) if name != "encoder" else batch)
    env = next(
        n.meta["val"].fake_mode.shape_env for n in program.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)
    )
    guards = len(env.guards)
    low = decomp.lower(program, to=targets.tinygrad)
    assert len(env.guards) == guards
    assert low.result.range_constraints == program.range_constraints
    larger = tuple(torch.cat([arg, arg, arg]) for arg in args)
    assert_near(low.result.module()(*larger), model(*larger), ulps=64)


@pytest.mark.parametrize("name", ["encoder", "resnet"])
def test_the_source_is_left_as_it_was(name: str) -> None:
    model, args = build(name)
    program = exported(model, args)
    text = str(program.graph)
    metas = {node.name: {key: id(value) for key, value in node.meta.items()} for node in program.graph.nodes}
    state = {key: (id(value), value._version) for key, value in program.state_dict.items()}
    decomp.lower(program, to=targets.tinygrad)
    assert str(program.graph) == text
    assert {node.name: {key: id(v) for key, v in node.meta.items()} for node in program.graph.nodes} == metas
    assert {key: (id(value), value._version) for key, value in program.state_dict.items()} == state


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["encoder", "resnet", "gpt2"])
@pytest.mark.parametrize("target", TARGETS)
def test_torch_compile_runs_and_trains_on_the_target(name: str, target: str) -> None:
    torch.compiler.reset()
    model, args = build(name)
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend=decomp.backend(to=getattr(targets, target)))
    out, wanted = compiled(*args), reference(*args)
    assert_near(out.detach(), wanted.detach(), ulps=64)
    out.square().sum().backward()
    wanted.square().sum().backward()
    scale = max(float(p.grad.abs().max()) for p in reference.parameters() if p.grad is not None)
    for got, parameter in zip(model.parameters(), reference.parameters()):
        if parameter.grad is not None:
            assert got.grad is not None
            assert_near(got.grad, parameter.grad, ulps=256, scale=scale)


class FourierLayer(nn.Module):
    """The spectral convolution of a Fourier neural operator, which writes into a part of the spectrum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 3, 5, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x)
        kept = torch.zeros_like(spectrum)
        kept[..., :5] = torch.einsum("bim,iom->bom", spectrum[..., :5], self.weight)
        return torch.fft.irfft(kept, n=x.shape[-1])


@pytest.mark.sampled
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_spectral_convolution_trains(target: str, compiled: bool) -> None:
    torch.compiler.reset()
    model, x = FourierLayer(), torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1))
    reference, to = copy.deepcopy(model), getattr(targets, target)
    lowered = (
        torch.compile(model, backend=decomp.backend(to=to))
        if compiled
        else decomp.lower(exported(model, (x,)), to=to).result.module()
    )
    out, wanted = lowered(x), reference(x)
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5)
    (grad,) = torch.autograd.grad(out.square().sum(), list(lowered.parameters()))
    (own,) = torch.autograd.grad(wanted.square().sum(), list(reference.parameters()))
    torch.testing.assert_close(grad, own, rtol=1e-4, atol=1e-4)
