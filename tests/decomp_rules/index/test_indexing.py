"""Reading and writing by index agree with the ops, and what is not chosen leaves no trace: no NaN, no gradient."""

import math

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from decomp_rules.index import indexing, scattering
from tests.decomp_rules.rule_agreement import agrees, lowered_agrees
from tests.forms import Holder

aten = torch.ops.aten
RULES = indexing.RULES | scattering.RULES
TABLE = torch.randn(4, 5, 6)
ROWS, COLUMNS = torch.tensor([0, 3, -1, 1]), torch.tensor([[4], [0], [-5]])
HOSTILE = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")], [3.0, -4.0]])
MASK = torch.tensor([True, False, True, False])
INDICES = [
    0,
    -1,
    slice(1, 3),
    slice(None, None, 2),
    None,
    Ellipsis,
    (0, 1),
    (Ellipsis, 0),
    (None, Ellipsis, None),
    (slice(1, None), 2, slice(None, -1)),
    (0, Ellipsis, slice(2)),
    ROWS,
    (ROWS, slice(None), ROWS),
    (slice(None), ROWS),
    (ROWS, COLUMNS),
    (0, slice(None), ROWS),
    (slice(None), COLUMNS, None, ROWS),
    [0, 2],
    torch.tensor(2),
    (Ellipsis, torch.tensor(1)),
    (torch.tensor(1), slice(None), ROWS),
    (None, ROWS, Ellipsis),
    True,
    (ROWS, Ellipsis, ROWS),
]
pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_subscripts_agree_with_tensor_subscripts(index):
    x = TABLE.clone().requires_grad_()
    expected, found = x[index], indexing.getitem(x, index)
    assert torch.equal(found, expected)
    if found is not x:
        weight = torch.randn_like(expected)
        for mine, theirs in zip(torch.autograd.grad(found, x, weight), torch.autograd.grad(expected, x, weight)):
            torch.testing.assert_close(mine, theirs)


def test_subscripts_by_a_mask_are_left_to_index():
    assert torch.equal(indexing.getitem(TABLE, MASK), TABLE[MASK])
    assert torch.equal(indexing.getitem(TABLE, (Ellipsis, MASK[:3].repeat(2))), TABLE[..., MASK[:3].repeat(2)])
    assert indexing.index_tensor(TABLE, [MASK]).reason == "the size of the result is data: an index is a mask"


