"""The ops that several programs need from a target, and the calls that ops would save."""

from concurrent.futures import Executor, Future
import functools
import json
import pickle
import re

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import decomp
from decomp import advising
from decomp.tools.cli.app import app
from decomp_rules import targets
from tests.forms import Holder, exported

X = torch.randn(4, 8)
FUNCTIONS = {
    "square": lambda x: x * x,
    "neg": lambda x: x * -1,
    "exp": lambda x: torch.exp2(x * 1.5),
    "sinh": lambda x: torch.exp(x) - torch.exp(-x),
}
RULES, VERSIONED = decomp.Rules(FUNCTIONS), decomp.Rules(FUNCTIONS, version="1")
CHIP = decomp.Target("chip", ["add"])


def programs(**functions):
    return {name: exported(function, X) for name, function in functions.items()}


@functools.cache
def three():
    return programs(
        done=lambda x: x + x,
        easy=lambda x: torch.square(x) + x,
        hard=lambda x: torch.exp(torch.square(x)) + torch.neg(x),
    )


def test_the_program_that_needs_least_comes_first():
    chip = decomp.Target("chip", ["add"])
    advice = decomp.advise(three(), to=chip, rules=RULES)
    assert advice.lowers == ("done",) and not advice.out_of_reach and advice.smallest
    assert [milestone.unlocks for milestone in advice.milestones] == [("easy",), ("hard",)]
    assert advice.milestones[0].add == ("mul",) and advice.curve == ((0, 1), (1, 2), (2, 3))
    assert len(advice.ops) == 2 == advice.at_least


def test_with_the_ops_all_programs_lower_to_the_calls_that_were_promised():
    chip = decomp.Target("chip", ["add", "mm", "view", "permute"])
    models = {"gelu": (nn.Sequential(nn.Linear(8, 8), nn.GELU()), (X,)), "norm": (nn.LayerNorm(8), (X,))}
    advice = decomp.advise(models, to=chip, accuracy="fast")
    for name, (model, args) in models.items():
        lowered = decomp.lower(model, to=advice.target, args=args, accuracy="fast", simplify=False)
        assert len(decomp.calls(lowered.result)) == advice.calls[name]


def test_the_savings_of_an_op_are_confirmed_by_planning_with_it():
    chip = decomp.Target("chip", ["add", "sub", "mul", "exp2"])
    both = programs(sinh=lambda x: torch.sinh(x), exp=lambda x: torch.exp(x) + torch.neg(x))
    advice = decomp.advise(both, to=chip, rules=RULES)
    assert advice.milestones == () and advice.calls == {"sinh": 6, "exp": 4}
    saved = {saving.op: (saving.calls, saving.programs) for saving in advice.savings}
    assert saved == {"sinh": (5, 1), "exp": (3, 2)}
    assert [saving.calls for saving in advice.savings] == [5, 3]
    assert decomp.advise(both, to=chip, rules=RULES, savings=0).savings == ()


def test_of_ops_within_each_other_the_one_that_the_program_has_is_named():
    advice = decomp.advise({"norm": (nn.LayerNorm(8), (X,))}, to=targets.tinygrad)
    saving = {saving.op for saving in advice.savings}
    assert "layer_norm" in saving and "native_layer_norm" not in saving


def test_what_will_not_be_implemented_is_not_advised():
    chip = decomp.Target("chip", ["add", "mul", "sub"])
    given = programs(sinh=lambda x: torch.sinh(x) + torch.neg(x))
    free = decomp.advise(given, to=chip, rules=RULES)
    assert free.ops == ("exp",) and free.milestones[0].instead == {"exp": ("sinh", "exp2")}
    assert "instead of exp: sinh or exp2" in str(free)
    advice = decomp.advise(given, to=chip, rules=RULES, without=["sinh", torch.ops.aten.exp])
    assert advice.ops == ("exp2",) and not advice.savings
    none = decomp.advise(given, to=chip, rules=RULES, without=["sinh", "exp", "exp2"])
    assert none.out_of_reach.keys() == {"sinh"} and not none.milestones
    assert decomp.advise(given, to=chip | {"exp2"}, rules=RULES, without=["sinh"]).savings[0].op == "exp"


def test_the_text():
    assert str(decomp.advise(three(), to=decomp.Target("chip", ["add", "exp2"]), rules=RULES)) == "\n".join(
        [
            "1 of 3 programs lower to chip now",
            "1 more op is enough for all; no smaller set is",
            "  add mul: then easy and hard lower too, 3 of 3",
            "with these implemented, more ops that would save calls:",
            "  exp: 1 call in 1 program",
            "the programs then have: done 1 call, easy 2 calls, hard 5 calls",
        ]
    )


