"""What the page of a lowering holds: every stage, the provenance of every node, why each call was decided so."""

from dataclasses import asdict
import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.page.contents import CALL, INPUT
from decomp.page.gathering import contents_of
from decomp_rules import targets

ODD = "</script><b>&"
"""A name that would break out of a page that does not escape it."""


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.add_module(ODD, nn.GELU())

    def forward(self, x):
        y = getattr(self, ODD)(self.first(x))
        y.add_(1)
        return y + x * 1


X = torch.randn(3, 4)


@pytest.fixture(scope="module")
def lowering():
    return decomp.lower(Odd(), to=targets.tinygrad, args=(X,), verify="values")


@pytest.fixture(scope="module")
def contents(lowering):
    return contents_of(lowering, "odd")


def stages_of(contents):
    (graph,) = contents.graphs
    return graph.stages


def test_every_stage_is_there_with_its_calls(contents, lowering):
    assert [stage.name for stage in contents.stages] == list(lowering.stages)
    assert contents.stages[0].calls == sum(lowering.report().before.values())
    assert contents.stages[-1].calls == sum(lowering.report().after.values())


def test_without_simplification_there_are_three_stages():
    contents = contents_of(decomp.lower(Odd(), to=targets.tinygrad, args=(X,), simplify=False))
    assert [stage.title for stage in contents.stages] == ["Source", "Functional", "Expanded"]
    assert all(text == "" for text in (contents.texts[i] for i in stages_of(contents)[2].gone if i >= 0))


def test_columns_have_an_entry_for_each_node(contents, lowering):
    for columns, stage in zip(stages_of(contents), lowering.stages.values()):
        for name in ("names", "kinds", "ops", "arguments", "types", "operands", "origins", "why"):
            assert len(getattr(columns, name)) == len(stage.graphs[0].nodes), name
        assert columns.names == [node.name for node in stage.graphs[0].nodes]


def test_every_node_of_the_last_stage_leads_back_to_its_source(contents, lowering):
    captured, functional, expanded, simplified = stages_of(contents)
    for i, name in enumerate(simplified.names):
        source = captured.names[functional.origins[expanded.origins[simplified.origins[i]]]]
        assert source == lowering.provenance(name).source


def test_the_rules_of_a_node_are_those_of_its_provenance(contents, lowering):
    _, _, expanded, simplified = stages_of(contents)
    for i, name in enumerate(simplified.names):
        number = expanded.chains[simplified.origins[i]]
        chain = contents.chains[number] if number >= 0 else ()
        rules = tuple((contents.rules[rule].name, contents.rules[rule].location) for rule in chain)
        assert rules == lowering.provenance(name).chain


def test_what_simplification_left_nothing_of_says_why(contents):
    _, _, expanded, simplified = stages_of(contents)
    kept = set(simplified.origins)
    for i, gone in enumerate(expanded.gone):
        assert (gone >= 0) == (i not in kept and expanded.kinds[i] != INPUT), expanded.names[i]


def test_operands_are_nodes_of_the_same_graph(contents):
    for columns in stages_of(contents):
        for i, operands in enumerate(columns.operands):
            assert all(operand < i for operand in operands)
            assert all(f"%{columns.names[operand]}" in columns.arguments[i] for operand in operands)


def gelu_of(contents):
    (found,) = (each for each in contents.decisions if each.op == "aten.gelu")
    return found


def test_a_derived_call_has_its_rule_its_price_and_its_alternatives(contents, lowering):
    gelu, (priced,) = gelu_of(contents), (each for each in lowering.plan.costs().derived if each.op == "aten.gelu")
    assert contents.rules[gelu.rule].op == "aten.gelu" and gelu.used.calls == priced.chosen.calls
    others = [(each.level, each.calls) for each in gelu.alternatives if each.level]
    assert others == [(price.level, price.calls) for price in priced.others]
    reasons = {each.rule.partition(" ")[0]: each.why for each in gelu.alternatives if not each.level}
    assert reasons["gelu"] == "is for targets that know aten.erf"


def test_every_rule_of_the_op_is_used_or_has_a_reason(contents, lowering):
    gelu = gelu_of(contents)
    named = {gelu.used.rule, *(each.rule for each in gelu.alternatives if each.why)}
    assert named == {str(rule) for rule in lowering.internals.request.matching.rules["gelu"]}


