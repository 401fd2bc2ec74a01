"""Patterns in planning: what they are replaced by, at what price, what is said of it, and that it is proved."""

from __future__ import annotations

from dataclasses import replace
import pickle

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp.errors import ArgumentError, NotLowered, RuleError
from decomp.patterns.terms import op_name
from decomp.proof.checks import check
from decomp.proof.correspondence import GradientsDiffer, NotAsThePattern, ValuesDiffer
import decomp_rules

# The ops are this module's own and live as long as it does, though TorchFix asks for a library that is torn down.
library = torch.library.Library("npu", "DEF")
library.define("linear_relu(Tensor x, Tensor w, Tensor? b) -> Tensor")
library.define("add_relu(Tensor x, Tensor y) -> Tensor")
for name, kernel in {
    "linear_relu": lambda x, w, b: torch.relu(F.linear(x, w, b)),
    "add_relu": lambda x, y: torch.relu(x + y),
}.items():
    library.impl(name, kernel, "CompositeImplicitAutograd")
npu = torch.ops.npu


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.act = nn.Linear(4, 5), nn.Linear(5, 3), nn.ReLU()

    def forward(self, x):
        return self.second(self.act(self.first(x))).relu().sin()


x = torch.rand(2, 4)
chip = decomp.Target("npu", ["linear", "relu", "sin", "add", npu.linear_relu, npu.add_relu])
rules = decomp.Rules()


def linear_relu_pattern(x, w, b):
    return F.relu(F.linear(x, w, b))


@rules.pattern(linear_relu_pattern)
def linear_relu(x, w, b):
    return npu.linear_relu(x, w, b)


def targets(program):
    return sorted({op_name(node).rsplit(".", 1)[-1] for node in calls_of(program)})


def calls_of(program):
    return [node for node in program.graph.nodes if node.op.startswith("call")]


def net(seed=0):
    torch.manual_seed(seed)
    return Net().eval()


CAPTURES = {
    "exported": lambda: (torch.export.export(net(), (x,)), {}),
    "decomposed": lambda: (torch.export.export(net(), (x,)).run_decompositions(), {}),
    "module with inputs": lambda: (net(), {"args": (x,)}),
    "module": lambda: (net(), {}),
    "graph": lambda: (fx.symbolic_trace(net()), {}),
    "graph with inputs": lambda: (fx.symbolic_trace(net()), {"args": (x,)}),
}


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_target_that_knows_the_fused_op_gets_it(capture):
    program, given = CAPTURES[capture]()
    lowered = decomp.lower(program, to=chip, rules=rules, **given)
    assert targets(lowered.result) == ["linear_relu", "sin"] and len(calls_of(lowered.result)) == 3
    module = lowered.result.module() if isinstance(program, torch.export.ExportedProgram) else lowered.result
    torch.testing.assert_close(module(x), net()(x))
    assert "2 calls of patterns replace" in str(lowered.proof)
    assert "pattern linear_relu" in str(lowered.plan) and "2 matches applied" in str(lowered.plan)


@pytest.mark.parametrize("capture", CAPTURES)
def test_decompose_applies_patterns(capture):
    program, given = CAPTURES[capture]()
    assert targets(decomp.decompose(program, rules, **given)) == ["linear_relu", "sin"]


def test_provenance_names_the_pattern_and_all_its_nodes():
    lowered = decomp.lower(torch.export.export(net(), (x,)), to=chip, rules=rules)
    record = lowered.provenance("relu")
    assert record.sources == ("linear", "relu") and record.source == "relu"
    assert record.chain[0][0] == "linear_relu" and record.pattern.startswith("test_patterns_lowered.py:")
    assert "relu = aten.relu.default with linear" in str(record)
    assert lowered.provenance("sin").sources == ("sin",)
    assert lowered.report().before == {"aten.linear.default": 2, "aten.relu.default": 2, "aten.sin.default": 1}


def test_a_pattern_whose_replacement_does_not_reach_the_target_is_not_taken_and_says_why():
    poor = decomp.Target("poor", ["linear", "relu", "sin"])
    lowered = decomp.lower(net(), to=poor, rules=rules, args=(x,))
    assert targets(lowered.result) == ["linear", "relu", "sin"]
    said = "not at relu: pattern linear_relu: needs npu.linear_relu, for which there is no rule"
    assert said in str(lowered.plan)
    with pytest.raises(NotLowered) as error:
        decomp.lower(net(), to=decomp.Target("none", ["sin"]), rules=rules, args=(x,))
    assert all("pattern linear_relu" in blocker.tried[-1][0] for blocker in error.value.blockers)


