"""Complex numbers as pairs of real ones, on targets that have no complex dtype."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import RULES, targets

REAL = targets.core_aten.with_dtypes(["float", "integer", "bool"])
aten = torch.ops.aten


def z(*shape, seed=0, dtype=torch.complex64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def x(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def lowered(f, args, to=REAL, **options):
    """What a function, or a module, lowers to; it holds no complex tensor but at its border."""

    class Model(nn.Module):
        def forward(self, *args):
            return f(*args)

    found = decomp.lower(f if isinstance(f, nn.Module) else Model(), to=to, args=args, **options)
    at_border = {aten.view_as_real.default, aten.view_as_complex.default}
    inside = [n for n in complex_nodes(found) if n.op == "call_function" and n.target not in at_border]
    assert not inside, inside
    return found


def complex_nodes(found):
    nodes = [node for node in found.result.graph.nodes if node.op != "output"]
    return [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor) and n.meta["val"].is_complex()]


def agree(f, args, to=REAL, at_most=2e-6, **options):
    """Assert that values and gradients are those of PyTorch; the lowering."""
    source = copy.deepcopy(f) if isinstance(f, nn.Module) else f
    found = lowered(f, args, to, **options)
    outcomes = []
    for program in (source, found.result):
        given = [each.clone().requires_grad_(each.is_floating_point() or each.is_complex()) for each in args]
        result = program(*given)
        tracked = [each for each in given if each.requires_grad]
        grads = torch.autograd.grad(result.abs().square().sum(), tracked) if result.requires_grad else ()
        outcomes.append((result.detach(), *grads))
    for want, got in zip(*outcomes):
        assert got.dtype == want.dtype and got.shape == want.shape
        if want.is_floating_point() or want.is_complex():
            assert (got - want).abs().max() <= at_most * want.abs().max()
        else:
            assert torch.equal(got, want)
    return found


def transformed(x):
    """The program that kept 43 complex values on tinygrad."""
    return torch.view_as_real(torch.fft.ifft(torch.fft.fft(x) * torch.exp(torch.complex(x, x))))


@pytest.mark.parametrize("name", ["tinygrad", "luminal", "onnx"])
def test_a_spectral_program_has_no_complex_value_left(name):
    found = agree(transformed, (x(2, 8),), targets.get(name))
    assert not complex_nodes(found) and found.plan.notes == ("complex numbers: 6 calls on pairs of real numbers",)


CALLS = {
    "arithmetic": (lambda z, w: (z + w * 2 - 1j) / (z * z.conj() + 1.5), (z(3, 4), z(3, 4, seed=1))),
    "mixed": (lambda x, z: x * z + x - 2 * z, (x(4), z(3, 4))),
    "parts": (lambda z: z.real * 2 + z.imag + z.abs() + z.angle(), (z(3, 4),)),
    "polar": (lambda x: torch.polar(x.abs(), x) * 1j, (x(3, 4),)),
    "elementary": (lambda z: torch.exp(z) + torch.log(z) * torch.sqrt(z) + z**2, (z(3, 4),)),
    "products": (lambda z, m: torch.einsum("ij,jk->ik", z, m) + torch.addmm(z, z, m) + z @ m.mH, (z(3, 4), z(4, 4))),
    "views": (lambda z: (z.T.reshape(-1)[2:8:2] * z.flatten()[:3]).roll(1), (z(3, 4),)),
    "containers": (lambda z: torch.stack(z.unbind(0)[:2] + (z.sum(0), z.mean(0))), (z(3, 4),)),
    "choice": (lambda z: torch.where(z.real > 0, z, 0).masked_fill(z.imag > 1, 1j), (z(3, 4),)),
    "questions": (lambda z, w: (z == w) | (z != z) | torch.isinf(z), (z(3, 4), z(3, 4))),
    "casts": (lambda z: z.to(torch.complex128).to(torch.complex64) + z.real.to(torch.complex64), (z(3, 4),)),
    "rfft": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2), (x(2, 12),)),
    "of real numbers": (lambda x: torch.fft.hfft(x) + torch.fft.irfft(x), (x(2, 5),)),
    "of real rows": (lambda x: torch.fft.hfftn(x, dim=(0, 1)) - torch.fft.irfft2(x, (3, 8)), (x(3, 5),)),
    "fnet": (lambda x: torch.fft.fft2(x).real, (x(2, 6, 8),)),
    "a long prime": (lambda x: torch.fft.fft(x).abs(), (x(2, 131),)),
    "written": (lambda z: z.clone().add_(1).mul_(2j).index_put((torch.tensor([0]),), torch.tensor(1j)), (z(3),)),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", CALLS)
def test_values_and_gradients_are_those_of_pytorch(name):
    f, args = CALLS[name]
    agree(f, args, at_most=1e-5 if name == "elementary" else 2e-6)


def test_short_time_transforms_there_and_back():
    window = torch.hann_window(16)

    def there_and_back(x):
        spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
        return torch.istft(spectrum * 0.5, 16, 4, window=window)

    assert not complex_nodes(agree(there_and_back, (x(1, 48),)))


class Rotary(nn.Module):
    """Rotary embeddings as Llama first had them, by products of complex numbers with a buffer."""

    def __init__(self):
        super().__init__()
        angles = torch.outer(torch.arange(5.0), 1 / 10000 ** (torch.arange(0, 8, 2) / 8))
        self.register_buffer("freqs", torch.polar(torch.ones_like(angles), angles))
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        pairs = torch.view_as_complex(self.proj(x).float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.freqs.view(1, x.shape[1], 1, -1)).flatten(3).type_as(x)


def test_rotary_embeddings_take_their_buffer_apart_at_the_border():
    found = agree(Rotary(), (x(2, 5, 3, 8),))
    assert found.plan.notes == (
        "complex numbers: 4 calls on pairs of real numbers; at the border b_freqs split by view_as_real",
    )
    assert found.plan.notes[0] in " ".join(str(found.report()).split())
    assert found.plan.notes[0] in str(found.plan) and found.report().as_dict()["notes"] == list(found.plan.notes)


def test_dynamic_sizes():
    batch = torch.export.Dim("batch", min=2, max=64)
    model = Rotary()
    found = lowered(model, (x(4, 5, 3, 8),), dynamic_shapes=({0: batch},))
    for size in (2, 7):
        given = x(size, 5, 3, 8)
        torch.testing.assert_close(found.result(given), model(given))

    def spectrum(x):
        return torch.fft.rfft(x).abs()

    found = lowered(spectrum, (x(4, 8),), dynamic_shapes=(({0: batch},),))
    torch.testing.assert_close(found.result(x(9, 8)), spectrum(x(9, 8)))


def test_what_comes_in_and_goes_out_complex_stays_so_at_the_border():
    found = agree(lambda z, w: z.T * w, (z(3, 4), z(4, 3)))
    assert found.plan.notes == (
        "complex numbers: 2 calls on pairs of real numbers; at the border args_0, args_1 split by view_as_real; "
        "mul_complex merged by view_as_complex",
    )
    assert found.result(z(3, 4), z(4, 3)).stride() == (z(3, 4).T * z(4, 3)).stride()


def test_parameters_and_buffers_that_are_written():
    class Filter(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(z(5))
            self.register_buffer("seen", torch.zeros(5, dtype=torch.complex64))

        def forward(self, x):
            spectrum = torch.fft.rfft(x) * self.weight
            self.seen.mul_(0.5).add_(spectrum.detach().sum(0))
            return torch.fft.irfft(spectrum)

    model, given = Filter(), x(3, 8)
    found, source = lowered(model, (given,)).result, copy.deepcopy(model)
    for program in (source, found):
        program(given).square().sum().backward()
        program(given)
    torch.testing.assert_close(found.seen, source.seen)
    torch.testing.assert_close(found.weight.grad, source.weight.grad)


def test_provenance_leads_to_the_complex_call_and_the_rules_for_it():
    found = lowered(lambda z: torch.exp(z).abs(), (z(3),), targets.tinygrad)
    records = [found.provenance(node) for node in found.result.graph.nodes if node.op == "call_function"]
    of_exp = [record for record in records if record.source == "exp"]
    assert all(record.op == "aten.exp.default" and record.chain[0][0] == "exp" for record in of_exp)
    assert any(record.chain[1:] for record in of_exp) and all("in forward" in record.line for record in of_exp)


def test_a_rule_of_the_user_is_computed_on_pairs():
    rules = decomp.Rules()

    @rules.register(torch.exp)
    def exp(x):
        return torch.polar(torch.exp(x.real), x.imag)

    found = agree(lambda z: torch.exp(z), (z(3),), rules=rules | RULES)
    assert found.provenance("exp_complex").source == "exp"
    assert any(name == "exp" and "test_pairs" in where for name, where in found.provenance("exp_exp").chain)


def test_a_call_that_is_kept_stays_between_two_borders():
    class Model(nn.Module):
        def forward(self, z):
            return torch.exp(z * 2) * 2

    found = decomp.lower(Model(), to=REAL, args=(z(3),), keep={torch.exp})
    assert [str(n.target) for n in complex_nodes(found)] == [
        "z",
        "aten.view_as_complex.default",
        "aten.exp.default",
        "aten.view_as_complex.default",
    ]
    torch.testing.assert_close(found.result(z(3)), Model()(z(3)))


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z[z.shape[0] - 1] * 2,
        lambda z: z * torch.arange(z.shape[0])[:, None],
        lambda z: (z * z).reshape(z.shape[0] * 3) + z.numel(),
        lambda z: torch.cond(z.abs().sum() > 0, lambda a: a * 2, lambda a: a + 1, (z.abs(),)) * z.shape[0],
    ],
)
def test_sizes_of_a_complex_input_may_vary_and_be_read(function):
    class Model(nn.Module):
        def forward(self, z):
            return function(z)

    sizes = {"z": {0: torch.export.Dim("rows", min=2, max=64)}}
    found = decomp.lower(Model(), to=REAL, args=(z(4, 3),), dynamic_shapes=sizes)
    torch.testing.assert_close(found.result(z(7, 3)), function(z(7, 3)))


def test_what_has_no_rule_for_pairs_is_refused_by_name():
    class Model(nn.Module):
        def forward(self, z):
            return torch.linalg.eigvals(z @ z)

    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(Model(), to=REAL, args=(z(3, 3),))
    assert [blocker.op for blocker in caught.value.blockers] == ["aten.linalg_eigvals"]
    reasons = dict(caught.value.blockers[0].tried)
    assert "pairs of real numbers" in reasons
    partial = decomp.lower(Model(), to=REAL, args=(z(3, 3),), partial=True)
    torch.testing.assert_close(partial.result(z(3, 3)), Model()(z(3, 3)))


def test_a_program_that_is_tampered_with_is_found_out():
    from decomp.type_conversion.pair_checks import verify_pairs

    found = lowered(lambda z, w: torch.view_as_real(z * w + z), (z(3), z(3)))
    pairs = found.internals.pieces[0].at("split complex")
    verify_pairs(pairs)
    product = next(node for node in pairs.graph.nodes if node.target is aten.sub.Tensor)
    first, second = args = product.args
    for wrong in ((second, first), (first, first), (first, next(iter(pairs.graph.nodes)))):
        product.args = wrong
        with pytest.raises(decomp.VerificationError):
            verify_pairs(pairs)
    product.args, product.target = args, aten.add.Tensor
    with pytest.raises(decomp.VerificationError, match="'mul_sub' is not the expected node of the expansion of 'mul'"):
        verify_pairs(pairs)
    product.target = aten.sub.Tensor
    out = pairs.graph.output_node()
    out.args = ((product,),)
    with pytest.raises(decomp.VerificationError):
        verify_pairs(pairs)


def test_targets_that_have_complex_numbers_keep_them():
    found = decomp.lower(Rotary(), to=targets.core_aten, args=(x(2, 5, 3, 8),))
    assert found.plan.notes == () and len(complex_nodes(found)) > 2


def test_real_tensors_like_complex_ones_are_real():
    agree(lambda a: torch.full_like(a, 2, dtype=torch.float32) * torch.ones_like(a, dtype=torch.float32) * a, (z(4),))


class Viewed(nn.Module):
    def forward(self, a):
        return a.view(-1), a.view(2, -1), a.view((6, 2)), a.view(size=(4, 3)), a.reshape(2, 6)


def test_the_sizes_of_a_view_are_one_argument_or_several():
    a = z(3, 4)
    for source in (torch.fx.symbolic_trace(Viewed()), Viewed()):
        found = decomp.lower(source, to=targets.tinygrad, args=(a,)).result(a)
        assert all(map(torch.equal, found, Viewed()(a)))


def test_the_real_part_of_a_pair_is_on_memory_of_its_own():
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.ones(3))

        def forward(self, x):
            whole = torch.complex(self.b, x)
            self.b.mul_(2)
            return whole.real, whole.imag

    exported = torch.export.export(Written(), (x(3),))
    real, imag = decomp.lower(exported, to=REAL).result.module()(given := x(3))
    assert torch.equal(real, torch.ones(3)) and torch.equal(imag, given)
    assert imag.data_ptr() != given.data_ptr()


def test_a_size_of_a_complex_tensor_is_a_number():
    class Sized(nn.Module):
        def forward(self, z):
            return z * z.shape[0]

    lowered = decomp.lower(torch.fx.symbolic_trace(Sized()), args=(z(3, 4),), to=REAL).result
    assert torch.equal(lowered(z(3, 4)), z(3, 4) * 3)


def test_several_complex_results_may_be_taken_as_one():
    a, (graph, whole) = z(3, 3), (torch.fx.Graph(), [])
    given = graph.placeholder("a")
    rows = graph.call_function(torch.ops.aten.unbind.int, (given,))
    whole.append(graph.call_function(torch.ops.aten.stack.default, (rows,)))
    whole.append(graph.call_function(torch.ops.aten.linalg_inv_ex.default, (given,)))
    graph.output((rows, *whole))
    source = torch.fx.GraphModule({}, graph)
    found, expected = decomp.lower(source, to=REAL, args=(a,), verify="values").result(a), source(a)
    torch.testing.assert_close(found, expected)


def written_and_viewed(a):
    b = a * 2
    b.__setitem__(0, 3)
    return b.view(b.shape)


OF_SEVERAL = {
    "a shape": lambda a: (a * 2).view((a * 2).shape),
    "the shape of what was written": written_and_viewed,
    "pairs": lambda a: torch.cat((a * 2).split(2, 1)),
    "indices": lambda a: torch.ops.aten.index.Tensor(a * 2, torch.unravel_index(a.real.flatten().argsort(), (3, 4))),
}


@pytest.mark.parametrize("function", OF_SEVERAL.values(), ids=OF_SEVERAL)
def test_a_complex_call_takes_several_values_as_one(function):
    a = z(3, 4)
    found = decomp.lower(torch.fx.symbolic_trace(function), to=targets.tinygrad, args=(a,)).result(a)
    torch.testing.assert_close(found, function(a))


def test_several_results_of_a_call_leave_as_one():
    source = torch.fx.symbolic_trace(lambda a: (torch.linalg.slogdet(a * 2), a.split(1)))
    found, wanted = (
        program(z(2, 2)) for program in (decomp.lower(source, to=targets.tinygrad, args=(z(2, 2),)).result, source)
    )
    assert [each.dtype for each in found[0]] == [torch.complex64, torch.float32]
    torch.testing.assert_close([*found[0], *found[1]], [*wanted[0], *wanted[1]])


def _made_without_gradients(x, z):
    with torch.no_grad():
        made = torch.complex(x, x)
    return made, x


def _computed_on_without_gradients(x, z):
    with torch.no_grad():
        made = torch.complex(x, x)
    return torch.view_as_real(made * 2), x * 2


def _real_part_without_gradients(x, z):
    with torch.no_grad():
        made = torch.complex(x, x).real
    return made * 2, x * 2


def _taken_apart_twice(x, z):
    with torch.no_grad():
        made = torch.view_as_real(z * 2)
    return made, torch.view_as_real(z * 3), x


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "function",
    [_made_without_gradients, _computed_on_without_gradients, _real_part_without_gradients, _taken_apart_twice],
)
def test_a_region_without_gradients_keeps_its_calls(function):
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=decomp.backend(to=REAL))
    outcomes = []
    for program in (function, compiled):
        given = [x(3, 2).requires_grad_(), z(3, 2).requires_grad_()]
        results = program(*given)
        loss = sum(each.abs().square().sum() for each in results if each.requires_grad)
        gradients = torch.autograd.grad(loss, given, allow_unused=True)
        outcomes.append(([each.requires_grad for each in results], [*results, *gradients]))
    (wanted, theirs), (found, ours) = outcomes
    assert found == wanted
    torch.testing.assert_close(ours, theirs)


def test_a_call_that_left_its_region_is_found_out():
    from decomp.torch_internals.modes import set_grad_enabled
    from decomp.type_conversion.pair_checks import verify_pairs

    graph = torch.fx.Graph()
    given = graph.placeholder("a")
    graph.call_function(set_grad_enabled, (False,))
    made = graph.call_function(aten.mul.Tensor, (graph.call_function(aten.complex.default, (given, given)), 2))
    graph.call_function(set_grad_enabled, (True,))
    graph.output(made)
    found = decomp.lower(torch.fx.GraphModule({}, graph), to=REAL, args=(x(3).requires_grad_(),))
    pairs = found.internals.pieces[0].at("split complex")
    verify_pairs(pairs)
    first, last = (node for node in pairs.graph.nodes if node.target is set_grad_enabled)
    for target in (aten.clone.default, aten.mul.Tensor, aten.stack.default):
        moved = next(node for node in pairs.graph.nodes if node.target is target)
        before = moved.prev
        (last if moved < last else moved).append(moved) if target is aten.mul.Tensor else first.prepend(moved)
        with pytest.raises(decomp.VerificationError):
            verify_pairs(pairs)
        before.append(moved)
    verify_pairs(pairs)


def test_two_complex_results_of_the_same_parts_are_distinguished():
    class Twins(nn.Module):
        def forward(self, x, written):
            one, other = torch.complex(x, x), torch.complex(x, x)
            written.mul_(3)
            return other, one, other

    args = torch.randn(3), torch.randn(3)
    lowered = decomp.lower(torch.fx.symbolic_trace(Twins()), to=targets.luminal, args=args).result
    torch.testing.assert_close(lowered(*copy.deepcopy(args)), Twins()(*copy.deepcopy(args)))


SIZES = {
    "a quotient": lambda a: a / a.shape[0],
    "a quotient by a root": lambda a: a / a.shape[0] ** 0.5,
    "the other way": lambda a: a.shape[0] / a,
    "a weight": lambda a: torch.lerp(a, a * 3, a.shape[0]),
    "alpha": lambda a: torch.add(a, a * 2, alpha=a.shape[0] - 1),
    "a choice": lambda a: torch.where(a.real > 0, a, a.shape[0]),
    "filled": lambda a: a + torch.full_like(a, a.shape[0]),
    "filled in place": lambda a: a.clone().fill_(a.shape[0]) * a,
    "a number as a tensor": lambda a: a * torch.scalar_tensor(a.shape[0], dtype=a.dtype),
}


@pytest.mark.each_row
@pytest.mark.parametrize("name", SIZES)
def test_an_open_size_is_a_real_number(name):
    f, rows = SIZES[name], {0: torch.export.Dim.DYNAMIC}
    found = lowered(f, (z(4, 3),), dynamic_shapes={"args": (rows,)}, verify="values")
    for count in (4, 7):
        given = z(count, 3, seed=count)
        torch.testing.assert_close(found.result(given), f(given), rtol=1e-5, atol=1e-5)
