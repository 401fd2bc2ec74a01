"""Levels of accuracy that are picked so that a program loses no more than it may, and cost as little as they can."""

import math

import pytest
import torch
from torch import nn

import decomp

CHIP = decomp.Target("chip", ["add", "mul", "sin", "cos"])
X = torch.linspace(-1, 1, 64).reshape(8, 8)


def leveled():
    """Two ops, each in a way of one call that is off by some, and in ways of more calls that are off by less."""
    rules = decomp.Rules()
    rules.register("tanh", level="exact", name="tanh exact")(lambda x: torch.sin(x) * 2 * 0.5 + 0)
    rules.register("tanh", level="standard", name="tanh standard")(lambda x: torch.sin(x) * (1 + 1e-6) + 0)
    rules.register("tanh", level="fast", name="tanh fast")(lambda x: torch.sin(x) * (1 + 1e-4))
    rules.register("erf", level="exact", name="erf exact")(lambda x: torch.cos(x) * 2 * 0.5 + 0)
    rules.register("erf", level="fast", name="erf fast")(lambda x: torch.cos(x) * (1 + 1e-6))
    return rules


class Program(nn.Module):
    """Its tanh and erf are those of the rules: what they lose is what their rules are off by."""

    def forward(self, x):
        return torch.tanh(x) * 0.5 + torch.erf(x) * 0.25


@pytest.fixture
def experiment(monkeypatch):
    """PyTorch's own tanh is the sine here, and its erf the cosine, so that rules of few calls may be exact."""
    from decomp.validation import error_sources

    meant = {torch.ops.aten.tanh.default: torch.sin, torch.ops.aten.erf.default: torch.cos}
    original = error_sources.call_node

    def call_node(node, root, args, kwargs):
        return meant[node.target](*args) if node.target in meant else original(node, root, args, kwargs)

    monkeypatch.setattr(error_sources, "call_node", call_node)


def picked(max_error, **how):
    lowering = decomp.lower(Program(), to=CHIP, rules=leveled(), args=(X,), max_error=max_error, **how)
    return {op.short: level for op, level in lowering.picked.levels.items()}, lowering


@pytest.mark.parametrize(
    ("max_error", "levels", "calls"),
    [
        (1e6, {"tanh": "fast", "erf": "fast"}, 2 + 2 + 3),
        (100, {"tanh": "standard", "erf": "fast"}, 3 + 2 + 3),
        (2.0, {"tanh": "exact", "erf": "exact"}, 4 + 4 + 3),
    ],
)
def test_the_cheapest_levels_within_the_error(experiment, max_error, levels, calls):
    found, lowering = picked(max_error)
    assert found == levels
    assert len(decomp.calls(lowering.result)) == calls
    assert 0 < lowering.picked.growth <= max_error


def test_the_report_says_what_was_picked(experiment):
    _, lowering = picked(100)
    said = lowering.report().picked
    assert said.endswith(" times the program's own, of 100 allowed; picked: erf fast, tanh standard")
    assert "  error       " in str(lowering.report())
    assert lowering.report().as_dict()["picked"] == said
    assert "levels" in lowering.report().seconds
    assert lowering.accuracy.level(decomp.op("tanh")) == "standard"


def test_a_level_that_the_user_names_is_kept(experiment):
    found, lowering = picked(1e6, accuracy={"tanh": "exact"})
    assert found == {"erf": "fast"}
    assert lowering.accuracy.level(decomp.op("tanh")) == "exact"


def test_the_user_s_cost_decides_what_is_cheap(experiment):
    found, _ = picked(1e6, cost=decomp.costs.table({"default": 1, "mul": {"per_call": 1}}))
    assert found == {"tanh": "fast", "erf": "fast"}


def test_what_no_level_reaches_is_an_error_that_names_the_worst(experiment):
    rules = leveled() - ["erf"] | {"erf": lambda x: torch.cos(x) * 1.01}
    with pytest.raises(decomp.DecompError) as caught:
        decomp.lower(Program(), to=CHIP, rules=rules, args=(X,), max_error=2.0)
    text = str(caught.value)
    assert text.startswith("with the most accurate rules the error of the program is ")
    assert "times its own, and 2 times is allowed\n  most of it comes from erf (" in text
    assert text.endswith("  to do: allow more, or keep= these ops")


def test_without_max_error_nothing_is_measured():
    lowering = decomp.lower(Program(), to=CHIP, rules=leveled(), args=(X,))
    assert lowering.picked is None and lowering.report().picked == ""


def test_it_needs_inputs():
    with pytest.raises(decomp.DecompError, match="pass args="):
        decomp.lower(Program(), to=CHIP, rules=leveled(), max_error=2.0)


@pytest.mark.parametrize("wrong", [0, -1.0, math.inf, math.nan, True, "2"])
def test_a_factor_is_a_number_above_zero(wrong):
    with pytest.raises(decomp.errors.ArgumentError) as caught:
        decomp.lower(Program(), to=CHIP, rules=leveled(), args=(X,), max_error=wrong)
    assert str(caught.value) == f"max_error= must be a number above 0, not {wrong!r}; 1.0 is as accurate as PyTorch"


def test_a_model_keeps_what_is_promised():
    from decomp_rules import samples, targets

    module, args = samples.model("gpt")
    lowering = decomp.lower(module, to=targets.tinygrad, args=args, max_error=1.5)
    budget = decomp.budget(module, to=targets.tinygrad, args=args, accuracy=lowering.accuracy)
    assert budget.growth == pytest.approx(lowering.picked.growth, rel=1e-6) and budget.growth <= 1.5
