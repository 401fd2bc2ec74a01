"""Programs that call `torch.func`: the lowered program has the values and the gradients of the eager one, and PyTorch
is left as it was."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._pytree import tree_leaves

import decomp
from decomp.errors import CaptureError
from decomp_rules import backends, targets
from tests.forms import Holder
from tests.pytorch_differences import NOT_EXPORTED

pytestmark = [
    # PyTorch's own forward mode compiles formulas by TorchScript, and torch.export looks at gradients of inner tensors.
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:A model attribute `lifted_tensor:UserWarning"),
]


def without_gradient_inside(z):
    with torch.no_grad():
        y = z.exp()
    return (y * z).sum()


def in_place(z):
    y = z * 2
    y.mul_(3)
    y[0] = 1.0
    return y.sin()


def rand(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


CASES = {
    "vmap": (lambda x, w: vmap(lambda r: torch.softmax(w @ r, 0))(x), (rand(5, 4), rand(3, 4))),
    "vmap of vmap": (lambda x, y: vmap(vmap(torch.dot, (None, 0)), (1, None))(x, y), (rand(3, 4), rand(5, 3))),
    "vmap without gradients inside": (lambda x: vmap(without_gradient_inside)(x), (rand(2, 3),)),
    "vmap in place": (lambda x: vmap(in_place)(x), (rand(2, 3),)),
    "vmap of a branch": (
        lambda x: vmap(lambda r: torch.cond(r.sum() > 0, lambda z: z * 2, lambda z: z - 1, (r,)))(x),
        (rand(3, 2),),
    ),
    "a branch with vmap": (
        lambda x: torch.cond(x.sum() > 0, lambda z: vmap(lambda r: r.softmax(0))(z), lambda z: z * 2, (x,)),
        (rand(3, 2),),
    ),
    "grad": (lambda x: grad(lambda z: z.tanh().sum())(x * 2), (rand(3),)),
    "grad of grad": (lambda x: grad(lambda y: grad(lambda z: z.tanh().sum())(y).sin().sum())(x), (rand(3),)),
    "grad of vmap": (lambda x: grad(lambda y: vmap(lambda z: z.softmax(0).square().sum())(y).sum())(x), (rand(4, 3),)),
    "grad for each sample": (
        lambda x, w: vmap(grad(lambda v, r: ((v @ r) ** 2).sum()), (None, 0))(w, x),
        (rand(4, 3), rand(2, 3)),
    ),
    "vjp": (lambda x: vjp(torch.tanh, x)[1](x.cos()), (rand(3),)),
    "jvp": (lambda x: jvp(torch.tanh, (x,), (x.cos(),)), (rand(3),)),
    "jacrev": (lambda x: jacrev(torch.tanh)(x), (rand(4),)),
    "jacfwd": (lambda x: jacfwd(lambda z: z.softmax(0))(x), (rand(3),)),
    "hessian": (lambda x: hessian(lambda z: z.tanh().sum())(x), (rand(3),)),
    "jacobian of a layer norm": (lambda x: vmap(jacrev(lambda z: F.layer_norm(z, (3,))))(x), (rand(4, 3),)),
    "gradient of a group norm": (lambda x: grad(lambda z: F.group_norm(z, 2).sin().sum())(x), (rand(2, 4, 3),)),
    "gradient of a batch norm": (
        lambda x: grad(lambda z: F.batch_norm(z, None, None, training=True).sin().sum())(x),
        (rand(4, 3),),
    ),
}


class Functional(nn.Module):
    """The gradient of a layer by its own parameters, scaled by one of the model's."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 3), nn.Parameter(rand(3))

    def forward(self, x):
        parameters = dict(self.layer.named_parameters())
        return grad(lambda p: functional_call(self.layer, p, (x * self.scale,)).tanh().sum())(parameters)


