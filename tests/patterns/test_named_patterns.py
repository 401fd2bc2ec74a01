"""The patterns that ship with the library: each is found in models as people write them, and folding is right."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
import decomp_rules
from decomp_rules import patterns
from tests.forms import Holder

x, w, b = torch.rand(2, 4), torch.rand(4, 4), torch.rand(4)
q = torch.rand(1, 2, 3, 4)
image = torch.rand(2, 3, 8, 8)


def rms(x, w):
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


PROGRAMS = {
    "linear_relu": (lambda x, w: torch.relu(F.linear(x, w)), (x, w)),
    "linear_gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (x, w, b)),
    "linear_gelu_tanh": (lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), (x, w, b)),
    "linear_silu": (lambda x, w: F.silu(F.linear(x, w)), (x, w)),
    "add_relu": (lambda x, y: (x + y).relu(), (x, x + 1)),
    "add_layer_norm": (lambda x, w, b: F.layer_norm(s := x + w[:2], (4,), b, b) + s, (x, w, b)),
    "add_rms_norm": (lambda x, w, b: F.rms_norm(x + w[:2], (4,), b, 1e-6), (x, w, b)),
    "rms_norm": (rms, (x, b)),
    "swiglu": (lambda x, w: F.linear(x, w) * F.silu(F.linear(x, w.t())), (x, w)),
    "geglu": (lambda x, w: F.gelu(F.linear(x, w)) * F.linear(x, w.t()), (x, w)),
    "attention": (lambda q, k, v: torch.softmax(q @ k.transpose(2, 3) * 0.5, -1) @ v, (q, q + 1, q + 2)),
    "attention_divided": (lambda q, k, v: F.softmax(torch.matmul(q, k.mT) / math.sqrt(4), -1) @ v, (q, q + 1, q + 2)),
    "attention_masked": (
        lambda q, k, v, m: (m + 0.5 * (q @ k.mT)).softmax(-1) @ v,
        (q, q + 1, q + 2, torch.rand(3, 3)),
    ),
    "attention_masked_divided": (
        lambda q, k, v, m: F.dropout(F.softmax(q @ k.mT / 2.0 + m, -1), 0.1, False) @ v,
        (q, q + 1, q + 2, torch.rand(3, 3)),
    ),
}
MODULES = {
    "conv_bn": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
    "conv_bn_relu": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
    "conv_relu": nn.Sequential(nn.Conv2d(3, 4, 3, groups=1, bias=False), nn.ReLU()),
    "conv_silu": nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.SiLU()),
    "linear_bn": nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)),
}
QUANTISED = {"qconv", "qconv_quantised", "qlinear", "qlinear_quantised"}
"""Those whose programs PyTorch's quantisation makes: tests/decomp_rules/quantized/test_programs.py finds them there."""
NAMES = [
    name for name in dir(patterns) if isinstance(getattr(patterns, name), decomp.Pattern) and name not in QUANTISED
]


def test_every_pattern_has_a_program():
    assert {*NAMES} == {*PROGRAMS, *MODULES} and decomp_rules.patterns is patterns


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", NAMES)
def test_a_pattern_is_found_once_in_its_program_exported_and_decomposed(name):
    if name in PROGRAMS:
        function, args = PROGRAMS[name]
        program = torch.export.export(Holder(function), args)
    else:
        program = torch.export.export(MODULES[name].eval(), (x if name == "linear_bn" else image,))
    assert len(decomp.match(program, getattr(patterns, name))) == 1
    assert len(decomp.match(program.run_decompositions(), getattr(patterns, name))) == 1 or name in _LOST


_LOST = {"add_rms_norm"}
"""Patterns of ops that `run_decompositions()` takes apart, and nothing reads together again."""


def trained(model):
    torch.manual_seed(0)
    for part in model.modules():
        if hasattr(part, "running_mean"):
            part.running_mean.uniform_(-1, 1), part.running_var.uniform_(0.5, 2)
            if part.affine:
                nn.init.uniform_(part.weight, 0.5, 2), nn.init.uniform_(part.bias, -1, 1)
    return model.eval()


FOLDED = {
    "images": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU()), image),
    "groups": (lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3, bias=False), nn.BatchNorm2d(6, affine=False)), image),
    "sequences": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3, dilation=2), nn.BatchNorm1d(4)), torch.rand(2, 3, 9)),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(3, 4, 2), nn.BatchNorm3d(4)), torch.rand(1, 3, 4, 4, 4)),
    "a linear layer": (lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), x),
}


@pytest.mark.parametrize("case", FOLDED)
def test_batch_norm_is_folded_into_weights_with_the_right_numbers(case):
    make, given = FOLDED[case]
    model = trained(make())
    folded = decomp.decompose(model, patterns.FOLDING, args=(given,), verify="values")
    assert not decomp.calls(folded, F.batch_norm)
    torch.testing.assert_close(folded(given), model(given), rtol=1e-4, atol=1e-5)


def test_batch_norm_that_trains_or_takes_other_channels_is_left_alone():
    training = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train()
    program = torch.export.export(training, (image,))
    assert not decomp.match(program, patterns.conv_bn)
    sequence = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    kept = decomp.decompose(sequence, patterns.FOLDING, args=(torch.rand(2, 4, 4),))
    assert decomp.calls(kept, F.batch_norm)


def test_a_pattern_rule_is_certified_against_its_pattern():
    rules = decomp.Rules()
    rules.pattern(patterns.linear_relu)(lambda x, w, b: torch.relu(torch.addmm(b, x, w.t())))
    rules.pattern(patterns.linear_relu)(lambda x, w, b: torch.clamp_min(torch.addmm(b, x, w.t()), 1e-3))
    right, wrong = (decomp.certify(rule, samples=[(x, w, b)], dtypes=[torch.float32]) for rule in rules.patterns)
    assert right.ok and not wrong.ok
    with pytest.raises(ValueError, match="no sample calls of pattern"):
        decomp.certify(rules.patterns[0])
    conv, bn = trained(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    folding = decomp.certify(patterns.FOLDING.patterns[0], samples=[(image, conv, bn)], dtypes=[torch.float64])
    assert folding.ok and folding.ways[0].values["float64"].max <= 16
