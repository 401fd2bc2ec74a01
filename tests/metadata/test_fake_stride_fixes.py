"""Layouts that kernels give and fake tensors do not: put right, and the programs that depend on them run."""

import random

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

import decomp
from decomp.ir.op_facts import KERNEL_STRIDES
from decomp.metadata.fake_stride_fixes import broadcast_order, kernel_value
from decomp.metadata.strides import same_strides
from decomp_rules import targets

aten = torch.ops.aten


def turned(shape, rng, gaps=True):
    """A tensor with its dimensions in any memory order, perhaps with gaps, perhaps with one broadcast."""
    order = rng.sample(range(len(shape)), len(shape))
    sizes = [shape[d] for d in order]
    kind = rng.random() if gaps and sizes else 1
    if kind < 0.2:
        sizes[-1] *= 2
    tensor = torch.rand(sizes)[..., ::2] if kind < 0.2 else torch.rand(sizes)
    tensor = tensor.permute([order.index(d) for d in range(len(shape))])
    return tensor[:1].expand(shape) if 0.2 < kind < 0.35 else tensor


def as_fakes(mode, value):
    def fake(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        with mode:
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype)

    return tree_map(fake, value)


def first_of(result):
    return result[0] if isinstance(result, (tuple, list)) else result


MODE = FakeTensorMode()


def check(overload, args):
    """Whether what is said of a call has the strides that its kernel gives; whether fake tensors said so."""
    real = first_of(overload(*args))
    fakes = as_fakes(MODE, args)
    with MODE:
        said = overload(*fakes)
    names = [argument.name for argument in overload._schema.arguments]
    true = kernel_value(KERNEL_STRIDES[overload._overloadpacket.__name__], dict(zip(names, fakes)), said)
    return same_strides(first_of(true), real), same_strides(first_of(said), real)


BINARY = [
    "copysign.Tensor",
    "xlogy.Tensor",
    "special_xlog1py.default",
    "floor_divide.default",
    "logical_and.default",
    "logical_or.default",
    "logical_xor.default",
    "heaviside.default",
    "logaddexp.default",
    "logaddexp2.default",
]


def overload_of(name):
    packet, overload = name.split(".")
    return getattr(getattr(aten, packet), overload)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BINARY)
def test_a_broadcast_result_has_the_strides_of_the_kernel(name, seed):
    rng, mended = random.Random(f"{name} {seed}"), 0
    for _ in range(25):
        shape = [rng.choice((2, 3, 4)) for _ in range(rng.randint(2, 4))]
        other = [size if rng.random() < 0.7 else 1 for size in shape][rng.randint(0, len(shape)) :]
        pair = [turned(shape, rng), turned(other, rng, gaps=False)]
        right, before = check(overload_of(name), pair if rng.random() < 0.5 else pair[::-1])
        assert right
        mended += not before
    assert mended, "fake tensors say so themselves now: take the op out of the table"


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_a_rounded_quotient_has_the_strides_of_the_kernel(mode):
    x = torch.rand(3, 5, 4).permute(2, 0, 1)
    real = torch.div(x, torch.tensor(2.0), rounding_mode=mode)
    fakes = FakeTensorMode()
    x_fake, two = as_fakes(fakes, (x, torch.tensor(2.0)))
    with fakes:
        said = torch.div(x_fake, two, rounding_mode=mode)
    arguments = {"self": x_fake, "other": two, "rounding_mode": mode}
    assert same_strides(kernel_value(KERNEL_STRIDES["div"], arguments, said), real)
    assert same_strides(said, real) == (mode == "trunc")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_indexed_elements_have_the_strides_of_the_kernel(seed):
    rng, wrong, mended = random.Random(seed), 0, 0
    for _ in range(150):
        shape = [rng.choice((2, 3, 4)) for _ in range(rng.randint(1, 4))]
        wide = [rng.choice((2, 3, 4)) for _ in range(rng.randint(1, 3))]
        indices = [None] * len(shape)
        for d in rng.sample(range(len(shape)), rng.randint(1, len(shape))):
            own = [size if rng.random() < 0.8 else 1 for size in wide]
            indices[d] = (turned(own, rng) * 2).long()
        right, before = check(aten.index.Tensor, (turned(shape, rng), indices))
        wrong += not right
        mended += right and not before
    assert mended > 12 and wrong == 0


def test_an_index_of_no_dimensions_is_left_to_fake_tensors():
    x, places = torch.rand(4, 3, 4), torch.tensor([1, 0])
    mode = FakeTensorMode()
    given, indices = as_fakes(mode, (x, [places, places, torch.tensor(0)]))
    with mode:
        said = aten.index.Tensor(given, indices)
    assert kernel_value(KERNEL_STRIDES["index"], {"self": given, "indices": indices}, said) is said


def stats(n):
    return torch.zeros(n), torch.ones(n)


ORDERS = [
    ((2, 3, 4), (0, 2, 1)),
    ((3, 4), (1, 0)),
    ((2, 3, 4, 5), (0, 2, 3, 1)),
    ((2, 3, 4, 5), (3, 2, 1, 0)),
    ((2, 3, 2, 2, 2), (0, 2, 3, 4, 1)),
]


