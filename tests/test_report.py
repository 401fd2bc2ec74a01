"""The report of a lowering: what it counts, how it reads, and that machines can have it."""

import json

import pytest
import torch
from torch import fx, nn
from torch.nn import functional as F

import decomp
from decomp.costs.plans import Totals
from decomp.report import ROWS, CheckedPart, Report, fold_modules, fold_rows
from decomp_rules import samples, targets


@pytest.fixture(scope="module")
def mlp():
    model, args = samples.model("mlp")
    return decomp.lower(model, to=targets.core_aten, args=args)


def test_it_counts_calls_by_op_before_and_after(mlp):
    report = mlp.report()
    assert report.before == {"aten.linear.default": 2, "aten.relu.default": 1}
    assert report.after == {"aten.permute.default": 2, "aten.addmm.default": 2, "aten.relu.default": 1}


def test_the_counts_are_those_of_the_program(mlp):
    nodes = [node for node in mlp.result.graph.nodes if node.op == "call_function"]
    assert sum(mlp.report().after.values()) == len(nodes)


def test_a_lowering_and_a_plan_show_themselves_in_a_line(mlp):
    said = "3 calls of 2 ops became 5 of 3; the program is .result, the rest print(lowering.report())"
    assert repr(mlp) == f"<lowered to core_aten: {said}>"
    said = "1 call legal, 2 derived, 0 blocked; print(plan) shows them"
    assert repr(mlp.plan) == f"<plan to core_aten: {said}>"


def test_calls_are_one_number_wherever_they_are_counted():
    model, args = samples.model("gpt")
    lowering = decomp.lower(model, to=targets.core_aten, args=args)
    report, plan = lowering.report(), decomp.plan(model, to=targets.core_aten, args=args)
    expanded, simplified = report.unsimplified, sum(report.after.values())
    assert expanded > simplified == len(decomp.calls(lowering.result)) == lowering.stages["simplify"].calls
    assert expanded == lowering.stages["expand"].calls == plan.costs().calls == lowering.plan.costs().calls
    assert f"comes to {expanded} calls before simplification" in str(plan)
    assert report.counted.startswith(f"36 in the source, {expanded} expanded, {simplified} simplified (")
    assert report.headline.endswith(f"36 calls of 12 ops became {simplified} of {len(report.after)}")
    assert len(plan.legal) + len(plan.derived) == 36


def test_costs_have_a_unit_and_are_those_of_the_program():
    model, args = samples.model("gpt")
    lowering = decomp.lower(model, to=targets.core_aten, args=args, cost="bytes")
    found = lowering.report().costs
    assert (found.cost, found.unit) == ("decomp.costs.bytes", "bytes")
    assert found.expanded == lowering.plan.costs().total
    assert found.simplified == decomp.costs.total(lowering.result, decomp.costs.bytes) < found.expanded


FUSES = "a compiler that fuses: least arithmetic"


def test_a_report_says_for_whom_the_plan_was_made(tmp_path):
    def planned_for(to=targets.tinygrad, **how):
        found = decomp.lower(nn.SiLU(), to=to, args=(torch.ones(3),), **how)
        assert f"  planned for {found.plan.costs().planned_for}" in str(found.plan).splitlines()
        assert found.report().planned_for == found.plan.costs().planned_for
        return found.report().planned_for

    assert planned_for() == 'fewest calls (for a compiler that fuses: cost="fused")'
    assert planned_for(cost="fused") == planned_for(cost=decomp.costs.fused) == FUSES
    assert planned_for(accuracy="exact") == "small errors: the first rule that reaches the target"
    assert planned_for(cost=lambda call: 1.0) == "least cost by your function"
    (tmp_path / "chip.toml").write_text('ops = ["mul", "sigmoid"]\ncosts = "fused"\n')
    assert planned_for(decomp.Target.load(tmp_path / "chip.toml")) == FUSES
    (tmp_path / "chip.toml").write_text('ops = ["mul"]\ncosts = "fuse"\n')
    with pytest.raises(decomp.errors.TargetError, match="costs = 'fuse': must be a table, or one of calls, flops"):
        decomp.Target.load(tmp_path / "chip.toml")


def test_a_backend_that_compiles_plans_for_a_compiler_that_fuses():
    plain, fused = (decomp.backend(to=targets.tinygrad, compiler=each) for each in ("eager", "inductor"))
    assert fused.target.costs is decomp.costs.fused and plain.target.costs is None
    lowered = decomp.lower(nn.SiLU(), to=fused.target, args=(torch.ones(3),))
    assert lowered.report().planned_for == FUSES


def test_it_counts_calls_by_module(mlp):
    assert mlp.report().modules == {"0": (1, 2), "1": (1, 1), "2": (1, 2)}


def test_rules_are_named_with_their_place_and_how_often_they_served(mlp):
    ((rule, used),) = mlp.report().rules.items()
    assert rule.startswith("linear (linear.py:") and used == 2


def test_expansions_run_are_distinguished_from_those_copied():
    class Twice(nn.Module):
        def forward(self, x):
            return F.softplus(F.softplus(x))

    rules = decomp.Rules({F.softplus: lambda x: torch.log1p(torch.exp(x))})
    target = decomp.Target("chip", ["log1p", "exp"])
    first, again = (decomp.lower(Twice(), to=target, args=(torch.ones(3),), rules=rules).report() for _ in range(2))
    assert (first.runs, first.inserted, first.expansions) == (1, 2, 1)
    assert (again.runs, again.inserted, again.expansions) == (0, 2, 1)
    assert first.effort == "2 inserted, 1 of them distinct; 1 rule run"


