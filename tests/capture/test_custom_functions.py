"""A `torch.autograd.Function` keeps its backward, or the program is refused."""

import copy
import pickle

import pytest
import torch
from torch import fx, nn
from torch.autograd.function import once_differentiable

import decomp
from decomp_rules import targets
from tests.forms import Holder


class Rounded(torch.autograd.Function):
    """Rounds, with the gradient of what is rounded, scaled."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return torch.round(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.scale, None


class Reversed(torch.autograd.Function):
    """The identity, with the gradient reversed."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Gated(torch.autograd.Function):
    """Several results, of which one has no gradient; operands of which some need none."""

    @staticmethod
    def forward(x, weight):
        return nn.functional.gelu(x) * weight, (x > 0).float()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, _):
        x, weight = ctx.saved_tensors
        of_x = (gradient * weight).clamp(-1, 1) if ctx.needs_input_grad[0] else None
        return of_x, gradient * torch.softmax(x, -1) if ctx.needs_input_grad[1] else None


rounded = Rounded.apply


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.full((2, 3), 2.0))

    def forward(self, x):
        y, positive = Gated.apply(self.linear(rounded(x, 0.5)), self.weight)
        return Reversed.apply(y) * 3, positive


def gradients(model, x):
    x = x.clone().requires_grad_()
    results = model(x)
    wanted = [x, *(parameter for _, parameter in sorted(model.named_parameters()))]
    return [results[1].requires_grad, results[0].detach(), *torch.autograd.grad((results[0] ** 2).sum(), wanted)]


@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
def test_the_backward_of_custom_functions_is_lowered(target):
    model, x, to = Model(), torch.randn(2, 3), getattr(targets, target)
    lowered = decomp.lower(model, to=to, args=(x,), verify="values").result
    for each in (lowered, copy.deepcopy(lowered)):
        for wanted, found in zip(gradients(model, x), gradients(each, x)):
            torch.testing.assert_close(found, wanted)
    bodies = [module for module in lowered.modules() if isinstance(module, fx.GraphModule)]
    ops = {str(getattr(node.target, "__name__", node.target)) for body in bodies for node in body.graph.nodes}
    assert target != "tinygrad" or ops.isdisjoint({"gelu", "softmax", "clamp"})


class ReversedView(torch.autograd.Function):
    """Several results, of which one is a view of the operand."""

    @staticmethod
    def forward(ctx, x):
        return x.t(), x * 2

    @staticmethod
    def backward(ctx, gradient, other):
        return other - gradient.t()


PARTS = {
    "whole": lambda x: Reversed.apply(x) * 3,
    "row": lambda x: Reversed.apply(x)[1],
    "chunks": lambda x: Reversed.apply(x).chunk(2),
    "view of a result": lambda x: ReversedView.apply(x)[0][1:],
    "beside another": lambda x: (ReversedView.apply(x * 2)[0].view(2, 2, 2), x + 1),
}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # by Dynamo
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "lowered"])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_a_result_that_is_an_operand_keeps_the_backward(part, compiled):
    x = torch.arange(8.0).view(4, 2).requires_grad_()
    function, to = PARTS[part], targets.core_aten
    if compiled:
        lowered = torch.compile(function, backend=decomp.backend(to=to))
    else:
        lowered = decomp.lower(Holder(function), to=to, args=(x,)).result

    def gradient(function):
        results = function(x)
        results = results if isinstance(results, tuple) else (results,)
        return torch.autograd.grad(sum((result**2).sum() for result in results), x)[0]

    torch.testing.assert_close(gradient(lowered), gradient(function))


