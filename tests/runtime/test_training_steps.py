"""Ten training steps, each one program, on the backends that train; and steps that are compiled whole."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import backend_training
import decomp
from decomp_rules import targets
from tests import installed

CASES = [*((name, model) for name in ("numpy", "stablehlo") for model in ("gpt", "resnet")), ("tinygrad", "mlp")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name, model", CASES)
def test_ten_steps_are_those_of_pytorch(name, model):
    mine, own, before = backend_training.trained(installed.backend(name), model)
    torch.testing.assert_close(mine.losses, own.losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close((mine.weights, mine.buffers), (own.weights, own.buffers), rtol=1e-4, atol=1e-5)
    assert backend_training.difference(mine, before) > 1e-3


def test_a_whole_step_is_compiled_with_its_backward():
    def trained(compiled):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x):
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = torch.compile(step, backend=decomp.backend(to=targets.tinygrad)) if compiled else step
        return [run(torch.full((3, 4), float(i))) for i in range(1, 4)]

    torch.testing.assert_close(trained(compiled=True), trained(compiled=False))


def test_a_model_may_take_gradients_itself():
    linear = nn.Linear(4, 1)

    def slopes(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(F.silu(linear(x)).sum(), x)[0]

    x = torch.randn(3, 4)
    compiled = torch.compile(slopes, backend=decomp.backend(to=targets.tinygrad))
    torch.testing.assert_close(compiled(x), slopes(x))


OPEN = {
    "joined": (lambda a, b: torch.cat([a, b], 0), (4, 4)),
    "joined, sizes swapped": (lambda a, b: torch.cat([a, b], 0), (3, 4)),
    "three": (lambda a, b: torch.cat([a, b, a[1:]], 0), (3, 4)),
    "padded": (lambda a, b: F.pad(a, (b.shape[0], 1)), (4,)),
    "assigned": (lambda a, b: joined(a, b), (3, 4)),
}


def joined(a, b):
    out = a.new_zeros(a.shape[0] + b.shape[0], 4)
    out[: a.shape[0]] = a
    out[a.shape[0] :] = b
    return out


@pytest.mark.parametrize("form, target", [*((form, "tinygrad") for form in OPEN), ("joined", "luminal")])
def test_parts_of_open_sizes_have_gradients(form, target):
    """The backward cuts off the size of the other part, which only the sum of both and the first part say."""
    function, shape = OPEN[form]
    compiled = torch.compile(function, backend=decomp.backend(to=getattr(targets, target)), dynamic=True)
    for rows in (6, 5):
        a, b = torch.randn(rows, 4, requires_grad=True), torch.randn(shape)
        slopes = [torch.autograd.grad(run(a, b).square().sum(), a)[0] for run in (compiled, function)]
        torch.testing.assert_close(*slopes)
