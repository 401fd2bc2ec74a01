"""Mutation made functional: outputs, gradients and the final state of inputs and buffers are those of the original."""

import copy
import warnings

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import decomp
from decomp.errors import MutationError
from decomp.functionalize.walk import append_writes, functionalize, mutates
from decomp.graphs.graph_builder import is_aten
from decomp_rules import targets
from tests import forms


def functional(gm):
    """`gm` without mutation, but for the writes at its end."""
    before = gm.graph.python_code("self").src
    result = functionalize(gm.graph, gm)
    assert gm.graph.python_code("self").src == before
    assert set(result.rewrite.origin) == set(result.graph.nodes)
    assert all(node in gm.graph.nodes for node in result.rewrite.origin.values())
    new = fx.GraphModule(gm, result.graph)
    assert not mutates(new.graph, new) or result.submodules
    for name, inner in result.submodules.items():
        assert not mutates(inner.graph, inner)
        setattr(new, name, inner)
    assert not mutates(new.graph, new)
    append_writes(result.graph, result.writes, aten_dialect=is_aten(gm.graph))
    new.graph = result.graph
    return new


def duplicate(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # pytree's LeafSpec warns when it is copied, torch 2.13
        return copy.deepcopy(module)


def exported(module, *args, strict=False, **options):
    return torch.export.export(module, args, strict=strict, **options).module()


def module_of(function, **buffers):
    class Made(nn.Module):
        def __init__(self):
            super().__init__()
            for name, value in buffers.items():
                self.register_buffer(name, value)

        def forward(self, *args):
            return function(self, *args) if buffers else function(*args)

    return Made()


def run(module, args, seed=0):
    """Outputs, inputs afterwards, buffers afterwards, gradients of parameters and of inputs that need one."""
    module = duplicate(module)
    leaves = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]
    torch.manual_seed(seed)
    out = module(*leaves)
    flat = [o for o in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(o, torch.Tensor)]
    sources = [p for p in module.parameters() if p.requires_grad]
    sources += [a for a in leaves if isinstance(a, torch.Tensor) and a.is_leaf and a.requires_grad]
    tracked = [o for o in flat if o.requires_grad]
    loss = sum((o * torch.arange(1, o.numel() + 1).reshape(o.shape)).sum() for o in tracked) if tracked else None
    grads = [None] * len(sources)
    if loss is not None and sources:
        grads = torch.autograd.grad(loss, sources, allow_unused=True)
    grads = [torch.zeros_like(s) if g is None else g for g, s in zip(grads, sources)]
    return [flat, leaves, dict(module.named_buffers()), grads]


def same(one, two):
    """The same values, shapes and dtypes; views may have become copies."""
    assert type(one) is type(two) or isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor)
    if isinstance(one, (list, tuple)):
        assert len(one) == len(two)
        for a, b in zip(one, two):
            same(a, b)
    elif isinstance(one, dict):
        for name in one.keys() & two.keys():
            same(one[name], two[name])
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(two.detach(), one.detach(), rtol=1e-6, atol=1e-6, equal_nan=True)
    else:
        assert one == two


def check(module, *args, **options):
    """The functional program, after comparing it with `module`."""
    module = module if isinstance(module, nn.Module) else module_of(module)
    example = tree_map(
        lambda a: a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a, args
    )
    gm = exported(duplicate(module), *example, **options)
    new = functional(gm)
    same(run(module, args), run(new, args))
    return new


def x23():
    return torch.arange(6.0).reshape(2, 3) / 7 + 0.1


def weight():
    return torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()


