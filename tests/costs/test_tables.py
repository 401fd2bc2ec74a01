"""Costs from a file: what each entry means, and what is said of a wrong one."""

import pickle

import pytest
import torch
from torch import nn

import decomp
from decomp import costs
from tests.forms import exported

X = torch.ones(3, 4)


def price(table, function, *args):
    return costs.total(exported(function, *args), table)


def test_a_number_is_the_price_of_a_call_and_a_formula_adds_up():
    table = costs.table(
        {
            "exp": 300,
            "mul": {"per_call": 100, "per_element": 0.25},
            "mm": {"per_call": 1, "per_flop": 0.5, "per_byte": 2},
            "sum.dim_IntList": 7,
            "sum": 8,
        }
    )
    assert price(table, torch.exp, X) == 300
    assert price(table, lambda x: x * x, X) == 103
    assert price(table, torch.mm, X, torch.ones(4, 5)) == 1 + 0.5 * 120 + 2 * (48 + 80 + 60)
    assert price(table, lambda x: x.sum(1), X) == 7
    assert price(table, lambda x: torch.ops.aten.sum.default(x), X) == 8


def test_the_default_is_for_ops_without_an_entry_and_a_view_is_free():
    assert price(costs.table({"default": 2, "exp": 3}), lambda x: torch.exp(x).permute(1, 0) + 1, X) == 5
    assert price(costs.table({"default": 2, "permute": 1}), lambda x: x.permute(1, 0), X) == 1


def test_an_op_without_a_price_is_an_error_that_names_it():
    with pytest.raises(decomp.DecompError) as caught:
        price(costs.table({"exp": 3}), torch.sin, X)
    assert str(caught.value) == (
        "the table has no price for aten.sin\n  to do: add it to [costs], or a 'default' for all others"
    )


FORMULA = "{ per_call = …, per_element = …, per_flop = …, per_byte = … }"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[costs]\nexq = 1", "[costs]: unknown op 'exq'; did you mean 'eq'"),
        ('[costs]\nexp = "cheap"', f"[costs] exp: must be a number, or {FORMULA}, not 'cheap'"),
        ("[costs]\nexp = true", f"[costs] exp: must be a number, or {FORMULA}, not True"),
        ("[costs]\nexp = -1", "[costs] exp: must be finite and not negative, not -1"),
        ("[costs]\nexp = nan", "[costs] exp: must be finite and not negative, not nan"),
        ("[costs]\ndefault = inf", "[costs] default: must be finite and not negative, not inf"),
        (
            "[costs]\nexp = { per_cal = 1 }",
            "[costs] exp: unknown key 'per_cal'; known keys are per_call, per_element, per_flop, per_byte",
        ),
        ('[costs]\nexp = { per_call = "1" }', "[costs] exp.per_call: must be a number, not '1'"),
        ("[costs]\nexp = { per_byte = -0.5 }", "[costs] exp.per_byte: must be finite and not negative, not -0.5"),
        ("costs = 3", "'costs' must be a table: [costs]"),
    ],
)
def test_a_wrong_entry_is_reported_with_its_file_and_key(tmp_path, text, said):
    path = tmp_path / "npu.toml"
    path.write_text(text)
    for read in (costs.table, decomp.Target.load):
        with pytest.raises(decomp.errors.TargetError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: {said}")
    assert isinstance(caught.value, decomp.errors.UnknownOp) == ("unknown op" in said)


def test_a_missing_or_malformed_file_or_one_without_prices(tmp_path):
    path = tmp_path / "npu.toml"
    with pytest.raises(decomp.errors.TargetError, match="cannot be read: No such file"):
        costs.table(path)
    path.write_text("name = ")
    with pytest.raises(decomp.errors.TargetError, match="not valid TOML"):
        costs.table(path)
    path.write_text('name = "npu"')
    with pytest.raises(decomp.errors.TargetError, match=r"npu.toml: has no \[costs\]"):
        costs.table(path)


TARGET = """
name = "npu"
ops = ["add", "mul", "exp", "sin"]
[costs]
default = 1
sin = 20
"""


def test_a_target_has_the_prices_of_its_file_and_keeps_them(tmp_path):
    path = tmp_path / "npu.toml"
    path.write_text(TARGET)
    npu = decomp.Target.load(path)
    assert npu.costs == costs.table(path)
    assert repr(npu.costs) == "decomp.costs.table('npu.toml')"
    kept = [
        npu | ["cos"],
        npu - ["mul"],
        npu & ["mul"],
        npu.legal_if("mul", lambda call: True, "any"),
        pickle.loads(pickle.dumps(npu)),
    ]
    assert [target.costs for target in kept] == [npu.costs] * 5
    assert npu.with_costs(None).costs is None
    assert decomp.Target("chip", ["add"]).costs is None


def test_the_ways_are_chosen_by_the_table():
    rules = decomp.Rules()
    rules.register("tanh", name="by sin")(lambda x: torch.sin(x))
    rules.register("tanh", name="by exp")(lambda x: torch.exp(x) * 2 + 1)
    chip = decomp.Target("chip", ["add", "mul", "exp", "sin"])

    def chosen(cost):
        (derived,) = decomp.plan(nn.Tanh(), to=chip, rules=rules, args=(X,), cost=cost).derived.values()
        return derived.rule.name

    assert chosen(costs.calls) == "by sin"
    assert chosen(costs.table({"default": 1, "sin": 20})) == "by exp"
    assert chosen(costs.table({"default": {"per_byte": 1}, "sin": 20})) == "by sin"