@pytest.mark.parametrize("shape, order", ORDERS)
def test_a_norm_over_a_batch_has_the_strides_of_the_kernel(shape, order):
    x = torch.rand([shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))])
    mean, variance = stats(shape[1])
    assert check(aten._native_batch_norm_legit_no_training.default, (x, None, None, mean, variance, 0.1, 1e-5))[0]
    assert check(aten._native_batch_norm_legit.no_stats, (x, None, None, True, 0.1, 1e-5))[0]
    assert check(aten.native_batch_norm.default, (x, None, None, mean, variance, True, 0.1, 1e-5))[0]
    given = (x, variance, mean, mean, variance)
    assert check(aten._native_batch_norm_legit_functional.default, (*given, True, 0.1, 1e-5))[0]
    for updating in (aten._batch_norm_with_update, aten._batch_norm_with_update_functional):
        assert check(updating.default, (*given, 0.1, 1e-5))[0]


@pytest.mark.parametrize("name", ["reflection_pad3d", "replication_pad3d"])
def test_padding_of_volumes_has_the_strides_of_the_kernel(name):
    x = torch.rand(2, 5, 5, 5, 3).permute(0, 4, 1, 2, 3)
    for volume in (x, x[0], x.contiguous()):
        assert check(getattr(aten, name).default, (volume, [1] * 6))[0]


def test_unpooling_and_log_sigmoid_have_the_strides_of_the_kernel():
    x, places = torch.rand(2, 2, 2, 3).permute(0, 3, 1, 2), torch.zeros(2, 3, 2, 2, dtype=torch.long)
    assert check(aten.max_unpool2d.default, (x, places, [4, 4]))[0]
    assert check(aten.log_sigmoid_forward.default, (torch.rand(3, 4).t(),))[0]
    assert check(aten.native_dropout_backward.default, (torch.rand(3, 4).t(), torch.rand(4, 3) > 0.5, 2.0))[0]


@pytest.mark.parametrize("p, train", [(0.5, False), (0.0, True), (0.5, True)])
def test_dropout_that_drops_nothing_gives_its_input(p, train):
    given = torch.rand(4, 6)[:, ::2]
    fake = as_fakes(MODE, given)
    with MODE:
        copied = fake.clone()
    true = kernel_value(KERNEL_STRIDES["dropout"], {"input": fake, "p": p, "train": train}, copied)
    assert (true is fake) == (not train or p == 0)


def test_every_op_of_the_table_is_tried_here():
    tried = {name.split(".")[0] for name in BINARY} | {
        "div",
        "index",
        "_unsafe_index",
        "batch_norm",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
        "_native_batch_norm_legit_functional",
        "_batch_norm_with_update",
        "_batch_norm_with_update_functional",
        "max_unpool2d",
        "reflection_pad3d",
        "replication_pad3d",
        "log_sigmoid_forward",
        "native_dropout_backward",
        "dropout",
    }
    assert set(KERNEL_STRIDES) == tried


def test_the_first_operand_that_tells_dimensions_apart_decides():
    assert broadcast_order((2, 3), [(3, 1)]) == [0, 1]
    assert broadcast_order((2, 3), [(1, 2)]) == [1, 0]
    assert broadcast_order((2, 3), [(0, 1), (1, 2)]) == [1, 0]
    assert broadcast_order((2, 3, 4), [(0, 0, 0), (1, 2, 6)]) == [2, 1, 0]


class Normed(nn.Module):
    """Batch norm of what lies transposed in memory, as between layers of sequences."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2).reshape(x.shape[0], -1)


class Picked(nn.Module):
    def forward(self, x):
        table = torch.arange(10.0)
        return table[(x.transpose(1, 2) > 0).long()].reshape(-1), x[:, torch.tensor([[0, 1], [2, 0]]).t()].reshape(-1)


class Halved(nn.Module):
    def forward(self, x):
        return torch.div(x.transpose(1, 2), torch.tensor(2.0), rounding_mode="floor").reshape(-1)


@pytest.mark.sampled
@pytest.mark.parametrize("exported", [False, True], ids=["module", "exported"])
@pytest.mark.parametrize(
    "target", [targets.core_aten, targets.tinygrad, targets.luminal, targets.onnx], ids=lambda t: t.name
)
@pytest.mark.parametrize(
    "model", [Normed(), Normed().eval(), Picked(), Halved()], ids=["trained", "evaluated", "picked", "halved"]
)
def test_a_reshape_behind_one_works(model, target, exported):
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(model, (x,), strict=False) if exported else model
    lowered = decomp.lower(program, to=target, args=None if exported else (x,)).result
    found = (lowered.module() if exported else lowered)(x)
    torch.testing.assert_close(found, model(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad], ids=lambda t: t.name)
def test_dropout_that_drops_nothing_is_the_input_in_the_lowered_program(target):
    class Dropped(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x[:, ::2], 0.5, training=False)

    x = torch.randn(3, 8)
    exported = torch.export.export(Dropped().eval(), (x,))
    module = decomp.lower(Dropped(), to=target, args=(x,)).result
    on_meta = decomp.lower(Dropped(), to=target, args=(x.to("meta"),)).result
    assert [node.target for node in on_meta.graph.nodes] == [node.target for node in module.graph.nodes]
    for lowered in (module, decomp.lower(exported, to=target).result.module()):
        assert lowered(x).stride() == (8, 2) and lowered(x).data_ptr() == x.data_ptr()
