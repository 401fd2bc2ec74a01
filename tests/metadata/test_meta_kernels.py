"""The result of a call on meta tensors agrees with the fake mode."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode

from decomp.metadata import meta_kernels
from decomp.metadata.fakes import Fakes
from decomp.metadata.meta_kernels import MetaKernels
from decomp.torch_internals.pytree import tensors_in, tree_leaves, tree_map
import decomp_rules
from decomp_rules.samples import calls_of

aten = torch.ops.aten
MODE = FakeTensorMode()
CUDA = torch.device("cuda:0")


def laid_out(value, args):
    """Everything that is known of a result; which arguments it is, or shares memory with."""
    found = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            shared = [leaf.untyped_storage()._cdata == arg.untyped_storage()._cdata for arg in args]
            found.append(
                (
                    type(leaf),
                    leaf.shape,
                    leaf.stride(),
                    leaf.storage_offset(),
                    leaf.dtype,
                    leaf.device,
                    leaf.requires_grad,
                    shared,
                    [leaf is arg for arg in args],
                )
            )
        else:
            found.append(leaf)
    return type(value), found


def both(func, args, kwargs=None):
    """The results of a call on meta tensors and by the fake mode; None first where the fake mode is to be asked."""
    kernels = MetaKernels(Fakes(MODE))
    faked, faked_kwargs = tree_map(
        lambda x: kernels.empty_like(x) if isinstance(x, torch.Tensor) else x, (tuple(args), dict(kwargs or {}))
    )
    tensors = tensors_in((faked, faked_kwargs))
    out = kernels.run(func, faked, faked_kwargs)
    if out is NotImplemented:
        return None, None
    with MODE, enable_python_dispatcher():
        expected = laid_out(func(*faked, **faked_kwargs), tensors)
    return laid_out(out, tensors), expected


def overloads():
    packets = sorted({rule.op.packet for rule in decomp_rules.RULES if rule.op.packet is not None}, key=str)
    return [
        packet
        for packet in packets
        if any(meta_kernels._kind(getattr(packet, name)) != meta_kernels._ASK for name in packet.overloads())
    ]


def strided(x):
    return x.layout is torch.strided and not x.is_quantized and not x.is_conj() and not x.is_neg()


@pytest.mark.sampled(60)
@pytest.mark.parametrize("packet", overloads(), ids=str)
def test_the_samples_of_the_library_give_the_same(packet):
    for sample in calls_of(packet):
        if isinstance(sample.overload, torch._ops.OpOverload) and all(map(strided, sample.tensors)):
            on_meta, by_mode = both(sample.overload, sample.args, sample.kwargs)
            assert on_meta == by_mode, str(sample)


LAYOUTS = [
    torch.empty(2, 3, 4, 5),
    torch.empty(2, 5, 4, 3).permute(0, 3, 2, 1),
    torch.empty(1, 6, 1, 4).transpose(1, 3),
    torch.empty(1, 3, 1, 5).permute(0, 3, 2, 1),
    torch.empty_strided((1, 4, 4, 3), (16, 4, 1, 512)),
    torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.empty(1, 12, 5).transpose(1, 2)[:, :, 2:10:2],
    torch.empty(1, 1, 6).expand(4, 1, 6),
    torch.empty(4, 0, 3),
    torch.empty(()),
    torch.empty(7)[3:],
]

ODD = [i for i, x in enumerate(LAYOUTS) if 1 in x.shape]


@pytest.mark.parametrize("i", range(len(LAYOUTS)))
def test_views_have_the_strides_of_fakes(i):
    x = LAYOUTS[i]
    shapes = {(-1,), (x.numel(),), (1, x.numel()), (x.numel(), 1), tuple(x.shape), (*x.shape, 1), (1, *x.shape)}
    shapes |= {tuple(s) for s in itertools.permutations(x.shape)} if x.dim() < 4 else {(2, 12, 5), (2, 3, 20), (6, 20)}
    seen = 0
    for shape in sorted(shapes):
        if x.numel() == 0 and -1 in shape:
            continue
        for func in (aten.reshape.default, aten.view.default):
            try:
                func(x, shape)
            except RuntimeError:
                continue
            on_meta, by_mode = both(func, (x, list(shape)))
            assert on_meta == by_mode, (func, shape)
            seen += 1
    for dims in itertools.combinations_with_replacement(range(x.dim()), 2):
        on_meta, by_mode = both(aten.flatten.using_ints, (x, *dims))
        assert on_meta == by_mode, dims
    on_meta, by_mode = both(aten.expand.default, (x, [3, 1, *x.shape]))
    assert on_meta == by_mode is not None and seen


@pytest.mark.parametrize("first, second", list(itertools.product(range(len(LAYOUTS)), repeat=2)))
def test_elementwise_results_are_laid_out_as_fakes_are(first, second):
    x, y = LAYOUTS[first], LAYOUTS[second]
    try:
        torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        return
    for func in (aten.mul.Tensor, aten.lt.Tensor, aten.maximum.default):
        on_meta, by_mode = both(func, (x, y))
        assert on_meta == by_mode
        assert on_meta is not None or first in ODD or second in ODD


STRIDED = [getattr(aten, name) for name in sorted(meta_kernels._STRIDED)]


@pytest.mark.sampled(18)
@pytest.mark.parametrize("packet", STRIDED, ids=str)
def test_dimensions_of_one_element_have_the_strides_of_fakes(packet):
    name, seen = packet.__name__, 0
    for i in ODD:
        x = LAYOUTS[i].int() if name.startswith("bitwise") else LAYOUTS[i]
        for rest in ((), (x[:1],), (2,), ([1, 0],), ([-1],), (x, x[:1])):
            given = (x > 0, *rest) if name == "where" else (x, *rest)
            try:
                packet(*given)
            except (RuntimeError, TypeError, IndexError):
                continue
            func = next(getattr(packet, each) for each in packet.overloads() if _takes(getattr(packet, each), given))
            on_meta, by_mode = both(func, given)
            assert on_meta == by_mode, (func, x.shape, x.stride())
            seen += on_meta is not None
    assert seen


ROWS, COLUMNS = [(1, 4, 3), (2, 1, 3), (2, 4, 1), (1, 1, 3)], [(1, 3, 5), (2, 3, 1), (2, 1, 5)]


def in_any_order(shape):
    """Tensors of a shape whose dimensions follow each other in memory in every order, or with gaps, or not at all."""
    for order in itertools.permutations(range(len(shape))):
        places = [order.index(d) for d in range(len(order))]
        yield torch.empty([shape[d] for d in order]).permute(places)
    yield torch.empty([2 * size for size in shape])[tuple(slice(0, size) for size in shape)]
    yield torch.empty([1, *shape[1:]]).expand(shape)


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_products_of_odd_strides_are_laid_out_as_fakes_are(rows):
    for columns in COLUMNS:
        for x, y in itertools.product(in_any_order(rows), in_any_order(columns)):
            for func in (aten.bmm.default, aten.matmul.default):
                try:
                    func(x, y)
                except RuntimeError:
                    continue
                on_meta, by_mode = both(func, (x, y))
                assert on_meta == by_mode is not None or func is aten.matmul.default and on_meta is None


@pytest.mark.parametrize("shape", [(1, 4, 3), (2, 1, 3, 1), (1, 1, 3, 4)], ids=str)
def test_copies_and_joins_of_odd_strides_are_laid_out_as_fakes_are(shape):
    for x in in_any_order(shape):
        on_meta, by_mode = both(aten.clone.default, (x,), {"memory_format": torch.contiguous_format})
        assert on_meta == by_mode is not None
        for y, dim in itertools.product(in_any_order(shape), range(len(shape))):
            on_meta, by_mode = both(aten.cat.default, ([x, y], dim))
            assert on_meta == by_mode is not None


def _takes(overload, args):
    try:
        overload(*args)
    except (RuntimeError, TypeError):
        return False
    return "out" not in str(overload)


def test_the_device_of_the_operands_is_that_of_the_result():
    made = Fakes(MODE)
    kernels = MetaKernels(made)
    x = made.make(torch.empty(2, 3, device="meta"), CUDA)
    y = made.make(torch.empty((), device="meta"), torch.device("cpu"))
    assert kernels.run(aten.exp.default, (x,), {}).device == CUDA
    assert kernels.run(aten.zeros_like.default, (x,), {"device": CUDA}).device == CUDA
    assert kernels.run(aten.mul.Tensor, (x, y), {}) is NotImplemented
    assert kernels.run(aten.zeros_like.default, (x,), {"device": torch.device("cpu")}) is NotImplemented
    assert kernels.run(aten.full.default, ([2], 1.0), {"device": torch.device("cpu")}).device.type == "cpu"
    assert kernels.run(aten.full.default, ([2], 1.0), {"device": CUDA}) is NotImplemented


@pytest.mark.parametrize(
    "func, args",
    [
        (
            aten.convolution.default,
            (torch.empty(1, 3, 8, 8), torch.empty(4, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        ),
        (aten.add_.Tensor, (torch.empty(3), 1)),
        (aten.nonzero.default, (torch.empty(3),)),
        (aten.scaled_dot_product_attention.default, (torch.empty(1, 2, 3, 4),) * 3),
        (aten.linear.default, (torch.empty(2, 3), torch.empty(4, 3))),
        (torch.ops.prims.add.default, (torch.empty(3), torch.empty(3))),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else str(value),
)
def test_what_depends_on_more_is_left_to_the_fake_mode(func, args):
    kernels = MetaKernels(Fakes(MODE))
    args = tuple(kernels.empty_like(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
    assert kernels.run(func, args, {}) is NotImplemented


def test_what_cannot_be_run_is_left_to_the_fake_mode():
    kernels = MetaKernels(Fakes(MODE))
    x, y = kernels.empty_like(torch.empty(2)), kernels.empty_like(torch.empty(3))
    assert kernels.run(aten.mul.Tensor, (x, y), {}) is NotImplemented
    assert kernels.run(aten.view.default, (x, [5]), {}) is NotImplemented


def test_a_conjugated_result_is_left_to_the_fake_mode():
    kernels = MetaKernels(Fakes(MODE))
    x = kernels.empty_like(torch.empty(2, dtype=torch.complex64))
    assert kernels.run(aten._conj.default, (x,), {}) is NotImplemented


def test_a_fake_of_known_numbers_is_left_to_the_fake_mode():
    kernels = MetaKernels(Fakes(MODE))
    with MODE:
        known = torch.tensor(3.0)
    assert known.constant is not None
    assert kernels.run(aten.exp.default, (known,), {}) is NotImplemented


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (1, 6, 1), (3, 6), (2, 6, 0)], ids=str)
def test_normalized_rows_and_groups_are_laid_out_as_fakes_are(shape, dtype):
    x, weight = torch.empty(shape, dtype=dtype), torch.empty(shape[-1], dtype=dtype)
    channels, extent = torch.empty(6, dtype=dtype), x[0, 0].numel()
    for given in (x, x.transpose(0, 1).contiguous().transpose(0, 1), x.transpose(-1, -2).contiguous().mT):
        calls = {
            aten.native_layer_norm.default: [
                (given, [shape[-1]], weight, None, 1e-5),
                (given, list(shape[1:]), None, None, 1e-5),
                (given, [shape[-1]], weight.float(), weight.float(), 1e-5),
            ],
            aten.native_group_norm.default: [
                (given, channels, channels, shape[0], 6, extent, 3, 1e-5),
                (given, None, None, shape[0], 6, extent, 1, 1e-5),
            ],
        }
        for func, several in calls.items():
            for args in several:
                on_meta, by_mode = both(func, args)
                assert on_meta == by_mode or on_meta is None, (func, args)
                plain = given.is_contiguous() and given.numel() and dtype != torch.bfloat16 and 1 not in shape
                assert on_meta is not None or not plain or args[2] is not None and args[2].dtype != dtype
