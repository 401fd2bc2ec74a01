"""Inside torch.compile: inputs that share memory, and outputs that are views of inputs that the program writes."""

import pytest
import torch

import decomp
from decomp_rules import backends, targets
from tests.installed import NEEDS_COMPILER
from tests.models import KERNEL_CALLS


def view_of_a_written_input(x):
    row = x[0]
    x.mul_(2)
    return row, x.view(-1)[2:], x + 1


def writes_through_a_view(x):
    turned = x.transpose(0, 1)
    turned[1:].sigmoid_()
    return turned


def compiled(function, target):
    torch._dynamo.reset()
    return torch.compile(function, backend=decomp.backend(to=getattr(targets, target)))


@pytest.mark.sampled
@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
@pytest.mark.parametrize("function", [view_of_a_written_input, writes_through_a_view])
def test_outputs_are_still_views_of_an_input_that_was_written(function, target):
    mine, theirs = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(3, 4)
    found, expected = compiled(function, target)(mine), function(theirs)
    torch.testing.assert_close((found, mine), (expected, theirs))
    for one, other in zip(*(out if isinstance(out, tuple) else (out,) for out in (found, expected))):
        one.fill_(-5)
        other.fill_(-5)
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
def test_a_write_to_one_input_is_seen_in_another_that_shares_its_memory(target):
    def function(x, row):
        row.add_(1)
        y = x * 2
        x[1:].zero_()
        return y + row

    mine, theirs = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(3, 4)
    found, expected = compiled(function, target)(mine, mine[0]), function(theirs, theirs[0])
    torch.testing.assert_close((found, mine), (expected, theirs))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:decomp.backend lowers a graph only after autograd")
def test_gradients_go_through_a_write_to_an_input_that_is_returned_as_a_view():
    def function(x):
        y = x * 3
        y.sin_()
        x.mul_(y)
        return x[0]

    grads = []
    for run in (function, compiled(function, "tinygrad")):
        leaf = torch.linspace(-1, 2, 12).reshape(3, 4).requires_grad_()
        run(leaf * 1).sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_an_input_that_another_one_shows_a_row_of_has_its_own_sizes():
    def function(x, row):
        return torch.cat([row, x[0].view_as(row)], 0)

    torch.compiler.reset()
    run = torch.compile(function, backend=decomp.backend(to=targets.tinygrad))
    for size, tracked in ((3, True), (3, False), (5, True)):
        x = torch.arange(12.0 * size).reshape(4, 3, size).permute(2, 1, 0)
        x = x.requires_grad_() * 1 if tracked else x  # the latter is itself a view
        assert torch.equal(run(x, x[0]), function(x, x[0]))


def test_one_of_several_results_that_changes_its_shape_in_place():
    def ranked(x):
        _, places = torch.sort(x, -1)
        places.unsqueeze_(0)
        return places

    x = torch.tensor([3.0, 1.0, 2.0])
    assert torch.equal(compiled(ranked, "tinygrad")(x), ranked(x))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:decomp.backend lowers a graph only after autograd")
@pytest.mark.parametrize("compiler", ["eager", backends.numpy])
def test_an_input_that_was_written_unseen_hands_on_gradients(compiler):
    def function(x):
        view = x[:, :2]
        with torch.no_grad():
            view.relu_()
        return view

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=decomp.backend(to=targets.tinygrad, compiler=compiler))
    for run in (function, compiled):
        leaf = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        run(leaf * 1).backward(torch.ones(3, 2))
        assert leaf.grad[:, :2].eq(1).all() and leaf.grad[:, 2:].eq(0).all()


def turned_and_cut(x):
    x[:, ::2] = 2
    return x.reshape(x.shape[2], x.shape[1], x.shape[0]).diagonal(), x.view(-1)[x.shape[0] :]


def several_views_of_one_result(x):
    y = (x * 2).transpose(0, 2)
    return y[1:].diagonal(), y.reshape(-1, x.shape[2])[:, 1:]


@pytest.mark.parametrize("function", [turned_and_cut, several_views_of_one_result])
def test_outputs_of_dynamic_sizes_are_the_views_that_they_were_traced_as(function):
    run = compiled(function, "tinygrad")
    for size in (3, 5):  # dynamic from the second one on
        mine = torch.randn(size, 3, 4)
        theirs = mine.clone()
        found, expected = run(mine), function(theirs)
        assert all(map(torch.equal, (*found, mine), (*expected, theirs)))
        assert [out.data_ptr() - mine.data_ptr() for out in found if out._is_view() and out._base is mine] == [
            out.data_ptr() - theirs.data_ptr() for out in expected if out._is_view() and out._base is theirs
        ]


def diagonal_of_a_result(x):
    y = x * 2
    return y.diagonal(), y


def two_views_of_one_result(x):
    y = (x * 2).detach()
    return y.diagonal(), y[0]


def diagonal_of_an_input(x):
    return x.diagonal(), x.view(16)


def bits_of_a_result(x):
    y = x + 1
    return y.detach().view(torch.int32), y


def one_of_several_results(x):
    largest = (x.view(2, 2, 4) * 2).detach().max(0)[0]
    return largest.diagonal(), largest


