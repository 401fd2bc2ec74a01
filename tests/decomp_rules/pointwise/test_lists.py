"""Ops on lists of tensors: of each element, and in optimizers and clipping that torch.compile compiles."""

import copy

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets
from decomp_rules.samples.leeways import leeway_of
from tests.forms import FORMS, decomposed, exported, module_of
from tests.functionalize.test_mutation import run, same, weight, x23

TARGETS = (targets.tinygrad, targets.core_aten)
OPTIMIZERS = (
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (torch.optim.Adam, {"weight_decay": 0.1}),
    (torch.optim.AdamW, {"amsgrad": True}),
    (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
)


def with_gradients():
    """Two equal modules, whose parameters have gradients."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    found, rows = (module, copy.deepcopy(module)), torch.randn(6, 4)
    for each in found:
        each(rows).square().sum().backward()
    return found


@pytest.mark.each_row
@pytest.mark.parametrize("optimizer, options", OPTIMIZERS)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_compiled_steps_of_an_optimizer_are_its_steps(optimizer, options, target):
    torch._dynamo.reset()
    module, other = with_gradients()
    eager, compiled = (optimizer(each.parameters(), lr=0.1, foreach=True, **options) for each in (module, other))
    step = torch.compile(compiled.step, backend=decomp.backend(to=target))
    for _ in range(2):
        eager.step()
        step()
    torch.testing.assert_close(list(other.parameters()), list(module.parameters()))


@pytest.mark.each_row
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_gradients_are_clipped_by_a_compiled_call(clip, target):
    torch._dynamo.reset()
    module, other = with_gradients()
    expected = clip(module.parameters(), 0.1)
    found = torch.compile(lambda: clip(other.parameters(), 0.1), backend=decomp.backend(to=target))()
    torch.testing.assert_close(found, expected)
    pairs = zip(other.parameters(), module.parameters())
    torch.testing.assert_close(*zip(*[(one.grad, two.grad) for one, two in pairs]))


def of_every_kind(x, w):
    scalar = w.sum()
    added = torch._foreach_add([x, w, scalar], [1, 2.5, 3])
    scaled = torch._foreach_addcdiv(added, [w, x, scalar], [x, x, scalar], [1.0, 2.0, 3.0])
    return (*scaled, *torch._foreach_pow(2.0, [x]), *torch._foreach_mul([x, w], scalar))


def of_unequal_dtypes(x, w):
    integers = x.long()
    products = torch._foreach_mul([x, integers, w.double()], [w.double(), x, integers])
    return (*products, *torch._foreach_add([x, integers], 1), *torch._foreach_maximum([integers, w], [1, 0.5]))


def written(x, w):
    y, z = w * 1, w.to(torch.bfloat16)
    torch._foreach_add_([y, z], [x, x], alpha=0.5)
    torch._foreach_zero_([z])
    torch._foreach_copy_([x[0], x[1:]], [x[1].long(), x[:1] * 3])
    return y, z.float(), x + 1


@pytest.mark.each_row
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("function", [of_every_kind, of_unequal_dtypes, written])
def test_lists_are_lowered_element_by_element(function, target):
    # PyTorch's own gradients of numbers beside 0-d tensors, of integers and of one factor fail (torch 2.13).
    args = x23() + 1, weight() if function is written else weight().detach()
    program = exported(function, *args)
    lowered = decomp.lower(program, to=target, verify="full").result
    same(run(program.module(), args), run(lowered.module(), args))


@pytest.mark.parametrize("form", FORMS)
def test_a_rule_for_lists_serves_every_form(form):
    def function(x, y):
        first, second = torch._foreach_mul([x, y], 2.0)
        return first + second

    rules = decomp.Rules()

    @rules.register(torch._foreach_mul)
    def each_mul(x, scalar):
        return tuple(one * scalar for one in x)

    args = x23(), x23() + 1
    torch.testing.assert_close(module_of(decomposed(function, rules, args, form))(*args), function(*args))


def test_each_result_depends_on_its_own_elements_alone():
    """As many calls for each of ten pairs as for one."""

    def step(*tensors):
        parameters, gradients = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        return torch._foreach_add(parameters, gradients, alpha=-0.1)

    counts = []
    for length in (1, 10):
        program = exported(step, *[weight().detach().requires_grad_() for _ in range(2 * length)])
        counts.append(len(decomp.calls(decomp.lower(program, to=targets.tinygrad).result)))
    assert counts[1] == 10 * counts[0]


def test_empty_lists_are_refused_by_pytorch():
    with pytest.raises(RuntimeError, match="Tensor list must have at least one tensor"):
        exported(lambda x: (torch._foreach_mul([], 2.0), x)[1], x23())


def test_numbers_that_a_tensor_holds_are_declined():
    graph = torch.fx.Graph()
    x, numbers = map(graph.placeholder, ("x", "numbers"))
    added = graph.call_function(torch.ops.aten._foreach_addcmul.Tensor, ([x], [x], [x], numbers))
    graph.output(added)
    module = torch.fx.GraphModule(nn.Module(), graph)
    with pytest.raises(decomp.NotLowered, match="PyTorch reads the numbers from the tensor of factors"):
        decomp.lower(module, to=targets.tinygrad)


@pytest.mark.parametrize("name", ["maximum", "minimum", "clamp_min", "clamp_max"])
def test_zeros_of_either_sign_are_equal_in_lists_too(name):
    zero = torch.zeros(1)
    forms = [
        leeway_of(op, (), {}).results(None, [sign * zero]) for op in (name, f"_foreach_{name}") for sign in (1.0, -1.0)
    ]
    assert all(not torch.signbit(found) for (found,) in forms)
