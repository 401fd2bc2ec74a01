"""Mutation that cannot be followed is refused: each refusal, word for word."""

import operator

import pytest
import torch
from torch import fx, nn

import decomp
from decomp.errors import MutationError
from decomp.functionalize.walk import functionalize
from decomp_rules import targets
from tests.functionalize.test_mutation import exported, functional, module_of, run, same, x23


def refused(module, *args):
    """The refusal of a program, without the line of the user's file."""
    module = (
        module
        if isinstance(module, fx.GraphModule)
        else exported(module if isinstance(module, nn.Module) else module_of(module), *args)
    )
    with pytest.raises(MutationError) as caught:
        functionalize(module.graph, module)
    return [line for line in str(caught.value).splitlines() if not line.startswith("  File")]


def test_refusal_of_a_normalization_without_a_functional_form():
    graph = fx.Graph()
    x, mean, var = map(graph.placeholder, ("x", "mean", "var"))
    norm = graph.call_function(torch.ops.aten.miopen_batch_norm.default, (x, x, x, mean, var, True, 0.1, 1e-5))
    graph.output(norm)
    assert refused(fx.GraphModule(nn.Module(), graph)) == [
        "cannot make the program functional: miopen_batch_norm updates its running statistics, and it has no "
        "functional form",
        "  at node 'miopen_batch_norm_default' (call_function aten.miopen_batch_norm.default)",
        "  to do: use batch_norm, or track_running_stats=False",
    ]


def test_refusal_of_an_op_without_a_functional_form():
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_method("resize_", (x, 2))
    graph.output(x)
    assert refused(fx.GraphModule(nn.Module(), graph)) == [
        "cannot make the program functional: resize_ writes its argument, and it has no functional form",
        "  at node 'resize_' (call_method resize_)",
        "  to do: write a new tensor in the model instead",
    ]


def test_refusal_of_an_alias_that_only_shapes_decide():
    gm = fx.symbolic_trace(lambda x: (x.reshape(-1).add_(1), x * 2))
    assert refused(gm) == [
        "cannot make the program functional: 'reshape' may or may not share memory with its argument, and one of them "
        "is written before the other is used",
        "  at node 'add_' (call_method add_)",
        "  to do: pass args=, so that shapes and strides are known; or clone() before the write",
    ]


def test_no_refusal_where_the_alias_does_not_matter():
    gm = fx.symbolic_trace(lambda x: torch.sin(x).reshape(-1).add_(1))
    same(run(gm, (x23(),)), run(functional(gm), (x23(),)))


def test_refusal_of_a_grid_of_which_one_side_is_written():
    def function(x, y):
        grid = torch.meshgrid(x, y, indexing="ij")[1]
        y.add_(1)
        return grid * 2

    assert refused(function, torch.ones(2), torch.ones(3)) == [
        "cannot make the program functional: 'getitem_1' is a view of one of several tensors that meshgrid returns, "
        "and one of the two is written",
        "  at node 'mul' (call_function aten.mul.Tensor)",
        "  to do: clone() before the write",
    ]


def test_refusal_of_several_views_that_leave_together():
    gm = fx.symbolic_trace(lambda x, y: (x.add_(1), torch.atleast_2d(x, y)))
    assert refused(gm) == [
        "cannot make the program functional: it returns views of several tensors, and one of them is written",
        "  at node 'atleast_2d' (call_function torch.functional.atleast_2d)",
        "  to do: take the views out of the tuple one by one, or clone() the one that is written",
    ]


def test_refusal_of_a_changed_shape_of_an_input():
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.call_method("unsqueeze_", (x, 0))
    graph.output(x)
    assert refused(fx.GraphModule(nn.Module(), graph)) == [
        "cannot make the program functional: it changes the shape of the input 'x' itself",
        "  at node 'unsqueeze_' (call_method unsqueeze_)",
        "  to do: use the function that returns a view",
    ]


@pytest.mark.parametrize(
    "same",
    [torch.atleast_2d, lambda x: x.flatten(1, 1), lambda x: x.sum_to_size(x.shape)],
    ids=["atleast_2d", "flatten", "sum_to_size"],
)
def test_refusal_of_a_new_shape_for_an_input_that_a_function_hands_through(same):
    def forward(x):
        v = same(x)
        v.unsqueeze_(0)
        return v

    with pytest.raises(MutationError, match="it changes the shape of the input 'x' itself"):
        decomp.lower(fx.symbolic_trace(forward), to=targets.core_aten, args=(torch.ones(2, 3),))


