"""What an expansion depends on beside its call, and what of it is the user's own."""

from __future__ import annotations

import functools
import os
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.cache import fingerprints
from decomp.cache.fingerprints import NoFingerprint, Origins, fingerprint
from decomp_rules import RULES, targets

CHIP = targets.tinygrad
X = torch.ones(2, 6)
pytestmark = pytest.mark.usefixtures("place")


def lowered(model=None, rules=None, to=CHIP):
    """Lowered as another process would, which remembers nothing."""
    rules = decomp.Rules(RULES.entries) if rules is None else rules
    return decomp.lower(nn.GELU() if model is None else model, to=to, args=(X,), rules=rules)


def test_the_cost_counts():
    with_cost = fingerprint(RULES, CHIP, "aten", decomp.costs.calls)
    assert None is not with_cost != fingerprint(RULES, CHIP, "aten", None)


def factory(number):
    def rule(x):
        return x * number

    return rule


def names_of(*collections, to=CHIP):
    return [Origins.of(rules, to).name(rules, to, "aten", None) for rules in collections]


def test_what_a_rule_with_a_version_closes_over_counts_and_so_does_the_version():
    given = [(1.0, "1"), (2.0, "1"), (1.0, "2"), (1.0, "1")]
    one, two, other, again = names_of(*(decomp.Rules({F.gelu: factory(k)}, version=word) for k, word in given))
    assert None not in (one, two, other) and one == again and len({one, two, other}) == 3


def test_a_rule_without_a_version_is_run_in_each_process_and_what_makes_no_use_of_it_is_not(place):
    def rules(k):
        return decomp.Rules({F.hardswish: factory(k)}) | RULES

    class Both(nn.Module):
        def forward(self, x):
            return F.hardswish(x), F.gelu(x)

    first, second = lowered(Both(), rules(2.0)), lowered(Both(), rules(3.0))
    assert first.report().runs > second.report().runs == 1
    assert torch.equal(first.result(X)[0], 2 * X) and torch.equal(second.result(X)[0], 3 * X)
    assert fingerprint(rules(2.0), CHIP, "aten", None) is None
    only = decomp.Rules({F.gelu: factory(2.0)})
    assert [lowered(nn.GELU(), decomp.Rules(only.entries)).report().runs for _ in range(2)] == [1, 1]


def test_what_leads_to_an_op_with_a_rule_without_a_version_is_not_kept():
    """The library's rule for hardswish calls hardsigmoid here, which is the user's."""

    def rules(k):
        through = decomp.Rules({F.hardswish: lambda x: x * F.hardsigmoid(x)}, version="1")
        return through | {F.hardsigmoid: factory(k)} | RULES

    low = [lowered(nn.Hardswish(), rules(k)) for k in (2.0, 3.0)]
    assert [each.result(2 * X)[0, 0].item() for each in low] == [8.0, 12.0]


def wrapped(function):
    @functools.wraps(function)
    def changed(x):
        return function(x) * F.SCALE if hasattr(F, "SCALE") else function(x)

    return changed


class Twice:
    def rule(self, x):
        return x * 2


def test_only_functions_of_the_library_are_known_without_a_version():
    from decomp_rules.pointwise.activation import RULES as own

    known = own[F.relu][0].function
    assert Origins.of(decomp.Rules({F.relu: known}), CHIP).own == ()
    for function in (wrapped(known), Twice().rule, functools.partial(factory(2.0)), functools.partial(known), F.gelu):
        own = Origins.of(decomp.Rules({F.relu: function}), CHIP).own
        assert len(own) == (
            function not in (F.gelu,) and not (isinstance(function, functools.partial) and function.func is known)
        )


def test_rules_that_close_over_more_than_data_are_not_kept(place):
    assert Origins.of(decomp.Rules({F.gelu: factory(object())}, version="1"), CHIP).own
    weight = torch.ones(6)
    rules = decomp.Rules({F.gelu: lambda x: x * weight}, version="1")
    for _ in range(2):
        assert lowered(nn.GELU(), decomp.Rules(rules.entries)).report().runs > 0
    assert not place.exists()


def test_rules_without_source_are_not_kept():
    space = {}
    exec("def rule(x):\n    return x * 2", space)
    assert Origins.of(decomp.Rules({F.gelu: space["rule"]}, version="1"), CHIP).own == (space["rule"],)


def test_a_version_is_a_text():
    message = 'version= must be a string such as "1.3", not 1.3'
    with pytest.raises(decomp.errors.ArgumentError, match=f"^{re.escape(message)}$"):
        decomp.Rules(version=1.3)


def test_a_file_that_has_changed_since_it_was_imported_is_not_kept(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n")
    os.utime(path, (fingerprints._STARTED + 5,) * 2)
    with pytest.raises(NoFingerprint):
        fingerprints._code_of_file(str(path))


def test_what_depends_on_a_condition_of_the_users_is_not_kept():
    model = nn.Sequential(nn.GELU(), nn.Softmax(-1))

    def run(allowed):
        return lowered(model, to=CHIP.legal_if("gelu", lambda call: allowed, "the switch is on"))

    first, second, third, fourth = map(run, (True, True, False, False))
    assert first.report().runs > second.report().runs == 0 and third.report().runs > 0 and fourth.report().runs > 0
    assert [str(each.result.graph).count("aten.gelu") for each in (first, second, third, fourth)] == [1, 1, 0, 0]


def test_conditions_of_files_and_of_the_librarys_targets_are_known(tmp_path):
    (tmp_path / "chip.toml").write_text('name = "chip"\nops = ["mul"]\n[[when]]\nop = "mul"\nresult = "float32"\n')
    for target in (decomp.Target.load(tmp_path / "chip.toml"), *map(targets.get, targets.names())):
        assert Origins.of(RULES, target).own == (), target