def test_programs_that_nothing_helps_do_not_hide_what_the_others_need():
    class Moody(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else x.neg()

    def transformed(x):
        return torch.ops.prims.fft_r2c(x, dim=[1], onesided=True).real

    given = {**three(), **programs(transformed=transformed), "moody": (Moody(), (X,))}
    advice = decomp.advise(given, to=decomp.Target("chip", ["add", "real"]), rules=RULES)
    assert set(advice.out_of_reach) == {"transformed", "moody"} and all(advice.out_of_reach.values())
    assert advice.milestones[-1].reached == 3 and "3 of 5" in str(advice)


def test_keyword_inputs_and_the_order_of_programs():
    model = Holder(torch.square)
    chip = decomp.Target("chip", ["add"])
    one = decomp.advise({"a": (model, (X,)), **three()}, to=chip, rules=RULES)
    other = decomp.advise({**dict(reversed(three().items())), "a": (model, (X,))}, to=chip, rules=RULES)
    assert one.ops == other.ops and one.calls == other.calls
    assert json.loads(json.dumps(one.as_dict()))["calls"]["a"] == 1


def test_progress_is_reported():
    said = []
    decomp.advise(three(), to=CHIP, rules=RULES, savings=0, progress=lambda *each: said.append(each))
    assert said == 2 * [(1, 3, "done"), (2, 3, "easy"), (3, 3, "hard")]


class Travelling(Executor):
    """Does what it is given at once, as it would arrive in another process."""

    def __init__(self):
        self.names = []

    def submit(self, function, job):
        self.names.append(job.name)
        future = Future()
        future.set_result(pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(job))))))
        return future


def squared(x):
    return x * x


def easy():
    return exported(lambda x: torch.square(x) + x, X)


def hard():
    return Holder(lambda x: torch.exp(torch.square(x)) + torch.sigmoid(x)), (X,)


def test_the_result_does_not_depend_on_where_it_was_found():
    rules = decomp.Rules({"square": squared})
    made = {"easy": easy, "stays": three()["done"], "hard": hard}
    here = decomp.advise(made, to=CHIP, rules=rules)
    away = Travelling()
    assert decomp.advise(made, to=CHIP, rules=rules, executor=away) == here and here.ops
    assert set(away.names) >= {"easy", "hard"}


def test_what_an_executor_loses_costs_one_program():
    class Losing(Travelling):
        def submit(self, function, job):
            future = super().submit(function, job)
            if job.name == "hard":
                future = Future()
                future.set_exception(OSError("the process is gone"))
            return future

    rules = decomp.Rules({"square": squared})
    advice = decomp.advise({"easy": easy, "hard": hard}, to=CHIP, rules=rules, executor=Losing())
    assert advice.out_of_reach == {"hard": "the executor lost it: OSError: the process is gone"}
    assert advice.calls.keys() == {"easy"}


def test_stored_answers_are_not_computed_again(tmp_path):
    asked = []

    def one(name, program):
        return lambda: asked.append(name) or program

    def advice(*names):
        made = {name: one(name, three()[name]) for name in names}
        return decomp.advise(made, to=CHIP, rules=VERSIONED, results=tmp_path)

    first = advice("easy", "hard")
    assert set(asked) == {"easy", "hard"}
    asked.clear()
    assert advice("easy", "hard") == first and asked == []
    next(tmp_path.iterdir()).write_text("{")  # broken off in the middle
    assert advice("easy", "hard") == first and len(asked) == 1
    asked.clear()
    assert advice("done", "easy", "hard").lowers == ("done",)
    assert set(asked) == {"done"}
    decomp.advise({"done": one("done", three()["done"])}, to=decomp.Target("chip", ["neg"]), results=tmp_path)
    assert asked.count("done") == 2


def test_an_unwritable_directory_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(decomp.errors.ArgumentError, match="results= must be a directory"):
        decomp.advise(three(), to=CHIP, rules=VERSIONED, results=tmp_path / "file")


def test_answers_that_depend_on_functions_of_the_users_are_not_kept(tmp_path):
    message = (
        "results= cannot be used: a rule, a condition or a cost is a function of yours, which may do something else in "
        'the next process\n  to do: give your rules a version, Rules(version="1"), and write the conditions of a '
        "target in its TOML file"
    )
    with pytest.raises(decomp.errors.ArgumentError, match=f"^{re.escape(message)}$"):
        decomp.advise(three(), to=CHIP, rules=RULES, results=tmp_path)


