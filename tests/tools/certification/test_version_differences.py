"""What differs between a certificate and the same rule measured with another PyTorch, and which side changed."""

from dataclasses import replace

import torch

import decomp
from decomp.results import Certificate
from decomp.rules.certificate import Figures, Implementation, Mismatch
from decomp.tools.certification.version_differences import recurs, version_differences

PROGRAMS = {"as written": "1", "core_aten": "2", "tinygrad": "3"}


def certificate(**changed):
    """A certificate with three programs of different rules; `changed` has fields of the programs by name, or of all."""
    measured = {"verdict": "measured", "values": {"float32": Figures(9, 1.0, 0.5, "0", 0.5, 0.1)}}
    measured["gradients"] = {"float32": Figures(9, 1.0, 0.5, "0", 0.5, 0.1)}
    everywhere = changed.pop("everywhere", {})
    ways = [
        Implementation(name, **{"hash": code, **measured, **everywhere, **changed.get(name.replace(" ", "_"), {})})
        for name, code in PROGRAMS.items()
    ]
    return Certificate("here:rule for aten.relu", ways=tuple(ways))


def wrong(count):
    return {"float32": Figures(9, 1.0, 0.5, "0", 0.5, 0.1, count, (Mismatch("nan", "0.5", "nan"),) if count else ())}


def said(now, then=None, stale=""):
    return [str(each) for each in version_differences(now, then or certificate(), stale)]


def test_nothing_differs_that_repeated_measurements_explain():
    close = {"values": {"float32": Figures(9, 1.4, 0.9, "1", 0.9, 0.4)}}
    assert said(certificate()) == said(certificate(everywhere=close)) == []


def test_rounding_that_the_kernel_does_not_explain_is_the_rules():
    worse = {"values": {"float32": Figures(9, 30.0, 0.9, "1", 0.5, 0.1)}}
    assert said(certificate(tinygrad=worse)) == [
        "rule: tinygrad: values in float32: 30 ULP at 1, where there were 1 "
        "(the kernel's own error does not explain it)"
    ]


def test_a_larger_error_of_the_kernel_is_the_kernels_and_excuses_the_rule():
    both = {"values": {"float32": Figures(9, 30.0, 0.9, "1", 40.0, 9.0)}}
    assert said(certificate(everywhere=both)) == [
        "kernel: values in float32: 40 ULP, where there were 0.5 (its own error changed)"
    ]


def test_a_smaller_error_of_the_kernel_is_a_change_too():
    before = certificate(everywhere={"gradients": {"float32": Figures(9, 1.0, 0.5, "0", 70.0, 9.0)}})
    assert said(certificate(), before) == [
        "kernel: gradients in float32: 0.5 ULP, where there were 70 (its own error changed)"
    ]


def test_a_rule_that_is_worse_beside_a_kernel_that_changed_is_reported_as_well():
    both = {"values": {"float32": Figures(9, 90.0, 0.9, "1", 40.0, 9.0)}}
    assert [each.cause for each in version_differences(certificate(everywhere=both), certificate())] == [
        "kernel",
        "rule",
    ]


def test_what_all_programs_of_a_rule_contradict_is_the_kernel():
    assert said(certificate(everywhere={"gradients": wrong(24)})) == [
        "kernel: as written: gradients in float32: 24 wrong, where there were 0, 0.5 instead of nan at nan "
        "(3 programs of the rule agree with each other, and none with the kernel)"
    ]


def test_what_one_program_contradicts_alone_is_the_rules():
    assert said(certificate(core_aten={"gradients": wrong(24)})) == [
        "rule: core_aten: gradients in float32: 24 wrong, where there were 0, 0.5 instead of nan at nan "
        "(as written and tinygrad: agrees with the kernel as before)"
    ]


def test_one_program_alone_does_not_accuse_the_kernel():
    now, before = certificate(everywhere={"gradients": wrong(24)}), certificate()
    (difference,) = said(replace(now, ways=now.ways[:1]), before)
    assert difference.startswith("rule: ")
    assert difference.endswith("(no other program of it tells the kernel's part)")


def test_programs_of_the_same_rules_are_one_witness():
    everywhere = {"hash": "1"}
    now = certificate(everywhere={"gradients": wrong(24), **everywhere})
    (difference,) = said(now, certificate(everywhere=everywhere))
    assert difference.endswith("(no other program of it tells the kernel's part)")


def test_verdicts_on_integers_have_witnesses_too():
    differ = {"dtypes": {"int64": "3 of 9 differ: 1 instead of 2 at 0"}}
    before = certificate(everywhere={"dtypes": {"int64": "equal"}})
    assert [each.cause for each in version_differences(certificate(everywhere=differ), before)] == ["kernel"]
    some = certificate(everywhere={"dtypes": {"int64": "equal"}}, tinygrad=differ)
    assert [each.cause for each in version_differences(some, before)] == ["rule"]


def test_what_the_kernel_has_nothing_to_do_with_is_the_rules():
    before = certificate(everywhere={"notes": {"dynamic shapes": "traces"}})
    now = certificate(everywhere={"notes": {"dynamic shapes": "adds a guard on sizes"}})
    assert said(now, before) == [
        "rule: as written: dynamic shapes: adds a guard on sizes (this is a property of the rule alone)"
    ]


def test_gradients_that_the_kernel_has_now_are_a_change_of_it():
    assert said(certificate(), certificate(everywhere={"gradients": {}})) == [
        "kernel: gradients in float32: here, while there were none (the rule is the same)"
    ]


def test_a_program_where_the_op_was_legal_is_not_worse():
    legal = certificate(tinygrad={"verdict": "legal", "values": {}, "gradients": {}})
    assert said(certificate(), legal) == said(legal) == []
    (lost,) = said(certificate(tinygrad={"verdict": "not reached", "reason": "needs exp2"}), legal)
    assert lost == "rule: tinygrad: not reached: needs exp2 (this is a property of the rule alone)"


def test_of_changed_code_whatever_is_worse_is_the_rules():
    now = certificate(everywhere={"gradients": wrong(24)})
    (difference,) = version_differences(now, certificate(), "the rule has changed since")
    assert (difference.cause, difference.why) == ("rule", "the rule has changed since")


def test_a_rule_that_cannot_be_measured_is_worse():
    now = Certificate("here:rule for aten.relu", error="crashes: SIGSEGV")
    assert said(now) == ["rule: crashes: SIGSEGV (it could not be measured here)"]
    assert said(certificate(), now) == said(now, now) == []


def test_a_difference_recurs_in_the_same_quantity_for_the_same_cause():
    (rounding,) = version_differences(
        certificate(tinygrad={"values": {"float32": Figures(9, 30.0, 0.9, "1", 0.5, 0.1)}}), certificate()
    )
    (gradient,) = version_differences(certificate(core_aten={"gradients": wrong(24)}), certificate())
    assert recurs(rounding, [gradient, rounding])
    assert not recurs(rounding, [gradient, replace(rounding, cause="kernel")])


def test_a_planted_rule_of_the_textbook_is_found_worse_than_the_right_one():
    rules = decomp.Rules()

    @rules.register("log1p")
    def right(x):
        return torch.log1p(x)

    @rules.register("log1p")
    def textbook(x):
        return torch.log(1 + x)

    good, bad = (decomp.certify(rule, dtypes=[torch.float32]) for rule in rules["log1p"])
    assert version_differences(good, good) == ()
    found = version_differences(replace(bad, rule=good.rule), good)
    assert {each.cause for each in found} == {"rule"}
    assert any("values in float32" in each.what for each in found)
