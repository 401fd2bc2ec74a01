"""What planning remembers: how little of it a lowering makes anew."""

import pytest
import torch
from torch import nn

import decomp
from decomp.torch_internals.fakes import FakeTensorMode
from decomp_rules import targets


@pytest.mark.parametrize("target", [targets.core_aten, targets.tinygrad], ids=lambda target: target.name)
def test_a_program_that_is_lowered_again_makes_no_fake_mode(target, monkeypatch):
    """A mode formats the stack on which it is made: a millisecond under pytest."""
    program = torch.export.export(nn.Sequential(nn.Linear(4, 4), nn.GELU()), (torch.randn(2, 4),))
    decomp.lower(program, to=target)
    made, make = [], FakeTensorMode.__init__
    monkeypatch.setattr(FakeTensorMode, "__init__", lambda mode, *args, **how: made.append(make(mode, *args, **how)))
    decomp.lower(program, to=target)
    assert not made
