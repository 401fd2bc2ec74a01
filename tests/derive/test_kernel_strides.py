"""What a captured program means where its kernels lay results out otherwise than the fake tensors that it was captured
with: which calls give views, and what those find that go by memory."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp_rules import targets

TARGETS = [targets.core_aten, targets.tinygrad]


def transposed():
    """(3, 4, 3), the last two dimensions transposed in memory: batch norm lays its result out in order."""
    return torch.randn(3, 3, 4, generator=torch.Generator().manual_seed(0)).transpose(1, 2)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)


class ByMemory(Normed):
    def forward(self, x):
        return torch.as_strided(self.norm(x).mT, (2, 2), (1, 1))


class ByMemoryOfARegion(Normed):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = self.norm(x)
        return torch.as_strided(y.mT, (2, 2), (1, 1))


class ByMemoryInARegion(Normed):
    def forward(self, x):
        y = self.norm(x)
        with torch.no_grad():
            z = torch.as_strided(y.mT, (2, 2), (1, 1)) + 1
        return z, y


class WrittenFlat(Normed):
    """Flattened, the result of batch norm is a view of it, and the rest of the program sees what is written there."""

    def forward(self, x):
        y = self.norm(x)
        flat = torch.ravel(y)
        flat.add_(1)
        return y, flat


class FlatInARegion(Normed):
    def forward(self, x):
        y = self.norm(x)
        with torch.no_grad():
            torch.ravel(y).mul_(2)
        return y


class BranchedOn(Normed):
    def forward(self, x):
        y = self.norm(x)
        flat = torch.cond(x.sum() > 0, lambda z: z.reshape(-1) + 1, lambda z: z.reshape(-1) - 1, (y.detach(),))
        return y, flat


class TurnedInPlace(Normed):
    def forward(self, x):
        return self.norm(x).transpose_(1, 2).reshape(-1)


MODELS = [ByMemory, ByMemoryOfARegion, ByMemoryInARegion, WrittenFlat, FlatInARegion, BranchedOn, TurnedInPlace]


def close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("exported", [False, True], ids=["module", "exported"])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_memory_is_read_and_written_as_the_kernel_lays_it(model, target, exported):
    torch.manual_seed(0)
    model, x = model(), transposed()
    program = torch.export.export(model, (x,), strict=False) if exported else model
    lowered = decomp.lower(program, to=target, args=None if exported else (x,)).result
    found = (lowered.module() if exported else lowered)(x.clone())
    close(found, model(x.clone()))


class Dropped(nn.Module):
    """Dropout that drops nothing hands on what it is given: a part with gaps, which is copied to be flat."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        part = self.weight.split(2, -1)[0]
        kept = F.dropout(part, 0.5, self.training)
        flat = torch.ravel(kept)
        flat.add_(1)
        return part.t() + x[0, 0], kept, flat


@pytest.mark.parametrize("exported", [False, True], ids=["module", "exported"])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_what_dropout_hands_on_is_copied_where_the_kernel_copies_it(target, exported):
    model, x = Dropped().eval(), torch.randn(1, 1, 1)
    program = torch.export.export(model, (x,), strict=False) if exported else model
    lowered = decomp.lower(program, to=target, args=None if exported else (x,)).result
    found, expected = (lowered.module() if exported else lowered)(x), model(x)
    close(found, expected)
    assert found[0].requires_grad and torch.equal(model.weight, torch.ones(4, 4))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_a_view_that_pytorch_cannot_take_is_of_a_copy(target):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    half = graph.call_function(torch.div, (x, 2.0), {"rounding_mode": "floor"})
    graph.output(graph.call_method("view", (half, 12)))
    module, given = torch.fx.GraphModule(nn.Module(), graph), torch.randn(3, 4).t()
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(given)
        for node, value in zip(graph.nodes, (fake, torch.empty(4, 3), torch.empty(12))):
            node.meta["val"] = value
    lowered = decomp.lower(module, to=target).result
    close(lowered(given), torch.div(given, 2.0, rounding_mode="floor").reshape(12))


class WrittenTurned(nn.Module):
    """A write through a transposed view has other strides in functional form, in a region and after it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(16.0).reshape(4, 4))

    def forward(self, x):
        turned = self.table.t()
        with self.region():
            turned.scatter_(-1, torch.zeros(4, 1, dtype=torch.int64), x[:, :1])
            flat = turned.t().view(-1) * 2
        larger = torch.where(turned > self.table, turned, self.table)
        return turned.t().view(-1) + 1, flat, turned, larger.diff(dim=-1)


class Compared(WrittenTurned):
    def forward(self, x):
        turned = self.table.permute(1, 0)
        with torch.no_grad():
            turned.scatter_(-1, torch.zeros_like(turned, dtype=torch.int64)[:, :1], 0)
        return torch.where(turned > self.table, turned, self.table).diff(dim=-1)


class WithoutGradients(WrittenTurned):
    region = torch.no_grad


class InBfloat16(WrittenTurned):
    def region(self):
        return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("exported", [False, True], ids=["module", "exported"])
@pytest.mark.parametrize("target", [*TARGETS, targets.luminal], ids=lambda t: t.name)
@pytest.mark.parametrize("model", [WithoutGradients, InBfloat16, Compared], ids=lambda m: m.__name__)
def test_writes_of_a_region_have_the_strides_of_its_functional_form(model, target, exported):
    model, x = model(), torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    expected = copy.deepcopy(model)(x)
    program = torch.export.export(model, (x,), strict=False) if exported else model
    lowered = decomp.lower(program, to=target, args=None if exported else (x,)).result
    close((lowered.module() if exported else lowered)(x), expected)