def state():
    return (
        torch._C._functorch.maybe_current_level(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch._C._len_torch_dispatch_stack(),
        torch.overrides._len_torch_function_stack(),
        torch.compiler.is_exporting(),
        torch._guards.TracingContext.try_get(),
        torch.autograd.forward_ad._current_level,
        torch.get_default_dtype(),
    )


def gradients(results, inputs):
    leaves = [leaf for leaf in tree_leaves(results) if leaf.requires_grad]
    weighted = [(leaf * torch.arange(1.0, leaf.numel() + 1).view(leaf.shape)).sum() for leaf in leaves]
    return torch.autograd.grad(sum(weighted), inputs, allow_unused=True, materialize_grads=True) if leaves else None


def assert_same(model, lowered, args):
    found = []
    for each in (model, lowered):
        inputs = [arg.clone().requires_grad_() for arg in args]
        results = each(*inputs)
        found.append(([leaf.detach() for leaf in tree_leaves(results)], gradients(results, inputs)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_a_module_with_transforms_has_its_values_and_gradients(name):
    function, args = CASES[name]
    before = state()
    lowering = decomp.lower(Holder(function), to=targets.tinygrad, args=args)
    assert state() == before and lowering.plan.complete
    assert_same(Holder(function), lowering.result, args)


@pytest.mark.parametrize("as_module", [False, True], ids=["program", "module"])
@pytest.mark.parametrize("name", ["vmap", "grad", "grad of vmap", "vjp", "jvp", "jacrev", "a branch with vmap"])
def test_an_exported_program_with_transforms_has_its_values_and_gradients(name, as_module):
    function, args = CASES[name]
    if name in NOT_EXPORTED:
        with pytest.raises(AssertionError, match="Expected FakeTensor"):
            torch.export.export(Holder(function), args)
        return
    before = state()
    program = torch.export.export(Holder(function), args)
    lowered = decomp.lower(program.module() if as_module else program, to=targets.core_aten).result
    assert state() == before
    assert_same(Holder(function), lowered if as_module else lowered.module(), args)


def test_a_graph_with_transforms_and_without_metadata_is_refused():
    function, args = CASES["vmap"]
    module = torch.export.export(Holder(function), args).module()
    for node in module.graph.nodes:
        node.meta.clear()
    with pytest.raises(CaptureError, match="has calls of torch.func, which are removed where nodes have metadata"):
        decomp.lower(module, to=targets.core_aten)


@pytest.mark.parametrize("name", ["vmap", "grad of grad", "jacfwd", "jacobian of a layer norm"])
def test_transforms_under_compile_have_their_values_and_gradients(name):
    function, args = CASES[name]
    torch.compiler.reset()
    before = state()
    assert_same(Holder(function), torch.compile(Holder(function), backend=decomp.backend(to=targets.tinygrad)), args)
    assert state() == before


def test_a_functional_call_keeps_the_parameters_of_the_model():
    model, x = Functional(), rand(3)
    names = list(dict(model.named_parameters()))
    lowered = decomp.lower(model, to=targets.tinygrad, args=(x,)).result
    assert {"scale", "layer.weight"} <= dict(lowered.named_parameters()).keys() <= set(names)
    assert list(dict(model.named_parameters())) == names
    by_eager, by_lowered = (torch.autograd.grad(each(x)["weight"].sum(), each.scale)[0] for each in (model, lowered))
    torch.testing.assert_close(by_lowered, by_eager)


def test_an_example_that_requires_a_gradient_leaves_no_level_behind():
    before = state()
    x = rand(4, 3).requires_grad_()
    lowered = decomp.lower(Holder(lambda x: vmap(lambda a: a.sum() * a)(x)), to=targets.core_aten, args=(x,)).result
    assert state() == before and torch.randn(3).requires_grad_().requires_grad
    torch.testing.assert_close(lowered(x), x.sum(1, keepdim=True) * x)


def test_transforms_run_on_a_loaded_backend():
    function, args = CASES["jacrev"]
    lowered = decomp.lower(Holder(function), to=backends.numpy.target, args=args).result
    torch.testing.assert_close(backends.numpy.load(lowered)(*args), function(*args))


class Flex(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(rand(2))

    def forward(self, q, k, v):
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu", BLOCK_SIZE=8)
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + self.bias[h] * (i - j), block_mask=mask)


@pytest.mark.parametrize("how", ["module", "compiled"])
def test_flex_attention_is_its_formula(how):
    model, args = Flex(), (rand(1, 2, 16, 8), rand(1, 2, 16, 8), rand(1, 2, 16, 8))
    distance = torch.arange(16).view(-1, 1) - torch.arange(16)
    bias = (model.bias.view(2, 1, 1) * distance).masked_fill(distance < 0, -torch.inf)
    expected = F.scaled_dot_product_attention(*args, attn_mask=bias[None])
    with torch.no_grad():
        if how == "module":
            lowered = decomp.lower(model, to=targets.tinygrad, args=args).result
        else:
            torch.compiler.reset()
            lowered = torch.compile(model, backend=decomp.backend(to=targets.tinygrad))
        torch.testing.assert_close(lowered(*args), expected, rtol=1e-4, atol=1e-4)


class UnderAutocast(nn.Module):
    def forward(self, x):
        def product(r):
            with torch.autocast("cpu", torch.bfloat16):
                return torch.mm(r, r)

        return vmap(product)(x)


def test_a_region_that_cannot_be_peeled_is_refused_by_name():
    before = state()
    program = torch.export.export(UnderAutocast(), (rand(2, 3, 3),))
    with pytest.raises(CaptureError) as error:
        decomp.lower(program, to=targets.core_aten)
    assert str(error.value) == (
        "a transform of torch.func cannot be traced through at mm (torch.ops.higher_order.wrap_with_autocast): "
        "torch.wrap_with_autocast runs inside of it\n"
        "  to do: pass the module with args=, or use torch.compile with decomp.backend(to=...)"
    )
    assert state() == before
