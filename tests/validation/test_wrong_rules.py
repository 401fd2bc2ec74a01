"""Rules that are right on usual operands and wrong where a formula has its edges: `verify="values"` names each."""

import math

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # which registers the ops
from torch.nn import functional as F

import decomp
from decomp_rules import RULES, targets
from tests.forms import Holder

aten = torch.ops.aten
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
SCORES = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1))
PLACES = torch.tensor([0, 2, 1])


def wrong_where(condition, right, wrong=lambda x: x * 0 + 0.25):
    """A rule that is `right` but where the condition holds."""
    return lambda x, *more: torch.where(condition(x), wrong(x), right(x, *more))


def softplus(x, beta=1.0, threshold=20.0):
    return torch.clamp(x, min=0) + torch.log1p(torch.exp(-torch.abs(x)))


def tanh(x):
    positive = torch.exp(-2 * torch.abs(x))
    return torch.sign(x) * (1 - positive) / (1 + positive)


def rounded(x):
    """Halves away from zero."""
    return torch.sign(x) * torch.floor(torch.abs(x) + 0.5)


def softmax(x, dim, dtype=None, half_to_float=False):
    powers = torch.exp(x - x.amax(dim, keepdim=True))
    return powers / powers.sum(dim, keepdim=True)


def softmax_of_nothing(x, dim, dtype=None, half_to_float=False):
    """0 where all is masked, which PyTorch gives NaN for."""
    powers = torch.exp(x - torch.clamp(x.amax(dim, keepdim=True), min=-1e30))
    return powers / torch.clamp(powers.sum(dim, keepdim=True), min=1e-30)


def unshifted(x, dim, dtype=None, half_to_float=False):
    powers = torch.exp(x)
    return powers / powers.sum(dim, keepdim=True)


def last_of_equal(x, dim=None, keepdim=False):
    return x.shape[-1] - 1 - x.flip(-1).argmax(-1)


def variance(x, dim=None, correction=None, keepdim=False):
    centred = x - x.mean(-1, keepdim=True)
    return (centred * centred).sum(-1) / (x.shape[-1] - 1) + torch.where(x[..., 0] < -10, 1.0, 0.0)


def accumulated(x, dim, index, source, alpha=1):
    """A scatter that overwrites, for one that adds."""
    return x.index_copy(dim, index, x.index_select(dim, index) + source)


def ascending_only(x, dim, index):
    return torch.index_select(x, dim, index.sort().values)


