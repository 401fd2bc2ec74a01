"""A lowered graph looks at what its rules saw: the sizes of its inputs, and the numbers among them."""

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp_rules import targets


def lowered(function, *args, **kwargs):
    return decomp.lower(fx.symbolic_trace(function), to=targets.tinygrad, args=args, kwargs=kwargs).result


def test_another_size_is_refused():
    mean = lowered(lambda x: x.mean(0), torch.ones(4, 3))
    with pytest.raises(decomp.DecompError) as refused:
        mean(torch.ones(8, 3))
    assert str(refused.value) == (
        "input 'x' has shape (8, 3), the program was lowered for (4, 3)\n"
        "  to do: lower it with inputs of this shape, or with dynamic_shapes= if the size varies"
    )
    assert mean(x=torch.ones(4, 3)).tolist() == [1, 1, 1]


def test_another_number_is_refused_where_a_rule_saw_it():
    softmax = lowered(lambda x, dim: torch.softmax(x, dim), torch.eye(3), 0)
    with pytest.raises(ValueError) as refused:
        softmax(torch.eye(3), 1)
    assert str(refused.value) == (
        "input 'dim' has value 1, the program was lowered for 0\n  to do: lower it with inputs of this value"
    )


def test_numbers_that_no_rule_saw_are_inputs_still():
    scaled = lowered(lambda x, n: torch.relu(x) * n, torch.ones(3), 2)
    assert scaled(torch.ones(3), 5).tolist() == [5, 5, 5]


def test_sizes_that_no_rule_saw_may_be_others():
    doubled = lowered(lambda x: x * 2, torch.ones(3))
    assert doubled(torch.ones(5)).tolist() == [2] * 5


def test_lengths_that_a_loss_was_lowered_for():
    logits = torch.randn(10, 2, 6).log_softmax(-1)
    args = (logits, torch.tensor([[1, 2, 3, 4], [5, 5, 1, 2]]), (10, 8), (4, 3))
    loss = decomp.lower(nn.CTCLoss(), to=targets.core_aten, args=args).result
    torch.testing.assert_close(loss(*args), nn.CTCLoss()(*args))
    with pytest.raises(decomp.DecompError, match=r"input .input_lengths. has value \(7, 10\), .* for \(10, 8\)"):
        loss(*args[:2], (7, 10), (4, 3))


@pytest.mark.parametrize("op", ["ceil", "floor", "round", "sign", "isinf", "isnan", "sort"])
def test_another_dtype_is_refused(op):
    def program(x):
        return getattr(torch, op)(x)

    for module in (fx.symbolic_trace(program), Calls(program)):
        low = decomp.lower(module, to=targets.tinygrad, args=(torch.tensor([1, 2]),)).result
        with pytest.raises(decomp.DecompError) as refused:
            low(torch.tensor([0.5, 1.5]))
        assert str(refused.value) == (
            "input 'x' has dtype torch.float32, the program was lowered for torch.int64\n"
            "  to do: lower it with inputs of this dtype"
        )


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_another_dtype_is_refused_in_trees_and_at_sizes_that_vary():
    program = Calls(lambda x: {"y": torch.ceil(x["x"])})
    low = decomp.lower(program, to=targets.tinygrad, args=({"x": torch.tensor([1, 2])},)).result
    with pytest.raises(decomp.DecompError, match="dtype torch.float32"):
        low({"x": torch.tensor([0.5, 1.5])})
    sizes = {"x": {0: torch.export.Dim("n", min=2, max=9)}}
    args = (torch.tensor([1, 2]),)
    low = decomp.lower(Calls(torch.ceil), to=targets.tinygrad, args=args, dynamic_shapes=sizes).result
    assert low(torch.tensor([1, 2, 3])).tolist() == [1, 2, 3]
    with pytest.raises(decomp.DecompError, match="dtype torch.float32"):
        low(torch.tensor([0.5, 1.5]))