def test_what_is_no_executor_is_refused():
    with pytest.raises(decomp.errors.ArgumentError, match="executor= must be a concurrent.futures.Executor, not int"):
        decomp.advise(three(), to=CHIP, executor=4)


@pytest.mark.parametrize("given", [{}, [1], {1: nn.ReLU()}, nn.ReLU()], ids=["empty", "list", "number", "module"])
def test_what_is_no_collection_of_programs_is_refused(given):
    with pytest.raises(decomp.errors.ArgumentError, match="programs must be a dict from name to program"):
        decomp.advise(given, to=decomp.Target("chip", ["add"]))


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    advice = decomp.advise(three(), to=decomp.Target("chip", ["add"]), rules=RULES, savings=0)
    text = advice.plot(tmp_path / "advice.svg").read_text()
    assert "</svg>" in text


def test_in_a_terminal(tmp_path):
    chip = tmp_path / "chip.toml"
    chip.write_text('name = "chip"\nops = ["mm", "add", "mul", "view", "permute", "expand"]\n')
    result = CliRunner().invoke(app, ["advise", "mlp", "--to", str(chip), "--savings", "0"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("0 of 1 programs lower to chip now\n")
    data = CliRunner().invoke(app, ["advise", "mlp", "--to", str(chip), "--savings", "1", "--json"])
    assert data.exit_code == 0 and json.loads(data.stdout)["milestones"][-1]["reached"] == 1


def test_ops_that_real_models_call_are_ranked_by_how_many_do(tmp_path, monkeypatch):
    from decomp.tools.cli import histogram
    from decomp_rules.samples.in_models import ops_in_models

    most, *rest = ops_in_models()
    assert most.op == "aten.linear.default" and len(rest) > 150
    assert [each.models for each in rest] == sorted((each.models for each in rest), reverse=True)
    few = ("aten.relu.default", "aten.linear.default", "aten.mul.Tensor")
    table = tuple(each for each in ops_in_models() if each.op in few)
    monkeypatch.setattr(histogram, "ops_in_models", lambda: table)
    chip = tmp_path / "chip.toml"
    chip.write_text('name = "chip"\nops = ["mul", "add", "view", "permute"]\n')
    run = CliRunner().invoke(app, ["advise", "--histogram", "--to", str(chip)])
    head, needed, _, titles, _, *rows = [line.rstrip() for line in run.output.splitlines()]
    assert run.exit_code == 0, run.output
    assert head == f"1 of {len(table)} ops that real models call lower to chip now"
    assert titles.split()[:4] == ["op", "models", "calls", "waits"]
    assert [row.split()[0] for row in rows] == [each.op for each in table if each.op != "aten.mul.Tensor"]
    assert rows[0].endswith("sum") and needed.startswith("2 more are enough for ")
    assert rows[-1].startswith("aten.relu") and rows[-1].endswith("relu")
    data = CliRunner().invoke(app, ["advise", "--histogram", "--to", str(chip), "--json"])
    assert json.loads(data.stdout)["ranked"][0]["add"] == ["sum"]


def test_advise_needs_models_or_the_histogram():
    for words in ([], ["mlp", "--histogram"]):
        told = CliRunner().invoke(app, ["advise", *words, "--to", "core_aten"])
        assert told.exit_code == 2 and "name models, or pass --histogram" in told.output + (told.stderr or "")


def test_dtypes_are_advised_beside_ops_and_travel_as_data():
    chip = decomp.Target("chip", ["add", "mul", "_to_copy"], dtypes=["float32", "int32"])
    models = {
        "whole": (Holder(lambda x: x * 2 + x), (torch.arange(4),)),
        "real": (Holder(lambda x: torch.square(x) + x), (X,)),
    }
    advice = decomp.advise(models, to=chip, rules=decomp.Rules({"square": lambda x: x.neg() * x.neg()}), narrow=False)
    assert advice.dtypes == ("int64",) and len(advice.ops) == 1 and advice.smallest and advice.at_least == 2
    assert str(advice).splitlines()[1] == "1 more op and 1 more dtype are enough for all; no smaller set is"
    assert "  narrow=True computes in int32 instead of int64, if the target has it" in str(advice)


def test_of_many_programs_a_few_are_named():
    names = [f"p{i}" for i in range(12)]
    calls = dict(zip(names, range(1, 13)))
    milestone = advising.Milestone(("mul",), tuple(names), 12)
    advice = advising.Advice("chip", (), (milestone,), True, 1, (), calls, {})
    assert str(advice).splitlines()[2:] == [
        "  add mul: then p0, p1, p2, p3, p4, p5, p6 and 5 more lower too, 12 of 12",
        "the 12 programs then have 1 to 12 calls, half of them 7 or fewer",
    ]
