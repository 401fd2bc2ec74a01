"""What is written with gradients off, in inference mode or through `.data` keeps the gradient that it had, also where
the example inputs require none."""

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets
from tests.forms import Holder


def under_no_grad(x):
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
    return y * x


def an_item(x):
    y = x * 2
    with torch.no_grad():
        y[0] = 5
        y.view(-1)[1:].zero_()
    return y * x


def masked_and_copied(x):
    y = x * 2
    with torch.no_grad():
        y.masked_fill_(y < 0, 7.0)
    z = torch.zeros(2)
    z.copy_(y)
    with torch.no_grad():
        z.copy_(x * 5)
    return z * x


def through_detach(x):
    y = x * 4
    y.detach().mul_(2)
    return y * x


def through_data(x):
    y = x * 4
    y.data.mul_(2)
    return y * x


def detached_in_place(x):
    y = (x * 4).detach_()
    y.mul_(x)
    return y * x


def a_view_of_what_is_detached_in_place(x):
    y = x * 4
    view, part = y.view(2, 1), y[:1]
    y.detach_()
    unwritten = part + 1  # a view keeps its history until its base is written
    y.mul_(3)
    return view.view(2) * x + unwritten


def a_view_through_which_what_is_detached_is_written(x):
    y = x * 4
    view = y.view(2, 1)
    view.mul_(x.view(2, 1))
    y.detach_()
    y.add_(x[0])
    return view.view(2) * x + y


def reshaped_and_detached_in_place(x):
    y = (x * 4).unsqueeze(0)
    z = y.detach()
    z.mul_(x)
    before = z[0, :1].view(1)
    z.squeeze_(0)
    after = z[1:]
    z.detach_()
    unwritten = before.view(1) + after
    z.mul_(2)
    return z * x + y[0] + unwritten


def in_inference_mode(x):
    y = x * 2
    with torch.inference_mode():
        y.mul_(3)
        with torch.enable_grad():
            y.add_(1)
    return y * x


def gradients_within_none(x):
    y = x * 2
    with torch.no_grad():
        with torch.enable_grad():
            z = y * x
        y = y * 3
    return y * x + z


def an_input(x):
    with torch.no_grad():
        x.mul_(2)
    return x * x


PROGRAMS = [
    under_no_grad,
    an_item,
    masked_and_copied,
    through_detach,
    through_data,
    detached_in_place,
    a_view_of_what_is_detached_in_place,
    a_view_through_which_what_is_detached_is_written,
    reshaped_and_detached_in_place,
    in_inference_mode,
    gradients_within_none,
    an_input,
]


def gradient(program, is_leaf):
    x = torch.tensor([1.5, -2.0], requires_grad=True)
    given = x if is_leaf else x * 1
    result = program(given)
    return result.detach(), torch.autograd.grad(result.sum(), x)[0], given.detach()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_gradients_of_a_module_are_those_of_its_forward(program, is_leaf):
    module = Holder(program)
    lowered = decomp.lower(module, to=targets.core_aten, args=(torch.tensor([1.5, -2.0]),)).result
    for wanted, found in zip(gradient(module, is_leaf), gradient(lowered, is_leaf)):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("program", [under_no_grad, through_detach, detached_in_place])
def test_gradients_of_an_exported_program_are_those_of_its_source(program):
    x = torch.tensor([1.5, -2.0])
    lowered = decomp.lower(torch.export.export(Holder(program), (x,)), to=targets.tinygrad).result.module()
    for wanted, found in zip(gradient(program, False), gradient(lowered, False)):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("program", [in_inference_mode, detached_in_place])
def test_gradients_inside_torch_compile_are_those_of_the_function(program):
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=decomp.backend(to=targets.core_aten))
    for wanted, found in zip(gradient(program, True), gradient(compiled, True)):
        assert torch.equal(found, wanted)


def test_a_program_that_is_not_trained_restores_no_gradients():
    lowered = decomp.lower(Holder(under_no_grad), to=targets.core_aten, args=(torch.ones(2),), training=False).result
    assert [node.op for node in lowered.graph.nodes].count("call_function") == 3


def test_a_tensor_that_is_given_other_memory_is_refused():
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            self.weight.data = self.weight / 2
            return self.weight * x

    with pytest.raises(decomp.errors.MutationError) as caught:
        decomp.lower(Normalised(), to=targets.core_aten, args=(torch.ones(2),))
    first, line, remedy = str(caught.value).splitlines()
    assert first == "cannot make the program functional: it replaces a tensor's memory, by x.data = y"
    assert "self.weight.data = self.weight / 2" in line and remedy == "  to do: write x.data.copy_(y)"


def test_an_input_that_is_detached_in_place_is_refused():
    with pytest.raises(decomp.errors.MutationError) as caught:
        decomp.lower(Holder(lambda x: x.detach_() * 2), to=targets.core_aten, args=(torch.ones(2),))
    first, *_, remedy = str(caught.value).splitlines()
    assert first == (
        "cannot make the program functional: it detaches the input 'args_0' itself, which then has no gradient outside "
        "of the program either"
    )
    assert remedy == "  to do: use what x.detach() returns, or pass training=False"
