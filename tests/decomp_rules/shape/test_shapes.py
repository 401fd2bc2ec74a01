"""Movement agrees with the ops: the same elements in the same places, and gradients that find their way back."""

import pytest
import torch

import decomp
from decomp_rules import targets
from decomp_rules.reduce import reduction
from decomp_rules.shape import diagonals, shapes as shape, slicing
from decomp_rules.support import operands
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees
from tests.forms import Holder

aten = torch.ops.aten
RULES = shape.RULES | slicing.RULES | diagonals.RULES | reduction.RULES
CUBE = torch.arange(24.0).view(2, 3, 4)
STRIDED = [
    CUBE,
    CUBE.transpose(0, 2),
    CUBE[:, ::2],
    CUBE[:, :, 1:3],
    CUBE[0].expand(5, 3, 4),
    CUBE.permute(1, 0, 2),
    torch.tensor(3.0),
    torch.zeros(0, 3),
    torch.zeros(1, 4).expand(3, 4),
]
pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize("x", STRIDED, ids=lambda x: f"{tuple(x.shape)}{x.stride()}")
def test_reshaping_agrees_for_any_strides(x):
    agrees(RULES, aten.reshape.default, x, [-1] if x.numel() else [0])
    agrees(RULES, aten.reshape.default, x, [1, *x.shape, 1])
    agrees(RULES, aten.reshape.default, x, list(reversed(x.shape)))
    agrees(RULES, aten.flatten.using_ints, x)
    agrees(RULES, aten.ravel.default, x)
    agrees(RULES, aten.unsqueeze.default, x, -1)
    agrees(RULES, aten.squeeze.default, x, gradient=False)
    agrees(RULES, aten.repeat.default, x, [2] + [1] * x.dim())


@pytest.mark.parametrize("x", [x for x in STRIDED if x.numel() == 24], ids=lambda x: f"{tuple(x.shape)}{x.stride()}")
@pytest.mark.parametrize("target", [[24], [6, 4], [2, 12], [4, 6], [3, 8], [2, 3, 2, 2], [1, 24, 1], [12, 2]])
def test_a_view_is_made_exactly_where_pytorch_makes_one(x, target):
    try:
        x.view(target)
        exists = True
    except RuntimeError:
        exists = False
    assert operands._view_exists(x, target) == exists


def test_dimensions_are_moved_as_the_ops_move_them():
    agrees(RULES, aten.transpose.int, CUBE, 0, -1)
    agrees(RULES, aten.t.default, CUBE[0])
    agrees(RULES, aten.t.default, CUBE[0, 0])
    agrees(RULES, aten.numpy_T.default, CUBE[0])
    agrees(RULES, aten.mT.default, CUBE)
    agrees(RULES, aten.adjoint.default, CUBE)
    for op in (aten.mT.default, aten.adjoint.default, aten.mH.default):
        agrees(RULES, op, torch.tensor(3.0))
    agrees(RULES, aten.matrix_H.default, CUBE[0])
    agrees(RULES, aten.movedim.int, CUBE, 0, -1)
    agrees(RULES, aten.movedim.intlist, CUBE, [0, 2], [1, 0])
    agrees(RULES, aten.swapaxes.default, CUBE, 0, 1)
    agrees(RULES, aten.unflatten.int, CUBE, 2, [2, -1])
    agrees(RULES, aten.squeeze.dim, CUBE[:, :1], 1)
    agrees(RULES, aten.squeeze.dims, CUBE[:1, :1], [0, 1, 2])