@pytest.mark.parametrize(
    "writes", [lambda x, y: x.scatter_add_(-1, torch.zeros_like(x, dtype=torch.int64), y), lambda x, y: x.mul_(y)]
)
def test_refusal_of_a_resized_input_whose_new_value_has_the_same_strides(writes):
    class Model(nn.Module):
        def forward(self, x, y):
            writes(x, y)
            x.t_()
            return y + 1

    program = torch.export.export(Model(), (torch.empty_strided((4, 4), (1, 4)), torch.ones(4, 4)), strict=False)
    with pytest.raises(MutationError, match="it changes the shape of the input 'x' itself"):
        decomp.lower(program, to=targets.core_aten)


def test_refusal_of_buffers_that_overlap():
    memory = torch.ones(4)

    def forward(self, x):
        self.a.add_(1)
        return x + self.b

    assert refused(module_of(forward, a=memory[:2], b=memory[1:3]), torch.ones(2)) == [
        "cannot make the program functional: it shares memory with 'a', another buffer or parameter, and one of them "
        "is written",
        "  at node 'b' (get_attr b)",
        "  to do: clone() one of the two when the module is made",
    ]


def test_refusal_of_a_region_whose_operands_share_memory():
    def forward(self, x):
        v = self.b[1:]
        with torch.no_grad():
            v.add_(1)
            w = self.b * 2
        return x + w

    assert refused(module_of(forward, b=torch.ones(3)), x23())[0] == (
        "cannot make the program functional: it writes 'slice_1', which shares memory with 'b', in a region of its own"
    )


def test_refusal_of_a_module_that_writes_inside():
    class Leaf(nn.Module):
        inplace = True

        def forward(self, x):
            return x.add_(1)

    class Tracer(fx.Tracer):
        def is_leaf_module(self, module, name):
            return True

    outer = nn.Sequential(Leaf())
    gm = fx.GraphModule(outer, Tracer().trace(outer))
    assert refused(gm) == [
        "cannot make the program functional: it writes its arguments, and it has no functional form",
        "  at node '_0' (call_module 0)",
        "  to do: let the module be traced, or return new tensors from it",
    ]


def test_refusal_of_an_index_that_may_be_a_mask():
    graph = fx.Graph()
    x, i = graph.placeholder("x"), graph.placeholder("i")
    graph.call_function(operator.setitem, (x, i, 0.0))
    graph.output(x)
    assert refused(fx.GraphModule(nn.Module(), graph))[0] == (
        "cannot make the program functional: it is not known whether its index is a number or a tensor"
    )


def test_refusal_of_a_view_that_a_region_hides():
    def forward(x):
        with torch.no_grad():
            x.add_(1)
            y = x.t()
        x.mul_(2)
        return y + 1

    assert refused(forward, x23()) == [
        "cannot make the program functional: 't' is a view that a region (no_grad, autocast) returns, and its base is "
        "written later",
        "  at node 'add' (call_function aten.add.Tensor)",
        "  to do: clone() the view in the region, or take it outside",
    ]


