"""Plans of programs whose memory anybody can work out, and what a plan says."""

import pytest
import torch
from torch import fx, nn

import decomp
from decomp.memory.planning import memory_plan
from decomp_rules import targets
from tests.forms import exported
from tests.held import held
from tests.memory.agreement import agrees
from tests.memory.programs import ONE, X


@pytest.mark.parametrize(
    ("function", "before", "after", "in_place"),
    [
        (lambda x: torch.exp(x), 1, 1, 0),  # the input is not the plan's to write
        (lambda x: torch.exp(torch.exp(torch.exp(x))), 2, 1, 2),
        (lambda x: torch.exp(x) + torch.sin(x), 3, 2, 1),
        (lambda x: x.add(1).mul(2).view(32, 32).t().exp().cos(), 2, 1, 3),  # over all that a view shows
        (lambda x: x.exp().view(32, 32).mul(2).view(1024).sin(), 2, 1, 2),
        (lambda x: (x.exp(), x.exp().sin()), 3, 2, 1),  # a result stays what it is
        (lambda x: (lambda y: (y, y.sin()))(x.exp()), 2, 2, 0),
        (lambda x: (lambda y: y[:512].exp().repeat(2) + y)(x.sin()), 3, 2.5, 1),
        (lambda x: (lambda y: y.mul_(2).exp().sin())(x.exp()), 2, 1, 2),  # what the program writes in place, too
        (lambda x: x.exp().flip(0).flip(0), 2, 2, 0),
        (lambda x: x.exp().to(torch.float64).sin(), 4, 3, 1),
        (lambda x: x.exp() > 0, 1.25, 1.25, 0),  # a result of another dtype
        (lambda x: torch.where(x > 0, x.exp(), x.sin()), 3.25, 2.25, 1),
        (lambda x: (lambda y: y.view(32, 32).add(y.view(32, 32).t()))(x.exp()), 2, 2, 0),  # reads it in two orders
        (lambda x: (lambda y: y.mul(y))(x.exp()), 2, 1, 1),
        (lambda x: x.exp().relu().sin(), 2, 1, 2),  # relu has no `out=`, but an in-place form
    ],
)
def test_what_is_held_before_and_after(function, before, after, in_place):
    program = exported(function, X)
    plan = memory_plan(program, arena=False)
    assert (plan.unplanned_peak, plan.peak, plan.in_place) == (before * ONE, after * ONE, in_place)
    assert plan.lower_bound == plan.peak
    assert agrees(plan, program.module(), (torch.randn(1024),))


def test_without_writing_in_place_the_program_holds_what_it_held():
    plan = memory_plan(exported(lambda x: x.exp().sin().cos(), X), in_place=False, arena=False)
    assert plan.peak == plan.unplanned_peak == 2 * ONE and plan.in_place == 0


def test_a_long_chain_takes_turns_in_the_arena_and_the_memory_of_the_result():
    program = exported(lambda x: torch.mv(torch.ones(1024, 1024), torch.mv(torch.ones(1024, 1024), x.exp())), X)
    plan = memory_plan(program, in_place=False)
    assert plan.arena == ONE and plan.peak == plan.unplanned_peak
    assert agrees(plan, program.module(), (torch.randn(1024),))


def test_offsets_in_the_arena():
    program = exported(lambda x: (x.exp() + x.sin()).sum(), X)
    plan = memory_plan(program, arena=True)
    assert {plan.offset("exp"), plan.offset("sin")} == {0, ONE} and plan.offset("add") == plan.offset("exp")
    assert plan.offset("sum_1") is None and plan.arena == 2 * ONE


@pytest.mark.parametrize("arena", [None, True, False])
@pytest.mark.parametrize("kind", ["lowering", "exported", "graph", "module", "torch graph"])
def test_every_kind_of_program_has_a_plan(kind, arena):
    model, args = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Softmax(-1)), (torch.randn(8, 16),)
    lowering = decomp.lower(model, to=targets.tinygrad, args=args)
    given = {
        "lowering": (lowering,),
        "exported": (torch.export.export(model, args),),
        "graph": (lowering.result,),
        "module": (model, args),
        "torch graph": (fx.symbolic_trace(model), args),
    }[kind]
    plan = memory_plan(*given, arena=arena)
    assert isinstance(plan.apply(), fx.GraphModule) and plan.in_place > 0
    assert agrees(plan, plan.program.root, args)