def test_expanding_and_repeating_agree():
    agrees(RULES, aten.expand_as.default, CUBE[:, :1], CUBE)
    agrees(RULES, aten.broadcast_to.default, CUBE[0, 0], [2, 3, 4])
    agrees(RULES, aten.broadcast_tensors.default, [CUBE[:, :1], CUBE[0]])
    agrees(RULES, aten.meshgrid.indexing, [CUBE[0, 0], CUBE[0, :, 0], torch.tensor(2.0)], indexing="xy")
    agrees(RULES, aten.meshgrid.default, [CUBE[0, 0], CUBE[0, :, 0]])
    agrees(RULES, aten.repeat.default, CUBE, [2, 1, 3, 2])
    agrees(RULES, aten.repeat.default, CUBE, [0, 1, 1])
    agrees(RULES, aten.tile.default, CUBE, [2, 3])
    agrees(RULES, aten.repeat_interleave.self_int, CUBE, 3, 1)
    agrees(RULES, aten.repeat_interleave.self_int, CUBE, 2)


def test_turning_and_shuffling_agree():
    agrees(RULES, aten.roll.default, CUBE, [1, -2], [0, 2])
    agrees(RULES, aten.roll.default, CUBE, [5])
    agrees(RULES, aten.roll.default, CUBE, [8], [2], gradient=False)
    agrees(RULES, aten.rot90.default, CUBE, 3, [1, 2])
    agrees(RULES, aten.fliplr.default, CUBE)
    agrees(RULES, aten.flipud.default, CUBE)
    agrees(RULES, aten.pixel_shuffle.default, torch.randn(2, 8, 3, 2), 2)
    agrees(RULES, aten.pixel_unshuffle.default, torch.randn(2, 3, 4, 6), 2)
    agrees(RULES, aten.channel_shuffle.default, torch.randn(2, 6, 2, 2), 3)


@pytest.mark.parametrize(
    "cut",
    [(0, 4, 1), (1, 3, 1), (-3, -1, 1), (None, None, 2), (1, None, 3), (3, 1, 1), (0, 99, 2), (-99, 3, 1), (4, 4, 2)],
)
def test_slices_agree(cut):
    agrees(RULES, aten.slice.Tensor, CUBE, 2, *cut)
    agrees(RULES, aten.slice.Tensor, CUBE.transpose(0, 2), 0, *cut)
    part = CUBE[:, :, slice(*cut)] + 100
    agrees(RULES, aten.slice_scatter.default, CUBE, part, 2, *cut)
    start, end, step = cut
    bounds = (0 if start is None else start, 2**63 - 1 if end is None else end, step)
    agrees(RULES, aten.slice_backward.default, part, [2, 3, 4], 2, *bounds)


def test_single_elements_agree():
    for index in (0, 2, -1):
        agrees(RULES, aten.select.int, CUBE, 1, index)
        agrees(RULES, aten.select_scatter.default, CUBE, CUBE[:, 0] + 100, 1, index)
        agrees(RULES, aten.select_backward.default, CUBE[:, 0], [2, 3, 4], 1, index)
    agrees(RULES, aten.narrow.default, CUBE, 1, 1, 2)
    agrees(RULES, aten.narrow.default, CUBE, -1, -3, 2)


