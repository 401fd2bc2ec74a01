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
