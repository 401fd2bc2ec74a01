"""The result of a call on open sizes, read off two runs at fixed ones, agrees with PyTorch's arithmetic on symbols."""

from __future__ import annotations

import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from decomp.graphs.tracing import without_guards
from decomp.metadata.fakes import fakes_in, new_mode
from decomp.metadata.open_kernels import kernels_of
from decomp.metadata.stand_ins import NotOpen, StandIns
from decomp.metadata.symbolic_sizes import expression
from decomp.torch_internals.pytree import tensors_in, tree_leaves, tree_map
from decomp_rules.samples import calls_of
from tests.metadata.test_meta_kernels import overloads, strided

aten = torch.ops.aten


class Program:
    """Fake tensors of one program with open sizes."""

    def __init__(self):
        self.mode = new_mode(ShapeEnv())
        self.fakes = None

    def open(self, x, *fixed):
        """A tensor whose sizes of two or more are open, but for the dimensions `fixed`; equal ones have one symbol."""
        kinds = [DimDynamic.STATIC if d in fixed or x.shape[d] < 2 else DimDynamic.DUCK for d in range(x.dim())]
        with self.mode:
            return self.mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))

    def fake_of(self, *sizes):
        """A tensor of these sizes."""
        with self.mode:
            return torch.empty(sizes)

    def both(self, func, *args, **kwargs):
        """What is known of the results of a call by two runs at fixed sizes, and by the fake mode; None first where the
        fake mode is to be asked."""
        kernels = kernels_of(fakes_in(self.mode))
        tensors = tensors_in((args, kwargs))
        out = kernels.run(func, args, kwargs)
        if out is NotImplemented:
            return None, None
        with self.mode, enable_python_dispatcher(), torch.no_grad(), without_guards(self.mode):
            expected = func(*args, **kwargs)
        return laid_out(out, tensors), laid_out(expected, tensors)


def laid_out(value, args):
    return type(value), [
        (
            [expression(size) for size in leaf.shape],
            [expression(stride) for stride in leaf.stride()],
            expression(leaf.storage_offset()),
            leaf.dtype,
            leaf.device,
            [leaf.untyped_storage()._cdata == arg.untyped_storage()._cdata for arg in args],
            [leaf is arg for arg in args],
        )
        if isinstance(leaf, torch.Tensor)
        else leaf
        for leaf in tree_leaves(value)
    ]


@pytest.mark.sampled(60)
@pytest.mark.parametrize("packet", overloads(), ids=str)
def test_the_samples_of_the_library_give_the_same(packet):
    for sample in calls_of(packet):
        if isinstance(sample.overload, torch._ops.OpOverload) and all(map(strided, sample.tensors)):
            program = Program()
            args, kwargs = tree_map(
                lambda x: program.open(x) if isinstance(x, torch.Tensor) else x, (sample.args, sample.kwargs)
            )
            at_two, by_mode = program.both(sample.overload, *args, **kwargs)
            assert at_two == by_mode, str(sample)


CALLS = [
    (aten.add.Tensor, lambda x: (x, x)),
    (aten.mul.Tensor, lambda x: (x, x[:, :1])),
    (aten.where.ScalarOther, lambda x: (x > 0, x, 0.0)),
    (aten._to_copy.default, lambda x: (x,)),
    (aten.view.default, lambda x: (x, [x.shape[0], 2, 8])),
    (aten.view.default, lambda x: (x, [x.shape[0] * 16])),
    (aten.view.default, lambda x: (x, [-1, 4])),
    (aten.reshape.default, lambda x: (x.t(), [-1])),
    (aten.permute.default, lambda x: (x, [1, 0])),
    (aten.unsqueeze.default, lambda x: (x, 1)),
    (aten.expand.default, lambda x: (x, [3, -1, -1])),
    (aten.slice.Tensor, lambda x: (x, 1, 2, 9)),
    (aten.select.int, lambda x: (x, 1, 3)),
    (aten.split.Tensor, lambda x: (x, 8, 1)),
    (aten.mm.default, lambda x: (x, x.t())),
    (aten.sum.dim_IntList, lambda x: (x, [0])),
    (aten.mean.dim, lambda x: (x, [1], True)),
    (aten.cat.default, lambda x: ([x, x], 0)),
    (aten.cat.default, lambda x: ([x, x[:, :3]], 1)),
    (aten.stack.default, lambda x: ([x, x],)),
    (aten.repeat.default, lambda x: (x, [2, 3])),
    (aten.cumsum.default, lambda x: (x, 0)),
    (aten.constant_pad_nd.default, lambda x: (x, [1, 1])),
]


