"""Committed certificates: how they are kept, and that they are true of the rules as they are now."""

import json
import random

import pytest
import torch

import decomp
from decomp.results import Certificate
from decomp.rules.certificates import identity
from decomp.tools.certification import certificates
from decomp_rules import RULES, targets

SEED, EVERY = 2026, 150
"""One rule in so many is measured again with `--whole`, and of these two otherwise."""


REFERENCE = next(iter(certificates.read_committed().values())).torch
of_the_reference = pytest.mark.skipif(
    torch.__version__.partition("+")[0] != REFERENCE,
    reason=f"certificates are of torch {REFERENCE}, and other versions have other rules",
)


def committed_rules():
    found = certificates.read_committed()
    named = [(rule, found.get(identity(rule))) for rule in RULES]
    return [(rule, one) for rule, one in named if one is not None and not one.error]


@of_the_reference
def test_every_rule_has_a_certificate_and_each_is_of_the_rule_as_it_is():
    found = certificates.read_committed()
    stale = {identity(rule): why for rule in RULES if (why := certificates.why_stale(rule, found.get(identity(rule))))}
    assert not stale, (
        f"{len(stale)} certificates are stale, the first that of {next(iter(stale.items()))}; to do: "
        "decomp certify --stale --update"
    )


@of_the_reference
def test_no_certificate_is_left_of_a_rule_that_is_gone():
    assert certificates.read_committed().keys() <= {identity(rule) for rule in RULES}


def sampled():
    rules = committed_rules()
    return random.Random(SEED).sample(rules, len(rules) // EVERY)


@of_the_reference
@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore")  # PyTorch's own about calls that it refuses; a measurement goes on
@pytest.mark.parametrize("rule, before", sampled(), ids=lambda value: value.name if hasattr(value, "op") else "")
def test_a_sampled_certificate_is_still_true(rule, before):
    """With another seed of the sample, other rules: SEED is above."""
    to = [targets.get(name) for name in certificates.TARGETS]
    now = decomp.certify(rule, to=to)
    assert not now.worse_than(before), f"decomp certify {rule.name} --update, if it is meant"


# how they are kept


@pytest.fixture
def two():
    rules = RULES["gelu"][0], RULES["mm"][0]
    return [Certificate(identity(rule), str(i), "2.13.0", 0, "here") for i, rule in enumerate(rules)]


def test_a_family_is_a_file_sorted_and_written_only_if_it_changes(tmp_path, two):
    written = certificates.commit(two, tmp_path)
    assert sorted(path.name for path in written) == sorted({f"{certificates.family(one.rule)}.jsonl" for one in two})
    assert certificates.read_committed(tmp_path) == {one.rule: one for one in two}
    assert certificates.commit(reversed(two), tmp_path) == []


def test_new_certificates_replace_old_ones_and_leave_the_others(tmp_path, two):
    certificates.commit(two, tmp_path)
    newer = Certificate(two[0].rule, "9", "2.13.0", 0, "there")
    (path,) = certificates.commit([newer], tmp_path)
    found = certificates.read_committed(tmp_path)
    assert found[newer.rule] == newer and found[two[1].rule] == two[1]
    (line,) = path.read_text().splitlines()
    assert list(json.loads(line)) == sorted(json.loads(line))


def test_certificates_of_rules_that_are_gone_are_dropped(tmp_path, two):
    gone = Certificate("decomp_rules.gone:rule for aten.gone", "1", "2.13.0", 0, "here")
    certificates.commit([*two, gone], tmp_path)
    assert gone.rule not in certificates.read_committed(tmp_path)


def test_a_file_that_holds_something_else_is_named(tmp_path):
    (tmp_path / "wrong.jsonl").write_text('{"hash": 3}')
    with pytest.raises(ValueError, match="wrong.jsonl:1 is not a certificate"):
        certificates.read_committed(tmp_path)


def test_a_certificate_is_stale_when_the_rule_or_one_on_the_way_has_changed():
    rule = RULES["mm"][0]
    fresh = decomp.certify(rule, to=targets.tinygrad, dtypes=(torch.float32,))
    assert certificates.why_stale(rule, fresh) == ""
    assert certificates.why_stale(rule, None) == "there is no certificate"
    changed = Certificate.from_json({**fresh.to_json(), "hash": "0"})
    assert certificates.why_stale(rule, changed) == "the rule has changed since"
    data = fresh.to_json()
    data["ways"][1]["hash"] = "0"
    assert (
        certificates.why_stale(rule, Certificate.from_json(data)) == "a rule on the way to tinygrad has changed since"
    )


def test_a_rule_that_is_computed_on_pairs_of_real_numbers_is_measured():
    (rule,) = (each for each in RULES["fft_irfft"] if each.name == "irfft")
    way = decomp.certify(rule, to=[targets.tinygrad]).ways[-1]
    assert way.name == "tinygrad" and way.verdict == "measured" and way.values
