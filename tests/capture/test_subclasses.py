"""Weights that are tensor subclasses around plain tensors are taken apart when a module is captured, on a copy."""

from typing import Any

import pytest
import torch
from torch import nn

import decomp
from decomp.capture.subclasses import unwrap_subclasses
from decomp_rules import targets


class Scaled(torch.Tensor):
    """A matrix of int8 with a scale for each row."""

    places: torch.Tensor
    scale: Any

    @staticmethod
    def __new__(cls, places: torch.Tensor, scale: Any) -> "Scaled":
        return torch.Tensor._make_wrapper_subclass(cls, places.shape, dtype=torch.float32)

    def __init__(self, places: torch.Tensor, scale: Any) -> None:
        self.places, self.scale = places, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["places", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Any], context: None, size: Any, stride: Any) -> "Scaled":
        return Scaled(inner["places"], inner["scale"])

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.linear:
            return super().__torch_function__(func, types, args, kwargs)
        x, weight, *bias = args
        return func(x, weight.plain(), *bias, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is torch.ops.aten.detach.default
        return Scaled(args[0].places, args[0].scale)

    def plain(self) -> torch.Tensor:
        scale = self.scale.plain() if isinstance(self.scale, Scaled) else self.scale
        return self.places.to(torch.float32) * scale


class Tied(nn.Module):
    """Two layers with one weight, and a method that was put on the module."""

    def __init__(self, scale: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)
        places = torch.arange(16, dtype=torch.int8).reshape(4, 4)
        weight = nn.Parameter(Scaled(places, scale), requires_grad=False)
        self.first.weight = self.second.weight = weight
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.second(torch.relu(self.first(x)))


def model() -> Tied:
    torch.manual_seed(0)
    return Tied(torch.rand(4, 1))


def test_a_module_is_lowered_and_stays_as_it_was() -> None:
    source, x = model(), torch.randn(3, 4)
    weight, wanted = source.first.weight, source(x)
    lowered = decomp.lower(source, to=targets.tinygrad, args=(x,)).result
    torch.testing.assert_close(lowered(x), wanted)
    assert source.first.weight is weight is source.second.weight and type(source.first) is nn.Linear
    assert source.calls == 1 and sorted(dict(source.named_parameters())) == ["first.bias", "first.weight"]
    assert {"first.weight_places", "first.weight_scale"} <= set(lowered.state_dict())


def test_a_copy_shares_every_tensor() -> None:
    source = model()
    copy = unwrap_subclasses(source)
    assert copy is not source and type(copy.first).__name__ == "Linear"
    assert copy.first.bias is source.first.bias and copy.first.weight_places is source.first.weight.places
    assert isinstance(copy.first.weight, Scaled)


def test_a_module_of_plain_tensors_is_not_copied() -> None:
    plain = nn.Linear(2, 2)
    assert unwrap_subclasses(plain) is plain


def test_subclasses_inside_subclasses() -> None:
    source, x = Tied(Scaled(torch.ones(4, 1, dtype=torch.int8), torch.full((4, 1), 0.5))), torch.randn(3, 4)
    lowered = decomp.lower(source, to=targets.core_aten, args=(x,)).result
    torch.testing.assert_close(lowered(x), source(x))
    assert "first.weight_scale_places" in lowered.state_dict()


def test_a_graph_module_is_lowered_with_example_inputs() -> None:
    source, x = model(), torch.randn(3, 4)
    traced = torch.fx.symbolic_trace(source)
    torch.testing.assert_close(decomp.lower(traced, to=targets.core_aten, args=(x,)).result(x), source(x))


def test_without_example_inputs_they_are_refused() -> None:
    source = model()
    for program, what in ((source, "Tied"), (torch.fx.symbolic_trace(source), "the GraphModule")):
        with pytest.raises(decomp.CaptureError) as error:
            decomp.lower(program, to=targets.core_aten)
        assert str(error.value) == (
            f"{what} has weights that are tensor subclasses: first.weight, second.weight\n"
            "  to do: pass example inputs (args=), so that torch.export captures what they compute"
        )


class Below(Scaled):
    """One that PyTorch asks below autograd only."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Any], context: None, size: Any, stride: Any) -> "Below":
        return cls(inner["places"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func in (aten.detach.default, aten.alias.default):
            return cls(args[0].places, args[0].scale)
        return func(*(arg.plain() if isinstance(arg, Below) else arg for arg in args), **(kwargs or {}))


class Layer(nn.Module):
    """A layer whose weight is a subclass."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        places = torch.arange(16, dtype=torch.int8).reshape(4, 4)
        self.layer.weight = nn.Parameter(kind(places, torch.full((4, 1), 0.5)), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_an_exported_program_is_lowered_with_the_parts_as_its_state() -> None:
    x = torch.randn(3, 4)
    source = torch.export.export(Layer(Below), (x,))
    lowered = decomp.lower(source, to=targets.tinygrad).result
    torch.testing.assert_close(lowered.module()(x), source.module()(x))
    assert all(type(value) in (torch.Tensor, nn.Parameter) for value in lowered.state_dict.values())


def test_what_a_subclass_computes_below_autograd_is_lowered() -> None:
    source, x = Layer(Below), torch.randn(3, 4)
    wanted = source(x)
    torch.testing.assert_close(decomp.lower(source, to=targets.tinygrad, args=(x,)).result(x), wanted)
    assert isinstance(source.layer.weight, Below)


class Tabled(Below):
    """One that makes a tensor of its own where it is asked: the numbers that its places are places in."""

    def plain(self) -> torch.Tensor:
        return torch.tensor([0.5, -1.5, 2.0, 3.0] * 4)[self.places.long()] * self.scale


class OfProducts(Below):
    """One that knows the products in which PyTorch computes a linear layer, and not the layer."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        kept = {aten.detach.default: lambda t: t, aten.alias.default: lambda t: t, aten.t.default: torch.t}
        if func in kept:
            return cls(kept[func](args[0].places), kept[func](args[0].scale))
        if func is not aten.addmm.default:
            raise NotImplementedError(str(func))
        return func(args[0], args[1], args[2].plain())


@pytest.mark.parametrize("kind", [Tabled, OfProducts])
def test_a_subclass_is_asked_below_autograd_as_when_the_module_runs(kind: Any) -> None:
    source, x = Layer(kind), torch.randn(3, 4)
    batch = {0: torch.export.Dim("batch", min=2, max=8)}
    lowered = decomp.lower(source, to=targets.core_aten, args=(x,), dynamic_shapes=(batch,), verify="values").result
    assert torch.equal(lowered(x), source(x)) and torch.equal(lowered(x[:2]), source(x[:2]))
    assert {"layer.weight_places", "layer.weight_scale", "layer.bias"} == set(lowered.state_dict())


def test_calls_on_plain_tensors_stay_composite_ops() -> None:
    source, x = nn.Sequential(Layer(Tabled), nn.LayerNorm(4)), torch.randn(3, 4)
    lowered = decomp.lower(source, to=targets.core_aten, args=(x,), keep={"linear", "layer_norm"}).result
    found = {str(call.op) for call in decomp.calls(lowered)}
    assert {"aten.linear", "aten.layer_norm"} <= found


class HalfTracked(nn.Module):
    """The gradient of a half of its result is off."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Layer(Below)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        with torch.no_grad():
            half = y / 2
        return y / 2 + half


def test_below_autograd_a_region_without_gradients_is_refused_unless_for_inference() -> None:
    source, x = HalfTracked(), torch.randn(3, 4)
    with pytest.raises(decomp.CaptureError) as error:
        decomp.lower(source, to=targets.core_aten, args=(x,))
    assert str(error.value).startswith("torch.export does not record that gradients are off at test_subclasses.py:")
    assert str(error.value).endswith(
        "with torch.no_grad():: the gradients of HalfTracked would differ\n"
        "  to do: pass training=False, for inference alone; or lower inside torch.compile, by decomp.backend"
    )
    lowered = decomp.lower(source, to=targets.core_aten, args=(x,), training=False).result
    torch.testing.assert_close(lowered(x), source(x))


class Closed(Below):
    """One that computes nothing."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default), "closed to every op"
        return cls(args[0].places, args[0].scale)


def test_a_subclass_that_no_capture_follows_is_named() -> None:
    x = torch.randn(3, 4)
    with pytest.raises(decomp.CaptureError, match="Layer has weights of the class Closed") as error:
        decomp.lower(Layer(Closed), to=targets.core_aten, args=(x,))
    assert "\n  below autograd: closed to every op\n" in str(error.value)
    assert str(error.value).endswith(
        "\n  to do: pass inputs on which the model runs, call torch.compile(model, backend=decomp.backend(to=...)), "
        "where Dynamo takes such weights apart, or quantise the model in another format"
    )


def test_a_name_that_is_taken() -> None:
    source = model()
    source.first.weight_scale = 2
    with pytest.raises(decomp.CaptureError, match="Linear already has an attribute weight_scale"):
        decomp.lower(source, to=targets.core_aten, args=(torch.randn(3, 4),))


class Placed(Scaled):
    """One that holds something else than tensors, as `DTensor` holds a mesh of devices."""

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["places", "scale", "mesh"], None

    mesh = "a mesh"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0]


def test_a_subclass_that_holds_more_than_tensors_is_refused_by_name() -> None:
    model = nn.Linear(4, 3, bias=False)
    placed = Placed(torch.ones(3, 4, dtype=torch.int8), torch.ones(3, 1))
    del model.weight
    model.register_buffer("weight", placed)
    with pytest.raises(decomp.CaptureError) as error:
        decomp.lower(model, to=targets.tinygrad, args=(torch.ones(2, 4),))
    assert str(error.value) == (
        "Linear has a Placed, weight, which holds a str besides its tensors\n"
        "  to do: lower the module as it was before it was distributed"
    )


def test_a_nested_input_is_refused_by_name() -> None:
    ragged = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    with pytest.raises(decomp.CaptureError) as error:
        decomp.lower(nn.Linear(4, 4), to=targets.tinygrad, args=(ragged,))
    assert str(error.value) == (
        "the example input args[0] is a nested tensor, whose row sizes a graph cannot express\n"
        "  to do: pass it padded, by torch.nested.to_padded_tensor, or use torch.compile with decomp.backend(to=...)"
    )