def test_a_replacement_is_lowered_in_turn():
    small = decomp.Target("small", ["mm", "add", "t", "clamp_min", "addmm", "permute", "sin"])
    composed = decomp.Rules()

    @composed.pattern(linear_relu_pattern)
    def as_clamp(x, w, b):
        return torch.clamp_min(torch.addmm(b, x, w.t()), 0)

    lowered = decomp.lower(net(), to=small, rules=composed | decomp_rules.RULES, args=(x,), verify="values")
    assert targets(lowered.result) == ["addmm", "clamp_min", "sin", "t"]
    assert lowered.provenance("relu").sources == ("linear", "relu")


def test_a_dearer_replacement_is_not_taken():
    dear = decomp.Rules()

    @dear.pattern(linear_relu_pattern)
    def twice(x, w, b):
        return torch.relu(torch.relu(F.linear(x, w, b)))

    lowered = decomp.lower(net(), to=chip, rules=dear, args=(x,))
    assert targets(lowered.result) == ["linear", "relu", "sin"]
    assert "costs 3, the calls that it replaces 2" in str(lowered.plan)


def test_the_largest_match_by_cost_wins_where_patterns_overlap():
    both = decomp.Rules()
    both.pattern(lambda x, y: F.relu(x + y))(npu.add_relu)
    both.pattern(lambda x, w, b, y: F.relu(F.linear(x, w, b) + y), name="whole")(
        lambda x, w, b, y: npu.linear_relu(x, w, y)
    )
    model = fx.symbolic_trace(lambda x, w, y: F.relu(F.linear(x, w, y) + y) + F.relu(x + x))
    assert targets(decomp.decompose(model, both)) == ["add", "add_relu", "linear_relu"]
    plan = decomp.plan(model, to=chip, rules=both)
    assert "overlaps with whole at relu, which saves more" in str(plan)


def test_overlaps_are_resolved_so_that_most_is_saved():
    pairs = decomp.Rules()
    pairs.pattern(lambda x: torch.sigmoid(torch.sigmoid(x)))(torch.neg)
    model = fx.symbolic_trace(lambda x: x.sigmoid().sigmoid().sigmoid().sigmoid())
    assert targets(decomp.decompose(model, pairs)) == ["neg"]
    assert len(calls_of(decomp.decompose(model, pairs))) == 2


def test_a_condition_says_why_not():
    conditional = decomp.Rules()
    large = lambda match: match["w"].shape[0] > 4 or "only wide layers"
    conditional.pattern(linear_relu_pattern, where=large)(linear_relu)
    lowered = decomp.lower(net(), to=chip, rules=conditional, args=(x,))
    assert len(calls_of(lowered.result)) == 4
    assert "not at relu_1: only wide layers" in str(lowered.plan)
    conditional.pattern(linear_relu_pattern, where=lambda match: match["nothing"])(linear_relu)
    with pytest.raises(RuleError, match="where= failed with KeyError"):
        decomp.lower(net(), to=chip, rules=conditional, args=(x,))


def test_a_replacement_may_decline():
    declining = decomp.Rules()

    @declining.pattern(linear_relu_pattern)
    def narrow(x, w, b):
        return decomp.decline("too wide") if w.shape[0] > 4 else npu.linear_relu(x, w, b)

    lowered = decomp.lower(net(), to=chip, rules=declining, args=(x,))
    assert len(calls_of(lowered.result)) == 4 and "too wide" in str(lowered.plan)


def test_wrong_values_and_gradients_of_a_replacement_are_found():
    for wrong, error in (
        (lambda x, w, b: torch.relu(F.linear(x, w, b) + 1e-2), ValuesDiffer),
        (lambda x, w, b: torch.relu(F.linear(x, w.detach(), b)), GradientsDiffer),
    ):
        own = decomp.Rules()
        own.pattern(linear_relu_pattern)(wrong)
        with pytest.raises(error, match="pattern|relu"):
            decomp.decompose(net(), own, args=(x,), verify="values")


def test_several_outputs_are_replaced():
    several = decomp.Rules()

    @several.pattern(lambda x, w, b: ((y := F.linear(x, w, b)), torch.relu(y)))
    def both(x, w, b):
        y = torch.addmm(b, x, w.t())
        return y, y.clamp_min(0)

    class Two(Net):
        def forward(self, x):
            y = self.first(x)
            return torch.sin(y), self.act(y) * x.sum()

    for program in (torch.export.export(Two(), (x,)), fx.symbolic_trace(Two())):
        result = decomp.decompose(program, several)
        assert "linear" not in targets(result) and "clamp_min" in targets(result)
    given = Two()
    result = decomp.decompose(given, several, args=(x,), verify="values")
    torch.testing.assert_close(result(x), given(x))


