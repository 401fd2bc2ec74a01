"""Calls with symbolic sizes are planned at the sizes of their example first."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import decomp
from decomp.derive import planner
from decomp_rules import RULES, targets

MODELS = {
    "gelu": (nn.GELU(), (torch.randn(3, 4),)),
    "norm": (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Softmax(-1)), (torch.randn(3, 4),)),
    "convolution": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2)), (torch.randn(3, 3, 8, 8),)),
    "recurrent": (nn.GRU(4, 4, batch_first=True), (torch.randn(3, 2, 4),)),
}


def lowered(name: str, target: decomp.Target) -> decomp.Lowering:
    model, args = MODELS[name]
    program = export(model.eval(), args, dynamic_shapes=({0: Dim("n", min=2)},), strict=False)
    return decomp.lower(program, to=target, rules=RULES | {})  # which remember nothing yet


@pytest.mark.parametrize("target", [targets.tinygrad, targets.luminal], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_choice_is_that_of_recording_every_rule(name, target, monkeypatch):
    found = lowered(name, target)
    monkeypatch.setattr(planner.Planner, "_chosen_at_example", lambda self, request: None)
    assert found.report().after == lowered(name, target).report().after
