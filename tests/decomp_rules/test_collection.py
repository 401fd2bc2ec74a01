"""Collections of rules: registration, matching of arguments, composition."""

from __future__ import annotations

import functools
import importlib
import operator
from pathlib import Path
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.ir.binding import bind_function, bind_method
from decomp.ir.call import kind_of
from decomp.rules.declining import Declined
from decomp.rules.rules import as_rules
import decomp_rules
from decomp_rules import collectives
from decomp_rules.quantized import packing

x = torch.rand(3, 4)


def accepted(rules, function, *args, **kwargs):
    """What the first rule for the call would be run with."""
    bind = bind_method if isinstance(function, str) else bind_function
    bound = bind(function, args, kwargs, kind_of)
    (rule, *_) = rules.of(bound.op)
    return rule.accept(bound)


@pytest.mark.parametrize("spelling", [F.relu, torch.relu, "relu", nn.ReLU, torch.ops.aten.relu, "aten.relu.default"])
def test_a_rule_serves_every_spelling_of_its_op(spelling):
    rules = decomp.Rules()

    @rules.register(spelling)
    def relu(x):
        return torch.where(x > 0, x, 0)

    for function in (F.relu, torch.relu, torch.relu_, torch.ops.aten.relu.default, "relu", "relu_"):
        assert accepted(rules, function, x) == ([x], {})
    assert "relu" in rules and nn.ReLU in rules and "gelu" not in rules


def test_alternatives_stand_in_order_of_registration():
    rules = decomp.Rules()
    rules.register("relu")(lambda x: x)
    rules.register("relu", name="second")(lambda x: x)
    assert [rule.name for rule in rules["relu"]] == ["<lambda>", "second"]
    assert repr(rules) == "Rules(2 rules for 1 ops)"


def test_the_library_has_each_rule_once():
    assert len(set(decomp_rules.RULES)) == len(decomp_rules.RULES)
    conditions = [(rule.op, rule.function, rule.level, rule.forward_only) for rule in decomp_rules.RULES if rule.needs]
    assert len(set(conditions)) == len(conditions)


def test_one_function_can_serve_several_ops():
    rules = decomp.Rules()

    @rules.register("floor", "ceil")
    def rounded(x):
        return torch.trunc(x)

    assert len(rules) == 2 and rules.ops == {decomp.op("floor"), decomp.op("ceil")}


def test_a_plain_dict_is_a_collection():
    rules = as_rules({F.relu: lambda x: x, torch.add: [torch.mul, torch.sub]})
    assert [rule.name for rule in rules] == ["<lambda>", "mul", "sub"]
    assert as_rules(rules) is rules


def test_collections_compose():
    a = decomp.Rules({"relu": lambda x: x})
    b = decomp.Rules({"relu": lambda x: -x, "gelu": lambda x: x}, composites=True)
    assert [rule.function(1) for rule in (a | b)["relu"]] == [1, -1]
    assert [rule.function(1) for rule in (b | a)["relu"]] == [-1, 1]
    assert (a | b).composites and not a.composites
    assert len(a) == 1 and len((a | b) - a) == 2
    assert (b - {F.relu}).ops == {decomp.op("gelu")}
    assert len({"relu": lambda x: x} | a) == 2
    assert len(a | {"silu": lambda x: x}) == 2


def test_arguments_are_matched_by_name_in_any_order():
    rules = decomp.Rules()

    @rules.register(torch.ops.aten.batch_norm)
    def batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps):
        return x

    v = torch.rand(4)
    args, _ = accepted(rules, F.batch_norm, x, v, v + 1, v + 2, v + 3, False, 0.3, 1e-3)
    assert [a.tolist() for a in args[1:5]] == [(v + k).tolist() for k in (2, 3, 0, 1)]
    assert args[5:] == [False, 0.3, 1e-3]


def test_a_rule_of_a_python_function_has_its_order_and_its_texts():
    rules = decomp.Rules()

    @rules.register(F.mse_loss)
    def mse_loss(a, b, reduction="mean"):
        return a

    args, _ = accepted(rules, torch.ops.aten.mse_loss.default, x, x, 2)
    assert args == [x, x, "sum"]
    assert accepted(rules, F.mse_loss, x, x)[0][2] == "mean"


def test_rules_of_aten_get_numbers_for_texts():
    rules = decomp.Rules()
    rules.register(torch.ops.aten.mse_loss)(lambda a, b, reduction: a)
    assert accepted(rules, F.mse_loss, x, x, reduction="sum")[0][2] == 2


def test_lone_numbers_become_the_lists_of_the_schema():
    rules = decomp.Rules()
    rules.register(torch.ops.aten.sum)(lambda x, dim=None, keepdim=False, dtype=None: x)
    assert accepted(rules, torch.sum, x, 1)[0] == [x, [1], False, None]
    assert accepted(rules, torch.sum, x)[0] == [x, None, False, None]


def test_overloads_choose_among_alternatives():
    rules = decomp.Rules()
    rules.register(torch.ops.aten.max, name="dim")(lambda x, dim, keepdim=False: x)
    rules.register(torch.ops.aten.max, name="other")(lambda x, other: x)
    rules.register(torch.ops.aten.max, name="all")(lambda x: x)

    def chosen(*args):
        bound = bind_function(torch.max, args, {}, kind_of)
        return next(rule.name for rule in rules["max"] if not isinstance(rule.accept(bound), Declined))

    assert [chosen(x), chosen(x, 1), chosen(x, x)] == ["all", "dim", "other"]