def test_another_kind_of_input_is_refused():
    def linear(x, w, b=None):
        return nn.functional.linear(x, w, b)

    low = lowered(linear, torch.ones(2, 3), torch.ones(4, 3), None)
    assert low(torch.ones(2, 3), torch.ones(4, 3)).shape == (2, 4)
    with pytest.raises(decomp.DecompError, match="input 'b' has value a tensor, the program was lowered for None"):
        low(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
    with pytest.raises(decomp.DecompError, match="input 'x' has value 2, the program was lowered for a tensor"):
        low(2, torch.ones(4, 3))


def test_a_default_is_checked_as_an_argument_is():
    def softmax(x, dim=1):
        return torch.softmax(x, dim)

    low = lowered(softmax, torch.eye(3), 0)
    assert low(torch.eye(3), 0).shape == (3, 3)
    with pytest.raises(decomp.DecompError, match="'dim' has value 1, the program was lowered for 0"):
        low(torch.eye(3))


def test_tensors_in_a_list_are_checked():
    low = lowered(lambda xs: torch.ceil(xs[0]), [torch.tensor([1, 2])])
    assert low([torch.tensor([3, 4])]).tolist() == [3, 4]
    with pytest.raises(decomp.DecompError, match=r"input 'xs\[0\]' has dtype"):
        low([torch.tensor([0.5, 1.5])])


def test_strides_are_checked_where_memory_is_read_by_them():
    low = lowered(lambda x: torch.as_strided(x, (2,), (1,)), torch.eye(3))
    with pytest.raises(decomp.DecompError, match=r"'x' has strides \(1, 3\), .* lowered for \(3, 1\)"):
        low(torch.eye(3).T)
    assert lowered(lambda x: torch.relu(x), torch.eye(3))(torch.eye(3).T).shape == (3, 3)


def first_two(x):
    return torch.as_strided(x, (2,), (1,)) + 1


def test_strides_of_dimensions_without_a_second_element_say_nothing_of_memory():
    low = lowered(first_two, torch.ones(1, 4))
    assert low(torch.arange(4.0).as_strided((1, 4), (9, 1))).tolist() == [1, 2]
    with pytest.raises(decomp.DecompError) as refused:
        low(torch.ones(8).as_strided((1, 4), (4, 2)))
    assert str(refused.value) == (
        "input 'x' has strides (4, 2), the program was lowered for (4, 1)\n"
        "  to do: lower it with inputs of these strides"
    )
    nothing = lowered(lambda x: torch.as_strided(x, (0,), (1,)) + 1, torch.ones(0, 4))
    assert nothing(torch.ones(8).as_strided((0, 4), (3, 2))).shape == (0,)


def test_strides_of_dimensions_of_size_one_count_where_kernels_follow_them():
    def program(x):
        return first_two(F.interpolate(x, scale_factor=2))

    image = torch.arange(4.0).view(1, 4, 1, 1)
    low = lowered(program, image)
    with pytest.raises(decomp.DecompError, match=r"'x' has strides \(4, 1, 4, 4\), .* lowered for \(4, 1, 1, 1\)"):
        low(image.to(memory_format=torch.channels_last).as_strided((1, 4, 1, 1), (4, 1, 4, 4)))
    assert low(image.as_strided((1, 4, 1, 1), (9, 1, 1, 1))).tolist() == program(image).tolist()


def test_all_strides_count_where_a_program_computes_with_them():
    low = lowered(lambda x: first_two(x) * x.stride(0), torch.ones(1, 4))
    with pytest.raises(decomp.DecompError, match=r"'x' has strides \(9, 1\), .* lowered for \(4, 1\)"):
        low(torch.ones(4).as_strided((1, 4), (9, 1)))


def test_strides_are_checked_where_they_decide_what_is_written():
    def program(x):
        y = x.contiguous()
        y.add_(1)
        return y

    low = lowered(program, torch.eye(3))
    with pytest.raises(decomp.DecompError, match="has strides"):
        low(torch.eye(3).T)


def test_a_device_is_checked_where_the_program_names_one():
    def program(x):
        return torch.relu(x) + torch.ones(3, device=torch.device("cpu"))

    with pytest.raises(decomp.DecompError, match="input 'x' has device meta, the program was lowered for cpu"):
        lowered(program, torch.ones(3))(torch.ones(3, device="meta"))
    assert lowered(lambda x: x.square(), torch.ones(3))(torch.ones(3, device="meta")).device.type == "meta"


@pytest.mark.filterwarnings("ignore")
def test_example_inputs_that_pytorch_has_no_metadata_of_are_refused_by_name():
    quantised = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(
        decomp.CaptureError, match="cannot make a fake tensor of an example input, a torch.qint8 strided tensor"
    ):
        lowered(lambda x: x.relu(), quantised)


def test_a_graph_has_no_values_to_be_compared():
    graph = fx.symbolic_trace(lambda x: x.relu()).graph
    with pytest.raises(decomp.errors.ArgumentError, match="Graph cannot be run; pass a module or an ExportedProgram"):
        decomp.verify(graph, graph, level="values", args=(torch.ones(3),))


@pytest.mark.parametrize(
    "call, problem",
    [
        (lambda module: module(), "the call lacks 'x', 'y'; the program takes x, y"),
        (lambda module: module(torch.eye(3)), "the call lacks 'y'; the program takes x, y"),
        (
            lambda module: module(torch.eye(3), torch.eye(3), torch.eye(3)),
            "the call has 3 inputs; the program takes x, y",
        ),
    ],
)
def test_a_call_without_its_inputs_says_what_it_lacks(call, problem):
    softmax = lowered(lambda x, y: torch.softmax(x, 0) + y, torch.eye(3), torch.eye(3))
    with pytest.raises(decomp.errors.InputMismatch) as refused:
        call(softmax)
    assert str(refused.value) == f"{problem}\n  to do: call it with these inputs"
