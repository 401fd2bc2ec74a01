"""The two verbs: what stays, what is replaced, what is refused and how it is said."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp_rules import RULES, targets
from tests.rewriting import lowers_to


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.norm(self.first(x))) + F.softmax(x, -1).sum()


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def ops(program: Any) -> list[str]:
    return [call.op.short for call in decomp.calls(program)]


def test_what_the_target_knows_stays_under_its_name() -> None:
    program = torch.export.export(Net(), (X,), strict=False)
    low = decomp.lower(program, to=targets.core_aten)
    kept = {n.name: n.target for n in program.graph.nodes if n.target is torch.ops.aten.gelu.default}
    assert kept and kept.items() <= {n.name: n.target for n in low.result.graph.nodes}.items()


def test_a_replaced_call_keeps_its_name_and_new_ones_derive_from_it() -> None:
    low = decomp.lower(Net(), to=targets.tinygrad, args=(X,))
    names = {node.name for node in low.result.graph.nodes}
    assert "softmax" in names and any(name.startswith("softmax_") for name in names)


def test_kept_ops_stay_also_inside_rules() -> None:
    rules = decomp.Rules({F.gelu: lambda x: x * torch.sigmoid(1.702 * x)})
    low = decomp.lower(Net(), to=targets.tinygrad, args=(X,), rules=rules | RULES, keep={torch.sigmoid, "softmax"})
    assert "sigmoid" in ops(low.result) and "softmax" in ops(low.result)
    assert "gelu" not in ops(low.result)


def test_full_mode_names_every_blocker() -> None:
    class Hard(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.unique(x).sum() + torch.nonzero(x).sum()

    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(Hard(), to=targets.tinygrad, args=(X,))
    assert {blocker.op for blocker in caught.value.blockers} == {"aten._unique2", "aten.nonzero"}
    text = str(caught.value)
    assert text.startswith("2 ops cannot be lowered to tinygrad; the program is unchanged\n")
    assert "return torch.unique(x).sum()" in text
    assert text.index("keep={...}") < text.index("write a rule") < text.index("partial=True")


def test_the_message_word_for_word() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.relu, (x,)))
    program = fx.GraphModule(nn.Module(), graph)
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(program, to=decomp.Target("chip", ["add"]), rules={})
    assert str(caught.value) == (
        "1 op cannot be lowered to chip; the program is unchanged\n"
        "\n"
        "  1 more op is enough for the blocked op on chip; no smaller set is\n"
        "    add relu: all lower, to 1 call\n"
        "\n"
        "  without relu:\n"
        "    aten.relu needs relu\n"
        "\n"
        "  aten.relu at relu\n"
        "      no rule is registered for it\n"
        "\n"
        "  to do, the easiest first:\n"
        "    1. keep the ops that your backend can run: keep={...} (of aten.relu)\n"
        "    2. write a rule: @rules.register(op), then rules=rules | decomp_rules.RULES\n"
        "    3. add the op to the target: target | {op}\n"
        "    4. lower the rest, with this list in the report: partial=True"
    )


def test_partial_mode_returns_the_program_and_the_same_list() -> None:
    target = decomp.Target("chip", ["add", "mul", "sum", "exp", "amax", "reciprocal", "sub", "div"])
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(Net(), to=target, args=(X,))
    model = Net()
    low = decomp.lower(model, to=target, args=(X,), partial=True)
    assert [b.op for b in low.blockers] == [b.op for b in caught.value.blockers]
    assert {b["op"] for b in low.report().as_dict()["blockers"]} == {b.op for b in low.blockers}
    torch.testing.assert_close(low.result(X), model(X))


def test_a_condition_on_arguments_decides_call_by_call() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain, self.grouped = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1, groups=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.grouped(self.plain(x))

    chip = decomp.Target("chip", ["convolution", "conv2d"]).legal_if(
        "conv2d", lambda call: call.argument("groups") == 1, "groups must be 1"
    )
    image = torch.randn(1, 4, 2, 2)
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(Two(), to=chip, args=(image,), rules={})
    (blocker,) = caught.value.blockers
    assert blocker.nodes == ("conv2d_1",)
    assert blocker.condition == "groups must be 1"
    assert "the target accepts it under a condition: groups must be 1" in str(caught.value)


def test_a_condition_on_the_place_decides_node_by_node() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front, self.back = nn.ReLU(), nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.back(self.front(x))

    chip = decomp.Target("chip", ["relu", "where", "gt"]).legal_if(
        "relu", lambda call: call.module_path == "front", "it stands in front"
    )
    low = decomp.lower(Two(), to=chip, args=(X,), rules={F.relu: lambda x: torch.where(x > 0, x, 0)})
    assert ops(low.result) == ["relu", "gt", "where"]
    torch.testing.assert_close(low.result(X), X.relu())


def test_rules_run_once_a_signature() -> None:
    runs = []

    def gelu(x: torch.Tensor) -> torch.Tensor:
        runs.append(tuple(x.shape))
        return x * torch.sigmoid(1.702 * x)

    class Stack(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for _ in range(10):
                x, y = F.gelu(x), F.gelu(y)
            return x.sum() + y.sum()

    args = (torch.randn(2, 3), torch.randn(4, 5))
    program = torch.export.export(Stack(), args, strict=False)
    rules = decomp.Rules({F.gelu: gelu})
    chip = decomp.Target("chip", ["mul", "sigmoid", "sum", "add"])
    low = decomp.lower(program, to=chip, rules=rules)
    assert runs == [(2, 3), (4, 5)] and low.report().runs == 2
    assert low.report().inserted == 20
    again = decomp.lower(program, to=chip, rules=rules)
    assert len(runs) == 2 and again.report().runs == 0


def test_an_op_born_in_a_rule_is_lowered_in_turn() -> None:
    rules = decomp.Rules({F.softplus: lambda x, beta=1, threshold=20: torch.log1p(torch.exp(x))})
    rules.register(torch.log1p)(lambda x: torch.log(1 + x))
    chip = decomp.Target("chip", ["exp", "log", "add"])
    low = lowers_to(nn.Softplus(), lambda x: torch.log(1 + torch.exp(x)), chip, (X,), rules=rules)
    chain = low.provenance("softplus").chain
    assert [name for name, _ in chain] == ["<lambda>", "<lambda>"]
    assert all(where.startswith("test_lowering.py:") for _, where in chain)


def test_provenance_names_node_line_and_module() -> None:
    low = decomp.lower(Net(), to=targets.tinygrad, args=(X,))
    record = low.provenance("layer_norm")
    assert record.source == "layer_norm" and record.op == "aten.layer_norm.default" and record.module == "norm"
    assert record.line is not None and "return F.gelu(self.norm(self.first(x)))" in record.line
    copied = low.provenance("x")
    assert copied.chain == () and str(copied).endswith("copied")
    for unknown in ("nothing", 3):
        with pytest.raises(decomp.errors.UnknownNode) as refused:
            low.provenance(unknown)
        assert isinstance(refused.value, KeyError) and str(refused.value) == (
            f"{unknown!r} is not a node of the lowered program\n  to do: pass a node of its graph, or the name of one"
        )


def test_a_plan_is_a_dry_run() -> None:
    program = torch.export.export(Net(), (X,), strict=False)
    before = str(program.graph)
    plan = decomp.plan(program, to=targets.core_aten)
    assert plan.complete and plan.blockers == ()
    assert {node.name for node in plan.derived} >= {"linear", "layer_norm", "softmax"}
    assert "gelu" in {node.name for node in plan.legal}
    assert str(plan).startswith("plan for core_aten: ")
    assert str(program.graph) == before


def test_a_declined_rule_is_passed_over_and_remembered() -> None:
    rules = decomp.Rules()
    rules.register(F.relu, name="never")(lambda x: decomp.decline("only on Sundays"))
    rules.register(F.relu, name="always")(lambda x: torch.where(x > 0, x, 0))
    plan = decomp.plan(nn.ReLU(), to=decomp.Target("chip", ["where", "gt"]), args=(X,), rules=rules)
    (derived,) = plan.derived.values()
    assert derived.rule.name == "always"
    assert [reason for _, reason in derived.passed_over] == ["only on Sundays"]


@pytest.mark.parametrize("wrong", [3, "model", torch.relu, None])
def test_what_is_no_program_is_refused(wrong: Any) -> None:
    with pytest.raises(decomp.CaptureError, match="pass an nn.Module, a GraphModule or an ExportedProgram"):
        decomp.lower(wrong, to=targets.core_aten)


def test_a_target_by_name_is_refused_with_a_hint() -> None:
    with pytest.raises(TypeError, match="not the name 'tinygrad': pass decomp_rules.targets.tinygrad"):
        decomp.lower(nn.ReLU(), to="tinygrad")


def test_a_malformed_graph_is_refused() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.relu, (x,))
    graph.output(y)
    other = fx.Graph().placeholder("z")
    program = fx.GraphModule(nn.Module(), graph)
    y.args = (other,)
    with pytest.raises(decomp.CaptureError, match="the graph is malformed: "):
        decomp.lower(program, to=targets.core_aten)


def test_a_module_that_cannot_be_traced_says_what_to_do() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(decomp.CaptureError, match="pass example inputs"):
        decomp.lower(Branching(), to=targets.core_aten)


def test_wrong_example_inputs_are_counted() -> None:
    program = fx.symbolic_trace(lambda x, y: x + y)
    with pytest.raises(decomp.CaptureError, match=r"the program takes 2 inputs \(x, y\), args= gave 1"):
        decomp.lower(program, to=targets.core_aten, args=(X,))


def test_decompose_uses_the_tracer_that_it_is_given() -> None:
    class Leafless(fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return False

    result = decomp.decompose(nn.Sequential(nn.ReLU()), {F.gelu: lambda x: x}, tracer_class=Leafless)
    assert [node.op for node in result.graph.nodes] == ["placeholder", "call_function", "output"]


def test_modules_without_a_matching_rule_stay_calls_of_modules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    result = decomp.decompose(model, {F.relu: lambda x: torch.where(x > 0, x, 0)})
    assert [node.target for node in result.graph.nodes if node.op == "call_module"] == ["0"]
    assert result.get_submodule("0") is model[0]
    torch.testing.assert_close(result(X), model(X))


def test_constants_of_a_rule_may_be_parts_of_one_table() -> None:
    rules, table = decomp.Rules(), torch.arange(8.0).reshape(4, 2)
    slope, start = torch.unbind(table, 1)
    rules.register("sigmoid")(lambda x: x * slope + start)
    rules.register("silu")(lambda x: x * torch.sigmoid(x))
    x = torch.ones(4)
    lowered = decomp.lower(nn.SiLU(), to=decomp.Target("chip", ("mul", "add")), rules=rules, args=(x,)).result
    assert torch.equal(lowered(x), table.sum(1))
