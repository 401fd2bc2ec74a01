"""The memory of planning: how little of it a lowering recomputes."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.derive import planning_memory
from decomp.torch_internals.fakes import FakeTensorMode
from decomp_rules import RULES, targets


@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad], ids=lambda target: target.name)
def test_a_program_that_is_lowered_again_makes_no_fake_mode(target, monkeypatch):
    """A mode formats the stack on which it is made: a millisecond under pytest."""
    program = torch.export.export(nn.Sequential(nn.Linear(4, 4), nn.GELU()), (torch.randn(2, 4),))
    decomp.lower(program, to=target)
    made, make = [], FakeTensorMode.__init__
    monkeypatch.setattr(FakeTensorMode, "__init__", lambda mode, *args, **how: made.append(make(mode, *args, **how)))
    decomp.lower(program, to=target)
    assert not made


X = torch.randn(3, 4)


class Sorted(nn.Module):
    def forward(self, x):
        return F.softmax(x, -1), torch.sort(x, 1)[1]


class Gelu(nn.Module):
    def forward(self, x):
        return F.gelu(x)


def dynamic(model=None):
    model = model or nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Softmax(-1))
    return torch.export.export(model, (X,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))


def test_a_program_of_dynamic_size_that_is_lowered_again_runs_no_rule():
    program, rules = dynamic(), RULES | {}  # which remember nothing yet
    first, again = (decomp.lower(program, to=targets.tinygrad, rules=rules) for _ in range(2))
    assert first.report().runs > 10 and again.report().runs == 0
    assert str(again.result.graph) == str(first.result.graph)
    # The sizes of another program are others: what was chosen at those of the example is recorded for them.
    assert 0 < decomp.lower(dynamic(), to=targets.tinygrad, rules=rules).report().runs < first.report().runs / 2
    assert decomp.plan(program, to=targets.tinygrad, rules=rules).complete
    for rows in (2, 5):
        given = torch.randn(rows, 4)
        torch.testing.assert_close(again.result.module()(given), program.module()(given))


def test_what_was_recorded_for_one_target_is_known_for_another():
    program = dynamic(Gelu())
    alone = decomp.lower(dynamic(Gelu()), to=targets.luminal).report().runs
    decomp.lower(program, to=targets.tinygrad)
    assert decomp.lower(program, to=targets.luminal).report().runs < alone


def test_no_more_is_remembered_than_fits(monkeypatch):
    """A process that lowers at ever other sizes would grow without end."""
    rules = RULES | {}  # which remember nothing yet

    def lowered(rows):
        given = torch.randn(rows, 4)
        lowering = decomp.lower(Gelu(), to=targets.tinygrad, args=(given,), rules=rules)
        torch.testing.assert_close(lowering.result(given), F.gelu(given))
        return lowering.report().runs

    def remembered():
        return sum({id(memory.expansions): len(memory.expansions) for memory in rules.memory.values()}.values())

    runs, one = lowered(2), remembered()
    monkeypatch.setattr(planning_memory, "CAPACITY", 2 * one)
    assert [lowered(rows) for rows in (3, 3, 2, 4, 4, 5)] == [runs, 0, 0, runs, runs, runs]
    assert remembered() == 2 * one


def test_a_lowering_that_fails_leaves_nothing_behind_for_the_next():
    # What of it holds for all programs is known from the first one on.
    layers = nn.Linear(4, 4), nn.Hardswish(), nn.GELU(), nn.Softmax(-1), nn.LayerNorm(4)
    other, program = (dynamic(nn.Sequential(*layers)) for _ in range(2))
    decomp.lower(other, to=targets.tinygrad)
    runs = decomp.lower(program, to=targets.tinygrad).report().runs
    assert runs > 10

    def fails(x):
        raise ValueError

    for rules in ({"hardswish": fails}, {"hardswish": lambda x: x.erfinv()}):
        with pytest.raises(decomp.DecompError):
            decomp.lower(program, to=decomp.Target("few", ["add"]), rules=rules)
        again = decomp.lower(program, to=targets.tinygrad)
        assert again.report().runs in (0, runs)
        torch.testing.assert_close(again.result.module()(X), program.module()(X))


def test_a_program_that_was_lowered_is_copied_and_saved():
    program = dynamic(Gelu())
    decomp.lower(program, to=targets.tinygrad)
    copied = copy.deepcopy(program)
    torch.export.save(program, io.BytesIO())
    torch.testing.assert_close(decomp.lower(copied, to=targets.tinygrad).result.module()(X), program.module()(X))


def test_what_a_program_becomes_does_not_depend_on_what_was_lowered_before():
    programs = torch.export.export(Sorted(), (X,)), dynamic(Sorted())
    narrow = decomp.Target("narrow", targets.tinygrad, dtypes=["float32", "int32", "bool"])
    plain, small = {"to": targets.tinygrad}, {"to": narrow, "narrow": True}
    fast = {**plain, "accuracy": "fast", "training": False, "cost": decomp.costs.bytes}
    ways = [(programs[0], plain), (programs[0], fast), (programs[1], plain), (programs[1], small)]

    def graphs(order):
        rules = RULES | {}  # which remember nothing yet
        found = {place: decomp.lower(ways[place][0], rules=rules, **ways[place][1]).result.graph for place in order}
        return [str(found[place]) for place in range(len(ways))]

    assert graphs(range(len(ways))) == graphs(range(len(ways) - 1, -1, -1))


@pytest.mark.parametrize("sizes", [None, ({0: torch.export.Dim.DYNAMIC},)], ids=["static", "dynamic"])
def test_what_was_recorded_for_narrow_integers_is_for_them_alone(sizes):
    program = torch.export.export(Gelu(), (X,), dynamic_shapes=sizes)
    wide, narrow = (decomp.Target("chip", ["_to_copy"], dtypes=["float32", name]) for name in ("int64", "int32"))

    def rules():
        cast = torch.ops.aten._to_copy
        return decomp.Rules({"gelu": lambda x: cast(cast(x, dtype=torch.int64), dtype=torch.float32)})

    def dtypes(to, rules):
        lowered = decomp.lower(program, to=to, rules=rules, narrow=to is narrow)
        return [node.meta["val"].dtype for node in lowered.result.graph.nodes if node.op == "call_function"]

    for first, second, dtype in ((wide, narrow, torch.int32), (narrow, wide, torch.int64)):
        both = rules()
        dtypes(first, both)
        assert dtypes(second, both) == [dtype, torch.float32]


class Picked(nn.Module):
    """A row of a table, the number of which is data."""

    def __init__(self, *shape):
        super().__init__()
        self.register_buffer("table", torch.randn(*shape))

    def forward(self, x):
        return self.table.select(0, x.item())  # as torch.export records `table[x]`, from torch 2.13 on


def test_sizes_that_planning_made_end_with_the_lowering():
    model, rows = Picked(3, 2), [torch.tensor(row) for row in (0, 2, 1)]
    program = torch.export.export(model, (rows[0],))
    for target in (targets.tinygrad, targets.luminal, targets.tinygrad):
        lowered = decomp.lower(program, to=target).result.module()
        assert all(torch.equal(lowered(row), model(row)) for row in rows)
