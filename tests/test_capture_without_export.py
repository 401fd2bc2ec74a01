"""Modules that export refuses because PyTorch cannot run an op on fake tensors: rules say what such a call gives."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp import Rules
from decomp_rules import targets

LOGITS = torch.randn(10, 2, 6, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
CTC = (LOGITS, torch.tensor([[1, 2, 3, 4], [5, 5, 1, 2]]), torch.tensor([10, 8]), torch.tensor([4, 3]))


@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad], ids=lambda t: t.name)
def test_a_module_whose_loss_has_no_fake_kernel(target):
    lowered = decomp.lower(nn.CTCLoss(), to=target, args=CTC).result
    torch.testing.assert_close(lowered(*CTC), nn.CTCLoss()(*CTC))


def test_a_traced_graph_with_such_a_call():
    traced = torch.fx.symbolic_trace(lambda a, b, c, d: F.ctc_loss(a, b, c, d) * 2)
    lowered = decomp.lower(traced, to=targets.core_aten, args=CTC).result
    torch.testing.assert_close(lowered(*CTC), 2 * nn.CTCLoss()(*CTC))


def test_lengths_are_data_and_are_not_baked_in():
    lowered = decomp.lower(nn.CTCLoss(), to=targets.core_aten, args=CTC).result
    others = (*CTC[:2], torch.tensor([7, 10]), torch.tensor([2, 4]))
    torch.testing.assert_close(lowered(*others), nn.CTCLoss()(*others))


def test_what_no_rule_serves_is_told_as_export_tells_it():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(decomp.CaptureError, match="torch.export could not capture Branches"):
        decomp.lower(Branches(), to=targets.core_aten, args=(torch.ones(3),))


def test_without_a_rule_the_call_stays_unknown():
    with pytest.raises(decomp.CaptureError):
        decomp.lower(nn.CTCLoss(), to=targets.core_aten, args=CTC, rules=Rules())


def test_what_is_declared_to_be_out_of_reach_is_told_so():
    rules = Rules()
    rules.limit(torch.equal, reason="its result is a Python bool read from data")
    traced = torch.fx.symbolic_trace(lambda x, y: torch.equal(x, y))
    with pytest.raises(decomp.NotLowered, match="cannot be decomposed: its result is a Python bool read from data"):
        decomp.lower(traced, to=targets.core_aten, args=(LOGITS, LOGITS), rules=rules)


def test_a_size_that_is_data_cannot_disagree():
    class Places(nn.Module):
        def forward(self, x):
            return torch.argwhere(x) * 2

    x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    lowered = decomp.lower(torch.export.export(Places(), (x,)), to=targets.core_aten).result.module()
    assert [lowered(y).tolist() for y in (x, x * 0 + 1)] == [Places()(y).tolist() for y in (x, x * 0 + 1)]


def test_a_traced_graph_with_sizes_that_are_data_is_exported():
    traced = torch.fx.symbolic_trace(lambda x: torch.nonzero(x) + 1)
    x = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    lowered = decomp.lower(traced, to=targets.core_aten, args=(x,)).result
    assert [lowered(y).tolist() for y in (x, x + 1)] == [traced(y).tolist() for y in (x, x + 1)]
