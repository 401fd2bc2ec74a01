"""The cost of accuracy on a target: errors against calls, from certificates."""

import pytest
from typer.testing import CliRunner

import decomp
from decomp.rules.certificate import Certificate, Figures, Implementation
from decomp.rules.certificates import identity
from decomp.tools.certification import fronts
from decomp.tools.cli.app import app
from decomp_rules import RULES, targets


def way(level, ulp, calls, name="tinygrad", verdict="measured", mismatches=0):
    values = {"float32": Figures(9, ulp, 0.1, mismatches=mismatches, own_max=0.5)}
    cost = {"calls": calls, "flops": 8, "bytes": 64} if calls else {}
    return Implementation(name, verdict, values=values, level=level, cost=cost)


def certificate(rule, *ways):
    return {identity(rule): Certificate(identity(rule), ways=ways)}


@pytest.fixture
def rule():
    return next(rule for rule in RULES["sigmoid"] if rule.level == "exact" and "pointwise" in identity(rule))


@pytest.fixture
def found(rule):
    ways = way("exact", 1.2, 44), way("standard", 2.3, 17), way("fast", 9.0, 17), way("fast", 1.0, 3, name="luminal")
    return fronts.front([rule], targets.tinygrad, certificate(rule, *ways))


def test_the_front_is_what_no_other_way_beats(found):
    assert [choice.level for choice in found.choices] == ["exact", "standard", "fast"]
    assert [choice.level for choice in found.best] == ["exact", "standard"]
    assert found.beaten_by(found.choices[2]) is found.choices[1] and found.beaten_by(found.choices[0]) is None


def test_ways_that_are_equally_good_both_stay(rule):
    ways = way("standard", 2.0, 9), way("fast", 2.0, 9)
    assert len(fronts.front([rule], targets.tinygrad, certificate(rule, *ways)).best) == 2


def test_a_certificate_that_does_not_say_what_its_way_costs_is_no_matter(rule):
    (choice,) = fronts.front([rule], targets.tinygrad, certificate(rule, way("exact", 1.2, None))).choices
    assert 10 < choice.calls < 100


def test_ways_with_wrong_values_and_other_targets_are_left_out(rule):
    ways = way("exact", 1.2, 9, mismatches=3), way("exact", 1.2, 9, name="luminal")
    with pytest.raises(decomp.errors.ArgumentError, match="no rule for aten.sigmoid has a certificate for tinygrad; "):
        fronts.front([rule], targets.tinygrad, certificate(rule, *ways))


def test_the_command_shows_and_draws_it(rule, tmp_path, monkeypatch):
    ways = way("exact", 1.2, 44), way("standard", 2.3, 17), way("fast", 9.0, 17)
    monkeypatch.setattr("decomp.rules.certificates.read_committed", lambda: certificate(rule, *ways))
    shown = CliRunner().invoke(app, ["rules", "sigmoid", "--to", "tinygrad", "--plot", str(tmp_path / "front.png")])
    assert shown.exit_code == 0, shown.output
    assert "aten.sigmoid on tinygrad: 2 of 3 rules are worth using" in shown.output
    assert f"{rule.name}, standard" in shown.output
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")
    assert CliRunner().invoke(app, ["rules", "--to", "tinygrad"]).exit_code == 2