def test_convolution_and_batch_norm_become_one_convolution():
    folding = decomp.Rules()

    @folding.pattern(lambda x, conv, bn: bn(conv(x)), conv=nn.Conv2d, bn=nn.BatchNorm2d)
    def folded(x, conv, bn):
        scale = bn.weight * torch.rsqrt(bn.running_var + bn.eps)
        bias = -bn.running_mean if conv.bias is None else conv.bias - bn.running_mean
        weight = conv.weight * scale.reshape(-1, 1, 1, 1)
        return F.conv2d(x, weight, bias * scale + bn.bias, conv.stride, conv.padding, conv.dilation, conv.groups)

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1, bias=False, groups=2), nn.BatchNorm2d(4)
    ).eval()
    for norm in (model[1], model[3]):
        norm.running_mean.uniform_(-1, 1), norm.running_var.uniform_(0.5, 2), nn.init.uniform_(norm.weight, 0.5, 2)
    image = torch.rand(1, 2, 9, 9)
    for program, given in ((model, {"args": (image,)}), (fx.symbolic_trace(model), {})):
        result = decomp.decompose(program, folding, **given)
        assert "batch_norm" not in targets(result)
        torch.testing.assert_close(result(image), model(image))


def test_a_number_may_be_bound_and_dtypes_are_conditions():
    scaled = decomp.Rules()
    scaled.pattern(lambda x, k: torch.relu(x * k))(lambda x, k: torch.clamp_min(x, 0) * abs(k))
    model = fx.symbolic_trace(lambda x: torch.relu(x * 3))
    result = decomp.decompose(model, scaled)
    assert torch.equal(result(x - 0.5), model(x - 0.5)) and targets(result) == ["clamp_min", "mul"]


def test_a_replacement_takes_the_dtype_that_the_program_casts_to():
    casting = decomp.Rules()
    casting.pattern(lambda x, w, b, d: F.relu(F.linear(x, w, b)).to(d), name="cast")(
        lambda x, w, b, d: npu.linear_relu(x, w, b).to(d)
    )

    class Cast(Net):
        def forward(self, x):
            return F.relu(self.first(x)).to(torch.float64)

    target = decomp.Target("npu", [npu.linear_relu, "to"])
    lowered = decomp.lower(Cast().eval(), to=target, rules=casting, args=(x,), verify="values")
    assert targets(lowered.result) == ["linear_relu", "to"] and lowered.result(x).dtype == torch.float64


def test_what_is_written_in_between_is_made_functional_before():
    def writing(x, w, b):
        y = F.linear(x, w, b)
        x.add_(1)
        return torch.relu_(y) + x.sum()

    model = fx.symbolic_trace(writing)
    result = decomp.decompose(model, rules)
    assert "linear_relu" in targets(result)
    w, b, one, two = torch.rand(3, 4), torch.rand(3), x.clone(), x.clone()
    torch.testing.assert_close(result(one, w, b), model(two, w, b))
    assert torch.equal(one, two)


def test_patterns_in_bodies_and_with_dynamic_sizes_are_replaced():
    class Branches(Net):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: self.act(self.first(x)), lambda x: self.first(x).sin(), (x,))

    program = torch.export.export(Branches(), (x,))
    lowered = decomp.lower(program, to=chip | decomp.Target("more", ["sum", "gt"]), rules=rules)
    assert "npu.linear_relu" in str(lowered.report())
    sizes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(net(), (x,), dynamic_shapes=sizes)
    lowered = decomp.lower(program, to=chip, rules=rules, verify="values")
    torch.testing.assert_close(lowered.result.module()(torch.ones(7, 4)), net()(torch.ones(7, 4)))


def test_the_source_program_is_not_changed():
    graph = fx.symbolic_trace(net())
    before = str(graph.graph)
    decomp.lower(graph, to=chip, rules=rules)
    decomp.decompose(graph, rules)
    assert str(graph.graph) == before


def broken(contraction, node, **changes):
    """The same contraction with another match for one call."""
    matches = {
        call: replace(match, **changes) if match.root is node else match for call, match in contraction.why.items()
    }
    return replace(contraction, why=matches)


def test_the_proof_finds_what_is_not_the_pattern():
    lowered = decomp.lower(torch.export.export(net(), (x,)), to=chip, rules=rules)
    (own,) = lowered.internals.correspondences
    first, second = own.contraction.why.values()
    swapped = dict(zip(first.placed, reversed(first.placed.values())))
    for changes in (
        {"placed": swapped},
        {"bound": {**first.bound, "w": first.bound["b"]}},
        {"bound": second.bound},
        {"nodes": (first.root,)},
    ):
        with pytest.raises((NotAsThePattern, decomp.VerificationError)):
            check(replace(own, contraction=broken(own.contraction, first.root, **changes)))
    check(own)