class Overlapping(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("whole", torch.ones(3, 4))
        self.register_buffer("row", self.whole[0], persistent=False)

    def forward(self, x):
        self.row.mul_(2)
        return self.whole + x


def test_refusal_of_a_write_to_state_that_two_names_share_where_export_lifts_it():
    args = (torch.ones(4),)
    for model, given in ((torch.export.export(Overlapping(), args, strict=False), None), (Overlapping(), args)):
        with pytest.raises(MutationError, match="shares memory with 'b_whole', another buffer or parameter"):
            decomp.lower(model, to=targets.core_aten, args=given)


TAKE_THE_SAME = {
    "real": torch.real,
    "contiguous": lambda x: x.contiguous(),
    "to": lambda x: x.to(torch.float32),
    "one_of_several": lambda x: torch.broadcast_tensors(x, x)[0],
}


@pytest.mark.parametrize("take", TAKE_THE_SAME.values(), ids=TAKE_THE_SAME)
def test_refusal_of_what_may_be_a_tensor_whose_shape_changes(take):
    def forward(x):
        y = x * 2
        z = take(y)
        y.unsqueeze_(0)
        return z + 1

    def the_other_way(x):
        y = x * 2
        take(y).unsqueeze_(0)
        return y + 1

    for function, why in (
        (forward, "it uses a tensor that may or may not be the one whose shape 'unsqueeze_' changes"),
        (the_other_way, "it changes the shape of"),
    ):
        traced = fx.symbolic_trace(function)
        assert refused(traced)[0].startswith(f"cannot make the program functional: {why}")
        low = decomp.lower(traced, to=targets.core_aten, args=(x23(),))
        assert torch.equal(low.result(x23()), function(x23()))


def test_refusal_of_a_new_shape_of_the_real_part_which_may_be_the_tensor():
    def forward(x):
        y = x * 2
        y.real.unsqueeze_(0)
        return y + 1

    traced = fx.symbolic_trace(forward)
    assert refused(traced)[0].endswith("it changes the shape of 'getattr_1', which may or may not be another tensor")
    assert decomp.lower(traced, to=targets.core_aten, args=(x23(),)).result(x23()).shape == (1, 2, 3)


def test_refusal_of_a_write_through_einsum_which_may_be_a_view():
    def forward(x):
        y = x * 2
        torch.einsum("ij->ij", y).add_(1)
        return y

    assert "a write through einsum has no functional form" in refused(forward, x23())[0]


def test_a_view_of_the_one_tensor_that_was_given_is_no_item_of_a_tuple():
    traced = fx.symbolic_trace(lambda x: torch.atleast_2d(x.add_(1))[None])
    same(run(traced, (x23(),)), run(functional(traced), (x23(),)))
    lowered = decomp.lower(traced, to=targets.core_aten, args=(x23(),)).result
    same(run(traced, (x23(),)), run(lowered, (x23(),)))


SHARED = "a tensor of which several elements share memory"
REPEATED = {
    "a row of an expanded tensor": (lambda y: y.expand(2, 3), "expand", SHARED),
    "a row of overlapping windows": (
        lambda y: y.unfold(0, 2, 1),
        "unfold",
        "and a write through unfold has no functional form",
    ),
    "a row of overlapping strides": (lambda y: y.as_strided((2, 2), (1, 1)), "as_strided", SHARED),
}


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize("rest", [lambda row: row, lambda row: row[1:], lambda row: row.unsqueeze(0)])
def test_a_write_that_shows_in_several_places_of_a_view_is_refused(name, rest):
    take, op, why = REPEATED[name]

    def program(x):
        view = take(x * 2)
        rest(view[0]).add_(1)
        return view + 0

    first = refused(program, torch.ones(3))[0]
    assert first == f"cannot make the program functional: it writes through {op!r}, {why}"


def test_without_sizes_a_write_that_shows_in_several_places_fails_when_it_runs():
    class Expanding(nn.Module):
        def forward(self, x):
            wide = (x * 2).expand(2, 3)
            wide[0].add_(1)
            return wide + 0

    lowered = decomp.lower(Expanding(), to=targets.core_aten, partial=True).result
    with pytest.raises(RuntimeError, match="invalid for input of size 6"):
        lowered(torch.ones(3))
    assert torch.equal(lowered(torch.ones(2, 3)), Expanding()(torch.ones(2, 3)))


def test_a_write_into_windows_that_do_not_overlap_is_followed():
    class Windows(nn.Module):
        def forward(self, x):
            y = x * 2
            view = y.as_strided((2, 2), (2, 1))
            view[0].add_(1)
            return view + 0, y * 1

    x = torch.arange(4.0)
    lowered = decomp.lower(Windows(), to=targets.tinygrad, args=(x,)).result
    assert all(map(torch.equal, lowered(x), Windows()(x)))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_output_of_another_size_is_seen_in_a_graph_with_example_inputs():
    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.zeros(3, 4))

        def forward(self, x):
            torch.mul(x[None], 2, out=self.kept)
            return x * 2

    with pytest.raises(MutationError, match="out= changes the size of 'kept'"):
        decomp.lower(fx.symbolic_trace(Program()), to=targets.core_aten, args=(torch.ones(3, 4),))


def test_a_new_shape_of_what_dropout_hands_on_is_refused():
    class Handed(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = nn.Dropout(0.0)

        def forward(self, x):
            y = x * 2
            z = self.dropout(y)
            y.t_()
            return torch.zeros_like(z[0])

    with pytest.raises(
        decomp.errors.MutationError, match="shape of the result of 'dropout', which metadata does not show"
    ):
        decomp.lower(Handed(), to=targets.core_aten, args=(torch.randn(3, 4),))


def test_what_takes_the_memory_of_another_is_refused_with_metadata_too():
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    first = graph.call_method("unsqueeze", (x, 1))
    graph.call_method("add_", (graph.call_method("view", (first, -1)), 1))
    graph.output(graph.call_method("set_", (first, y)))
    module = fx.GraphModule(nn.Module(), graph)
    with pytest.raises(MutationError, match="set_ writes its argument, and it has no functional form"):
        decomp.lower(module, to=targets.core_aten, args=(torch.ones(2, 3), torch.ones(3, 4)))
