"""A lowered program computes on inputs of other strides, and on conjugates, what its source does, or refuses them."""

import pytest
import torch
from torch import fx, nn
from torch.export import Dim, export
from torch.nn import functional as F

import decomp
from decomp.capture.inputs.layouts import lay_out_in_order, order_of
from decomp_rules import backends, targets


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


LOWERED = {
    "module": lambda model, x: decomp.lower(model, to=targets.core_aten, args=(x,)).result,
    "open sizes": lambda model, x: (
        decomp.lower(model, to=targets.core_aten, args=(x,), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},)).result
    ),
    "exported": lambda model, x: decomp.lower(export(model, (x,)), to=targets.core_aten).result.module(),
    "traced": lambda model, x: decomp.lower(fx.symbolic_trace(model), to=targets.tinygrad, args=(x,)).result,
    "loaded": lambda model, x: backends.numpy.load(decomp.lower(model, to=backends.numpy.target, args=(x,))),
}
MODELS = {
    "flattened": Calls(lambda x: F.relu(x).flatten(1)),
    "attention": Calls(lambda x: F.softmax(x @ x.transpose(-1, -2), -1).reshape(-1)),
    "folded": nn.PixelShuffle(2),
}


def of_shape(*shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).sin()


def layouts(*shape):
    yield of_shape(*shape[::-1]).permute(*range(len(shape))[::-1])
    yield of_shape(*shape).to(memory_format=torch.channels_last)
    yield of_shape(*shape[:-1], 2 * shape[-1])[..., ::2]
    yield of_shape(*shape[:-1], 1).expand(shape)
    yield torch.complex(of_shape(*shape), of_shape(*shape)).conj().imag
    yield nn.Parameter(of_shape(*shape).transpose(1, 2).contiguous().transpose(1, 2))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", LOWERED)
def test_inputs_of_other_strides_give_the_values_of_the_source(how, name):
    model = MODELS[name]
    run = LOWERED[how](model, of_shape(2, 4, 3, 3))
    for x in layouts(2, 4, 3, 3):
        torch.testing.assert_close(run(x).detach(), model(x).detach(), rtol=1e-5, atol=1e-5)


def test_an_input_of_the_planned_layout_is_not_copied():
    x = of_shape(2, 4, 3, 3).to(memory_format=torch.channels_last)
    module = decomp.lower(
        Calls(lambda x: (x * 2).permute(0, 2, 3, 1).reshape(2, -1)), to=targets.core_aten, args=(x,)
    ).result
    assert "x.permute((0, 2, 3, 1)).is_contiguous()" in module._input_check.line()
    assert lay_out_in_order(x, order_of(x)) is not x and lay_out_in_order(x, order_of(x)).data_ptr() == x.data_ptr()
    torch.testing.assert_close(module(x.contiguous()), module(x))


@pytest.mark.parametrize(
    "shape, strides, order",
    [
        ((2, 3), (3, 1), (0, 1)),
        ((2, 3), (1, 2), (1, 0)),
        ((2, 1, 3), (3, 77, 1), (0, 1, 2)),
        ((1, 2), (1, 1), (0, 1)),
        ((2, 3), (4, 1), None),
        ((2, 3), (0, 1), None),
        ((), (), ()),
        ((2, 3, 1, 1), (3, 1, 3, 3), (0, 1, 2, 3)),
    ],
)
def test_the_order_of_dimensions_in_memory(shape, strides, order):
    assert order_of(torch.empty_strided(shape, strides)) == order


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x, torch.relu(x).flatten()),
        lambda x: (x[0], torch.relu(x).flatten()),
        lambda x: (x.add_(1), torch.relu(x).flatten())[1],
    ],
)
def test_no_copy_takes_the_place_of_an_input_that_is_written_or_returned(program):
    run = decomp.lower(Calls(program), to=targets.core_aten, args=(of_shape(2, 3, 4),)).result
    with pytest.raises(decomp.errors.InputMismatch, match=r"'x' has strides \(12, 1, 3\), .* lowered for \(12, 4, 1\)"):
        run(of_shape(2, 4, 3).transpose(1, 2))


@pytest.mark.parametrize("how", ["module", "exported", "loaded"])
def test_a_conjugate_is_resolved_where_the_program_reads_real_numbers(how):
    z = torch.complex(of_shape(3), of_shape(3).cos())
    to = backends.numpy.target
    run = {
        "module": lambda: decomp.lower(Calls(lambda z: z * 2), to=targets.tinygrad, args=(z,)).result,
        "exported": lambda: decomp.lower(export(Calls(lambda z: z * 2), (z,)), to=targets.tinygrad).result.module(),
        "loaded": lambda: backends.numpy.load(decomp.lower(Calls(lambda z: z * 2), to=to, args=(z,))),
    }[how]()
    torch.testing.assert_close(run(z.conj()), z.conj() * 2)


def test_a_traced_program_and_one_that_is_compiled_take_other_strides():
    run = LOWERED["module"](MODELS["flattened"], of_shape(2, 4, 3, 3))
    x = of_shape(2, 4, 3, 3)
    run(x)
    moved = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(fx.symbolic_trace(run)(x), run(x))
    torch.testing.assert_close(torch.compile(run, backend="eager")(moved), run(moved))
