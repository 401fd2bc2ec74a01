"""Deviations that a backend states are shown as by design, and excuse nothing else."""

import pytest
import torch
from torch import nn

import decomp
from decomp.runtime.known_deviations import KnownDeviation
from decomp.samples import Sample
from decomp.tools.comparing.judging import judge_results
from decomp_rules.backends import numpy_arrays
from decomp_rules.backends.deviations import has_nan, not_finite
from tests.tools.bringup import chips


def _chip(name, faults):
    target = decomp.Target(name, ["maximum", "sum.dim_IntList", "trunc", "mul"]) & chips.right.target
    return chips._made(name, {op: each for op, each in faults.items() if op in ("maximum", "trunc")}, target)


def _primitives(chip):
    report = decomp.bring_up(chip, only=["primitive"], quick=True, isolate=False)
    return report, {row.name.removeprefix("aten."): row.verdict for row in report.rows}


def test_what_is_stated_is_by_design_and_the_rest_is_wrong():
    chip = _chip("partly", chips.FAULTS)
    chip.deviates("maximum", where=has_nan, reason="NaN is passed over")
    report, verdicts = _primitives(chip)
    assert verdicts == {"maximum": "by design", "sum.dim_IntList": "right", "trunc": "wrong", "mul": "right"}
    assert report.by_design == {"NaN is passed over": ["maximum"]}
    assert report.headline == "partly: 3 of 4 primitives right (1 but for what is by design)"
    assert "by design: maximum: NaN is passed over" in str(report) and not report.ok


def test_a_statement_excuses_no_other_results():
    chip = _chip("more", {"maximum": lambda a, b: numpy_arrays.promoting(lambda x, y: x)(a, b)})
    chip.deviates("maximum", where=has_nan, reason="NaN is passed over")
    assert _primitives(chip)[1]["maximum"] == "wrong"


def test_a_bound_excuses_what_is_within_it():
    found, own = torch.tensor([1.0, 1.0 + 3e-7, 1.1, float("nan")]), torch.ones(4)
    unit = torch.full((4,), torch.finfo(torch.float32).eps, dtype=torch.float64)
    assert KnownDeviation("", ulp=4).excuses(found, own, unit, ()).tolist() == [True, True, False, False]
    assert KnownDeviation("", epsilons=4).excuses(found, own, unit, ()).tolist() == [True, True, False, False]
    first = KnownDeviation("", where=lambda own, x: x > 0, epsilons=4)
    assert first.excuses(found, own, unit, (torch.tensor([1.0, -1.0, 1.0, 1.0]),)).tolist() == [True, *[False] * 3]
    assert not not_finite(own, own) and not_finite(own, found)


def test_a_program_that_differs_by_design_is_not_wrong():
    class Largest(nn.Module):
        def forward(self, x, y):
            return torch.maximum(x, y) * 2

    x = torch.tensor([1.0, float("nan")])
    args = dict(only=["model"], models={"largest": (Largest(), (x, torch.ones(2)))}, isolate=False)
    chip = _chip("programs", chips.FAULTS)
    (row,) = decomp.bring_up(chip, **args).rows
    assert row.verdict == "blames" and row.blames == "maximum"
    chip.deviates("maximum", where=has_nan, reason="NaN is passed over")
    (row,) = decomp.bring_up(chip, **args).rows
    assert row.verdict == "by design" and row.by_design == ["maximum: NaN is passed over"]


def test_subnormal_numbers_and_parts_of_complex_ones_are_a_note_and_nothing_else_is():
    tiny = torch.finfo(torch.float32).tiny
    x = torch.complex(torch.tensor([1.0, tiny / 4, 2.0]), torch.tensor([0.0, tiny / 2, 1.0]))
    sample = Sample(torch.ops.aten.mul.Tensor, (x, 1))
    flushed = torch.complex(torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0.0, 0.0, 1.0]))
    found = judge_results(chips.right, sample, flushed)
    assert not found.problem and found.notes == ("subnormal numbers are other than PyTorch's",)
    assert judge_results(chips.right, sample, flushed * torch.tensor([2, 1, 1])).problem
    smallest = Sample(torch.ops.aten.mul.Tensor, (torch.tensor([tiny, 1.0]), 1.0))
    assert not judge_results(
        chips.right, smallest, torch.tensor([0.0, 1.0])
    ).problem  # rounded up to it, in half of the cases


def test_a_statement_says_which_results_or_how_far():
    with pytest.raises(decomp.errors.TargetError, match="where=, epsilons= or ulp="):
        chips._made("vague", {}).deviates("mul", reason="it is so")
    with pytest.raises(decomp.errors.UnknownOp):
        chips._made("unknown", {}).deviates("no_such_op", ulp=4, reason="it is so")


def test_the_former_name_still_declares():
    chip = chips._made("former", {})
    with pytest.warns(DeprecationWarning, match="Backend.departs is Backend.deviates now"):
        chip.departs("mul", ulp=4, reason="it is so")
    assert chip.deviations(torch.ops.aten.mul.Tensor)[0].ulp == 4
