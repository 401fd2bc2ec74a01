"""Calls that OpenVINO refuses or computes otherwise, by their sizes or operands, are lowered to others with equal
results."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.forms import Holder

X, MASK = torch.randn(2, 3, 4), torch.tensor([[True, False, True], [False, True, True]])


def put(x, indices, values):
    return torch.ops.aten.index_put(x, indices, values)


def lowered(function, *args):
    """Verified against the function in float64, as `verify="values"` does."""
    found = decomp.lower(Holder(function), to=targets.openvino, args=args, training=False, verify="values")
    return [call.op.short for call in decomp.calls(found.result)]


def test_an_empty_part_of_one_dimension_goes():
    found = lowered(lambda x: torch.cat([torch.empty(0), x, x], -2), X)
    assert found == ["cat"]


def test_an_index_that_is_smaller_than_what_it_gathers_from_is_padded():
    x, index = torch.randn(5, 6), torch.tensor([[5, 0], [1, 1], [4, 2]])
    assert lowered(lambda x, index: x.gather(1, index), x, index) == ["constant_pad_nd", "gather", "slice"]
    assert lowered(lambda x, index: x.gather(1, index), x[:3], index) == ["gather"]


@pytest.mark.parametrize("masked, kept", [(MASK, False), (X > 0, True)], ids=["of two dimensions", "of all"])
def test_a_value_at_a_mask_of_some_dimensions_is_chosen_by_where(masked, kept):
    found = lowered(lambda x, mask: put(x, [mask], torch.tensor(0.5)), X, masked)
    assert ("index_put" in found) is kept and ("where" in found) is not kept


def test_rows_at_a_mask_stay_as_how_many_there_are_is_data():
    assert "index_put" in lowered(lambda x, mask, rows: put(x, [mask], rows), X, MASK, torch.randn(4, 4))


def test_an_index_behind_full_slices_is_put_along_the_first_dimension():
    found = lowered(lambda x, index: put(x, [None, None, index], torch.tensor(-9.0)), X, torch.tensor([3, 1]))
    assert found.count("index_put") == 1 and "permute" in found


@pytest.mark.parametrize("kernel, kept", [(4, True), (5, False), ((4, 6), False)])
def test_a_pooling_kernel_above_the_input_is_decomposed(kernel, kept):
    x = torch.randn(1, 3, 4, 4)
    assert ("avg_pool2d" in lowered(lambda x: F.avg_pool2d(x, kernel, ceil_mode=True), x)) is kept


def test_padding_counts_for_the_kernel_of_a_pooling():
    assert "avg_pool2d" in lowered(lambda x: F.avg_pool2d(x, 6, padding=1), torch.randn(1, 3, 4, 4))


def test_writes_into_the_result_of_a_write_are_chosen_by_where():
    def written(x, row, part):
        x = torch.select_scatter(torch.select_scatter(x, row, 1, 2), row, 1, 0)
        return torch.slice_scatter(x, part, 1, 1, 2)

    found = lowered(written, X, X[:, 0], X[:, :1])
    assert found.count("where") == 3 and not {"select_scatter", "slice_scatter"} & {*found}


def test_a_logarithm_of_a_sum_of_exponentials_is_spelled_out():
    x = torch.tensor([-torch.inf, 0.0, 1.0])
    assert "logaddexp" not in lowered(torch.logaddexp, x, x)
