"""Limitations: declared beside the rules, composed with them, and reported wherever they block an op."""

import pytest
import torch
from torch import nn

import decomp
from decomp import Rules, Target

DATA = "the shape of the result depends on data"


class Nonzero(nn.Module):
    def forward(self, x):
        return torch.nonzero(x) + 1


class Uses(nn.Module):
    def forward(self, x):
        return torch.tanh(x)


def blockers(rules, to, module=None):
    with pytest.raises(decomp.NotLowered) as caught:
        decomp.lower(module or Uses(), to=to, rules=rules, args=(torch.ones(3),))
    return caught.value


def limited(*args, **kwargs):
    rules = Rules()
    rules.limit(*args, **kwargs)
    return rules


def test_the_error_prints_the_limitation():
    error = blockers(limited(torch.nonzero, reason=DATA), Target("chip", ["add"]), Nonzero())
    assert error.blockers[0].limitation == DATA
    assert f"      cannot be decomposed: {DATA}" in str(error).splitlines()
    assert "no rule is registered" not in str(error)


def test_it_is_found_behind_the_rules_that_lead_to_it():
    rules = limited("sinh", reason="nobody knows sinh")
    rules.register("tanh")(lambda x: torch.sinh(x) / torch.cosh(x))
    assert blockers(rules, Target("chip", ["div", "cosh"])).blockers[0].limitation == "nobody knows sinh"


def test_a_target_that_knows_what_is_needed_has_no_limitation():
    rules = limited("tanh", reason="no exponential", needs=["exp"])
    assert blockers(rules, Target("poor")).blockers[0].limitation == "no exponential"
    assert blockers(rules, Target("rich", ["exp"])).blockers[0].limitation is None


def test_when_says_which_calls_are_meant():
    rules = limited("tanh", reason="only short ones", when=lambda call: call.tensors[0].shape[0] == 4)
    assert blockers(rules, Target("chip")).blockers[0].limitation is None


def test_a_rule_that_reaches_the_target_wins_over_a_limitation():
    rules = limited("tanh", reason="hard")
    rules.register("tanh")(lambda x: x * 2)
    result = decomp.lower(Uses(), to=Target("chip", ["mul"]), rules=rules, args=(torch.ones(3),)).result
    assert result(torch.ones(3)).tolist() == [2, 2, 2]


def test_collections_carry_their_limitations():
    a, b = limited("tanh", reason="a"), limited("sinh", reason="b")
    assert [str(known) for known in (a | b).limitations] == ["aten.tanh: a", "aten.sinh: b"]
    assert [str(known) for known in ((a | b) - ["tanh"]).limitations] == ["aten.sinh: b"]
    assert (a | b) - b is not None and len(((a | b) - Rules()).limitations) == 2


def test_declaring_one_for_an_unknown_op_is_an_error():
    with pytest.raises(decomp.errors.UnknownOp):
        Rules().limit("nonzzero", reason=DATA)
