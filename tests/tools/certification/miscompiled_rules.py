"""Rules for the tests of compiled columns, in a module of their own so that another process finds them."""

from __future__ import annotations

import os

import torch

from decomp import Rules

RULES = Rules(level="exact")


@RULES.register(torch.ops.aten.exp)
def exp(x):
    return torch.exp2(x * 1.5)


@RULES.register(torch.ops.aten.relu)
def crashes(x):
    """Takes the process with it."""
    os.abort()