@pytest.mark.parametrize("func, args", CALLS, ids=[str(func) for func, _ in CALLS])
def test_calls_that_pass_sizes_on_need_no_arithmetic_on_symbols(func, args):
    program = Program()
    x = program.open(torch.randn(5, 16), 1)
    with program.mode:
        given = args(x)
    at_two, by_mode = program.both(func, *given)
    assert at_two == by_mode is not None


LEFT = [
    (aten.slice.Tensor, lambda x: (x, 0, 2, 9)),
    (aten.select.int, lambda x: (x, 0, 3)),
    (aten.split.Tensor, lambda x: (x, 2, 0)),
    (aten.cat.default, lambda x: ([x, x[:1]], 0)),
    (aten.constant_pad_nd.default, lambda x: (x, [0, 0, 1, 1])),
    (aten.view.default, lambda x: (x, [5, 16])),
    (aten.view.default, lambda x: (x, [-1, 32])),
    (aten.diagonal.default, lambda x: (x,)),
    (aten.arange.default, lambda x: (x.shape[0],)),
]


@pytest.mark.parametrize("func, args", LEFT, ids=[str(func) for func, _ in LEFT])
def test_calls_that_compare_sizes_or_add_them_are_left_to_pytorch(func, args):
    program = Program()
    x = program.open(torch.randn(5, 16), 1)
    with program.mode:
        given = args(x)
    assert program.both(func, *given) == (None, None)


def test_two_sizes_that_are_equal_in_the_example_alone_are_not_taken_for_one():
    program = Program()
    x, y = (
        program.mode.from_tensor(
            torch.randn(5, 16), symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
        )
        for _ in range(2)
    )
    assert x.shape[0].node.expr != y.shape[0].node.expr
    assert kernels_of(fakes_in(program.mode)).run(aten.add.Tensor, (x, y), {}) is NotImplemented


def test_more_elements_than_64_bits_count_are_left_to_pytorch():
    program = Program()
    x = program.open(torch.randn(2, 3, 4, 5))
    wide = program.open(torch.randn(2, 3, 4, 5)[..., None, None, None, None]).expand(-1, -1, -1, -1, *x.shape)
    kernels = kernels_of(fakes_in(program.mode))
    assert kernels.run(aten.mul.Tensor, (x.view(*x.shape, 1, 1, 1, 1), x), {}) is NotImplemented
    assert kernels.layout(wide) is None


def test_a_size_that_two_numbers_do_not_tell_from_another_has_none():
    size = Program().open(torch.randn(5)).shape[0]
    stand_ins = StandIns()
    assert stand_ins.size(stand_ins.pair(size)) is size
    for other in (torch.sym_min(size, 512), torch.sym_max(size, 512), (size + 1) // 2, 2 * ((size + 1) // 2)):
        with pytest.raises(NotOpen):
            stand_ins.pair(other)


def test_no_size_and_a_number_are_another_size():
    stand_ins, program = StandIns(), Program()
    pairs = [stand_ins.pair(program.open(torch.randn(n)).shape[0]) for n in range(2, 60)]
    differences = {(c - a, d - b) for a, b in pairs for c, d in pairs if (a, b) != (c, d)}
    assert all(one != other for one, other in differences)


def test_what_is_padded_to_an_even_size_has_the_size_that_it_has():
    program = Program()
    x = program.open(torch.randn(5))
    even = (x.shape[0] + 1) // 2 * 2
    for order in ((even, x.shape[0] + 1), (x.shape[0] + 1, even)):
        kernels = kernels_of(fakes_in(program.mode))
        with without_guards(program.mode):
            halves = [program.fake_of(size) for size in order]
        assert [kernels.run(aten.neg.default, (half,), {}) is NotImplemented for half in halves] == [
            expression(size) == expression(even) for size in order
        ]


def test_a_product_of_sizes_is_read_off_and_a_sum_is_not():
    program = Program()
    one, other = program.open(torch.randn(5, 7)).shape
    stand_ins = StandIns()
    (a, b), (c, d) = stand_ins.pair(one), stand_ins.pair(other)
    assert expression(stand_ins.size((6 * a * c, 6 * b * d))) == expression(6 * one * other)
    assert stand_ins.size((3, 3)) == 3
    for pair in ((a + c, b + d), (a - 1, b - 1), (a, d)):
        with pytest.raises(NotOpen):
            stand_ins.size(pair)


def test_strides_beyond_64_bits_are_left_to_the_fake_mode():
    program = Program()
    many = program.open(torch.empty(tuple(range(2, 14)), device="meta"))
    assert program.both(aten.add.Tensor, many, many) == (None, None)