class Modes(nn.Module):
    """A custom function before what is written in inference mode, and before a cast of autocast."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        y = self.linear(x)
        z = Reversed.apply(y * 2) * y
        with torch.inference_mode():
            z.mul_(0.5)
            with torch.enable_grad():
                alone = y + 1
        with torch.no_grad(), torch.inference_mode(False):
            within = y * 3
        with torch.autocast("cpu", torch.bfloat16):
            narrow = self.linear(z)
        return z, narrow, within, alone.clone()


@pytest.mark.parametrize("target", [targets.core_aten, targets.luminal], ids=lambda target: target.name)
def test_modes_beside_a_custom_function(target):
    torch.manual_seed(0)
    model, x = Modes(), torch.randn(2, 3)
    lowered = decomp.lower(model, to=target, args=(x,)).result
    for index, (wanted, found) in enumerate(zip(model(x), lowered(x))):
        assert found.dtype == wanted.dtype and found.requires_grad == wanted.requires_grad, index
        torch.testing.assert_close(found, wanted)
        if wanted.requires_grad:
            sides = (
                torch.autograd.grad(each(x)[index].float().sum(), each.linear.weight)[0] for each in (lowered, model)
            )
            torch.testing.assert_close(*sides, rtol=1e-2, atol=1e-2)


def test_a_buffer_beside_a_custom_function_is_known_by_its_metadata():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.ones(1))

        def forward(self, x):
            return Reversed.apply(x) + self.shift[0]

    x = torch.randn(2, 3)
    torch.testing.assert_close(decomp.lower(Shifted(), to=targets.tinygrad, args=(x,)).result(x), x + 1)


def test_rules_apply_inside_of_custom_functions():
    model, x = Model(), torch.randn(2, 3)
    result = decomp.decompose(model, {"gelu": lambda x: x * torch.sigmoid(x)}, args=(x,))
    bodies = [module.code for name, module in result.named_modules() if name.startswith("fwd_body")]
    assert "sigmoid" in "".join(bodies) and "nn.gelu(" not in "".join(bodies)
    torch.testing.assert_close(gradients(result, x)[2].shape, x.shape)


def test_a_program_that_is_not_trained_has_no_backward():
    x = torch.randn(2, 3)
    lowered = decomp.lower(Model(), to=targets.tinygrad, args=(x,), training=False).result
    assert "autograd_function_apply" not in lowered.code
    pickle.loads(pickle.dumps(lowered))


def test_what_dynamo_does_not_capture_is_refused():
    class Rounding(nn.Module):
        def forward(self, x):
            return rounded(x, 0.5)

    rows = {0: torch.export.Dim("rows", min=2)}
    with pytest.raises(decomp.CaptureError) as caught:
        decomp.lower(Rounding(), to=targets.core_aten, args=(torch.randn(2, 3),), dynamic_shapes=(rows,))
    what, remedy = str(caught.value).splitlines()
    assert what.startswith("torch.export does not record the backward of Rounded (test_custom_functions.py:")
    ending = "Rounding would differ, and custom functions are captured only at the sizes of the example inputs"
    assert what.endswith(ending)
    assert remedy == (
        "  to do: pass training=False, for inference alone; or lower inside torch.compile, by decomp.backend"
    )


def test_a_leaf_that_is_made_inside_is_refused():
    with pytest.raises(decomp.CaptureError) as caught:
        decomp.lower(Holder(lambda x: (x * 2).requires_grad_() * 3), to=targets.core_aten, args=(torch.ones(2),))
    what, _ = str(caught.value).splitlines()
    assert what.startswith("torch.export does not record requires_grad_() at test_custom_functions.py:")
    assert what.endswith(": the gradients of Holder would differ")


def test_a_hook_on_a_tensor_is_refused():
    def hooked(x):
        y = x * 2
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * 2)
        return y

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(decomp.CaptureError, match=r"torch\.export does not record register_hook\(\) at test_custom_"):
        decomp.lower(Holder(hooked), to=targets.core_aten, args=(x,))
    decomp.lower(Holder(hooked), to=targets.core_aten, args=(x,), training=False)


def test_a_symbolic_trace_of_a_function_that_returns_what_it_is_given_is_refused():
    class Adversary(nn.Module):
        def forward(self, x):
            return Reversed.apply(x) * 2

    with pytest.raises(decomp.CaptureError) as caught:
        decomp.lower(Adversary(), to=targets.core_aten)
    what, remedy = str(caught.value).splitlines()
    assert what.startswith("Adversary calls Reversed (test_custom_functions.py:")
    assert what.endswith("), a torch.autograd.Function, whose backward a symbolic trace does not record")
    assert remedy == "  to do: pass example inputs (args=...), with which it is captured"


def test_a_lowered_program_with_a_custom_function_says_why_it_cannot_be_pickled():
    lowered = decomp.lower(Model(), to=targets.core_aten, args=(torch.randn(2, 3),)).result
    with pytest.raises(decomp.errors.NotPortable) as caught:
        pickle.dumps(lowered)
    assert str(caught.value) == (
        "a lowered program with a torch.autograd.Function cannot be pickled: PyTorch reads a GraphModule by tracing "
        "it, which would lose the backward\n"
        "  to do: save its state_dict() and lower the model again, or lower it with training=False"
    )


def test_checkpointing_keeps_its_gradients():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.linear, x, use_reentrant=True)

    model, x = Checkpointed(), torch.randn(2, 3, requires_grad=True)
    lowered = decomp.lower(model, to=targets.core_aten, args=(x,)).result
    found = torch.autograd.grad(lowered(x).sum(), lowered.linear.weight)[0]
    torch.testing.assert_close(found, torch.autograd.grad(model.linear(x).sum(), model.linear.weight)[0])