def test_an_argument_that_a_rule_does_not_take_makes_it_decline():
    rules = decomp.Rules()
    rules.register("gelu")(lambda x: x)
    assert accepted(rules, F.gelu, x) == ([x], {})
    assert accepted(rules, F.gelu, x, approximate="none") == ([x], {})
    declined = Declined("does not take approximate='tanh'", applicable=False)
    assert accepted(rules, F.gelu, x, approximate="tanh") == declined


def test_an_option_of_another_name_is_not_taken_for_the_one_at_its_place():
    rules = decomp.Rules({F.gelu: F.relu})
    assert accepted(rules, F.gelu, x) == ([x, False], {})
    declined = Declined("does not take approximate='tanh'", applicable=False)
    assert accepted(rules, F.gelu, x, approximate="tanh") == declined


def test_an_argument_that_the_call_lacks_makes_it_decline():
    rules = decomp.Rules()
    rules.register("sum")(lambda x, dim: x)
    assert accepted(rules, torch.sum, x) == Declined("needs the argument dim, which the call lacks", applicable=False)


def test_arguments_that_change_no_value_do_not_matter():
    rules = decomp.Rules()
    rules.register("to")(lambda x, dtype: x)
    assert accepted(rules, "to", x, torch.float64, non_blocking=True)[0] == [x, torch.float64]


def test_a_builtin_as_a_rule_is_called_as_the_op_was():
    rules = decomp.Rules({torch.add: torch.mul})
    assert accepted(rules, operator.add, x, 2) == ([x, 2], {})
    args, kwargs = accepted(rules, torch.add, x, x, alpha=2)
    assert (args, kwargs) == ([x, x], {"alpha": 2})


def test_a_rule_with_the_wrong_arity_is_refused():
    rules = decomp.Rules()
    with pytest.raises(decomp.errors.RuleError) as caught:

        @rules.register(F.relu, name="relu")
        def relu(x, y):
            return x

    line = relu_line(caught.traceback)
    assert str(caught.value) == (
        f"rule relu (test_collection.py:{line}): takes (x, y), which matches no call of aten.relu (self)\n"
        "  to do: use the op's parameter names, and give defaults to parameters that not every call has"
    )
    with pytest.raises(decomp.errors.RuleError, match=r"takes \(\), which matches no call of aten.relu"):
        rules.register(F.relu)(lambda: x)
    assert len(rules) == 0


def relu_line(traceback):
    """The line of the decorator in the frame of the test."""
    return next(entry.lineno + 1 for entry in traceback if entry.name.startswith("test_a_rule_with"))


@pytest.mark.parametrize(
    "act, message",
    [
        (lambda rules: rules.register(), "register() needs an op: @rules.register(F.relu)"),
        (lambda rules: rules.register("relu")(3), "a rule must be a function over tensors, not 3"),
        (lambda rules: as_rules([1]), "rules= must be decomp.Rules or a dict of functions by op, not list"),
    ],
)
def test_misuse_is_explained(act, message):
    with pytest.raises(TypeError) as caught:
        act(decomp.Rules())
    assert str(caught.value) == message


def test_asking_for_a_rule_that_is_not_there():
    with pytest.raises(KeyError, match="no rule for aten.relu"):
        decomp.Rules()["relu"]


def test_registration_forgets_what_planning_remembered():
    rules = decomp.Rules()
    rules.memory["plan"] = 1
    rules.register("relu")(lambda x: x)
    assert not rules.memory


COMMANDS = "from decomp.tools.cli.app import COMMANDS, imported; [*map(imported, COMMANDS)]"
LOADING = ("import decomp_rules", COMMANDS, "decomp_rules.RULES")


@functools.cache
def loaded():
    """The modules that are loaded beyond torch after each statement of LOADING, in one fresh interpreter."""
    shows = "print(*sys.modules.keys() - before)"
    script = "\n".join(["import torch, sys", "before = set(sys.modules)", *(f"{line}; {shows}" for line in LOADING)])
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    return dict(zip(LOADING, map(set, map(str.split, shown.splitlines())), strict=True))


def test_the_library_registers_its_rules_on_first_use():
    assert not any(name.startswith("decomp_rules.nn.loss") for name in loaded()["import decomp_rules"])
    assert "decomp_rules.nn.loss" in loaded()["decomp_rules.RULES"]
    assert decomp_rules.RULES is decomp_rules.RULES and decomp_rules.RULES.composites
    with pytest.raises(AttributeError, match="module 'decomp_rules' has no attribute 'NOTHING'"):
        decomp_rules.NOTHING


def test_importing_the_library_loads_nothing_heavy():
    heavy = ("networkx", "sympy", "torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "rich")
    assert {name for name in loaded()["import decomp_rules"] if name.startswith(heavy)} == set()


def test_the_command_line_loads_what_exports_and_compiles_when_a_command_needs_it():
    heavy = ("networkx", "sympy", "torch._dynamo", "torch._inductor", "torch._export.serde", "matplotlib")
    assert {name for name in loaded()[COMMANDS] if name.startswith(heavy)} == set()


def test_no_family_is_forgotten():
    """Every module with rules is a family, or part of one, but those that are asked for by themselves."""
    root = Path(decomp_rules.__file__).parent.parent
    paths = {path.relative_to(root).with_suffix("") for path in root.glob("decomp_rules/**/*.py")}
    modules = {".".join(path.parts): (root / path.with_suffix(".py")).read_text() for path in paths}
    families = [name for name, text in modules.items() if "\nRULES = Rules(" in text]
    joined = {rule.function for rule in decomp_rules.RULES | collectives.RULES | packing.rules("scalar")}
    own = {name: {r.function for r in importlib.import_module(name).RULES} for name in families}
    assert [name for name, functions in own.items() if not functions <= joined] == []
