"""The texts of errors, word for word."""

from __future__ import annotations

import operator
import os
import subprocess
import sys

import pytest
import torch
from torch import fx

import decomp
from decomp import results
from decomp.errors import Blocker, describe, locate_function, remedies, source_line, spell_target
from decomp_rules import targets

TRACE = """  File "/site/torch/nn/modules/module.py", line 1, in _call
    return forward(x)
  File "/home/me/model.py", line 12, in forward
    return x.sort()
"""


def node(trace=None):
    graph = fx.Graph()
    found = graph.call_method("sort", (graph.placeholder("x"),))
    if trace:
        found.meta["stack_trace"] = trace
    return found


@pytest.mark.parametrize(
    "known, message",
    [
        ((), "unknown op 'rleu'"),
        (["relu", "add"], "unknown op 'rleu'; did you mean 'relu'?"),
        (["relu", "relu6"], "unknown op 'rleu'; did you mean 'relu' or 'relu6'?"),
    ],
)
def test_unknown_op(known, message):
    assert str(decomp.errors.UnknownOp("rleu", known)) == message


def test_a_rule_error_names_rule_node_line_and_remedy():
    error = decomp.errors.RuleError("relu (mine.py:3)", "mutates its input", "use the functional op")
    assert str(error) == "rule relu (mine.py:3): mutates its input\n  to do: use the functional op"
    assert str(error.at(node(TRACE))) == (
        "rule relu (mine.py:3): mutates its input\n"
        "  while lowering node 'sort' (call_method sort)\n"
        '  File "/home/me/model.py", line 12, in forward: return x.sort()\n'
        "  to do: use the functional op"
    )


def test_a_rule_error_keeps_its_first_node_and_its_class():
    error = decomp.errors.RuleCycle("a", "calls itself").at(node())
    assert isinstance(error, decomp.errors.RuleCycle)
    assert error.at(node()) is error


def test_not_lowered_lists_every_blocker_and_the_remedies():
    sorts = ("sort", "sort_1", "sort_2", "sort_3")
    sort = Blocker("aten.sort", sorts, "model.py:12: x.sort()", (), None, "depends on data")
    conv = Blocker(
        "aten.convolution",
        ("conv",),
        None,
        (("conv (convolution.py:3)", "needs shapes; pass args="),),
        "groups is 1",
        needs_metadata=True,
    )
    error = decomp.NotLowered("chip", [sort, conv])
    assert error.blockers == (sort, conv) and error.target == "chip"
    assert str(error) == "\n".join(
        [
            "2 ops cannot be lowered to chip; the program is unchanged",
            "",
            "  aten.sort at sort, sort_1, sort_2 and 1 more",
            "      model.py:12: x.sort()",
            "      cannot be decomposed: depends on data",
            "  ",
            "  aten.convolution at conv",
            "      the target accepts it under a condition: groups is 1",
            "      tried conv (convolution.py:3): needs shapes; pass args=",
            "  ",
            *remedies([sort, conv]),
        ]
    ).replace("\n  \n", "\n\n")


def test_remedies_come_in_order_of_ease():
    tried = Blocker("aten.sort", ("sort",), None, (("rule", "needs shapes; pass args="),), needs_metadata=True)
    assert remedies([tried]) == [
        "  to do, the easiest first:",
        "    1. pass example inputs (args=...), so that rules know shapes and dtypes",
        "    2. keep the ops that your backend can run: keep={...} (of aten.sort)",
        "    3. write a rule: @rules.register(op), then rules=rules | decomp_rules.RULES",
        "    4. add the op to the target: target | {op}",
        "    5. lower the rest, with this list in the report: partial=True",
    ]
    assert len(remedies([Blocker("aten.sort", ("sort",), None, ())])) == 5


@pytest.mark.parametrize(
    "target, text",
    [
        (torch.relu, "torch.relu"),
        (operator.add, "operator.add"),
        (torch.ops.aten.relu.default, "aten.relu.default"),
        (torch.nn.functional.gelu, "torch.nn.functional.gelu"),
        ("sort", "sort"),
        (len, "len"),
    ],
)
def test_functions_are_spelled_as_users_write_them(target, text):
    assert spell_target(target) == text


