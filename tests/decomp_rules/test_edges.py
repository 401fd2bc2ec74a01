"""Gradients and values at poles, at infinite logits and at negative moduli, against the op's own."""

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from tests.forms import Holder

TARGETS = ["core_aten", "tinygrad", "luminal"]


def lowered(function, args, target):
    return decomp.lower(Holder(function), to=targets.get(target), args=args, accuracy="exact").result


def slopes(function, *args):
    args = [t.detach().requires_grad_() for t in args]
    result = function(*args)
    parts = torch.view_as_real(result) if result.is_complex() else result
    return torch.autograd.grad((parts * torch.arange(1.0, parts.numel() + 1).view(parts.shape)).sum(), args)


@pytest.mark.parametrize("target", TARGETS)
def test_the_gradient_of_digamma_at_a_pole_is_infinite_and_beside_it_right(target):
    poles = torch.tensor([-1.0, -2.0, -40.0, -(2.0**23), 0.0, -0.0])
    beside = torch.tensor([-1 + 2.0**-20, -2 - 2.0**-20, -7.5, 1e-3])
    (at_poles,) = slopes(lowered(torch.digamma, (poles,), target), poles)
    assert at_poles.isposinf().all()
    (found,), (exact,) = (
        slopes(f, x) for f, x in ((lowered(torch.digamma, (beside,), target), beside), (torch.digamma, beside.double()))
    )
    torch.testing.assert_close(found, exact.float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("target", TARGETS)
def test_polar_of_a_negative_modulus_has_the_gradient_of_the_op(target):
    size, angle = torch.tensor([-2.0, -1.0, 0.0, -0.0, 2.0]), torch.tensor([0.5, 2.0, 1.0, 1.0, -3.0])
    function = lowered(torch.polar, (size, angle), target)
    torch.testing.assert_close(function(size, angle), torch.polar(size, angle))
    for found, own in zip(slopes(function, size, angle), slopes(torch.polar, size, angle)):
        torch.testing.assert_close(found, own)


@pytest.mark.sampled
@pytest.mark.parametrize("positive", [None, 2.0, -0.5, 0.0])
@pytest.mark.parametrize("target", TARGETS)
def test_sigmoid_cross_entropy_of_infinite_logits_is_the_ops(target, positive):
    logits = torch.tensor([torch.inf, -torch.inf, torch.nan, -1e30, 0.5]).repeat_interleave(6)
    labels = torch.tensor([0.0, 0.25, 1.0, 2.0, -1.0, 0.5]).repeat(5)
    weight = None if positive is None else torch.tensor([positive])

    def loss(x, t):
        return F.binary_cross_entropy_with_logits(x, t, reduction="none", pos_weight=weight)

    function = lowered(loss, (logits, labels), target)
    torch.testing.assert_close(function(logits, labels), loss(logits, labels), equal_nan=True)
    for found, own in zip(slopes(function, logits, labels), slopes(loss, logits, labels)):
        torch.testing.assert_close(found, own, equal_nan=True)
