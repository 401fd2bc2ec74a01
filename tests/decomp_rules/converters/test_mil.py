"""The definitions of MIL's ops that coremltools does not fold, and the evaluation of a program that it writes."""

import numpy
import pytest
import torch
from torch.nn import functional as F

from decomp_rules.converters.mil import definitions
from decomp_rules.converters.mil.evaluation import evaluate
from tests.installed import converter


def f(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def test_convolutions_pad_each_side_by_its_own_number():
    x, weight, bias = f(2, 4, 7, 6), f(6, 2, 3, 2), f(6)
    pad, strides, dilations = (torch.tensor(each) for each in ([0, 2, 1, 0], [2, 1], [1, 2]))
    found = definitions.conv(x, weight, "custom", bias, strides, pad, dilations, 2)
    torch.testing.assert_close(found, F.conv2d(F.pad(x, (1, 0, 0, 2)), weight, bias, [2, 1], 0, [1, 2], 2))
    torch.testing.assert_close(definitions.conv(x[:, :2], weight, "valid"), F.conv2d(x[:, :2], weight))


@pytest.mark.parametrize(("pad", "further"), [((0, 0), (0, 0)), ((1, 2), (0, 0)), ((1, 1), (1, 0)), ((0, 1), (1, 1))])
def test_transposed_convolutions_end_where_their_shape_says(pad, further):
    x, weight, bias = f(2, 4, 5, 6), f(4, 3, 3, 4), f(6)
    expected = F.conv_transpose2d(x, weight, bias, (2, 2), pad, further, 2, (1, 1))
    flat = torch.tensor([each for size in pad for each in (size, size)])
    found = definitions.conv_transpose(
        x, weight, bias, flat, torch.tensor(expected.shape), "custom", torch.tensor([2, 2]), groups=2
    )
    torch.testing.assert_close(found, expected)


def test_a_transposed_convolution_beyond_its_strides_is_refused():
    with pytest.raises(NotImplementedError, match=r"MIL's conv_transpose to \[9\]: beyond what its strides"):
        definitions.conv_transpose(f(1, 1, 4), f(1, 1, 2), output_shape=torch.tensor([1, 1, 9]))


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pooling_pads_by_what_cannot_win_or_does_not_count(ceil_mode):
    x, kernel, strides, pad = f(2, 3, 7, 8), *(torch.tensor(each) for each in ([3, 2], [2, 2], [1, 1, 1, 1]))
    found = definitions.max_pool(x, kernel, "custom", strides, pad, ceil_mode)
    torch.testing.assert_close(found, F.max_pool2d(x, (3, 2), 2, 1, ceil_mode=ceil_mode))
    for excluded in (False, True):
        found = definitions.avg_pool(x, kernel, "custom", strides, pad, excluded, ceil_mode)
        expected = F.avg_pool2d(x, (3, 2), 2, 1, ceil_mode, count_include_pad=not excluded)
        torch.testing.assert_close(found, expected)


def test_padding_that_ceil_mode_and_the_evaluation_do_not_have_is_refused():
    x, kernel, pad = f(1, 1, 4), torch.tensor([2]), torch.tensor([0, 1])
    with pytest.raises(NotImplementedError, match="MIL's ceil_mode takes the same padding before and after"):
        definitions.max_pool(x, kernel, "custom", kernel, pad, True)
    with pytest.raises(NotImplementedError, match="MIL's pad_type 'same' is not evaluated outside Core ML"):
        definitions.avg_pool(x, kernel, "same")


def test_one_hot_has_its_dimension_anywhere():
    indices = torch.tensor([[0, 2, 1], [1, 0, 2]])
    expected = F.one_hot(indices, 4)
    assert torch.equal(definitions.one_hot(indices, 4), expected.int())
    assert torch.equal(definitions.one_hot(indices, 4, 0, 2.0, 0.0), expected.movedim(-1, 0) * 2.0)
    assert torch.equal(definitions.one_hot(1, 3, on_value=True, off_value=False), torch.tensor([False, True, False]))


def test_slices_are_gathered_and_scattered_by_vectors_of_indices():
    x, places = f(4, 3, 5), torch.tensor([[3, 0], [1, 2]])
    assert torch.equal(definitions.gather_nd(x, places), x[[3, 1], [0, 2]])
    rows = torch.tensor([[2], [0], [1], [2]])
    assert torch.equal(definitions.gather_nd(x, rows, batch_dims=1), x[range(4), rows[:, 0]])
    new = f(2, 5)
    assert torch.equal(definitions.scatter_nd(x, places, new, "update"), x.index_put((*places.T,), new))


@pytest.mark.parametrize(
    ("mode", "reduced"), [("mul", torch.mul), ("max", torch.maximum), ("min", torch.minimum), ("sub", torch.sub)]
)
def test_what_is_scattered_to_one_place_is_merged(mode, reduced):
    data, updates = f(3, 4), f(3, 2) + 1
    expected = data.clone()
    for i, place in enumerate((1, 1)):
        expected[:, place] = reduced(expected[:, place], updates[:, i])
    torch.testing.assert_close(definitions.scatter(data, torch.tensor([1, 1]), updates, 1, mode), expected)


@pytest.mark.parametrize(
    ("mode", "reduced"), [("add", "sum"), ("mul", "prod"), ("max", "amax"), ("min", "amin"), ("update", None)]
)
def test_elements_are_scattered_along_a_dimension_by_the_mode(mode, reduced):
    data, updates = f(3, 5), f(2, 4) + 1
    places = torch.tensor([[0, 0, -1, 2], [2, 1, -1, 1]]) if reduced else torch.tensor([[0, 1, -1, 2], [2, 3, 1, 0]])
    found = definitions.scatter_along_axis(data, places, updates, 1, mode)
    expected = data.scatter_reduce(1, places % 5, updates, reduced) if reduced else data.scatter(1, places % 5, updates)
    torch.testing.assert_close(found, expected)


def test_no_definition_replaces_a_fold_of_coremltools_but_for_those_that_are_wrong():
    converter("coremltools")
    from coremltools.converters.mil.mil import Operation
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

    for name in definitions.DEFINITIONS.keys() - {"scatter_along_axis", "concat"}:
        for op in SSAOpRegistry.core_ops[name].values():
            assert op.value_inference is Operation.value_inference


def test_what_coremltools_folds_wrong_is_evaluated_right():
    converter("coremltools")
    from coremltools.converters.mil import Builder as mb

    data, updates = numpy.ones((2, 3), numpy.float32), numpy.full((2, 2), 2.0, numpy.float32)
    places = numpy.array([[0, 0], [1, 2]])

    @mb.program(input_specs=[mb.TensorSpec((2, 3))])
    def program(x):
        return mb.scatter_along_axis(data=x, indices=places, updates=updates, axis=1, mode="add")

    (found,) = evaluate(program, [data])
    assert found.tolist() == [[5.0, 1.0, 1.0], [1.0, 3.0, 3.0]]


def test_elements_are_interleaved_where_coremltools_folds_them_one_after_the_other():
    converter("coremltools")
    from coremltools.converters.mil import Builder as mb

    @mb.program(input_specs=[mb.TensorSpec((1, 2)), mb.TensorSpec((1, 2))])
    def program(x, y):
        return mb.concat(values=(x, y), axis=1, interleave=True), mb.concat(values=(x, y), axis=-2)

    one, two = numpy.array([[1.0, 2.0]], numpy.float32), numpy.array([[3.0, 4.0]], numpy.float32)
    interleaved, concatenated = evaluate(program, [one, two])
    assert interleaved.tolist() == [[1.0, 3.0, 2.0, 4.0]] and concatenated.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_an_op_without_a_value_is_refused_by_name():
    converter("coremltools")
    from coremltools.converters.mil import Builder as mb

    @mb.program(input_specs=[mb.TensorSpec((1, 2, 3, 4))])
    def program(x):
        return mb.resize_nearest_neighbor(x=mb.add(x=x, y=1.0), target_size_height=6, target_size_width=8)

    with pytest.raises(NotImplementedError) as raised:
        evaluate(program, [numpy.ones((1, 2, 3, 4), numpy.float32)])
    assert str(raised.value) == (
        "MIL's resize_nearest_neighbor has no value outside Core ML: coremltools does not fold it"
    )
