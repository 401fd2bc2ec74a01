"""Writes that autograd does not see, into tensors whose gradient is needed: the value changes, the gradient stays."""

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets
from tests.functionalize.test_mutation import check, duplicate, run, same, weight


def through_detach(w):
    y = w * 2
    y.detach().mul_(3)
    return y, w + y


def with_gradients_off(w):
    y = w * 2
    with torch.no_grad():
        y.mul_(3)
    return y


def of_a_view(w):
    y = w * w
    row = y[0]
    with torch.no_grad():
        row.add_(1)
    return y * w, row.exp()


def of_a_detached_view(w):
    y = w * w
    y[:, 1:].detach().zero_()
    return y * w


def through_a_view_of_a_detached_tensor(w):
    y = w.exp() + w
    y.detach()[1].clamp_(max=0.5)
    return y.t() @ w


def tracked_into_a_detached_tensor_that_others_write(w):
    y = w.abs()
    detached = y.detach()
    row = detached[1:]
    detached[0].copy_(w[1])
    detached[1].mul_(w[0])
    y.clamp_(max=0.5)
    return row, detached, y


def twice(w):
    y = w * 2
    with torch.no_grad():
        y.mul_(3)
    z = y + w
    with torch.no_grad():
        y.detach().sub_(1)
        y[0].mul_(2)
    return y, z * y


def overwritten_since(w):
    y = w * 2
    with torch.no_grad():
        y.add_(3)
    y.zero_()
    return y + w


def followed_by_a_write_that_is_seen(w):
    y = w * 2
    with torch.no_grad():
        y.add_(3)
    y[0].mul_(w[1])
    return y


def into_a_product_with_an_untracked_operand(w):
    y = torch.einsum("ij,kj->ik", w.detach(), w)
    with torch.no_grad():
        y.mul_(3)
    return y


