"""Layouts that differ from the recorded ones: metadata stays true, and what was recorded for the old layout works."""

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import decomp
from decomp.derive.stride_propagation import StridePropagation
from decomp.graphs import graph_builder
from decomp.graphs.tracing import on_metadata
from decomp.metadata.strides import dense_order, same_layout, same_strides
from decomp_rules import RULES, targets
from tests.opinfo.cases import cases
from tests.pytorch_differences import OPEN_STRIDES_ARE_MERGED, SPECTRA_HAVE_THEIR_STRIDES


class Spectrum(nn.Module):
    """Writes a slice of a spectrum whose dimension of frequencies is not the last."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        x = self.linear(x)
        spectrum = torch.fft.rfft(x, dim=1)
        kept = torch.zeros_like(spectrum)
        kept[:, :2] = spectrum[:, :2] * (1 + 1j)
        return torch.fft.irfft(kept, n=x.shape[1], dim=1)


def strided_slice_of_an_activation(x):
    return torch.relu(x[:, ::2]).reshape(-1)


def padding_of_what_looks_like_channels_last(x):
    return F.pad(x.transpose(1, 2).unsqueeze(-1), (0, 1)).reshape(-1)


def as_strided_of_a_dense_activation(x):
    return torch.as_strided(torch.relu(x[:, ::2].transpose(0, 1)), (2, 2), (3, 1))


def branches(x):
    y = torch.relu(x[:, ::2].transpose(0, 2))
    return torch.cond(x.sum() > 0, lambda t: (t * 2).flatten(), lambda t: t.flatten() * 3, (y,))


def pieces(x):
    return [piece.view(-1) for piece in torch.relu(x[:, ::2].transpose(1, 2)).transpose(1, 2).split(1, 0)]


def write_to_a_turned_slice(x):
    y = x.clone()
    y[:, ::2].transpose(1, 2).mul_(2)
    return y.view(-1)


FUNCTIONS = (
    strided_slice_of_an_activation,
    padding_of_what_looks_like_channels_last,
    as_strided_of_a_dense_activation,
    branches,
    pieces,
    write_to_a_turned_slice,
)
WITHOUT_SLICES = targets.core_aten.legal_if("slice", lambda call: False, "there are no slices")
PICKING = decomp.Rules()


@PICKING.register("aten.slice.Tensor")
def picked(x, dim=0, start=None, end=None, step=1):
    """A slice as a copy, into memory without gaps."""
    return x.index_select(dim, torch.arange(*slice(start, end, step).indices(x.shape[dim])))


class Held(fx.Interpreter):
    """Runs a graph, and holds each result against what the graph says of it."""

    def run_node(self, n):
        found, said = super().run_node(n), n.meta.get("val")
        if isinstance(found, torch.Tensor) and isinstance(said, torch.Tensor) and n.op.startswith("call"):
            assert found.shape == said.shape and same_strides(found, said), (n.format_node(), found.stride())
        return found


def module_of(function):
    class Model(nn.Module):
        def forward(self, x):
            return function(x)

    return Model()


@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad, targets.luminal], ids=lambda t: t.name)
def test_a_slice_of_a_spectrum_along_an_inner_dimension_is_written(target):
    model, x = Spectrum(), torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
    lowered = decomp.lower(Spectrum(), to=target, args=(x,)).result
    expected, found = model(x), lowered(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    expected.square().sum().backward()
    found.square().sum().backward()
    gradient = dict(lowered.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradient[name].grad, parameter.grad, rtol=1e-5, atol=1e-5)
    if SPECTRA_HAVE_THEIR_STRIDES:
        Held(lowered).run(x)


@pytest.mark.sampled
@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad, targets.luminal], ids=lambda t: t.name)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_metadata_is_true_and_views_work(function, target):
    x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    lowered = decomp.lower(module_of(function), to=target, args=(x,)).result
    for found, expected in zip(lowered(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    Held(lowered).run(x)


def flat_columns(x):
    return x[:, :2].transpose(0, 1).reshape(-1)


def view_of_a_slice(x):
    return x[:, :2].view(2, 2, 2, 2).sum(-1)


def as_strided_of_a_slice(x):
    return torch.as_strided(x[:, ::2], (2, 2), (5, 1))


@pytest.mark.parametrize("function", [*FUNCTIONS, flat_columns, view_of_a_slice], ids=lambda f: f.__name__)
def test_slices_may_become_copies(function):
    x = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(module_of(function), (x,), strict=False)
    strides = [n.meta["val"].stride() for n in program.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    lowered = decomp.lower(program, to=WITHOUT_SLICES, rules=PICKING | RULES)
    for found, expected in zip(lowered.result.module()(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    Held(lowered.result.graph_module).run(x)
    after = [n.meta["val"].stride() for n in program.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    assert strides == after, "the program that came in is not touched"


class Halved(nn.Module):
    """The joints of a U-Net: a norm, a concatenation, and an image of half the size brought back to its own."""

    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x):
        y = torch.cat([x, F.silu(self.norm(x))], 1)
        y = y + F.interpolate(y[:, :, ::2, ::2], scale_factor=2, mode="bilinear", align_corners=False)
        return F.log_softmax(y, 1)


def test_later_calls_are_recorded_again_at_any_size():
    model, images = Halved(), torch.randn(4, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)
    lowered = decomp.lower(program, to=targets.luminal).result.module()
    for given in (images, images[:3]):
        torch.testing.assert_close(lowered(given), model(given), rtol=1e-4, atol=1e-5)


def transposed(tensor):
    """The same numbers, the last two dimensions in the other order in memory."""
    if tensor.dim() < 2 or tensor.layout is not torch.strided:
        return tensor
    return tensor.detach().transpose(-1, -2).contiguous().transpose(-1, -2)


SAMPLED = [
    case
    for case in [each for each in cases((torch.float32,)) if each.capture == "function" and not each.random][::29]
    if not str(case).startswith("linalg.eigvals")  # which no target without it reaches
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_metadata_of_operators_is_true_for_turned_inputs(case):
    for program in list(case.programs(2)):
        args, kwargs = program.arguments(tuple(map(transposed, program.inputs)))
        lowered = decomp.lower(program.module, to=targets.tinygrad, args=args, kwargs=kwargs).result
        Held(lowered).run(*[leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)])


def test_memory_with_gaps_that_is_gone_is_said():
    x = torch.randn(2, 6, 4)
    with pytest.raises(decomp.NotLowered, match="reads memory with gaps"):
        decomp.lower(module_of(as_strided_of_a_slice), to=WITHOUT_SLICES, rules=PICKING | RULES, args=(x,))


def test_layouts_are_distinguished_as_in_kernels():
    a = torch.empty_strided((2, 4, 8, 1), (32, 1, 4, 1))
    b = torch.empty_strided((2, 4, 8, 1), (32, 1, 4, 4))
    assert same_strides(a, b) and not same_layout(a, b), "one of them is channels last"
    assert same_layout(torch.empty(2, 1, 3), torch.empty_strided((2, 1, 3), (3, 77, 1)))
    assert not same_layout(torch.empty(2, 3), torch.empty(3, 2).t())
    assert same_layout(torch.empty(0, 3), torch.empty(3, 0).t())


def test_dense_order_names_the_slowest_dimension_first():
    assert dense_order(torch.empty(2, 3, 4).permute(2, 0, 1)) == [1, 2, 0]
    assert dense_order(torch.empty(2, 3)[:, :2]) is None
    assert dense_order(torch.empty(1, 3).expand(2, 3)) is None


def test_a_call_that_stays_and_looks_at_memory_keeps_what_it_looks_at():
    class Windows(nn.Module):
        def forward(self, x):
            rows = torch.as_strided(x, (2, 2), (1, 1))
            return torch.as_strided(rows, (2, 2), (1, 1))

    x = torch.arange(12.0).view(3, 4)
    lowering = decomp.lower(Windows(), args=(x,), to=targets.luminal, partial=True)
    assert torch.equal(lowering.result(x), Windows()(x))
    assert [blocker.op for blocker in lowering.blockers] == ["aten.as_strided.default", "aten.as_strided"]


def like_ones(x):
    return x.view_as(torch.ones(x.shape))


def with_gaps(size):
    return torch.randn(size, 8)[:, ::2]


@pytest.mark.parametrize(
    "view, made",
    [
        (torch.flatten, with_gaps),
        (like_ones, with_gaps),
        (lambda x: x.reshape(-1), with_gaps),
        (like_ones, lambda size: torch.randn(4, size).t()),
    ],
    ids=["flatten", "view_as", "reshape", "view_as of a transpose"],
)
def test_memory_with_gaps_or_in_another_order_of_any_size_is_viewed_and_not_copied(view, made):
    class Viewed(nn.Module):
        def forward(self, x):
            return view(x)

    exported = torch.export.export(Viewed(), (made(3),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    lowered = decomp.lower(exported, to=targets.core_aten).result.module()
    other = made(5)
    found = lowered(other)
    merged = found.dim() < other.dim()
    assert (found.data_ptr() == other.data_ptr()) is (OPEN_STRIDES_ARE_MERGED or not merged)
    assert torch.equal(found, view(other))


def test_what_follows_other_strides_is_found_out_without_the_fake_mode(monkeypatch):
    exported = torch.export.export(nn.Sequential(nn.Tanh(), nn.Unflatten(1, (2, 3))), (torch.ones(4, 6),))
    graph = exported.run_decompositions().graph
    given = next(node for node in graph.nodes if node.op == "placeholder")
    before = given.meta["val"]
    with before.fake_mode:
        given.meta["val"] = torch.empty_strided((4, 6), (1, 4))
    asked = []
    monkeypatch.setattr(graph_builder, "on_metadata", lambda mode: asked.append(mode) or on_metadata(mode))
    propagation = StridePropagation(graph, {given: before}, expected=())
    strides = {node.name: node.meta["val"].stride() for node in propagation.nodes() if node.op == "call_function"}
    assert strides["tanh"] == (1, 4) and not asked