IN_PLACE = {
    "add": lambda y: y.add_(2),
    "relu": lambda y: y.relu_(),
    "F.relu": lambda y: F.relu(y, inplace=True),
    "iadd": lambda y: y.__iadd__(3),
    "zero": lambda y: y.zero_(),
    "fill": lambda y: y.fill_(2.5),
    "copy": lambda y: y.copy_(torch.ones(3)),
    "copy int": lambda y: y.copy_(torch.arange(6).reshape(2, 3)),
    "copy transposed": lambda y: y.copy_(torch.arange(6.0).reshape(3, 2).t()),
    "masked_fill": lambda y: y.masked_fill_(y > 0.5, 0.0),
    "clamp": lambda y: y.clamp_(0.1, 0.6),
    "index_put": lambda y: y.index_put_((torch.tensor([0]),), torch.ones(3)),
    "scatter": lambda y: y.scatter_(1, torch.tensor([[0], [1]]), 5.0),
    "scatter_add": lambda y: y.scatter_add_(0, torch.zeros(1, 3, dtype=torch.int64), torch.ones(1, 3)),
    "index_add": lambda y: y.index_add_(0, torch.tensor([1]), torch.ones(1, 3)),
    "lt": lambda y: y.lt_(0.3),
    "logical_not": lambda y: y.logical_not_(),
    "eq": lambda y: y.eq_(0.1),
    "promote": lambda y: y.add_(torch.ones(3, dtype=torch.float64)),
    "mul": lambda y: y.mul_(y + 1),
    "addcmul": lambda y: y.addcmul_(y + 1, y * 2, value=2),
    "tril": lambda y: y.tril_(),
    "setitem": lambda y: y.__setitem__((slice(None), 1), 4.0),
    "setitem row": lambda y: y.__setitem__(0, torch.ones(3)),
    "setitem row of a row": lambda y: y.__setitem__(0, y[1:] * 2),
    "setitem none": lambda y: y.__setitem__((None, ..., slice(1, 3)), 2.0),
    "setitem mask": lambda y: y.__setitem__(y > 0.5, 0.0),
    "setitem list": lambda y: y.__setitem__((slice(None), [0, 2]), torch.zeros(2, 2)),
    "uniform": lambda y: y.uniform_(0, 2),
    "normal": lambda y: y.normal_(),
    "bernoulli": lambda y: y.bernoulli_(0.3),
    "exponential": lambda y: y.exponential_(),
    "dropout": lambda y: F.dropout(y, 0.5, True, True),
    "fill_diagonal": lambda y: y.fill_diagonal_(3.0),
    "sub rsub": lambda y: y.sub_(1).mul_(3).div_(2),
}