def test_every_stage_has_its_time(mlp):
    report = mlp.report()
    assert list(report.seconds) == ["capture", "plan", "expand", "simplify", "rebuild", "verify"]
    assert all(seconds > 0 for seconds in report.seconds.values())
    assert "capture" in report.timing and " ms: " in report.timing


def test_it_says_what_verification_checked_or_that_it_did_not(mlp):
    assert "all 5 calls are legal" in mlp.report().checks
    model, args = samples.model("mlp")
    unverified = decomp.lower(model, to=targets.core_aten, args=args, verify=False).report()
    assert unverified.checks == ()
    assert [part.text for part in unverified.verified] == ["not checked (verify=False)"]
    assert "verify" not in unverified.seconds


def test_data_for_machines_survive_json(mlp):
    data = mlp.report().as_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["modules"]["0"] == [1, 2]
    fields = "target before after modules rules runs inserted expansions seconds checks blockers effects proved picked "
    later = "unsimplified removed verified notes planned_for costs composites worst"
    assert list(data) == [*fields.split(), *later.split()]


def test_a_program_without_modules_has_no_table_of_modules():
    graph = fx.symbolic_trace(lambda x: torch.relu(x))
    report = decomp.lower(graph, to=targets.core_aten, args=(torch.ones(2),)).report()
    assert "module" not in str(report)


def test_what_blocks_is_in_the_report_of_a_partial_lowering():
    model, args = samples.model("mlp")
    target = decomp.Target("adder", ["add", "mul", "view", "permute", "sum.dim_IntList"])
    report = decomp.lower(model, to=target, args=args, partial=True).report()
    assert [blocker["op"] for blocker in report.blockers] == ["aten.relu"]
    assert report.headline.startswith("lowered in part to adder: 3 calls of 2 ops became ")
    assert str(report).splitlines()[1] == "  not lowered aten.relu at relu"


REPORT = Report(
    target="chip",
    before={"aten.linear.default": 2, "aten.gelu.default": 1},
    after={"aten.mm.default": 2, "aten.add.Tensor": 2, "aten.erf.default": 1},
    modules={"first": (1, 2), "second": (2, 3)},
    rules={"linear (linear.py:19)": 2, "gelu (activation.py:47)": 1},
    runs=2,
    inserted=3,
    expansions=2,
    seconds={"capture": 0.25, "plan": 0.0012},
    checks=("it is acyclic", "all 5 calls are legal"),
    blockers=(),
    verified=(CheckedPart("structure", True, "9 nodes as recorded"), CheckedPart("rules", False, "none was used")),
    unsimplified=7,
    removed={"dead_code": 2},
    planned_for="fewest bytes read and written",
    costs=Totals("decomp.costs.bytes", "bytes", 4096, 2048.5),
)


def test_it_reads_as_a_table():
    assert (
        str(REPORT)
        == """\
lowered to chip: 3 calls of 2 ops became 5 of 3
  planned for fewest bytes read and written
  calls       3 in the source, 7 expanded, 5 simplified (dead code 2)
  cost        4,096 → 2,048 bytes (decomp.costs.bytes)
  verified    ✓ structure   9 nodes as recorded
              – rules       none was used
  expansions  3 inserted, 2 of them distinct; 2 rules run
  time        251 ms: capture 250, plan 1.2

  before                calls    after              calls
  aten.linear.default       2    aten.mm.default        2
  aten.gelu.default         1    aten.add.Tensor        2
                                 aten.erf.default       1

  module  before   after
  second       2       3
  first        1       2

  rule                       used
  linear (linear.py:19)         2
  gelu (activation.py:47)       1"""
    )


def test_long_lists_are_folded_and_add_up():
    counts = {f"op{i}": 100 - i for i in range(20)}
    rows = fold_rows(counts, ROWS)
    assert len(rows) == ROWS
    assert rows[-1] == ("and 9 more", sum(100 - i for i in range(11, 20)))
    assert sum(count for _, count in rows) == sum(counts.values())
    assert fold_rows(counts, 20) == list(counts.items())


def test_modules_are_folded_the_largest_first():
    modules = {"a": (1, 2), "b": (3, 9), "c": (5, 4)}
    assert fold_modules(modules, 3) == [("b", 3, 9), ("c", 5, 4), ("a", 1, 2)]
    assert fold_modules(modules, 2) == [("b", 3, 9), ("and 2 more", 6, 6)]


def test_what_was_verified_is_five_lines_of_parts():
    model, args = samples.model("mlp")
    parts = ["structure", "interface", "simplified", "rules", "program"]
    how = {"to": targets.tinygrad, "args": args}
    by_level = {level: decomp.lower(model, **how, verify=level).report().verified for level in (False, True, "values")}
    assert [(part.part, part.mark) for part in by_level[False]] == [("structure", "–")]
    assert [part.part for part in by_level[True]] == [part.part for part in by_level["values"]] == parts
    assert [part.mark for part in by_level[True]] == ["✓", "✓", "–", "–", "–"]
    assert [part.mark for part in by_level["values"]] == ["✓", "✓", "–", "✓", "✓"]
    structure, interface, *_, rules, program = (part.text for part in by_level["values"])
    assert structure == "17 nodes as recorded, 11 calls legal, 3 expansions acyclic"
    assert interface == "5 inputs, 1 output, parameters, buffers and hooks as in the source"
    assert rules.startswith("3 of 3 distinct expansions run, at most ") and "(linear_by_sum" in rules
    assert program.startswith("run on the example inputs, against itself in float64: ")


def test_calls_that_stay_are_counted_and_a_random_program_is_not_compared():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())
    lowering = decomp.lower(model, to=targets.luminal, args=(torch.ones(2, 4),), partial=True, verify="values")
    structure, *_, program = lowering.report().verified
    assert ", of which 1 stay" in structure.text
    assert not program.checked and program.text == "not compared, as it is random"
