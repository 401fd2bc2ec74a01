"""A graph that is traced without example inputs has what the model does to its own tensors, or tracing is refused."""

import pytest
import torch
from torch import fx, nn

import decomp
from decomp_rules import targets


class Stateful(nn.Module):
    """A program of a buffer and an input."""

    def __init__(self, program):
        super().__init__()
        self.program = program
        self.register_buffer("state", torch.tensor([-1.0, float("nan"), 2.0]))
        self.plain = torch.zeros(3)

    def forward(self, x):
        return self.program(self, x)


def lowered(program, **options):
    return decomp.lower(Stateful(program), to=targets.core_aten, **options).result


def assert_same(program, result):
    reference, x = Stateful(program), torch.arange(3.0)
    for _ in range(2):
        torch.testing.assert_close(result(x), reference(x), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(result.state, reference.state, rtol=0, atol=0, equal_nan=True)


def test_a_write_to_a_buffer_that_no_proxy_sees_is_in_the_program():
    def program(model, x):
        return model.state.relu_() * x

    assert_same(program, lowered(program))
    assert_same(program, decomp.decompose(Stateful(program), {"sin": torch.cos}))


def test_a_write_through_data_is_in_the_program():
    def program(model, x):
        model.state.data.add_(1)
        return x * model.state

    model = Stateful(program)
    model.state[1] = 0.0
    result = decomp.decompose(model, {"sin": torch.cos})
    assert result(torch.ones(3)).tolist() == [0.0, 1.0, 3.0]


def test_the_source_keeps_its_buffers():
    model = Stateful(lambda model, x: x + model.state.relu_())
    decomp.lower(model, to=targets.core_aten)
    assert model.state[0] == -1


@pytest.mark.parametrize("name", ["plain", "state"])
def test_a_write_that_no_graph_would_show_is_refused(name):
    def plain(model, x):
        model.plain.add_(1)
        return x + model.plain

    def state(model, x):
        model.state = model.state + 1
        return x + model.state

    with pytest.raises(decomp.CaptureError) as caught:
        lowered({"plain": plain, "state": state}[name])
    assert str(caught.value) == (
        f"Stateful writes '{name}' while it is traced, which its graph would not show\n"
        "  to do: pass example inputs (args=...), so that torch.export captures it; or register what is written as a "
        "buffer, and write it in place"
    )


def test_constants_that_tracing_makes_are_in_the_program():
    def program(model, x):
        return x + torch.ones(3) * 2 + model.state

    model = Stateful(program)
    assert_same(program, decomp.lower(model, to=targets.core_aten).result)
    assert not any(name.startswith("_tensor_constant") for name in vars(model))


def test_a_tracer_of_the_users_own_is_made_once_where_nothing_is_written():
    made = []

    class Own(fx.Tracer):
        def __init__(self):
            super().__init__()
            made.append(self)

    decomp.decompose(Stateful(lambda model, x: x * model.state), {"sin": torch.cos}, tracer_class=Own)
    assert len(made) == 1 and not made[0].proxy_buffer_attributes


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 100


def switched_off(model, x):
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y + x


def in_a_region(region):
    def program(model, x):
        with region():
            y = x * 2
        return y + x

    return program


OFF = "gradients off (in a region, or in a torch.autograd.Function)"
SWITCHES = {
    "no_grad": (in_a_region(torch.no_grad), OFF),
    "decorated": (torch.no_grad()(lambda model, x: x * 2), OFF),
    "set_grad_enabled": (switched_off, OFF),
    "inference_mode": (in_a_region(torch.inference_mode), "inference mode on"),
    "autocast": (in_a_region(lambda: torch.autocast("cpu", torch.bfloat16)), "autocast on"),
    "function": (lambda model, x: Doubled.apply(x), OFF),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_region_that_no_graph_would_show_is_refused(name):
    program, switched = SWITCHES[name]
    with pytest.raises(decomp.CaptureError) as caught:
        lowered(program)
    head, place, remedy = str(caught.value).splitlines()
    assert head == f"Stateful makes a call with {switched}, which a symbolic trace does not record"
    assert place.startswith("  at test_symbolic_capture.py:") and "x * 2" in place
    assert remedy == "  to do: pass example inputs (args=...), so that torch.export captures it"
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("name", ["no_grad", "set_grad_enabled", "autocast"])
def test_with_example_inputs_a_region_keeps_its_meaning(name):
    program, _ = SWITCHES[name]
    x = torch.arange(3.0, requires_grad=True)
    for run in (lowered(program, args=(torch.ones(3),)), Stateful(program)):
        (gradient,) = torch.autograd.grad(run(x).sum(), x)
        assert gradient.tolist() == ([3] * 3 if name == "autocast" else [1] * 3)


def test_gradients_on_within_what_the_caller_switched_off_is_refused_too():
    with torch.no_grad(), pytest.raises(decomp.CaptureError, match="makes a call with gradients on"):
        lowered(in_a_region(torch.enable_grad))


def test_regions_that_change_nothing_or_compute_nothing_are_served():
    def program(model, x):
        with torch.enable_grad():
            y = x * 2
        with torch.no_grad():
            z = torch.ones(3) * 2
        return y + z

    assert lowered(program)(torch.ones(3)).tolist() == [4] * 3
    with torch.no_grad():
        assert lowered(in_a_region(torch.no_grad))(torch.ones(3)).tolist() == [3] * 3


def test_a_region_inside_a_leaf_module_is_refused():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.leaf = Stateful(in_a_region(torch.no_grad))

        def forward(self, x):
            return self.leaf(x)

    class Leaves(fx.Tracer):
        def is_leaf_module(self, module, name):
            return True

    with pytest.raises(decomp.NotLowered, match="its forward cannot be traced symbolically; pass args="):
        decomp.lower(Outer(), to=targets.core_aten, tracer_class=Leaves)


class AssignsBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.ones(3))

    def forward(self, x):
        self.b += x
        return x.relu()


def test_a_proxy_that_a_trace_left_in_a_buffer_is_refused_by_name():
    with pytest.raises(decomp.CaptureError, match=r"holds proxies of a symbolic trace instead of tensors: b\n"):
        decomp.lower(fx.symbolic_trace(AssignsBuffer()), to=targets.core_aten)


def test_a_graph_without_an_output_is_refused():
    graph = fx.Graph()
    graph.call_function(torch.relu, (graph.placeholder("x"),))
    with pytest.raises(decomp.CaptureError, match="the graph is malformed: it has no output"):
        decomp.lower(fx.GraphModule(nn.Module(), graph), to=targets.core_aten)