@pytest.mark.sampled
@pytest.mark.parametrize("written", ["intermediate", "input", "buffer"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_op_on_an_intermediate_an_input_and_a_buffer(name, written):
    op = IN_PLACE[name]

    def intermediate(w):
        y = w * 1
        z = y.view(3, 2)
        op(y)
        return y, z * 2, w

    def input_(x):
        op(x)
        return x * 2

    def buffer(self, x):
        op(self.b)
        return self.b * x

    if written == "intermediate":
        # Autograd takes logical_not_() for the identity (torch 2.13); the functional op has no gradient.
        check(intermediate, x23() if name == "logical_not" else weight())
    elif written == "input":
        check(input_, x23())
    else:
        check(module_of(buffer, b=x23()), x23())


VIEWS = {
    "select": lambda x: x[1],
    "slice": lambda x: x[:, 1:],
    "step": lambda x: x[:, ::2],
    "t": lambda x: x.t(),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "view": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(3, 2),
    "flatten": lambda x: x.flatten(),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(0),
    "none": lambda x: x[None, :, None],
    "diagonal": lambda x: x.diagonal(),
    "chunk": lambda x: x.chunk(2, 1)[1],
    "split": lambda x: x.split([1, 2], 1)[1],
    "split int": lambda x: x.split(2, 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "narrow": lambda x: x.narrow(1, 1, 2),
    "narrow from the end": lambda x: x.narrow(1, -2, 2),
    "movedim": lambda x: x.movedim(0, 1),
    "unflatten": lambda x: x.unflatten(1, (3, 1)),
    "view_as": lambda x: x.view_as(x),
    "detach": lambda x: x.detach(),
    "contiguous": lambda x: x.contiguous(),
    "expand one": lambda x: x.unsqueeze(0).expand(1, 2, 3),
    "chain": lambda x: x.t()[1:].unsqueeze(0)[0, :, 1],
    "tensor_split": lambda x: x.tensor_split(2, 1)[0],
    "as_strided": lambda x: x.as_strided((2, 2), (3, 1), 1),
    "to": lambda x: x.to(torch.float32),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "hsplit": lambda x: x.hsplit([1])[1],
    "bits": lambda x: x.view(torch.int32).view(torch.float32),
    "copying reshape": lambda x: x.t().reshape(-1),
    "copying to": lambda x: x.to(torch.float64),
    "copying contiguous": lambda x: x.t().contiguous(),
    "gather rows": lambda x: x[[0, 1]],
}


NOT_DIFFERENTIABLE = {"detach", "bits", "chunk", "split", "split int", "unbind"}
"""Views that PyTorch lets nobody write through where a gradient is needed, or that cut the gradient."""


@pytest.mark.sampled
@pytest.mark.parametrize("written", ["view", "base", "view with gradients", "base with gradients", "input", "buffer"])
@pytest.mark.parametrize("name", VIEWS)
def test_write_through_a_view_reaches_the_base_and_back(name, written):
    view = VIEWS[name]

    def through_view(x):
        y = x * 2
        other = y.view(6)
        v = view(y)
        v.mul_(3)
        return y + 1, v, other

    def through_base(x):
        y = x * 2
        v = view(y)
        y[:, 1] = 5
        v.add_(1)
        y.mul_(2)
        return v + 1, y

    def input_(x):
        v = view(x)
        v.add_(1)
        x.mul_(2)
        return v * 1

    def buffer(self, x):
        view(self.b).add_(1)
        return self.b * x

    where, _, needs_gradient = written.partition(" with ")
    example = weight() if needs_gradient and name not in NOT_DIFFERENTIABLE else x23()
    program = {"view": through_view, "base": through_base, "input": input_}.get(where) or module_of(buffer, b=x23())
    check(program, example)


@pytest.mark.parametrize("method", ["transpose_", "swapaxes_"])
def test_a_shape_that_is_changed_in_place_is_known_before_and_after(method):
    class Model(nn.Module):
        def forward(self, x):
            own = x.clone()
            wide = own * 2
            getattr(own, method)(0, 1)
            return own + 1, wide

    x = torch.arange(6.0).reshape(2, 3)
    lowered = decomp.lower(torch.fx.symbolic_trace(Model()), to=targets.core_aten, args=(x,)).result
    assert all(map(torch.equal, lowered(x), Model()(x)))


SEVERAL = {
    "topk": lambda x: torch.topk(x, 2),
    "max": lambda x: x.max(-1),
    "sort": lambda x: torch.sort(x, -1),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "aminmax": lambda x: torch.aminmax(x),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_each_of_several_new_tensors_may_be_written(name):
    def forward(x):
        one, two = several = SEVERAL[name](x * 2)
        one /= one.sum(-1, keepdim=True)
        two.add_(1)
        return one * 3, two, several[0] + 1, several[1]

    check(forward, x23())


@pytest.mark.parametrize("name", ["topk", "max", "sort"])
def test_one_of_several_new_tensors_is_written_and_has_a_gradient(name):
    def forward(x):
        one, two = SEVERAL[name](x * 2)
        one /= one.sum(-1, keepdim=True)
        return one * 3, two

    check(forward, weight())


def test_one_of_several_new_tensors_is_written_in_a_graph_without_shapes():
    def forward(x):
        several = torch.topk(x, 2)
        several[0].mul_(2)
        return several[0] + 1, several[1]

    gm = fx.symbolic_trace(forward)
    x = torch.randn(3, 5)
    same(functional(gm)(x), forward(x))


@pytest.mark.parametrize("rule", [lambda x: x, lambda x: x.view(-1), lambda x: x[:]])
def test_a_rule_that_returns_its_input_leaves_it_alone_when_the_result_is_written(rule):
    def program(x):
        h = F.relu(x)
        h.add_(1)
        return h * x

    x = torch.rand(4) + 1
    before = x.clone()
    decomposed = decomp.decompose(fx.symbolic_trace(program), {F.relu: rule})
    torch.testing.assert_close(decomposed(x), program(before))
    assert torch.equal(x, before)


def test_a_rule_that_copies_what_the_op_views_is_written_through():
    def program(x):
        h = x * 2
        h.squeeze(0).add_(1)
        return h

    x = torch.rand(1, 4)
    decomposed = decomp.decompose(fx.symbolic_trace(program), {torch.squeeze: lambda x, dim: x.sum(dim)}, args=(x,))
    torch.testing.assert_close(decomposed(x), program(x))


@pytest.mark.parametrize("name", ["cumsum_", "cumprod_"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_sums_of_integers_in_place_keep_their_dtype(name, dtype):
    class Model(nn.Module):
        def forward(self, x):
            y = x.clone()
            getattr(y, name)(1)
            return y

    x = torch.tensor([[1, 0, 2, 3]]).to(dtype)
    for to in (targets.core_aten, targets.tinygrad):
        assert torch.equal(decomp.lower(Model(), to=to, args=(x,)).result(x), Model()(x))


class WritesBroadcast(nn.Module):
    def forward(self, x):
        y = x * 1
        first, second = torch.broadcast_tensors(y, y)
        second.relu_()
        return first + 1, y


def test_a_write_through_one_of_several_broadcast_tensors_is_a_write_to_what_they_show():
    x = torch.linspace(-1, 1, 12).view(3, 4)
    low = decomp.lower(WritesBroadcast(), to=targets.core_aten, args=(x,))
    for got, wanted in zip(low.result(x), WritesBroadcast()(x)):
        assert torch.equal(got, wanted)


def written_through_the_second(x, y):
    one, two = torch.broadcast_tensors(x, y)
    two.zero_()
    return one + y


def written_before_it_is_read(x, y):
    views = torch.atleast_2d(x, y)
    x.mul_(2)
    return views[0] * views[1]


def written_beside_a_grid(x, y):
    grids = torch.meshgrid(x[0], y[0], indexing="ij")
    value = grids[0] * grids[1]
    y.add_(1)
    return value


@pytest.mark.parametrize("function", [written_through_the_second, written_before_it_is_read, written_beside_a_grid])
def test_each_of_several_views_is_of_its_own_tensor(function):
    check(function, x23(), x23() + 1)
    traced = fx.symbolic_trace(function)
    same(run(traced, (x23(), x23() + 1)), run(functional(traced), (x23(), x23() + 1)))


@pytest.mark.parametrize("write", ["cumsum_(0)", "cumprod_(0)", "eq_(1)", "logical_not_()"])
def test_without_metadata_too_a_write_keeps_the_dtype(write):
    program = {}
    exec(f"def forward(x):\n    y = x.clone()\n    y.{write}\n    return y", program)
    traced, x = fx.symbolic_trace(program["forward"]), torch.tensor([1, 2, 0], dtype=torch.uint8)
    found = functional(traced)(x)
    assert found.dtype == torch.uint8 and torch.equal(found, traced(x))


def test_a_result_written_into_inputs_is_not_one_of_them():
    def function(x, y, z):
        h = F.gelu(x)
        y.copy_(h)
        z.copy_(h)
        return h

    lowered = decomp.lower(forms.exported(function, *torch.randn(3, 3)), to=targets.tinygrad)
    given = [torch.randn(3) for _ in range(3)]
    result = lowered.result.module()(*given)
    assert torch.equal(result, given[1]) and torch.equal(result, given[2])
    assert len({value.data_ptr() for value in (result, *given)}) == 4


@pytest.mark.each_row
@pytest.mark.parametrize("in_place", [False, True])
def test_what_an_op_writes_beside_its_result_is_returned_by_its_functional_variant(in_place):
    """rrelu_with_noise writes the slopes that it draws into its second argument."""

    def model(x, noise):
        if in_place:
            x = x * 1
            result = torch.ops.aten.rrelu_with_noise_(x, noise, 0.1, 0.3, True)
            return result + 0 * x, noise * 2
        return torch.ops.aten.rrelu_with_noise(x, noise, 0.1, 0.3, True), noise * 2

    x, noise = torch.randn(4, 5, requires_grad=True), torch.zeros(4, 5)
    program = forms.exported(model, x, noise)
    lowered = decomp.lower(program, to=targets.tinygrad, verify="full").result.module()
    result, twice = lowered(x, noise)
    slope = torch.where(x.detach() > 0, torch.ones(()), noise)
    assert torch.equal(noise, slope) and bool((noise[x.detach() <= 0] < 0.3).all()) and not noise.requires_grad
    assert torch.equal(result, x * noise) and torch.equal(twice, noise * 2)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(gradient, noise)


def _written(x):
    y = x * 2
    y[:, 1].add_(1)
    return y


def _laid_out_by_columns(x):
    y = x.new_zeros(4, 3).t()
    return y.copy_(x)


def _written_later(x):
    y = _laid_out_by_columns(x)
    windows = y.as_strided((3, 2, 3), (3, 3, 1))
    y.mul_(3)
    return windows


def _written_through(x):
    y = _laid_out_by_columns(x)
    y.as_strided((2, 3), (6, 2), 1).mul_(5)
    y.t().as_strided((2, 2), (4, 1)).add_(1)
    return y


def _windows_of_windows(x):
    y = _written(x)
    windows = y.as_strided((2, 2, 4), (4, 4, 1))
    y[1].mul_(2)
    return windows[:, 1:].as_strided((3, 2), (2, 1), 4)


def _columns_of_a_slice_read_later(x):
    y = _written(x)
    columns = y[:, 1:].as_strided((2, 3), (1, 4), 2)
    y[1].mul_(3)
    return columns


def _after_a_transposition_in_place(x):
    y = _written(x).clone()
    y.t_()
    y.mul_(2)
    return y.as_strided((2, 3), (4, 1), 1)


STRIDED = {
    "after a transposition in place": _after_a_transposition_in_place,
    "windows that overlap": lambda x: _written(x).as_strided((2, 2, 4), (4, 4, 1)),
    "rows of a view": lambda x: _written(x)[1:].as_strided((2, 3), (4, 1)),
    "rows of a view, counted from the storage": lambda x: _written(x)[1:].as_strided((2, 3), (4, 1), 5),
    "of columns": lambda x: _laid_out_by_columns(x).as_strided((2, 3), (3, 1), 1),
    "of a transposed view": lambda x: _written(x).t().as_strided((3, 2), (2, 1)),
    "of a view of more dimensions": lambda x: _written(x).view(3, 2, 2).transpose(0, 1).as_strided((5, 2), (2, 1), 2),
    "of a slice": lambda x: _written(x)[:, ::2].as_strided((3, 2), (4, 2)),
    "of a part of several": lambda x: _written(x).chunk(2, dim=1)[1].as_strided((2, 3), (1, 4), 2),
    "of windows": _windows_of_windows,
    "of a slice, read later": _columns_of_a_slice_read_later,
    "written later": _written_later,
    "written through": _written_through,
    "nothing": lambda x: _written(x).as_strided((0, 2), (1, 1), 40),
}


def _values_and_gradient(run, x):
    result = run(x)
    return result.detach(), *torch.autograd.grad(result.square().sum(), x)


@pytest.mark.each_row
@pytest.mark.parametrize("to", (targets.core_aten, targets.tinygrad), ids=lambda target: target.name)
@pytest.mark.parametrize("form", forms.KNOWING)
@pytest.mark.parametrize("name", STRIDED)
def test_as_strided_reads_what_was_written_at_the_places_in_memory(name, form, to):
    x = torch.randn(3, 4, requires_grad=True)
    source = forms.program(STRIDED[name], (x,), form)
    lowered = decomp.lower(source, to=to, **({} if form == forms.ATEN else {"args": (x,)})).result
    expected, found = (_values_and_gradient(run, x) for run in (STRIDED[name], forms.module_of(lowered)))
    assert all(map(torch.equal, found, expected))


@pytest.mark.each_row
@pytest.mark.parametrize("name", STRIDED)
def test_as_strided_inside_torch_compile_reads_what_was_written(name):
    x = torch.randn(3, 4, requires_grad=True)
    torch.compiler.reset()
    compiled = torch.compile(STRIDED[name], backend=decomp.backend(to=targets.core_aten), fullgraph=True)
    expected, found = (_values_and_gradient(run, x) for run in (STRIDED[name], compiled))
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    ("taken", "why"),
    [
        (lambda y: y.as_strided((2, 2), (4, 1), 10), "it reaches elements that are not its operand's"),
        (lambda y: y[:, 1:].as_strided((2, 2), (4, 1), 0), "it reaches elements that are not its operand's"),
        (lambda y: y[1:].as_strided((2, 2), (4, 1), 0), "it reaches elements that are not its operand's"),
        (lambda y: y[:, 1:].detach()[1:, ::2].as_strided((2,), (1,), 5), "its operand does not fill its memory"),
    ],
)
def test_as_strided_of_other_memory_than_its_operand_is_refused_where_that_was_written(taken, why):
    source = forms.exported(lambda x: taken(_written(torch.cat([x, x]))[:3]) * 1, torch.randn(3, 4))
    with pytest.raises(MutationError) as error:
        decomp.lower(source, to=targets.core_aten)
    assert f"as_strided addresses memory that has been written, and {why}" in str(error.value)


def _in_place_and_written_later(x):
    y = _written(x)
    flat = y.view(-1)
    y.as_strided_((2, 2), (4, 1), 1)
    flat.mul_(3)
    return y * 1


def _in_place_and_written_through(x):
    y = x * 2
    flat = y.view(-1)
    y.as_strided_((2, 2), (4, 1), 1)
    y.mul_(3)
    return flat * 1


@forms.with_metadata
@pytest.mark.parametrize("function", [_in_place_and_written_later, _in_place_and_written_through])
def test_as_strided_in_place_is_a_view_of_the_tensor_before(function, form):
    """Without gradients: PyTorch's own take the views of such a tensor again, and fail (torch 2.13)."""
    x = torch.randn(3, 4)
    source = forms.program(function, (x,), form)
    lowered = decomp.lower(source, to=targets.core_aten, **({} if form == forms.ATEN else {"args": (x,)})).result
    assert torch.equal(forms.module_of(lowered)(x), function(x))