def test_splits_agree():
    agrees(RULES, aten.split.Tensor, CUBE, 3, 2)
    agrees(RULES, aten.split.sizes, CUBE, [1, 0, 3], 2)
    agrees(RULES, aten.split_with_sizes.default, CUBE, [1, 3], -1)
    for chunks in (1, 3, 5, 9):
        agrees(RULES, aten.chunk.default, torch.arange(10.0), chunks)
    agrees(RULES, aten.tensor_split.sections, torch.arange(10.0), 4)
    agrees(RULES, aten.tensor_split.indices, torch.arange(10.0), [2, 7])
    agrees(RULES, aten.unbind.int, CUBE, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
def test_joins_agree(dtype):
    x = CUBE.to(dtype)
    agrees(RULES, aten.cat.default, [x, x, x], 1)
    agrees(RULES, aten.cat.default, [x, x[:, :1], x[:, :0], x[:, 1:]], 1)
    agrees(RULES, aten.cat.default, [torch.zeros(0, dtype=dtype), x], 0)
    agrees(RULES, aten.cat.default, [x[0], CUBE[1].to(torch.float64)], 0)
    agrees(RULES, aten.stack.default, [x, x], -1)
    agrees(RULES, aten.hstack.default, [x[0], x[0]])
    agrees(RULES, aten.vstack.default, [x[0, 0], x[0, 1]])
    agrees(RULES, aten.dstack.default, [x[0, 0], x[0, 1]])
    agrees(RULES, aten.column_stack.default, [x[0], x[0, :, 0]])


def test_joining_keeps_infinities_nan_and_the_sign_of_zero():
    x = torch.tensor([float("inf"), float("nan"), -0.0])
    joined = slicing.cat([x, x[:2], x[2:]])
    assert torch.equal(joined.view(torch.int32), torch.cat([x, x]).view(torch.int32))


@pytest.mark.parametrize("window", [(2, 1), (3, 2), (1, 3), (4, 4), (9, 1), (8, 1)])
def test_windows_agree(window):
    x = torch.randn(2, 9, 3)
    agrees(RULES, aten.unfold.default, x, 1, *window)
    windows = x.unfold(1, *window)
    agrees(RULES, aten.unfold_backward.default, windows, [2, 9, 3], 1, *window)


@pytest.mark.parametrize("offset", [-2, 0, 1, 5])
def test_diagonals_agree(offset):
    x = torch.randn(2, 3, 4)
    agrees(RULES, aten.diagonal.default, x, offset, 1, 2)
    agrees(RULES, aten.diagonal.default, x, offset, 2, 0)
    line = torch.diagonal(x, offset, 1, 2) + 100
    agrees(RULES, aten.diagonal_scatter.default, x, line, offset, 1, 2)
    agrees(RULES, aten.diagonal_backward.default, line, [2, 3, 4], offset, 1, 2)
    agrees(RULES, aten.diag_embed.default, x, offset, 0, 2)
    agrees(RULES, aten.diag.default, x[0], offset)
    agrees(RULES, aten.diag.default, x[0, 0], offset)
    agrees(RULES, aten.diagflat.default, x[0], offset)
    agrees(RULES, aten.trace.default, x[0])


def test_atleast_agrees_on_one_tensor_and_on_several():
    for op in (aten.atleast_1d, aten.atleast_2d, aten.atleast_3d):
        for x in (torch.tensor(1.0), CUBE[0, 0], CUBE[0], CUBE):
            agrees(RULES, op.default, x)
        agrees(RULES, op.Sequence, [torch.tensor(1.0), CUBE[0, 0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.transpose(0, 1).reshape(-1) + x.flatten() + x.movedim(0, -1).reshape(-1),
        lambda x: torch.cat(x.chunk(2, -1)[::-1], -1) + torch.cat(x.split([1, 3], 2), 2) + torch.stack(x.unbind(1), 1),
        lambda x: x[:, None, 1:3, ::2] + x[0, ..., -1].sum() + x[-1].unsqueeze(0).squeeze()[:1, :2],
        lambda x: x.roll(1, 0).repeat(2, 1, 1) + x.repeat_interleave(2, dim=0) + x.flip(2).tile(2, 1, 1),
        lambda x: x.unfold(2, 3, 1).sum(-1) + x.diagonal(0, 1, 2).unsqueeze(1)[..., :2] + x.select(2, 1).unsqueeze(2),
        lambda x: torch.slice_scatter(x, x[:, :1] * 2, 1, 0, 1) + torch.select_scatter(x, x[0], 0, 1),
    ],
)
def test_programs_reach_the_targets(function):
    lowered_agrees(function, torch.randn(2, 3, 4))


def test_what_is_wholly_overwritten_by_a_slice_still_has_a_gradient():
    x, part = torch.ones(2, requires_grad=True), torch.zeros(2)
    written = Holder(lambda x, part: x.slice_scatter(part, 0, 0, 2))
    found = decomp.lower(written, to=targets.luminal, args=(x, part)).result(x, part)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert found.tolist() == gradient.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("function", [lambda x: x.roll((3, -2), (0, 1)), torch.fft.fftshift, torch.argmax])
def test_dimensions_of_any_size_are_rolled_by_any_number_and_numbered(function):
    class Moved(torch.nn.Module):
        def forward(self, x):
            return function(x)

    shapes = ({0: torch.export.Dim("height", min=2), 1: torch.export.Dim("width", min=2)},)
    lowered = decomp.lower(Moved(), to=targets.tinygrad, args=(torch.randn(4, 5),), dynamic_shapes=shapes).result
    for x in (torch.randn(2, 7), torch.randn(3, 2), torch.randn(9, 3)):
        assert torch.equal(lowered(x), function(x))


@pytest.mark.parametrize("step", [2, 3, 4])
def test_steps_through_a_dimension_of_any_size_are_read(step):
    class Stepped(torch.nn.Module):
        def forward(self, x):
            return x[::step] + 1, x[1::step] * 2

    shapes = ({0: torch.export.Dim("n", min=8)},)
    lowered = decomp.lower(Stepped(), to=targets.tinygrad, args=(torch.randn(9, 2),), dynamic_shapes=shapes).result
    for n in range(8, 20):
        x = torch.randn(n, 2)
        for found, wanted in zip(lowered(x), Stepped()(x)):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("step", [2, 3, 5])
@pytest.mark.parametrize("start, end", [(0, 7), (1, 6), (2, 3), (-3, 2**63 - 1), (4, 4)])
def test_steps_agree_where_what_is_spare_is_cut_off(start, end, step):
    x = torch.randn(3, 7)
    assert torch.equal(slicing.slice_step_with_spare(x, 1, start, end, step), x[:, start:end:step])


def test_steps_through_sizes_that_vary_reach_a_target_that_does_not_cut_by_padding():
    def halves(x):
        return torch.stack([x[..., ::2], x[..., 1::2] * 2])

    torch._dynamo.reset()
    run = torch.compile(halves, backend=decomp.backend(to=targets.tinygrad), dynamic=True)
    for sizes in ((3, 8), (5, 6)):
        x = torch.randn(sizes)
        assert torch.equal(run(x), halves(x))


@pytest.mark.parametrize("sizes", [(5,), (5, 3)])
@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=lambda target: target.name)
def test_a_row_chosen_by_data_is_found_from_either_end(target, sizes):
    table = torch.randn(sizes)
    chosen = Holder(lambda row: table[row] * 2)
    run = decomp.lower(chosen, to=target, args=(torch.tensor(2),)).result
    for row in map(torch.tensor, (-5, -2, -1, 0, 4)):
        assert torch.equal(run(row), chosen(row))
    for row in map(torch.tensor, (-7, -6, 5, 7)):
        with pytest.raises(RuntimeError, match="invalid for input of size 0"):
            run(row)


@pytest.mark.parametrize(
    "scatter, part",
    [
        (lambda x, part: x.slice_scatter(part, 1, 0, 1), torch.ones(3, 1)),
        (lambda x, part: x.select_scatter(part, 1, 0), torch.ones(3)),
    ],
    ids=["slice", "select"],
)
def test_a_part_is_put_back_where_its_other_sizes_are_known_to_fit(scatter, part):
    def lowered(*sizes):
        program = torch.export.export(Holder(scatter), (whole, part), dynamic_shapes=(tuple({0: n} for n in sizes),))
        return decomp.lower(program, to=targets.tinygrad).result.module()

    whole, rows, others = torch.zeros(3, 4), torch.export.Dim("rows", max=64), torch.export.Dim("others", max=64)
    assert torch.equal(lowered(rows, rows)(whole, part), scatter(whole, part))
    with pytest.raises(decomp.NotLowered, match="sizes of src are not known to be those of the input"):
        lowered(rows, others)
