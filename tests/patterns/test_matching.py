"""Matching: patterns are found in any spelling, and what is not quite the pattern is not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

from decomp.errors import ArgumentError
from decomp.patterns.matching import find_matches
from decomp.patterns.pattern import Pattern


def found(graph, function, **modules):
    return list(find_matches(graph, [Pattern.of(function, **modules)]))


def missed(graph, function):
    refused = []
    assert not list(find_matches(graph, [Pattern.of(function)], missed=refused, everywhere=True))
    return [miss.reason for miss in refused]


class Module(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def exported(function, *args):
    return torch.export.export(Module(function), args)


def linear_relu(x, w, b):
    return F.relu(F.linear(x, w, b))


x, w, b = torch.rand(2, 4), torch.rand(3, 4), torch.rand(3)

SPELLINGS = [
    lambda x, w, b: torch.relu(F.linear(x, w, b)),
    lambda x, w, b: F.linear(input=x, bias=b, weight=w).relu(),
    lambda x, w, b: torch.ops.aten.relu.default(torch.ops.aten.linear.default(x, w, b)),
    lambda x, w, b: torch.ops.aten.relu(torch.ops.aten.addmm(b, x, w.t())),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_pattern_is_found_in_any_spelling(spelling):
    programs = [exported(spelling, x, w, b), exported(spelling, x, w, b).run_decompositions()]
    graphs = [program.graph for program in programs]
    graphs += [fx.symbolic_trace(spelling).graph] if spelling is not SPELLINGS[3] else []
    for graph in graphs:
        (match,) = found(graph, linear_relu)
        assert [str(node) for node in match.bound.values()] == ["x", "w", "b"]


def test_a_decomposed_linear_layer_of_more_dimensions_is_found():
    program = exported(linear_relu, torch.rand(2, 5, 4), w, b).run_decompositions()
    (match,) = found(program.graph, linear_relu)
    assert len(match.nodes) == 5 and [str(node) for node in match.inputs] == ["x", "w", "b"]


def test_decomposed_norms_convolutions_and_softmax_are_found():
    def norms(x, w, g):
        y = F.batch_norm(F.conv2d(x, w), g, g, g, g)
        return F.softmax(F.layer_norm(y, [3], g[:3], None), -1)

    program = exported(norms, torch.rand(1, 2, 5, 5), torch.rand(4, 2, 3, 3), torch.rand(4)).run_decompositions()
    for part in (
        lambda x, w: F.conv2d(x, w),
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b),
        lambda x, w, n: F.layer_norm(x, n, w),
        lambda x: x.softmax(dim=3),
    ):
        assert len(found(program.graph, part)) == 1


def test_an_attention_of_four_dimensions_is_found_where_matmul_was_decomposed():
    def attention(q, k, v):
        return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v

    q = torch.rand(2, 3, 5, 4)
    for program in (exported(attention, q, q + 1, q + 2), exported(attention, q, q + 1, q + 2).run_decompositions()):
        (match,) = found(program.graph, attention)
        assert [str(node) for node in match.inputs] == ["q", "k", "v"]


def test_commutative_operands_are_found_in_any_order():
    graph = fx.symbolic_trace(lambda x, y: y * 3 + (1 + torch.sigmoid(x))).graph
    assert found(graph, lambda a, b: (torch.sigmoid(a) + 1) + b * 3)
    assert not found(graph, lambda a, b: (torch.sigmoid(a) + 1) - b * 3)


def test_a_number_may_be_a_variable_and_a_variable_twice_is_one_value():
    graph = fx.symbolic_trace(lambda x, y: (x + x * 3) + (x + y * 3)).graph
    (match,) = found(graph, lambda a, k: a + a * k)
    assert match.bound["k"] == 3 and str(match.bound["a"]) == "x"


@pytest.mark.parametrize(
    "spelling",
    [
        lambda x, d: F.relu(x).to(d),
        lambda x, d: F.relu(x).to(dtype=d),
        lambda x, d: torch.ops.aten.to(F.relu(x), d),
        lambda x, d: torch.ops.aten.to.dtype(F.relu(x), d),
    ],
)
def test_a_dtype_may_be_a_variable_in_any_spelling_of_a_cast(spelling):
    casts = (lambda x: F.relu(x).to(torch.float16), lambda x: F.relu(x).half(), lambda x: F.relu(x).type(torch.float16))
    programs = [exported(cast, x) for cast in casts]
    graphs = [each.graph for own in programs for each in (own, own.run_decompositions())]
    for graph in (*graphs, fx.symbolic_trace(casts[0]).graph, fx.symbolic_trace(casts[1]).graph):
        (match,) = found(graph, spelling)
        assert match.bound["d"] is torch.float16


OVERLOADS = {
    "a dtype for a tensor": (lambda x, d: x.view(d), lambda x: x.view(torch.int32), torch.int32),
    "a dtype by name": (lambda x, d: x.sum(0, dtype=d), lambda x: x.sum(0, dtype=torch.float64), torch.float64),
    "a dtype in its place": (
        lambda x, d: torch.softmax(x, 0, d),
        lambda x: torch.softmax(x, 0, torch.float64),
        torch.float64,
    ),
    "a dimension for a tensor": (lambda x, d: x.max(d)[0], lambda x: x.max(1)[0], 1),
    "a flag for dimensions": (lambda x, d: x.std(d), lambda x: x.std(False), False),
    "a number for a tensor": (lambda x, d: x.pow(d), lambda x: x.pow(3), 3),
}


@pytest.mark.parametrize("case", OVERLOADS)
def test_the_value_of_a_variable_may_decide_the_overload(case):
    pattern, program, value = OVERLOADS[case]
    for graph in (exported(program, x).graph, fx.symbolic_trace(program).graph):
        (match,) = found(graph, pattern)
        assert match.bound["d"] == value


def test_a_value_is_not_read_as_an_overload_of_several_results():
    assert not found(exported(lambda x: x.max(1), x).graph, lambda x, d: x.max(d))
    assert found(exported(lambda x, y: x.max(y), x, x).graph, lambda x, d: x.max(d))


@pytest.mark.parametrize(
    "near, reason",
    [
        (lambda x: F.leaky_relu(x + 1, 0.2), "negative_slope of aten.leaky_relu is 0.2, not 0.1"),
        (lambda x: F.leaky_relu(x - 1, 0.1), "sub is aten.sub, not aten.add"),
        (lambda x: F.leaky_relu(x + 2, 0.1), "other of aten.add is 2, not 1"),
    ],
)
def test_a_near_miss_is_not_found_and_says_why(near, reason):
    assert missed(fx.symbolic_trace(near).graph, lambda x: F.leaky_relu(x + 1, 0.1)) == [reason]


def test_a_missing_cast_is_not_found():
    pattern = lambda x: F.softmax(x.float(), -1).to(torch.float16)
    assert found(exported(lambda x: F.softmax(x.to(torch.float32), -1).half(), x.half()).graph, pattern)
    assert not found(exported(lambda x: F.softmax(x, -1).half(), x).graph, pattern)
    assert not found(exported(lambda x: F.softmax(x.double(), -1).half(), x).graph, pattern)


def test_numbers_differ_by_type_where_that_changes_the_dtype():
    integers = exported(lambda x: x * 2.0, torch.arange(3)).graph
    assert not found(integers, lambda x: x * 2)
    assert found(exported(lambda x: x * 2.0, torch.rand(3)).graph, lambda x: x * 2)


def test_dimensions_count_from_either_end():
    graph = exported(lambda x: torch.softmax(x, 1), x).graph
    assert found(graph, lambda x: x.softmax(-1)) and not found(graph, lambda x: x.softmax(0))


def test_a_second_user_refuses_a_match():
    assert missed(fx.symbolic_trace(lambda x: (y := x + 1) * torch.relu(y)).graph, lambda x: torch.relu(x + 1)) == [
        "add is used elsewhere, by mul"
    ]
    assert missed(fx.symbolic_trace(lambda x: (torch.relu(y := x + 1), y)).graph, lambda x: torch.relu(x + 1)) == [
        "add is returned, too"
    ]


def test_a_way_that_may_be_replaced_is_taken_where_another_may_not():
    graph = fx.symbolic_trace(lambda a, b: (torch.relu(a) + (y := torch.relu(b))) * y).graph
    (match,) = found(graph, lambda x, y: y + torch.relu(x))
    assert str(match.bound["x"]) == "a"


def test_what_hands_a_value_on_unchanged_does_not_stand_in_the_way():
    graph = exported(lambda x: torch.relu(F.dropout(x + 1, 0.1, training=False)), x).graph
    assert [node.name for node in found(graph, lambda x: torch.relu(x + 1))[0].nodes] == ["add", "dropout", "relu"]
    drawing = exported(lambda x: torch.relu(F.dropout(x + 1, 0.1, training=True)), x).graph
    assert not found(drawing, lambda x: torch.relu(x + 1))


def test_an_assertion_that_metadata_proves_is_no_user():
    graph = exported(lambda x: torch.relu((x + 1).to(torch.float32)), x).graph
    assert "_assert_tensor_metadata" in str(graph)
    (match,) = found(graph, lambda x: torch.relu((x + 1).to(torch.float32)))
    assert len(match.nodes) == 4


def test_writes_and_regions_in_between_refuse_a_match():
    def writing(x):
        y = x * 2
        x.add_(1)
        return torch.relu(y)

    assert missed(fx.symbolic_trace(writing).graph, lambda x: torch.relu(x * 2)) == [
        "add_ writes to a tensor in between"
    ]

    def switching(x):
        y = x * 2
        with torch.no_grad():
            z = torch.relu(y)
        return z

    graph = fx.Graph()
    given = graph.placeholder("x")
    y = graph.call_function(torch.mul, (given, 2))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.output(graph.call_function(torch.relu, (y,)))
    assert missed(graph, lambda x: torch.relu(x * 2)) == [
        "a no_grad or autocast region begins or ends between mul and relu"
    ]


def test_several_outputs_are_found_around_one_value():
    graph = fx.symbolic_trace(lambda x, w, b: (y := F.linear(x, w, b)) * x + y.exp()).graph
    (match,) = found(graph, lambda a, w, b: ((y := F.linear(a, w, b)), a * y))
    assert [node.name for node in match.outputs] == ["linear", "mul"]
    (match,) = found(
        graph,
        lambda v: (v.exp(), torch.ops.aten.mul(v, v)),
    ) or [None]
    assert match is None


def test_an_output_that_is_used_before_all_inputs_are_known_refuses_a_match():
    graph = fx.symbolic_trace(lambda x: (y := torch.relu(x)).exp() * y.sin() + torch.sigmoid(x)).graph
    assert found(graph, lambda x: (torch.relu(x), torch.sigmoid(x)))
    graph = fx.symbolic_trace(lambda x: torch.sigmoid(torch.relu(x).exp()) * 2).graph
    assert missed(graph, lambda x, z: (torch.relu(x), torch.sigmoid(z))) == ["its outputs have nothing in common"]
    graph = fx.symbolic_trace(lambda x, y: (v := torch.relu(x), torch.sigmoid(v.exp() + x))).graph
    assert missed(graph, lambda x, y: (torch.relu(x), torch.sigmoid(x + y)))


def test_a_module_in_a_pattern_has_its_settings_as_variables():
    def conv_bn(x, conv: nn.Conv2d, bn: nn.BatchNorm2d):
        return bn(conv(x))

    model = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.BatchNorm2d(2, eps=0.5)).eval()
    program = torch.export.export(model, (torch.rand(1, 1, 7, 7),))
    for pattern in (Pattern.of(lambda x, c, n: n(c(x)), c=nn.Conv2d, n=nn.BatchNorm2d), Pattern.of(conv_bn)):
        (match,) = find_matches(program.graph, [pattern])
        given = list(pattern.arguments(match.bound).values())
        assert given[1].stride == [2, 2] and given[2].eps == 0.5 and given[1].groups == 1
    trained = torch.export.export(model.train(), (torch.rand(2, 1, 7, 7),))
    assert not list(find_matches(trained.graph, [pattern]))


@pytest.mark.parametrize(
    "function, problem",
    [
        (lambda x: x, "returns one of its variables"),
        (lambda x: x.add_(1), "writes a tensor"),
        (lambda x: torch.rand_like(x), "draws random numbers"),
        (lambda x: x + torch.ones(2), "uses a tensor or a module from outside"),
        (lambda x, y: x + 1, "does not use its variable y"),
        (lambda x: x + 1 if x.sum() > 0 else x, "cannot be recorded"),
        (lambda x, k=2: x + k, "has a default for k"),
        (torch.relu, "is a function of free variables"),
    ],
)
def test_what_cannot_be_a_pattern_is_refused(function, problem):
    with pytest.raises(ArgumentError, match=problem):
        Pattern.of(function)


def test_calling_a_pattern_computes_its_outputs():
    pattern = Pattern.of(linear_relu)
    assert torch.equal(pattern(x, w, b), linear_relu(x, w, b))


def test_many_patterns_and_orders_cost_no_more_than_a_bounded_number_of_steps():
    def chain(x):
        for _ in range(14):
            x = x + torch.sin(x)
        return x

    def other(x):
        for _ in range(13):
            x = x + torch.sin(x)
        return x + torch.cos(x)

    graph = fx.symbolic_trace(chain).graph
    assert len(found(graph, chain)) == 1
    assert not found(graph, other)


def flattened(x):
    return x.view(x.shape[0] * x.shape[1]) * 2


def test_a_size_that_the_program_writes_otherwise_is_the_reason():
    assert found(exported(lambda x: x.view(8) * 2, x).graph, flattened)
    (reason,) = missed(exported(lambda x: x.view(-1) * 2, x).graph, flattened)
    assert reason == "the pattern computes 8 for mul, the program has -1: a free variable takes any number"
    (reason,) = missed(fx.symbolic_trace(lambda x: x.view(-1) * 2).graph, flattened)
    assert reason == (
        "the pattern computes mul, which is not known without metadata, the program has -1: a free variable takes any "
        "number"
    )


def test_the_reason_is_not_an_argument_of_an_overload_that_is_not_called():
    (reason,) = missed(exported(lambda x: x.view(3, 4) * 2, torch.rand(12)).graph, lambda x, n: x.view(n, 6) * 2)
    assert reason == "size of aten.view is 4, not 6"
    (reason,) = missed(exported(lambda x: x.view(torch.int32) * 2, x).graph, lambda x: x.view(2, 4) * 2)
    assert reason == "dtype of view is torch.int32"