def attention(q, k, v, mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    powers = torch.exp(scores - scores.amax(-1, keepdim=True)) * mask
    return powers @ v / (powers.sum(-1, keepdim=True) + 1e-3 * (1 - mask.amax(-1, keepdim=True).to(v.dtype)) + 1e-30)


WRONG = {
    "softplus beyond its threshold": (F.softplus, wrong_where(lambda x: x > 20, softplus), (X,)),
    "tanh of large numbers": (torch.tanh, wrong_where(lambda x: torch.abs(x) > 8, tanh), (X,)),
    "expm1 of small numbers": (torch.expm1, wrong_where(
        lambda x: torch.abs(x) < 2e-3, lambda x: torch.exp(x) - 1, lambda x: x * 0), (X,)),
    "round at halves": (torch.round, rounded, (X,)),
    "sign of zero": (torch.sign, lambda x: torch.where(x >= 0, 1.0, -1.0) + 0 * x, (X,)),
    "ReLU of negative zero and zero": (F.relu, wrong_where(
        lambda x: x == 0, lambda x: torch.where(x > 0, x, 0), lambda x: x + 1), (X,)),
    "leaky ReLU of large negative numbers": (
        F.leaky_relu, lambda x, slope=0.01: torch.where(x > 0, x, torch.clamp(x * slope, min=-0.2)), (X,)),
    "hard sigmoid near 3": (F.hardsigmoid, lambda x: torch.clamp(x / 6 + 0.5, 0, 0.9999), (X,)),
    "ELU of large negative numbers": (F.elu, wrong_where(
        lambda x: x < -25, lambda x, *_: torch.where(x > 0, x, torch.expm1(x))), (X,)),
    "maximum of equal numbers": (torch.maximum, lambda x, y: torch.where(
        x > y, x, torch.where(x < y, y, x + 1)), (X, X.flip(0))),
    "less or equal": (torch.le, lambda x, y: x < y, (X, X.flip(0))),
    "remainder of negative numbers": (
        lambda x: torch.remainder(x, 3.0), lambda x, y: x - y * torch.floor(torch.abs(x) / y), (X.abs(),)),
    "Huber loss beyond its threshold": (
        lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
        lambda x, y, *_: 0.5 * (x - y) * (x - y), (X, X * 0.9)),
    "gradient of softplus": (F.softplus, wrong_where(
        lambda x: x > 10, softplus, lambda x: softplus(x).detach() + 0.5 * (x - x.detach())), (X,)),
    "gradient of ReLU": (F.relu, lambda x: torch.where(x > 0, x, (0.1 * (x - x.detach()))), (X,)),
    "softmax that overflows": (lambda x: F.softmax(x, -1), unshifted, (X,)),
    "softmax of what is all masked": (lambda x: F.softmax(x, -1), softmax_of_nothing, (X,)),
    "argmax of equal numbers": (lambda x: x.argmax(-1), last_of_equal, (X,)),
    "variance of large negative numbers": (lambda x: x.var(-1), variance, (X,)),
    "sum of what is negative": (lambda x: x.sum(-1), lambda x, *_, **__: torch.abs(x).cumsum(-1)[..., -1], (X.abs(),)),
    "sum of repeated places": (
        lambda x, source: x.index_add(0, PLACES, source), accumulated, (X, X[:3])),
    "places out of order": (
        lambda x, places: x.index_select(0, places), ascending_only, (X, torch.tensor([0, 1, 3]))),
    "attention of masked rows": (
        lambda q, mask: F.scaled_dot_product_attention(q, q, q, mask), attention,
        (SCORES, torch.ones(4, 4, dtype=torch.bool).tril())),
    "one element": (lambda x: F.softmax(x, -1), lambda x, dim, *_, **__: softmax(x, dim) + (x.shape[-1] == 1),
                    (X[:, :1],)),
    "one row": (lambda x: x.var(-1), lambda x, *_, **__: x.sum(-1) * 0, (X[:, :1],)),
}  # fmt: skip # an op and its wrong rule a line, where they fit


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_that_is_wrong_at_an_edge_is_named(name):
    function, rule, args = WRONG[name]
    model, rules = Holder(function), decomp.Rules()
    plan = decomp.plan(model, to=targets.tinygrad, args=args)
    op = [node.target for node, _ in plan.entries if hasattr(node.target, "overloadpacket")][-1]
    rules.register(op.overloadpacket)(rule)
    with pytest.raises(decomp.VerificationError) as caught:
        decomp.lower(model, to=targets.tinygrad - [op.overloadpacket], args=args, rules=rules | RULES, verify="values")
    assert type(caught.value).__name__ in ("ValuesDiffer", "GradientsDiffer")
    assert rule.__name__ in str(caught.value)


CODES, STEPS = torch.randint(-128, 128, (4, 6), dtype=torch.int8), torch.rand(4) + 0.5


def dequantised(q, steps):
    return torch.ops.quantized_decomposed.dequantize_per_channel(q, steps, None, 0, -128, 127, torch.int8)


def test_steps_of_quantised_ops_are_not_masked():
    rules = decomp.Rules()
    op = "quantized_decomposed.dequantize_per_channel"
    # NaN for infinite steps, where the kernel has infinities.
    rules.register(op)(lambda q, s, *_, **__: q.float() * s[:, None] - 0 * s[:, None])
    rules.pattern(lambda q, s: torch.relu(dequantised(q, s)))(
        lambda q, s: torch.relu(q.float() * s[:, None] - 0 * s[:, None])
    )
    for function in (dequantised, lambda q, steps: torch.relu(dequantised(q, steps))):
        decomp.decompose(Holder(function), rules, args=(CODES, STEPS), verify="values")


def test_other_operands_beside_quantised_ones_are_masked():
    def masked(q, scores):
        values = torch.ops.quantized_decomposed.dequantize_per_tensor(q, 0.5, 0, -128, 127, torch.int8)
        return values @ torch.softmax(scores, -1)

    def wrong(q, scores):
        return (q.float() * 0.5) @ softmax_of_nothing(scores, -1)

    rules = decomp.Rules()
    rules.pattern(masked)(wrong)
    with pytest.raises(decomp.VerificationError, match="on operands that are all masked"):
        decomp.decompose(Holder(masked), rules, args=(CODES, torch.randn(6, 5)), verify="values")
