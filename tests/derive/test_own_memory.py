"""The results of a lowered program share memory with an input only where the model's own results do."""

import pytest
import torch
from torch import fx, nn

import decomp
from decomp_rules import targets
from tests.forms import Holder

aten = torch.ops.aten


@pytest.mark.parametrize(
    "function, shared",
    [
        (lambda x: x.cumprod(1), False),
        (lambda x: x.roll(0, 1).view(16), False),
        (lambda x: x.cumsum(1).cumsum(1), False),
        (lambda x: torch.unbind_copy(x)[0], False),
        (lambda x: torch.einsum("abc->acb", x), True),
        (lambda x: x[0], True),
    ],
)
def test_a_result_shares_memory_with_the_input_where_the_op_says_so(function, shared):
    x = torch.rand(4, 1, 4)
    result = decomp.lower(Holder(function), to=targets.tinygrad, args=(x,)).result(x)
    assert torch.equal(result, function(x))
    assert (result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()) is shared


def test_a_result_keeps_its_values_where_the_program_then_writes_its_input():
    def model(x):
        y = x.cumprod(1)
        x.add_(1)
        return y

    x = torch.ones(4, 1, 4)
    assert torch.equal(decomp.lower(Holder(model), to=targets.tinygrad, args=(x,)).result(x), torch.ones(4, 1, 4))


KEPT_BY_RULES_ALONE = {
    "maximum": lambda x: torch.maximum(x, x.sin()),
    "a view of a maximum": lambda x: torch.maximum(x, x.sin()).view(-1),
    "clamp": lambda x: x.clamp(0.2, 0.6),
    "a power": lambda x: x**0.5,
}


@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad, targets.luminal], ids=lambda t: t.name)
@pytest.mark.parametrize("form", ["exported", "module", "compiled"])
@pytest.mark.parametrize("what", KEPT_BY_RULES_ALONE)
def test_a_result_may_be_written_where_the_op_itself_does_not_keep_it(what, form, target):
    def gradient(function):
        x = torch.tensor([[0.1, 0.9], [0.4, 0.7]], requires_grad=True)
        result = function(x)
        with torch.no_grad():
            result.add_(1)
        return torch.autograd.grad(result.sum(), x)[0]

    model, example = Holder(KEPT_BY_RULES_ALONE[what]), (torch.rand(2, 2, requires_grad=True),)
    if form == "compiled":
        torch._dynamo.reset()
        lowered = torch.compile(model, backend=decomp.backend(to=target))
    else:
        program = torch.export.export(model, example) if form == "exported" else model
        result = decomp.lower(program, to=target, args=example, training=True).result
        lowered = result.module() if form == "exported" else result
    torch.testing.assert_close(gradient(lowered), gradient(model))


def test_untrained_values_are_not_copied():
    def calls(training):
        model, example = Holder(lambda x: torch.maximum(x, x.sin())), (torch.rand(2, 2),)
        program = decomp.lower(model, to=targets.luminal, args=example, training=training).result
        return sum(node.target is aten.clone.default for node in program.graph.nodes)

    assert (calls(True), calls(False)) == (1, 0)


UNTRACKED = {
    "a view that is the input": lambda x: x.squeeze(0),
    "a product along one element": lambda x: x.unsqueeze(0).cumprod(0)[0],
    "casts there and back": lambda x: x.double().to(x.dtype),
    "one of several views": lambda x: torch.chunk(x, 1)[0],
}


def within_markers(function):
    """The calls of a function of one tensor between markers of a region without gradients, and a call behind them."""
    graph = fx.symbolic_trace(function).graph
    first, last = list(graph.nodes)[1], graph.output_node()
    with graph.inserting_before(first):
        graph.call_function(torch._C._set_grad_enabled, (False,))
    with graph.inserting_before(last):
        graph.call_function(torch._C._set_grad_enabled, (True,))
        last.args = (graph.call_function(torch.mul, (last.args[0], 2)),)
    return fx.GraphModule(nn.Module(), graph)


@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad, targets.luminal], ids=lambda t: t.name)
@pytest.mark.parametrize("form", ["markers", "exported graph", "module", "compiled"])
@pytest.mark.parametrize("what", UNTRACKED)
def test_what_a_region_without_gradients_gives_has_none(what, form, target):
    def untracked(x):
        with torch.no_grad():
            y = UNTRACKED[what](x)
        return y * 2

    x = torch.randn(4, requires_grad=True)
    if form == "compiled":
        torch._dynamo.reset()
        run = torch.compile(untracked, backend=decomp.backend(to=target))
    else:
        program = Holder(untracked)
        if form == "exported graph":
            program = torch.export.export(program, (x,)).module()
        elif form == "markers":
            program = within_markers(UNTRACKED[what])
        run = decomp.lower(program, to=target, args=(x,)).result
    found = run(x)
    # A view that is made there says that it requires a gradient, in PyTorch too, and gives none to anybody.
    known = torch.autograd.grad(found.sum(), x, allow_unused=True)[0] if found.requires_grad else None
    assert torch.equal(found, x * 2) and (known is None or not known.any())


def test_what_a_region_without_gradients_hands_through_keeps_its_own():
    x = torch.randn(4, requires_grad=True)
    program = within_markers(lambda x: x.contiguous())
    assert decomp.lower(program, to=targets.tinygrad, args=(x,)).result(x).requires_grad