def test_what_the_program_holds_when_it_runs_is_what_was_planned():
    model, args = nn.Sequential(nn.LayerNorm(64), nn.GELU(), nn.Softmax(-1)), (torch.randn(32, 64),)
    lowering = decomp.lower(model.eval(), to=targets.tinygrad, args=args)
    for arena in (None, True, False):
        plan = memory_plan(lowering, arena=arena)
        assert held(plan.apply(), args) == plan.peak
        assert held(lowering.result, args) == plan.unplanned_peak


def test_the_memory_of_a_result_does_not_grow_while_others_use_it():
    def function(x):
        wide = torch.cumsum(torch.cumsum(nn.functional.pad(x, (0, 5)), 0), 0)
        return torch.cumsum(wide[:25].clone(), 0)

    x = torch.rand(25)
    result = memory_plan(exported(function, x), arena=True).apply()(x)
    assert torch.equal(result, function(x)) and result.untyped_storage().nbytes() == 25 * 4


def test_rows_of_the_table_are_the_ops_of_the_source():
    args = (torch.randn(64, 64),)
    plan = memory_plan(decomp.lower(nn.Sequential(nn.GELU(), nn.Softmax(-1)), to=targets.tinygrad, args=args))
    assert {row.op for row in plan.ops} == {"aten.gelu.default", "aten.softmax.int"}
    assert max(row.before for row in plan.ops) == plan.unplanned_peak and all(r.after <= plan.peak for r in plan.ops)


def test_a_plan_reads_well():
    plan = memory_plan(exported(lambda x: (x.exp() + x.sin()).relu(), X))
    assert (
        str(plan)
        == """\
peak 8.19 kB, 0.67 of the 12.3 kB without a plan; lower bound 8.19 kB

op                 calls   before    after  in place  in arena  in blocks
aten.add.Tensor        1  12.3 kB  8.19 kB         1         0          0
aten.relu.default      1  8.19 kB   4.1 kB         1         0          0
aten.sin.default       1  8.19 kB  8.19 kB         0         1          0
aten.exp.default       1   4.1 kB   4.1 kB         0         0          0

before, after: most bytes held while the op runs, without inputs and state.
in place: calls that overwrite an operand; in arena: into planned memory;
in blocks: that run on one block of rows after the other.
The arena takes 4.1 kB, and is allocated in each run."""
    )
    assert plan.as_dict()["ops"][0] == {
        "op": "aten.add.Tensor",
        "calls": 1,
        "before": 3 * ONE,
        "after": 2 * ONE,
        "in_place": 1,
        "in_arena": 0,
        "in_blocks": 0,
    }


def test_lines_fit_a_terminal():
    model = nn.Sequential(*(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.GELU(approximate="tanh"), nn.AvgPool2d(2)))
    plan = memory_plan(decomp.lower(model.eval(), to=targets.core_aten, args=(torch.randn(1, 3, 32, 32),)))
    assert max(map(len, str(plan).splitlines())) <= 80


def test_without_metadata_the_error_says_what_to_do():
    with pytest.raises(decomp.DecompError, match="to do: pass args="):
        memory_plan(fx.symbolic_trace(nn.GELU()))


def test_a_wrong_option_is_reported():
    with pytest.raises(decomp.errors.ArgumentError, match="arena= must be True, False or None, not str"):
        memory_plan(exported(torch.exp, X), arena="yes")


def test_the_program_that_is_planned_stays_as_it_is():
    program = exported(lambda x: x.exp().sin().cos(), X)
    before = str(program)
    memory_plan(program).apply()
    assert str(program) == before


def test_a_plan_is_drawn(tmp_path):
    path = memory_plan(exported(lambda x: (x.exp() + x.sin()).sum(), X), arena=True).plot(tmp_path / "plan.svg")
    assert path.read_text().count("<path") > 2


def test_a_transform_is_planned_as_the_calls_that_it_makes():
    class Mapped(torch.nn.Module):
        def forward(self, x):
            return torch.vmap(lambda row: (row * 2 + row.cos()).relu().sum())(x)

    args = (torch.randn(64, 512),)
    plan = memory_plan(torch.export.export(Mapped(), args))
    assert plan.in_place and agrees(plan, Mapped(), args)