def test_a_node_is_described_and_its_line_found():
    assert describe(node()) == "node 'sort' (call_method sort)"
    assert source_line(node()) is None
    assert source_line(node(TRACE)) == 'File "/home/me/model.py", line 12, in forward: return x.sort()'
    inside = TRACE.split('  File "/home')[0]
    assert source_line(node(inside)) == 'File "/site/torch/nn/modules/module.py", line 1, in _call: return forward(x)'
    assert source_line(node("nothing of a trace")) is None


def test_a_rule_is_located():
    assert locate_function(node).startswith("test_errors.py:")
    assert locate_function(torch.relu) == locate_function(3) == "built in"


def test_all_errors_are_one_family():
    family = [
        decomp.errors.UnknownOp,
        decomp.errors.TargetError,
        decomp.CaptureError,
        decomp.errors.MutationError,
        decomp.errors.RuleError,
        decomp.errors.RuleCycle,
        decomp.NotLowered,
    ]
    assert all(issubclass(error, decomp.DecompError) for error in family)
    assert issubclass(decomp.errors.UnknownOp, LookupError) and issubclass(decomp.errors.TargetError, ValueError)


def test_options_are_checked_by_position_as_by_name():
    lowering = decomp.lower(torch.nn.ReLU(), to=decomp.Target("chip", ["relu"]), args=(torch.randn(3),))
    for given in (lambda: decomp.memory_plan(lowering, 1), lambda: decomp.memory_plan(lowering, args=1)):
        with pytest.raises(decomp.errors.ArgumentError, match=r"args= must be a tuple of the inputs by position"):
            given()


def test_a_module_run_by_python_m_is_warned(tmp_path):
    """Its loader has another name than `__main__`, and refuses to say the source of that."""
    (tmp_path / "run.py").write_text("from decomp.errors import warn\nwarn('careful')\n")
    ran = subprocess.run(
        [sys.executable, "-m", "run"], cwd=tmp_path, capture_output=True, text=True, env=_with_path(tmp_path)
    )
    assert ran.returncode == 0 and "UserWarning: careful" in ran.stderr, ran.stderr


def _with_path(folder):
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}


NODE = "to do: pass a node of its graph, or the name of one"
WRONGLY_ASKED = {
    "html": (lambda low: low.html(3), "html: path= must be the path of a file, not int"),
    "before": (lambda low: low.html("page.html", before=low.result), "before= must be a Lowering, not GraphModule"),
    "save": (lambda low: low.save(None), "save: path= must be the path of a file, not NoneType"),
    "read": (lambda low: results.PortableProgram.read(3), "PortableProgram.read: path= must be the path of a file"),
    "report": (lambda low: results.BringUp.load("/no/where"), "cannot read /no/where: No such file or directory"),
    "offset": (
        lambda low: decomp.memory_plan(low).offset(3),
        f"3 is not a call of the program that allocates memory\n  {NODE}",
    ),
    "origin": (lambda low: decomp.refold(low).origin("no"), f"'no' is not a node of the refolded program\n  {NODE}"),
    "provenance": (
        lambda low: decomp.refold(low.result).provenance("mul"),
        "provenance is that of a lowering: refold what decomp.lower returned, not its result",
    ),
    "dtypes": (
        lambda low: low.target.with_dtypes(3),
        "dtypes are as torch.float32 or 'float32', one or several; got int",
    ),
    "table": (
        lambda low: decomp.Rules.from_torch("aten"),
        "a decomposition table maps overloads to functions; got str",
    ),
    "costs": (lambda low: decomp.costs.table(3), "costs.table: path= must be the path of a file, not int"),
    "partition": (
        lambda low: decomp.partition(torch.nn.GELU(), to=low.target, args=(torch.ones(2),)).load("numpy"),
        "partition.load takes a decomp.Backend, not str",
    ),
}


@pytest.mark.parametrize("ask, text", WRONGLY_ASKED.values(), ids=WRONGLY_ASKED)
def test_what_is_asked_wrongly_of_a_result_is_an_error_of_ours(ask, text):
    lowering = decomp.lower(torch.nn.GELU(), to=targets.tinygrad, args=(torch.ones(2),))
    with pytest.raises(decomp.DecompError) as refused:
        ask(lowering)
    assert str(refused.value).startswith(text) and not isinstance(refused.value, decomp.errors.InternalError)
