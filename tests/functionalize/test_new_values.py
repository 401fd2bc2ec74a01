"""In-place ops that write several tensors, or lists of them."""

import pytest
import torch
from torch import fx

from decomp.errors import MutationError
from tests.forms import FORMS, program
from tests.functionalize.test_mutation import check, functional, run, same, weight, x23
from tests.functionalize.test_mutation_refusals import refused

aten = torch.ops.aten


def of_unequal_shapes(x, w):
    y = w * 1
    torch._foreach_mul_([x, y, y.new_ones(())], 3.0)
    return x + 1, y


def twice(x, w):
    y, z = w * 1, w + 1
    torch._foreach_add_([y, z], [x, x], alpha=2)
    torch._foreach_add_([y, z], [1.0, 2.0])
    return y, z * 2


def of_other_dtypes(x, w):
    y = w * 1
    torch._foreach_add_([x, y], [w.double(), x.double()])
    return x * 1, y


def by_a_tensor(x, w):
    y = w * 1
    torch._foreach_div_([x, y], torch.full((), 4.0))
    return x * 1, y


def through_views(x, w):
    y = w * 1
    torch._foreach_mul_([x[0], y.t()[1:], x[1]], [2.0, 3.0, 4.0])
    return x + 1, y


def copied(x, w):
    y = w * 1
    torch._foreach_copy_([y[0], x], [x[1].long(), w])
    return x * 1, y


def zeroed(x, w):
    y, z = w * 1, w * 2
    torch._foreach_zero_([y[0], z])
    return x * 1, y, z


def read_where_it_is_written(x, w):
    y, z = w * 1, w * 2
    torch._foreach_add_([y, z], [y, z])
    torch._foreach_addcmul_([y, z], [x, x], [w, w], 0.5)
    return y, z


def before_it_is_written(x, w):
    y, z = w * 1, w * 2
    torch._foreach_add_([y, z], [z, x])
    return y, z


PROGRAMS = (
    *(of_unequal_shapes, twice, of_other_dtypes, by_a_tensor, through_views, copied, zeroed),
    *(read_where_it_is_written, before_it_is_written),
)


@pytest.mark.each_row
@pytest.mark.parametrize("function", PROGRAMS)
def test_each_element_of_a_written_list_is_written(function):
    # The functional variants of these have no derivative (torch 2.13); what rules make of them has one.
    check(function, x23(), weight().detach() if function in (copied, zeroed) else weight())


@pytest.mark.each_row
@pytest.mark.parametrize("function", [of_unequal_shapes, twice, by_a_tensor, read_where_it_is_written])
def test_a_function_on_lists_is_followed_without_metadata(function):
    traced, args = fx.symbolic_trace(function), (x23(), weight())
    same(run(traced, args), run(functional(traced), args))


def test_what_a_function_on_lists_returns_is_what_it_writes():
    def function(x, y):
        a, b = torch._foreach_mul_([x * 1, y], 2.0)
        torch._foreach_sub_([a], [b])
        b.add_(1)
        return a, y + 0

    traced, args = fx.symbolic_trace(function), (x23(), x23() + 1)
    same(run(traced, args), run(functional(traced), args))


def test_ops_that_write_several_lists_are_followed():
    def function(p, q, state):
        m, v, step = torch.zeros_like(p), torch.zeros_like(p), torch.ones(())
        numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
        torch._fused_adam_([p], [q], [m], [v], [], [step], amsgrad=False, maximize=False, **numbers)
        return m * 1, v, p + state

    check(function, x23(), x23() + 1, x23())
    traced, args = fx.symbolic_trace(function), (x23(), x23() + 1, x23())
    same(run(traced, args), run(functional(traced), args))


def test_ops_that_write_a_list_and_a_tensor_are_followed():
    def function(x, y, found):
        aten._amp_foreach_non_finite_check_and_unscale_([x, y], found, torch.full((), 0.5))
        return x + 1, found * 1

    for value in (1.0, float("inf")):
        check(function, x23(), x23() * value, torch.zeros(1))