@pytest.mark.parametrize(
    "indices",
    [
        [ROWS],
        [None, ROWS],
        [ROWS, None, ROWS],
        [None, ROWS, COLUMNS],
        [ROWS, COLUMNS],
        [torch.tensor(1)],
        [None, None, torch.zeros(0, dtype=torch.int64)],
        [ROWS, ROWS, ROWS],
        [ROWS.to(torch.int32)],
    ],
    ids=lambda indices: str([None if i is None else tuple(i.shape) for i in indices]),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_index_and_index_put_agree(indices, dtype):
    x = TABLE.to(dtype)
    agrees(RULES, aten.index.Tensor, x, indices)
    agrees(RULES, aten._unsafe_index.Tensor, x, indices)
    found = x[tuple(slice(None) if index is None else index for index in indices)]
    values = (torch.randn(found.shape) * 3).to(dtype)
    agrees(RULES, aten.index_put.default, x, indices, values, True)
    agrees(RULES, aten.index_put.default, x, indices, values[..., :1], True)
    first = [None if i is None else i.reshape(-1)[:1] for i in indices]  # no place twice
    found = x[tuple(slice(None) if index is None else index for index in first)]
    agrees(RULES, aten.index_put.default, x, first, (torch.randn(found.shape) * 3).to(dtype))


def test_the_last_of_several_values_wins():
    x, index = torch.zeros(3), torch.tensor([1, 2, 1])
    put = scattering.index_put(x, [index], torch.tensor([5.0, 6.0, 7.0]))
    assert torch.equal(put, torch.tensor([0.0, 7.0, 6.0]))
    scattered = scattering.scatter_src(x, 0, index, torch.tensor([5.0, 6.0, 7.0]))
    assert torch.equal(scattered, put)


def test_index_put_by_a_mask_takes_one_value():
    agrees(RULES, aten.index_put.default, TABLE, [MASK], torch.tensor(0.0))
    agrees(RULES, aten.index_put.default, TABLE, [MASK], torch.tensor([2.0]), True)
    agrees(RULES, aten.index_put.default, TABLE, [MASK], torch.randn(1, 5, 6))
    agrees(RULES, aten.index_put.default, TABLE, [TABLE > 0], torch.tensor(7.0))
    agrees(RULES, aten.index_put.default, TABLE, [MASK], torch.randn(5, 6))
    declined = scattering.index_put_masked(TABLE, [MASK], torch.randn(2, 5, 6))
    assert declined.reason == "which value goes where is data: the index is a mask"


def test_what_is_not_chosen_does_not_leak():
    x = HOSTILE.clone().requires_grad_()
    row = indexing.index_select(x, 0, torch.tensor([2, 0]))
    assert torch.equal(row, HOSTILE[[2, 0]])
    assert torch.equal(torch.autograd.grad(row.sum(), x)[0], torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]))
    assert torch.equal(indexing.embedding(HOSTILE, torch.tensor([[0], [2]])), HOSTILE[torch.tensor([[0], [2]])])
    assert torch.equal(indexing.gather(HOSTILE, 0, torch.tensor([[0, 2]])), torch.tensor([[1.0, -4.0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
def test_selecting_and_gathering_agree(dtype):
    x = TABLE.to(dtype)
    for dim in (0, 1, -1):
        agrees(RULES, aten.index_select.default, x, dim, torch.tensor([3, 0, 3]))
        agrees(RULES, aten.gather.default, x, dim, torch.randint(4, (3, 4, 6)))
    agrees(RULES, aten.index_select.default, x, 1, torch.tensor([], dtype=torch.int64))
    agrees(RULES, aten.index_select.default, x, 1, torch.tensor([1], dtype=torch.int32))
    agrees(RULES, aten.gather.default, x[0, 0], 0, torch.tensor(3))
    agrees(RULES, aten.gather.default, x[0, 0, 0], 0, torch.tensor([0]))
    agrees(RULES, aten.take.default, x, torch.tensor([[0, -1], [7, 119]]))
    agrees(RULES, aten.take_along_dim.default, x, torch.randint(5, (4, 5, 1)), 1)
    agrees(RULES, aten.take_along_dim.default, x, torch.randint(120, (3,)))


def test_embedding_gives_its_padding_row_no_gradient():
    weight, indices = torch.randn(7, 3), torch.tensor([[0, 2, 2], [6, 0, 1]])
    for padding in (-1, 0, 2):
        agrees(RULES, aten.embedding.default, weight, indices, padding)
        for scaled in (False, True):
            agrees(
                RULES,
                aten.embedding_dense_backward.default,
                torch.randn(2, 3, 3),
                indices,
                7,
                padding,
                scaled,
                gradient=False,
            )
    agrees(RULES, aten.one_hot.default, indices, 8)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_scatters_agree(dim, dtype):
    x, index = TABLE.to(dtype), torch.argsort(torch.randn(3, 4, 4), dim)
    src = (3 * torch.randn(4, 4, 5)).to(dtype)
    agrees(RULES, aten.scatter.value, x, dim, index, 2)
    agrees(RULES, aten.scatter.src, x, dim, index, src[:3, :, :4])
    index = torch.randint(4, (3, 4, 4))
    agrees(RULES, aten.scatter_add.default, x, dim, index, src[:3, :, :4])
    for reduce in ("add", "multiply"):
        agrees(RULES, aten.scatter.reduce, x, dim, index, src, reduce=reduce, gradient=False)
        agrees(RULES, aten.scatter.value_reduce, x, dim, index, 3, reduce=reduce, gradient=False)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reductions_agree(reduce, include_self):
    index, src = torch.randint(3, (3, 4, 4)), torch.randn(3, 4, 4).round()
    # Where self is left out, PyTorch (2.13) still lets it take a share of the gradient of a tie: no ties with it then.
    for x in (TABLE.round() if include_self else TABLE.round() + 0.25, TABLE.to(torch.int64)):
        agrees(
            RULES,
            aten.scatter_reduce.two,
            x,
            1,
            index,
            src.to(x.dtype),
            reduce,
            include_self=include_self,
            gradient=reduce != "prod",
        )


def test_scatters_by_an_empty_index_change_nothing():
    nothing = torch.zeros(0, 5, 6, dtype=torch.int64)
    agrees(RULES, aten.scatter.value, TABLE, 0, nothing, 2)
    agrees(RULES, aten.scatter_add.default, TABLE, 0, nothing, TABLE[:0])
    agrees(RULES, aten.scatter_reduce.two, TABLE, 0, nothing, TABLE[:0], "amax")


@pytest.mark.parametrize("x, shape", [(TABLE, (0, 9, 7)), (TABLE, (0,)), (torch.tensor(1.0), (0,)), (TABLE[0], (0, 6))])
def test_gathering_by_an_empty_index_is_empty_for_any_other_sizes(x, shape):
    agrees(RULES, aten.gather.default, x, -1, torch.zeros(shape, dtype=torch.int64))
    lowered_agrees(lambda x, index: torch.gather(x, -1, index), x, torch.zeros(shape, dtype=torch.int64))


def test_writing_along_a_dimension_agrees():
    index, source = torch.tensor([2, 0]), torch.randn(4, 2, 6)
    agrees(RULES, aten.index_add.default, TABLE, 1, index, source, alpha=0.5)
    agrees(RULES, aten.index_add.default, TABLE, 1, torch.tensor([2, 2]), source)
    agrees(RULES, aten.index_copy.default, TABLE, 1, index, source)
    agrees(RULES, aten.index_fill.int_Scalar, TABLE, -1, index, 3.0)
    agrees(RULES, aten.index_fill.int_Tensor, TABLE, 0, index, torch.tensor(3.0))
    agrees(RULES, aten.put.default, TABLE, torch.tensor([0, -1]), torch.tensor([1.0, 2.0]))
    agrees(RULES, aten.put.default, TABLE, torch.tensor([0, 0]), torch.tensor([1.0, 2.0]), True)
    agrees(RULES, aten.index_add.default, torch.tensor(1.0), 0, torch.tensor([0]), torch.tensor(2.0))
    agrees(scattering.RULES, aten.masked_scatter.default, TABLE, TABLE > 0, torch.randn(120))
    agrees(scattering.RULES, aten.masked_scatter.default, TABLE, TABLE > math.inf, torch.randn(0))


def test_of_a_number_of_sources_that_data_decide_there_may_be_none():
    model = Holder(lambda x, mask: x.masked_scatter(mask, torch.exp(x[mask])))
    x = torch.linspace(-1, 1, 12).view(3, 4)
    lowered = decomp.lower(model, to=targets.onnx, args=(x, x > 0), verify="values").result
    for mask in (x > 0, x > 1, x <= 1):
        torch.testing.assert_close(lowered(x, mask), model(x, mask))


def test_histograms_agree():
    x = torch.tensor([0.0, 0.1, 2.0, 3.9, 4.0, 5.0, -1.0, 1.0])
    agrees(RULES, aten.histc.default, x, 4, 0, 4, gradient=False)
    agrees(RULES, aten.histc.default, x, 5, gradient=False)
    agrees(RULES, aten.histc.default, torch.full((3,), 2.0), 5, gradient=False)


def test_bins_agree():
    edges, x = torch.tensor([1.0, 3.0, 5.0]), torch.tensor([[0.0, 1.0, 3.0], [5.0, 9.0, float("nan")]])
    for right in (False, True):
        agrees(RULES, aten.bucketize.Tensor, x, edges, right=right, gradient=False)
        agrees(
            RULES,
            aten.searchsorted.Tensor,
            edges.expand(2, 3).contiguous(),
            x,
            right=right,
            out_int32=True,
            gradient=False,
        )
    agrees(RULES, aten.searchsorted.Scalar, edges, 3.0, side="right", gradient=False)


def test_a_search_in_an_unsorted_line_goes_where_the_op_goes():
    line = torch.tensor([3.0, 1.0, 2.0, float("nan"), -1.0, 7.0])
    x = torch.tensor([float("nan"), 5.0, 2.0, 0.0, -9.0, float("inf")])
    for right in (False, True):
        agrees(RULES, aten.searchsorted.Tensor, line, x, right=right, gradient=False)
        agrees(RULES, aten.searchsorted.Tensor, line[:0], x, right=right, gradient=False)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, ROWS[:2]].unsqueeze(0) + x[ROWS[:2]][:, ROWS[:2]].sum(),
        lambda x: F.embedding(ROWS.abs(), x[0], padding_idx=1) * F.one_hot(ROWS.abs(), 6).float(),
        lambda x: x.gather(1, ROWS.abs().view(4, 1, 1)) + x.index_select(1, torch.tensor([2])),
        lambda x: torch.index_put(x, (ROWS[:2],), x[:2] * 2, True).index_add(0, ROWS[:2], x[2:]),
        lambda x: x.clone().index_put_((ROWS[:2],), x[:2] * 2).masked_fill_(x > 1, 0.5),
        lambda x: x.scatter(0, ROWS.abs().view(1, 4, 1), 2.0).scatter_add(1, ROWS.abs().view(4, 1, 1), x[:, :1, :1]),
        lambda x: x.scatter_reduce(1, ROWS.abs().view(4, 1, 1), x[:, :1, :1], "amax") + x.take(ROWS)[0],
    ],
)
def test_programs_reach_the_targets(function):
    lowered_agrees(function, TABLE)


def test_a_masked_assignment_reaches_the_targets():
    def assigned(x):
        y = x.clone()
        y[0] = 1.0
        y[:, 1] = y[:, 0] * 2
        y[x > 0] = 0.0
        return y

    lowered_agrees(assigned, TABLE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_negative_zeros_are_picked_as_they_are_with_their_gradient(dtype):
    table = torch.tensor([[-0.0, 0.0], [1.0, -math.inf], [0.0, math.nan]], dtype=dtype, requires_grad=True)
    places = torch.tensor([2, 0, 1, 0])
    chosen = indexing.index_select(table, 0, places)
    expected = torch.index_select(table, 0, places)
    assert torch.equal(torch.signbit(chosen.nan_to_num()), torch.signbit(expected.nan_to_num()))
    assert torch.equal(chosen.nan_to_num(), expected.nan_to_num()) and chosen.dtype == dtype
    assert torch.equal(*(torch.autograd.grad(y.sum(), table)[0] for y in (chosen, expected)))


def test_negative_zeros_stay_where_nothing_is_added():
    x, index = torch.tensor([-0.0, -0.0, 1.0]), torch.tensor([2])
    for written in (
        scattering.scatter_add(x, 0, index, torch.ones(1)),
        scattering.index_put(x, [index], torch.ones(1), True),
    ):
        assert torch.equal(torch.signbit(written), torch.tensor([True, True, False]))


def test_index_add_takes_its_factor_in_the_dtype_of_the_integers():
    x, index, source = torch.tensor([1, 2]), torch.tensor([0, 1]), torch.tensor([3, 5])
    for alpha in (2.5, -1.5, 0.5):
        assert torch.equal(scattering.index_add(x, 0, index, source, alpha), x.index_add(0, index, source, alpha=alpha))
