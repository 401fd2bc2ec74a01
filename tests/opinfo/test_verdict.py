"""The judge of the rules: what is planted in a lowered program is seen, and named."""

import math

import pytest
import torch
from torch import nn

import decomp
from decomp_rules import targets
from tests.opinfo import verdict as opinfo_verdict
from tests.opinfo.cases import Case, cases
from tests.opinfo.table import Row, markdown, summaries, worst, write
from tests.opinfo.verdict import BLOCKED, CLEAN, DECLARED, FAILED, WRONG, Disagreement, Outcome, compare, judge

CASES = {str(case): case for case in cases((torch.float32, torch.int64))}
TANH: Case = CASES["tanh-float32-exported"]


def judged(monkeypatch, forward, case=TANH):
    """The verdict when `forward` stands where the lowered program should."""

    class Planted(nn.Module):
        def forward(self, *args):
            return forward(*args)

    monkeypatch.setattr(opinfo_verdict, "_lowered", lambda program, target: Planted())
    return judge(case, targets.core_aten)


def test_the_op_itself_is_clean(monkeypatch):
    assert judged(monkeypatch, torch.tanh).status == CLEAN


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (lambda x: torch.tanh(x) * (1 + 1e-5), "value off by"),
        (lambda x: torch.tanh(x).double(), "value has dtype torch.float64, not torch.float32"),
        (lambda x: torch.tanh(x)[None], "value has shape"),
        (lambda x: (torch.tanh(x), x), "2 results, not 1"),
        (lambda x: torch.tanh(x).detach(), "gradient off by"),
        (lambda x: torch.tanh(x).detach() + 0 * x, "gradient off by"),
        (lambda x: torch.tanh(x) * torch.exp(x - x), "value: NaN differs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_seen(monkeypatch, forward, why):
    verdict = judged(monkeypatch, forward)
    assert verdict.status == WRONG and why in verdict.why


def test_a_number_is_right_where_only_the_kernel_has_none():
    theirs, exact = (
        Outcome([torch.tensor([1.0, x], dtype=dtype)], [], [])
        for x, dtype in ((math.nan, torch.float32), (3.0, torch.float64))
    )
    compare(Outcome([torch.tensor([1.0, 3.0])], [], []), theirs, exact, random=False)
    for wrong in (3.1, math.inf):
        with pytest.raises(Disagreement, match="NaN differs"):
            compare(Outcome([torch.tensor([1.0, wrong])], [], []), theirs, exact, random=False)


def test_a_wrong_integer_is_seen(monkeypatch):
    verdict = judged(monkeypatch, lambda x: torch.abs(x) + (x == 7), CASES["abs-int64-exported"])
    assert verdict.status == WRONG and "value differs: 8 for 7" in verdict.why


def test_a_gradient_that_cancels_is_compared_with_what_cancels_in_it():
    exact = Outcome([], [torch.tensor([5e-17], dtype=torch.float64)], [1.0])
    theirs = Outcome([], [torch.tensor([0.0])], [1.0])
    compare(Outcome([], [torch.tensor([6e-8])], [1.0]), theirs, exact, random=False)
    with pytest.raises(Disagreement, match="gradient off by"):
        compare(Outcome([], [torch.tensor([6e-6])], [1.0]), theirs, exact, random=False)


def test_special_values_are_among_the_samples(monkeypatch):
    verdict = judged(monkeypatch, lambda x: torch.where(torch.isinf(x), torch.zeros_like(x), torch.tanh(x)))
    assert verdict.status == WRONG and verdict.why.endswith("(special values)")


def test_a_program_that_fails_is_a_verdict_and_not_the_end(monkeypatch):
    assert judged(monkeypatch, lambda x: x.no_such_method()).status == FAILED


def test_an_op_that_is_not_reached_is_blocked_and_one_that_cannot_be_is_declared():
    assert judge(TANH, decomp.Target("empty")).status == BLOCKED
    assert judge(CASES["nonzero-float32-exported"], decomp.Target("empty", ["mul"])).status == DECLARED


def test_the_table_counts_an_entry_by_its_worst_verdict():
    rows = [
        Row("tanh", "float32", "exported", "chip", CLEAN),
        Row("tanh", "int64", "exported", "chip", WRONG, "off"),
        Row("abs", "float32", "exported", "chip", CLEAN),
        Row("nn.Linear", "float32", "training", "chip", CLEAN),
    ]
    assert worst(rows) == {"tanh": WRONG, "abs": CLEAN, "nn.Linear": CLEAN}
    assert "| `chip` | 2 operators | **50.0%** (1) | 0 | 0 | 1 | 0 |" in markdown(summaries(rows))
    assert "| `chip` | 1 modules | **100.0%** (1) | 0 | 0 | 0 | 0 |" in markdown(summaries(rows))


def test_every_entry_is_among_the_cases():
    assert len({case.entry for case in CASES.values()}) > 760


def test_a_run_replaces_the_lines_of_its_own_targets(tmp_path):
    def row(target, status):
        return Row("abs", "float32", "exported", target, status)

    write([row("chip", CLEAN), row("board", "wrong")], "first", tmp_path)
    write([row("board", CLEAN)], "second", tmp_path)
    head, _, table = (tmp_path / "rules.md").read_text().partition("\n\n")
    assert "chip: PyTorch" in head and "`first`; board: PyTorch" in head and head.endswith("`second`.")
    assert table.count("1 operators | **100.0%** (1) | 0 | 0 | 0 | 0 |") == 2