def test_a_rule_has_its_text_with_file_and_line_and_its_certificate(contents):
    rule = contents.rules[gelu_of(contents).rule]
    assert rule.file == "decomp_rules/pointwise/gelu.py" and rule.location == f"gelu.py:{rule.line}"
    assert f"def {rule.name}(" in rule.text
    assert "tinygrad, standard" in [title for title, _ in rule.certificate.implementations]


def test_what_was_measured_is_there_where_it_was(contents, lowering):
    measured = gelu_of(contents).measured
    assert measured.values is not None and measured.values <= measured.allowed
    plain = contents_of(decomp.lower(Odd(), to=targets.tinygrad, args=(X,)))
    assert [each.part for each in plain.checks if not each.checked] == ["rules", "program"]


def test_calls_that_are_decided_alike_share_a_decision():
    model = nn.Sequential(nn.GELU(), nn.GELU())
    contents = contents_of(decomp.lower(model, to=targets.tinygrad, args=(X,)))
    assert len(contents.decisions) == 1 and stages_of(contents)[1].decisions == [-1, 0, 0]


def test_blocked_calls_say_what_is_missing():
    chip = decomp.Target("chip", ["add", "mul"])
    contents = contents_of(decomp.lower(Odd(), to=chip, args=(X,), partial=True))
    blocked = [each for each in contents.decisions if each.kind == "blocked"]
    assert {each.op for each in blocked} == {"aten.linear", "aten.gelu"}
    assert all(each.reasons for each in blocked)


def test_a_condition_of_the_target_is_the_reason():
    chip = (decomp.Target("chip", ["mul"])).legal_if("add", lambda call: False, "never")
    contents = contents_of(decomp.lower(Plus(), to=chip, args=(X,), rules=decomp.Rules(), partial=True))
    (blocked,) = (each for each in contents.decisions if each.kind == "blocked")
    assert blocked.reasons == ("the target accepts it under a condition: never",)


class Plus(nn.Module):
    def forward(self, x):
        return x + 1


def test_a_rule_of_the_user_is_named_and_has_no_certificate():
    rules = decomp.Rules({"relu": lambda x: torch.where(x > 0, x, 0)})
    chip = decomp.Target("chip", ["gt", "where"])
    contents = contents_of(decomp.lower(nn.ReLU(), to=chip, args=(X,), rules=rules))
    (rule,) = contents.rules
    assert rule.location.startswith("test_contents.py:") and rule.certificate is None and "torch.where" in rule.text


def test_several_calls_that_a_pattern_replaces_are_known():
    rules = decomp.Rules({"addmm": lambda a, b, c: torch.ops.aten.mm(b, c) + a})

    @rules.pattern(lambda x: F.relu(x + 1))
    def plus_relu(x):
        return torch.clamp(x, min=-1) + 1

    contents = contents_of(decomp.lower(Relu(), to=decomp.Target("chip", ["add", "clamp"]), args=(X,), rules=rules))
    _, functional, *_ = stages_of(contents)
    (members,) = functional.fused.values()
    assert [stages_of(contents)[0].names[i] for i in members] == ["add", "relu"]


class Relu(nn.Module):
    def forward(self, x):
        return torch.relu(x + 1)


def test_bodies_of_higher_order_ops_are_graphs_of_their_own():
    contents = contents_of(decomp.lower(Branch(), to=targets.tinygrad, args=(X,)))
    assert len(contents.graphs) == 3 and contents.graphs[0].name == ""
    assert all(graph.stages[2].kinds.count(CALL) for graph in contents.graphs[1:])


class Branch(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: F.gelu(x), lambda x: x * 2, (x,))


def test_a_traced_program_without_shapes_has_a_page():
    contents = contents_of(decomp.lower(Relu(), to=decomp.Target("chip", ["add", "relu"])))
    captured = stages_of(contents)[0]
    assert captured.types == [-1] * len(captured.names) and contents.stages[0].calls == 2


def test_the_contents_are_json(contents):
    assert json.loads(json.dumps(asdict(contents), allow_nan=False))["title"] == "odd"