PROGRAMS = [
    through_detach,
    with_gradients_off,
    of_a_view,
    of_a_detached_view,
    through_a_view_of_a_detached_tensor,
    tracked_into_a_detached_tensor_that_others_write,
    twice,
    overwritten_since,
    followed_by_a_write_that_is_seen,
    into_a_product_with_an_untracked_operand,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_write_that_autograd_does_not_see(program):
    check(program, weight())


def parts_of_complex_numbers(w):
    z = torch.complex(w, w.flip(1)) * (1 + 2j)
    z[0] = z[1].conj() * 2
    z[:, 1:] += 1j
    z[..., -1].mul_(z[..., 0].clone())
    return torch.view_as_real(z), z.conj()[1].real


@pytest.mark.parametrize("other", [1, torch.tensor([[2.0]])])
def test_a_part_of_a_complex_sum_that_is_a_part_of_an_input_is_saved(other):
    def program(x):
        y = x + other
        x.mul_(2)
        return (y * y).real

    w = torch.randn(2, 3, dtype=torch.complex64, requires_grad=True)
    lowered = decomp.lower(torch.fx.symbolic_trace(program), to=targets.tinygrad, args=(w,)).result
    wanted, found = (torch.autograd.grad(call(w * 1).sum(), w)[0] for call in (program, lowered))
    torch.testing.assert_close(found, wanted)


def test_parts_of_complex_numbers_are_written():
    check(parts_of_complex_numbers, weight())


class Clipped(nn.Module):
    """A weight that is kept within bounds, as the critic of a Wasserstein GAN is."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-2, 2, 6).reshape(2, 3))

    def forward(self, x):
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
        return x @ self.weight.t()


def test_a_parameter_that_is_written_where_it_is_used():
    check(Clipped(), torch.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
def test_a_parameter_that_is_written_is_trained_after_lowering(target):
    module, args = Clipped(), (torch.arange(6.0).reshape(2, 3),)
    for lowered in _lowered(module, args, target):
        same(run(module, args), run(lowered, args))


def test_values_that_are_not_finite_are_kept():
    module, args = Clipped(), (torch.eye(3),)
    with torch.no_grad():
        module.weight[0, 0], module.weight[1, 1] = torch.inf, torch.nan
    lowered = decomp.lower(torch.export.export(module, args), to=targets.core_aten).result.module()
    for model in (module, lowered):
        assert model(*args)[0, 0] == 1 and dict(model.named_parameters())["weight"][0, 0] == 1
    same(module(*args), lowered(*args))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
def test_an_embedding_of_bounded_norm_is_trained(kind, target):
    torch.manual_seed(0)
    module, args = kind(5, 4, max_norm=1.0), (torch.tensor([[0, 1, 2], [3, 0, 1]]),)
    expected = run(module, args)
    assert expected[3][0].any()
    for lowered in _lowered(module, args, target):
        same(expected, run(lowered, args))


def _lowered(module, args, target):
    """Both ways there: as a module, and exported."""
    to = getattr(targets, target)
    yield decomp.lower(duplicate(module), to=to, args=args).result
    yield decomp.lower(torch.export.export(duplicate(module), args), to=to).result.module()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[:, torch.tensor([1])],
        lambda x: x[..., ::2][[1, 0]],
        lambda x: x[None, torch.tensor([1])],
        lambda x: torch.zeros(2, 3).index_put((torch.tensor([1]),), x[:1]),
    ],
)
def test_elements_that_are_read_by_indices_are_trained_where_a_rule_takes_them_by_an_op_that_saves_its_input(read):
    def program(x):
        y = read(x)
        x.mul_(2)
        return (y,)

    w = weight()
    lowered = decomp.lower(torch.fx.symbolic_trace(program), to=targets.luminal, args=(w,)).result
    wanted, found = (torch.autograd.grad(call(w * 1)[0].sum(), w)[0] for call in (program, lowered))
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    "write",
    [
        lambda mask, x: mask.copy_(x),
        lambda mask, x: mask.detach().logical_not_(),
        lambda mask, x: mask[1:].copy_(x[1:]),
    ],
)
def test_a_mask_is_written_where_nothing_tells_that_it_is_one(write):
    def program(mask, x):
        write(mask, x)
        return torch.relu(x), mask[1:]

    lowered = decomp.decompose(torch.fx.symbolic_trace(program), {torch.relu: lambda x: x.clamp(min=0)})
    x = torch.tensor([-1.0, 0.0, 2.0])
    one, other = torch.tensor([True, False, True]), torch.tensor([True, False, True])
    wanted, found = program(one, x), lowered(other, x)
    assert all(map(torch.equal, wanted, found)) and torch.equal(one, other) and other.dtype == torch.bool


def data_of_a_tensor(w):
    y = w * 2
    y.data.mul_(3)
    return y * y + w.data * w


def data_of_a_view_that_autograd_does_not_know(w):
    y = w * 2
    with torch.no_grad():
        view = y[1:]
    view.data.add_(1)
    return y * y + view * 3


def data_written_with_gradients_off(w):
    y = w * 2
    with torch.no_grad():
        view = y.mT
        view.data.copy_(view.data.cos())
    return y * y + (view * 3).mT


@pytest.mark.parametrize(
    "program",
    [
        data_of_a_tensor,
        data_of_a_view_that_autograd_does_not_know,
        data_written_with_gradients_off,
    ],
)
def test_what_goes_through_data_has_no_gradient(program):
    graphs = []
    torch.compile(program, backend=lambda module, _: graphs.append(module) or module.forward)(weight())
    torch.compiler.reset()
    compiled = torch.compile(program, backend=decomp.backend(to=targets.core_aten))
    (of_a_graph,) = graphs
    lowered = decomp.lower(of_a_graph, to=targets.core_aten, args=(weight(),)).result
    for model in (compiled, lambda w: lowered(w)[0]):
        leaves = weight(), weight()
        wanted, found = program(leaves[0]), model(leaves[1])
        torch.testing.assert_close(found, wanted)
        wanted.sum().backward()
        found.sum().backward()
        torch.testing.assert_close(leaves[1].grad, leaves[0].grad)


class SeenThenUnseen(nn.Module):
    def forward(self, x):
        x.mul_(2)
        with torch.no_grad():
            x.exp_()
        return x.shape[0]


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("compiled", [False, True])
def test_an_input_that_is_written_with_gradients_off_keeps_that_of_the_writes_before(compiled):
    w = torch.randn(3, requires_grad=True)
    if compiled:
        torch._dynamo.reset()
        lowered = torch.compile(SeenThenUnseen(), backend=decomp.backend(to=targets.core_aten))
    else:
        lowered = decomp.lower(SeenThenUnseen(), to=targets.core_aten, args=(w * 3,)).result
    x = w * 3
    lowered(x)
    assert torch.equal(x, (w * 6).exp())
    assert torch.equal(torch.autograd.grad(x.sum(), w)[0], torch.full((3,), 6.0))


@pytest.mark.parametrize("form", ["module", "graph", "exported"])
def test_what_is_written_into_a_detached_parameter_is_not_tracked_in_the_parameter(form):
    class Moving(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((3,), 0.5))

        def forward(self, x):
            self.weight.detach().copy_(torch.erf(self.weight))
            return x * self.weight

    results = []
    for lowers in (False, True):
        model, x = Moving(), torch.ones(3)
        if lowers and form == "exported":
            model = decomp.lower(torch.export.export(model, (x,)), to=targets.core_aten).result.module()
        elif lowers:
            args = (x,) if form == "module" else None
            model = decomp.lower(model, to=targets.core_aten, args=args, partial=True).result
        out = model(x)
        (weight,) = model.parameters()
        results.append((out, weight.detach(), *torch.autograd.grad(out.sum(), weight)))
        assert weight.is_leaf and weight.requires_grad
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("after", [lambda y: y, torch.exp], ids=["as it is", "exp"])
def test_what_a_leaf_module_makes_of_a_buffer_is_trained_through_a_detached_write(after):
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 4)
            self.register_buffer("table", torch.linspace(0, 1, 12).view(3, 4))

        def forward(self, x):
            y = after(self.head(self.table))
            y.data.add_(1)
            return y.sin() * x

    source = Head()
    result = decomp.decompose(torch.fx.symbolic_trace(source), decomp.Rules())
    found, wanted = (torch.autograd.grad(m(torch.ones(1)).sum(), source.head.weight)[0] for m in (result, source))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("rows", [3, 0])
def test_an_input_beside_one_that_is_written_is_trained(rows):
    """Autograd counts writes by tensor, and two halves of one are one to it."""

    class Halves(nn.Module):
        def forward(self, left, right):
            left.clamp_max_(1.5)
            return nn.functional.silu(right) + left

    def gradient(module, base):
        whole = base * 1
        return torch.autograd.grad(module(whole[:, :2], whole[:, 2:]).sum(), base)[0]

    base = torch.randn(rows, 4, requires_grad=True)
    example = torch.randn(rows, 4)
    halves = example[:, :2].requires_grad_(), example[:, 2:].requires_grad_()
    lowered = decomp.lower(torch.fx.symbolic_trace(Halves()), to=targets.tinygrad, args=halves).result
    torch.testing.assert_close(gradient(lowered, base), gradient(Halves(), base))


def test_a_new_shape_in_place_that_is_the_old_one_keeps_the_gradient_where_none_are_recorded():
    class Squeezed(nn.Module):
        def forward(self, x):
            y = x * 1.5
            with torch.no_grad():
                y.squeeze_()
            return y.flatten()

    x = torch.randn(3, 4, requires_grad=True)
    lowered = decomp.lower(Squeezed(), to=targets.core_aten, args=(x,)).result
    assert torch.equal(*(torch.autograd.grad(module(x).sum(), x)[0] for module in (lowered, Squeezed())))


def test_what_a_region_overwrites_as_a_whole_still_requires_a_gradient():
    class Overwrites(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(weight())

        def forward(self, x):
            y = torch.erf(self.weight)
            with torch.autocast("cpu", torch.bfloat16):
                y.copy_(self.weight.detach())
            return y[1:] * x

    module, x = Overwrites(), torch.ones(())
    lowered = decomp.lower(module, to=targets.core_aten, args=(x,)).result
    found, wanted = lowered(x), module(x)
    torch.testing.assert_close(found, wanted)
    assert found.requires_grad
    torch.testing.assert_close(*(torch.autograd.grad(out.sum(), module.weight)[0] for out in (found, wanted)))


class Comparing(nn.Module):
    """Compares in place with a parameter, which the result then depends on, with a gradient of zero."""

    def __init__(self, name, of_view, dtype):
        super().__init__()
        self.name, self.of_view = name, of_view
        self.w = nn.Parameter(torch.tensor([0.0, 1.0, 2.0], dtype=dtype))

    def forward(self, x, written):
        y = x * 2
        part = y[0] if self.of_view else y
        getattr(part, self.name)(self.w)
        getattr(written, self.name)(self.w)
        return y, y + 1


@pytest.mark.parametrize("of_view", [False, True])
@pytest.mark.parametrize("name", ["eq_", "less_"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["module", "exported", "graph", "compiled"])
def test_what_is_compared_in_place_with_a_parameter_requires_a_gradient_of_zero(form, dtype, name, of_view):
    results = []
    for lowers in (False, True):
        model, x = Comparing(name, of_view, dtype), torch.ones(2, 3)
        w = model.w
        if lowers and form == "exported":
            model = decomp.lower(torch.export.export(model, (x, x.clone())), to=targets.tinygrad).result.module()
            w = model.w
        elif lowers and form == "compiled":
            model = torch.compile(model, backend=decomp.backend(to=targets.tinygrad))
        elif lowers and form == "module":
            model = decomp.lower(model, to=targets.tinygrad, args=(x, x.clone())).result
            w = model.w
        elif lowers:
            model = decomp.decompose(torch.fx.symbolic_trace(model), {})
            w = model.w
        written = x.clone()
        out = model(x, written)
        assert all(each.requires_grad for each in (written, *out))
        results.append((*out, written, *torch.autograd.grad([*out, written], w, [torch.ones(2, 3)] * 3)))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("form", ["module", "exported", "compiled"])
def test_a_mask_that_is_compared_in_place_with_a_parameter_stays_a_mask(form):
    class Masking(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))

        def forward(self, x):
            mask = x > 1
            mask.eq_(self.w)
            counts = mask.to(torch.int64)
            counts.less_(self.w * 2)
            return mask, counts, self.w * mask

    model, x = Masking(), torch.tensor([0.5, 1.0, 3.0])
    wanted = model(x)
    if form == "compiled":
        found = torch.compile(model, backend=decomp.backend(to=targets.tinygrad))(x)
    elif form == "module":
        found = decomp.lower(model, to=targets.tinygrad, args=(x,)).result(x)
    else:
        found = decomp.lower(torch.export.export(model, (x,)), to=targets.tinygrad).result.module()(x)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert [each.requires_grad for each in found] == [False, False, True]