def one_of_several_views(x):
    first = (x * 2).detach().split([3, 1])[0]
    return first.diagonal(), first


def one_of_several_views_of_an_input(x):
    return x.diagonal().split([1, 3])[1], x


def view_of_a_diagonal(x):
    return x.expand(2, 4, 4).diagonal(1, 1, 0).view(4), x


def view_of_a_diagonal_of_a_result(x):
    y = (x * 2).detach()
    return y.expand(2, 4, 4).diagonal(1, 1, 0).view(2, 2), y


SHARING = [
    diagonal_of_a_result,
    two_views_of_one_result,
    diagonal_of_an_input,
    bits_of_a_result,
    one_of_several_results,
    one_of_several_views,
    one_of_several_views_of_an_input,
    view_of_a_diagonal,
    view_of_a_diagonal_of_a_result,
]


def same_after_a_write(function, backend, x, **options):
    torch.compiler.reset()
    for run in (function, torch.compile(function, backend=backend, **options)):
        read, written = run(x * 1)
        written.data.add_(3)  # which autograd does not count: it forbids to read one of several views afterwards
        yield read


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:decomp.backend lowers a graph only after autograd")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("function", SHARING)
def test_outputs_share_memory_where_the_target_has_no_such_view(function, tracked, dynamic):
    x = torch.linspace(-1, 2, 16).reshape(4, 4).requires_grad_(tracked)
    backend = decomp.backend(to=targets.tinygrad)
    torch.testing.assert_close(*same_after_a_write(function, backend, x, dynamic=dynamic))


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "compiler, options", [("inductor", {"options": KERNEL_CALLS}), (backends.numpy, {})], ids=["inductor", "numpy"]
)
@pytest.mark.parametrize("function", SHARING)
def test_outputs_share_memory_in_any_runner_of_the_graph(function, compiler, options):
    x = torch.linspace(-1, 2, 16).reshape(4, 4)
    backend = decomp.backend(to=targets.tinygrad, compiler=compiler)
    torch.testing.assert_close(*same_after_a_write(function, backend, x, **options))


@NEEDS_COMPILER
def test_outputs_share_memory_of_kernels_that_inductor_compiles():
    x = torch.linspace(-1, 2, 16).reshape(4, 4)
    backend = decomp.backend(to=targets.tinygrad, compiler="inductor")
    torch.testing.assert_close(*same_after_a_write(two_views_of_one_result, backend, x))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:decomp.backend lowers a graph only after autograd")
def test_a_view_of_an_input_is_of_the_one_that_is_given_wherever_that_begins():
    torch.compiler.reset()
    compiled = torch.compile(one_of_several_views_of_an_input, backend=decomp.backend(to=targets.tinygrad))
    whole = torch.linspace(-1, 2, 20, requires_grad=True)
    for start in (0, 4):
        x = (whole * 1)[start : start + 16].view(4, 4)
        found, expected = compiled(x)[0], one_of_several_views_of_an_input(x)[0]
        assert found.data_ptr() == expected.data_ptr() and torch.equal(found, expected)


@pytest.mark.parametrize("compiler", ["eager", "inductor"])
def test_inputs_that_share_memory_may_be_views_of_a_larger_tensor_than_before(compiler):
    def function(column, rows):
        column.mul_(2)
        return rows + 1

    torch._dynamo.reset()
    called = torch.compile(function, backend=decomp.backend(to=targets.luminal, compiler=compiler))
    for rows in (3, 5, 4):
        mine, theirs = (torch.arange(4.0 * rows).reshape(rows, 4) for _ in range(2))
        found, expected = called(mine[:2, 1], mine[:2]), function(theirs[:2, 1], theirs[:2])
        torch.testing.assert_close((found, mine), (expected, theirs))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:decomp.backend lowers a graph only after autograd")
@pytest.mark.parametrize("target", ["core_aten", "tinygrad"])
@pytest.mark.parametrize("tracked", [False, True])
def test_a_view_of_all_of_a_tensor_keeps_its_shape_where_the_tensor_is_turned_in_place(target, tracked):
    def function(x):
        y = x * 2
        views = y.squeeze(), x.view(2, 3)
        torch._dynamo.graph_break()
        y.unsqueeze_(0)
        x.unsqueeze_(0)
        return y, x, *views

    found, expected = (
        each(torch.ones(2, 3, requires_grad=tracked) * 1) for each in (compiled(function, target), function)
    )
    for i in (0, 1):
        found[i].mul_(3)
        expected[i].mul_(3)
    torch.testing.assert_close(found, expected)


def test_sizes_that_are_returned_are_not_kept_apart_as_tensors_are():
    def function(x, y):
        return x.view(x.shape[0], -1), x.shape[0], y.shape[0], x.shape[0] * 1

    torch._dynamo.reset()
    called = torch.compile(function, backend=decomp.backend(to=targets.core_aten), dynamic=True)
    for rows in (3, 5):
        found, *sizes = called(torch.ones(rows, 2), torch.ones(rows, 2))
        assert (found.shape, sizes) == ((rows, 2), [rows] * 3)