def test_collections_hold_patterns():
    more = decomp.Rules({F.silu: lambda x: x * torch.sigmoid(x)})
    both = rules | more
    assert len(both.patterns) == 1 and len(both) == 1 and "1 for patterns" in repr(both)
    assert not (both - rules).patterns
    again = pickle.loads(pickle.dumps(rules))
    assert targets(decomp.decompose(net(), again)) == ["linear_relu", "sin"]


def test_a_replacement_takes_the_variables_by_name_or_all_in_order():
    named = decomp.Rules()
    named.pattern(linear_relu_pattern)(lambda w, x: torch.relu(F.linear(x, w)))
    assert named.patterns
    with pytest.raises(RuleError, match=r"takes \(a, b\), but the pattern has \(x, w, b\)"):
        named.pattern(linear_relu_pattern)(lambda a, b: a + b)
    with pytest.raises(ArgumentError, match="the replacement of a pattern must be a function"):
        named.pattern(linear_relu_pattern)(3)


def test_match_finds_without_replacing():
    found = decomp.match(torch.export.export(net(), (x,)), linear_relu_pattern)
    assert [[node.name for node in each.nodes] for each in found] == [["linear", "relu"], ["linear_1", "relu_1"]]
    assert found[0]["w"].shape == (5, 4)
    graph = fx.symbolic_trace(net())
    found = decomp.match(graph, linear_relu_pattern)
    assert [[node.name for node in each.sources] for each in found] == [["first", "act"], ["second", "relu"]]
    assert all(node.graph is graph.graph for each in found for node in each.sources)


@pytest.mark.parametrize("exports", [False, True])
def test_match_finds_calls_in_place_as_lower_does(exports):
    model, given = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True)), torch.rand(2, 4)
    program = torch.export.export(model, (given,)) if exports else fx.symbolic_trace(model)
    (found,) = decomp.match(program, linear_relu_pattern)
    assert [node.name for node in found.sources] == (["linear", "relu_"] if exports else ["_0", "_1"])
    assert all(node.graph is program.graph for node in found.sources)


def test_match_names_captured_nodes_wherever_they_can_be_replaced():
    def function(x):
        y = F.relu(x * 2)
        written = x * 3
        before = F.relu(written)
        kept = F.relu_(x * 4)
        kept.add_(1)
        written.view(-1).add_(1)
        return y, before, kept, F.relu(written)

    graph = fx.symbolic_trace(function)
    found = decomp.match(graph, lambda a, k: F.relu(a * k))
    assert [each["k"] for each in found] == [2, 4]
    assert [each.root.graph is graph.graph for each in found] == [True, False]
    assert "mul_1 is used elsewhere" in str(found)


def test_match_finds_calls_in_a_program_that_cannot_be_functional():
    graph = fx.symbolic_trace(lambda x, i: (F.relu(x * 2), x.resize_(3)))
    (found,) = decomp.match(graph, lambda a: F.relu(a * 2))
    assert found.root.graph is graph.graph


def test_match_says_what_is_nearly_one():
    model = fx.symbolic_trace(lambda x, w, b: F.relu(y := F.linear(x, w, b)) + y + F.relu(F.leaky_relu(x)))
    found = decomp.match(model, linear_relu_pattern)
    assert not found and [miss.reason for miss in found.refused] == [
        "linear is used elsewhere, by add",
        "leaky_relu is aten.leaky_relu, not aten.linear",
    ]
    assert "not linear_relu_pattern at relu, 2 of 2 calls: linear is used elsewhere, by add" in str(found)
    other = fx.symbolic_trace(lambda x: torch.sin(x))
    assert str(decomp.match(other, linear_relu_pattern)) == "no match, and nothing near one"


def test_a_pattern_that_is_found_nowhere_has_its_line_and_the_closest_place():
    rules = decomp.Rules()
    rules.pattern(lambda x: torch.erfinv(x).cos(), name="absent")(lambda x: x.clone())
    rules.pattern(lambda x: F.relu(torch.erfinv(torch.sin(x))), name="nearly")(lambda x: x.clone())
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    chip = decomp.Target("chip", ["linear", "relu"])
    lines = str(decomp.plan(model, to=chip, rules=rules, args=(torch.randn(2, 4),))).splitlines()
    first = next(i for i, line in enumerate(lines) if "  pattern absent" in line)
    assert lines[first].endswith(": no match")
    assert lines[first + 1] == "    the program has no aten.cos, in which it ends"
    assert "  pattern nearly" in lines[first + 2] and lines[first + 2].endswith(": no match")
    assert lines[first + 3] == "    closest at relu, 1 of 3 calls: linear is aten.linear, not aten.erfinv"
