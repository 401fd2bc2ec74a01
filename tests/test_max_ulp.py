"""`max_ulp=`: the cheapest alternative, of any level, whose certificate is within this many ULP."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import decomp
from decomp.rules.certificate import Certificate, Figures, Implementation
from decomp.rules.certificates import identity
from tests.tools.certification.certified_rules import LEVELS as RULES

CHIP = decomp.Target("chip", ["exp2", "mul", "add", "reciprocal", "full"])
X = torch.linspace(-3, 3, 16)


def way(level, ulp, own=0.5, name="chip"):
    return Implementation(name, "measured", values={"float32": Figures(9, ulp, 0.1, own_max=own)}, level=level)


@pytest.fixture
def certified(monkeypatch):
    """Sets the certificates of rules, by name."""

    def set_to(**found):
        kept = {rule: Certificate(identity(rule), ways=tuple(found[rule.name])) for rule in RULES if rule.name in found}
        monkeypatch.setattr("decomp.derive.alternatives.certificate_of", kept.get)

    return set_to


class Exp(nn.Module):
    def forward(self, x):
        return torch.exp(x)


def calls(model=Exp(), to=CHIP, **options):
    rules = decomp.Rules(RULES)
    lowered = decomp.lower(model, to=to, args=(X,), rules=rules, **options).result
    return [node.target.__name__.partition(".")[0] for node in lowered.graph.nodes if node.op == "call_function"]


ROOT, PRODUCT = ["mul", "exp2", "mul"], ["mul", "exp2"]


def test_the_cheapest_within_the_limit_is_taken(certified):
    certified(exp_as_square=[way("exact", 2.0)], exp_of_product=[way("fast", 7.2)])
    assert calls(max_ulp=4) == ROOT
    assert calls(max_ulp=8) == PRODUCT
    assert calls(max_ulp={"exp": 8}) == calls(max_ulp={...: 8}) == calls(max_ulp={"exp": 8, ...: 1}) == PRODUCT
    assert calls(max_ulp={"sin": 8}, accuracy="exact") == ROOT


def test_pytorchs_own_error_is_allowed(certified):
    certified(exp_as_square=[way("exact", 2.0)], exp_of_product=[way("fast", 7.2, own=8.0)])
    assert calls(max_ulp=4) == PRODUCT


def test_on_a_target_of_the_users_own_the_worst_of_those_that_were_measured_counts(certified):
    both = [way("fast", 3.0, name="a"), way("fast", 9.0, name="b")]
    certified(exp_as_square=[way("exact", 2.0)], exp_of_product=both)
    assert calls(max_ulp=8) == ROOT
    assert calls(max_ulp=9) == PRODUCT


def test_where_nothing_is_within_the_limit_the_error_says_what_to_write(certified):
    certified(exp_as_square=[way("exact", 12.5)], exp_of_product=[way("fast", 7.2)])
    with pytest.raises(decomp.NotLowered, match=r"the most accurate rule has 7\.2 ULP: max_ulp=\{'exp': 8\}"):
        calls(max_ulp=4)
    certified(exp_as_square=[way("exact", 12.5)])
    assert calls(max_ulp=4) == PRODUCT  # which has no certificate, and is its author's responsibility


def test_what_a_rule_without_a_certificate_calls_is_held_to_the_limit(certified):
    certified(exp_as_square=[way("exact", 2.0)], exp_of_product=[way("fast", 7.2)])
    assert calls(nn.Sigmoid(), max_ulp=4) == ["mul", *ROOT, "add", "reciprocal"]
    assert calls(nn.Sigmoid(), max_ulp=8) == ["mul", *PRODUCT, "add", "reciprocal"]


def test_a_plan_for_one_limit_is_not_reused_for_another(certified):
    certified(exp_as_square=[way("exact", 2.0)], exp_of_product=[way("fast", 7.2)])
    rules = decomp.Rules(RULES)
    found = [decomp.lower(Exp(), to=CHIP, args=(X,), rules=rules, max_ulp=ulp).result for ulp in (4, 8, 4)]
    assert [len(each.graph.nodes) for each in found] == [5, 4, 5]


def test_plan_decompose_and_backend_take_it_too(certified):
    certified(exp_as_square=[way("exact", 2.0)], exp_of_product=[way("fast", 7.2)])
    rules = decomp.Rules(RULES)
    assert "exp_of_product" in str(decomp.plan(Exp(), to=CHIP, args=(X,), rules=rules, max_ulp=8))
    assert "exp2" in str(decomp.decompose(Exp(), rules, args=(X,), max_ulp=8).graph)
    compiled = torch.compile(Exp(), backend=decomp.backend(CHIP, rules=rules, max_ulp=8))
    torch.testing.assert_close(compiled(X), torch.exp(X), rtol=1e-5, atol=0)


def test_wrong_limits_are_refused():
    with pytest.raises(decomp.errors.ArgumentError, match="max_ulp= must be ULP, a number above 0"):
        calls(max_ulp=0)
    with pytest.raises(decomp.errors.ArgumentError, match="pass only one of the two"):
        calls(max_ulp=4, max_error=1.0)


def test_a_way_with_wrong_values_is_within_no_limit():
    wrong = Implementation("chip", "measured", values={"float32": Figures(9, 1.0, 0.1, mismatches=1, own_max=0.5)})
    one = Certificate("rule", ways=(wrong,))
    assert one.error_on("chip", "exact", "float32") == float("inf")
    assert one.error_on("chip", "fast", "float32") is None


def test_a_limit_is_planned_without_the_tools():
    """The planner reads the committed certificates by itself."""
    program = (
        "import sys, torch, decomp; from decomp_rules import targets\n"
        "plan = decomp.plan(torch.nn.GELU(), to=targets.tinygrad, args=(torch.ones(3),), max_ulp=64)\n"
        "print(plan.complete, 'decomp.rules.certificate' in sys.modules, 'decomp.tools' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown.split() == ["True", "True", "False"]