def overlapping(x, y):
    torch._foreach_mul_([x[0], x.view(-1)[2:4]], 2.0)
    return x + 1


def one_twice(x, y):
    torch._foreach_mul_([x, y, x], 2.0)
    return x + 1


def written_before_it_is_read(x, y):
    torch._foreach_add_([x, y], [y, x])
    return x + y


def a_factor_that_is_written(x, y):
    z = y.sum()
    torch._foreach_mul_([z, x], z)
    return x * 1


@pytest.mark.each_row
@pytest.mark.parametrize(
    "function, which",
    [
        (overlapping, "'select' and 'slice_1', which may share memory"),
        (one_twice, "'args_0' twice"),
        (written_before_it_is_read, "'args_0' twice"),
        (a_factor_that_is_written, "'sum_1' twice"),
    ],
)
def test_refusal_of_a_write_that_depends_on_the_order_of_a_list(function, which):
    found = refused(function, x23(), x23() + 1)
    assert found[0] == (
        f"cannot make the program functional: it takes {which}, and its result depends on the order in which it does"
    )
    assert found[2:] == ["  to do: pass a tensor once, and clone() views that are not written"]


@pytest.mark.parametrize("form", FORMS)
def test_views_without_metadata_may_overlap(form):
    """With metadata it is known that two rows do not."""

    def function(x):
        torch._foreach_mul_([x[0], x[1]], 2.0)
        return x + 1

    traced = program(function, (x23(),), form)
    if form == FORMS[0]:
        same(run(traced.module(), (x23(),)), run(functional(traced.module()), (x23(),)))
        return
    assert refused(traced) == [
        "cannot make the program functional: it takes 'getitem' and 'getitem_1', which may share memory, and its "
        "result depends on the order in which it does",
        "  at node '_foreach_mul_' (call_function torch._foreach_mul_)",
        "  to do: pass a tensor once, and clone() views that are not written",
    ]


def test_refusal_of_lists_whose_tensors_are_not_known():
    traced = fx.symbolic_trace(lambda x: torch._foreach_mul_(torch._foreach_add([x, x], 1.0), 2.0)[0])
    assert refused(traced) == [
        "cannot make the program functional: it writes the tensors in '_foreach_add', and which these are cannot be "
        "determined",
        "  at node '_foreach_mul_' (call_function torch._foreach_mul_)",
        "  to do: take the tensors out of the list one by one, and pass a list of them",
    ]
    traced = fx.symbolic_trace(lambda x: torch._foreach_mul_([x, x + 1], 2.0))
    with pytest.raises(MutationError, match="it returns views of several tensors, and one of them is written"):
        functional(traced)


def test_an_op_on_lists_needs_a_variant_that_returns_them():
    with torch.library._scoped_library("lists", "FRAGMENT") as library:
        library.define("double_(Tensor(a!)[] tensors) -> ()")
        library.impl(
            "double_", lambda tensors: [each.mul_(2) for each in tensors] and None, "CompositeExplicitAutograd"
        )
        graph = fx.Graph()
        x, y = map(graph.placeholder, "xy")
        graph.call_function(torch.ops.lists.double_.default, ([x, y],))
        graph.output(x)
        module = fx.GraphModule(torch.nn.Module(), graph)
        assert refused(module) == [
            "cannot make the program functional: double_ writes several tensors, and it has no functional form",
            "  at node 'double__default' (call_function lists.double_.default)",
            "  to do: register lists::double, which returns the new values, or use an op that returns new tensors",
        ]
        library.define("double(Tensor[] tensors) -> Tensor[]")
        library.impl("double", lambda tensors: [each * 2 for each in tensors], "CompositeExplicitAutograd")
        same(run(module, (x23(), x23())), run(functional(module), (x23(), x23())))
