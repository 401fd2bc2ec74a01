"""A tensor that is wholly overwritten requires a gradient if it did, of zero, or if what it gets does."""

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets

EXAMPLE = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) + 0.5


class Weighted(nn.Module):
    """A program of a parameter and an input."""

    def __init__(self, program):
        super().__init__()
        self.program = program
        self.weight = nn.Parameter(torch.full((3, 4), 2.0))
        self.register_buffer("state", torch.zeros(3, 4))

    def forward(self, x):
        return self.program(self.weight, x, self.state)


def copied(w, x, state):
    v = w * x
    v.copy_(x)
    return v


def assigned(w, x, state):
    v = w * x
    v[:] = x
    return v


def assigned_a_number(w, x, state):
    v = w * x
    v[...] = 3.0
    return v


def filled_by_a_tensor(w, x, state):
    v = w * x
    v.fill_(x[0, 0])
    return v


def zeroed(w, x, state):
    v = w * x
    v.zero_()
    return v, v[0]


def drawn(w, x, state):
    v = w * x
    v.uniform_(1.0, 1.0)
    return v


def compared(w, x, state):
    v = w * x
    v.eq_(2.0)
    return v


def through_a_view(w, x, state):
    v = w * x
    v.view(-1).copy_(x.reshape(-1))
    return v * 2


def read_through_a_view(w, x, state):
    v = w * x
    flat = v.t()
    v.copy_(x)
    return flat


def a_row(w, x, state):
    v = w * x
    row = v[0]
    row.copy_(x[0])
    return row


def of_other_dtype(w, x, state):
    v = w * x
    v.copy_(x[0].double())
    return v


def twice(w, x, state):
    v = w * x
    v.copy_(x)
    v.copy_(x + 1)
    return v


def without_gradients_later(w, x, state):
    v = w * x
    v.copy_(x)
    with torch.no_grad():
        v.mul_(2)
    return v + 0


def of_an_input(w, x, state):
    x.copy_(torch.ones(3, 4))
    return x * w


def of_a_buffer(w, x, state):
    state.copy_(x)
    return state + 1


def of_something_new(w, x, state):
    v = torch.zeros(3, 4)
    v[:] = w * x
    return v


def of_something_shaped_alike(w, x, state):
    v = torch.empty_like(w)
    v.copy_(x)
    return v + 0


PROGRAMS = (
    copied,
    assigned,
    assigned_a_number,
    filled_by_a_tensor,
    zeroed,
    drawn,
    compared,
    through_a_view,
    read_through_a_view,
    a_row,
    of_other_dtype,
    twice,
    without_gradients_later,
    of_an_input,
    of_a_buffer,
    of_something_new,
    of_something_shaped_alike,
)


def outcome(model, tracked):
    """Results, whether they require gradients, and the gradients of the parameter and of the input."""
    leaf = EXAMPLE.clone().requires_grad_(tracked)
    results = model(leaf * 1 if tracked else leaf)
    results = results if isinstance(results, tuple) else (results,)
    known = [result for result in results if result.requires_grad]
    if known:
        sum((result * torch.arange(1.0, result.numel() + 1).view(result.shape)).sum() for result in known).backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    requires = [result.requires_grad for result in results]
    return requires, [result.detach() for result in results], {"x": leaf.grad, **grads}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
def test_what_is_overwritten_keeps_its_place_in_autograd(program, target, tracked):
    lowered = decomp.lower(Weighted(program), to=getattr(targets, target), args=(EXAMPLE.clone(),)).result
    requires, results, grads = outcome(Weighted(program), tracked)
    found_requires, found, found_grads = outcome(lowered, tracked)
    assert found_requires == requires
    torch.testing.assert_close(found, results, rtol=0, atol=0)
    assert {name: grad.tolist() for name, grad in found_grads.items() if grad is not None} == {
        name: grad.tolist() for name, grad in grads.items() if grad is not None
    }


def calls(program, target=targets.core_aten):
    lowered = decomp.lower(Weighted(program), to=target, args=(EXAMPLE.clone(),)).result
    return [str(node.target) for node in lowered.graph.nodes if node.op == "call_function"]


def test_what_has_no_gradient_is_overwritten_without_more_ado():
    assert calls(of_something_new) == ["aten.mul.Tensor", "aten.clone.default"]
    assert "aten.sub.Tensor" not in calls(of_something_shaped_alike) + calls(of_a_buffer)


def test_what_is_overwritten_again_in_part_needs_no_connection():
    def rows(w, x, state):
        v = w * x
        for i in range(3):
            v[i] = x[i]
        return v

    assert "aten.sub.Tensor" not in calls(rows)


def test_minus_zero_stays_minus_zero():
    def negative(w, x, state):
        v = w * x
        v.copy_(torch.full((3, 4), -0.0))
        return v

    lowered = decomp.lower(Weighted(negative), to=targets.core_aten, args=(EXAMPLE,)).result
    assert torch.signbit(lowered(EXAMPLE)).all()


def test_the_structure_of_such_programs_is_proved():
    for program in (copied, through_a_view, twice):
        lowered = decomp.lower(Weighted(program), to=targets.tinygrad, args=(EXAMPLE.clone(),), verify="full")
        assert lowered.result(EXAMPLE).requires_grad


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("how", ["lowered", "compiled"])
def test_what_was_compared_without_gradients_has_its_own_later(how):
    """In what is captured, it is from then on what `broadcast_tensors` returned in the region: itself."""

    def program(w, x, state):
        v = w * x
        with torch.no_grad():
            loss = nn.functional.mse_loss(v, x)
        return v, w[1:] * 2, loss

    if how == "lowered":
        found = decomp.lower(Weighted(program), to=targets.core_aten, args=(EXAMPLE.clone(),)).result
    else:
        torch._dynamo.reset()
        found = Weighted(torch.compile(program, backend=decomp.backend(to=targets.core_aten)))
    torch.testing.assert_close(outcome(found, True), outcome(Weighted(program), True))
