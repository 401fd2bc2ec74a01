"""Mutants: what is planted in a rule, what is not, and that a certificate tells one from the rule."""

from dataclasses import replace

import torch

import decomp
from decomp_rules import RULES
from tests.mutants.rule_mutants import Site, mutated, sites


def double_plus(x):
    return torch.add(x.clone().to(x.dtype) * 2, torch.full((), 1.0)) * 1


def changes(function, *args):
    found = []
    sites(function, found)(*args)
    return {str(site) for site in found if site.change != "negate"}


def test_casts_copies_and_neutral_operands_are_not_dropped():
    assert changes(double_plus, torch.ones(3)) == {
        "perturb 2 in mul number 0",
        "drop mul number 0",
        "perturb 1.0 in full number 0",
        "drop add number 0",
        "perturb 1 in mul number 1",
    }


def test_what_is_changed():
    x = torch.ones(3)
    assert mutated(double_plus, Site("mul", 0, "drop"))(x).tolist() == [2, 2, 2]
    assert mutated(double_plus, Site("mul", 0, "perturb", 1, 2))(x).tolist() == [4, 4, 4]
    assert mutated(double_plus, Site("full", 0, "perturb", 1, 1.0))(x).tolist() == [torch.tensor(3.26).item()] * 3
    assert mutated(double_plus, Site("mul", 0, "negate"))(x).tolist() == [-1, -1, -1]
    assert mutated(double_plus, Site("mul", 0, "perturb", 1, 3))(x).tolist() == [3, 3, 3]


def test_a_certificate_tells_a_mutant_from_the_rule():
    (rule,) = RULES.of(decomp.op("deg2rad"))
    (site,) = [site for site in changes_of(rule) if site.change == "perturb"]
    mutant = replace(rule, function=mutated(rule.function, site))
    measured = [decomp.certify(one, dtypes=[torch.float32]) for one in (rule, mutant)]
    assert measured[1].worse_than(measured[0]) and not measured[0].worse_than(measured[0])


def changes_of(rule):
    found = []
    sites(rule.function, found)(torch.ones(3))
    return found
