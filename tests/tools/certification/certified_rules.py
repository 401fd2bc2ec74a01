"""Rules for the tests of `certify`: right ones, wrong ones, and some that do not come back. They live in a module of
their own so that another process finds them."""

from __future__ import annotations

import math
import os
import time

import torch

from decomp import Rules

RULES = Rules()
aten = torch.ops.aten


@RULES.register(aten.rad2deg)
def rad2deg(x):
    return (x if x.is_floating_point() else x.to(torch.get_default_dtype())) * (180 / math.pi)


@RULES.register(aten.sigmoid)
def hangs(x):
    """Never comes back."""
    while True:
        time.sleep(1)
    return x


@RULES.register(aten.tanh)
def crashes(x):
    """Takes the process with it."""
    os.abort()


@RULES.register(aten.square)
def raises(x):
    raise RuntimeError("no such kernel")


@RULES.register(aten.log1p)
def log1p_of_the_textbook(x):
    return torch.log(1 + x)


LEVELS = Rules()


@LEVELS.register(aten.exp, level="exact")
def exp_as_square(x):
    root = torch.exp2(x * 0.7213475204444817)
    return root * root


@LEVELS.register(aten.exp, level="fast")
def exp_of_product(x):
    return torch.exp2(x * 1.4426950408889634)


@LEVELS.register(aten.sigmoid)
def sigmoid_of_the_textbook(x):
    return torch.reciprocal(1 + torch.exp(-1 * x))
