"""Composites on a backend: by the backend's function for the op, if it has one, else by their bodies."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp_rules.backends import numpy_arrays
from tests.derive.nested import NESTED, NESTED_RULES, Nested, queries

x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@torch.library.custom_op("composed::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


@rms_norm.register_fake
def _(x, weight, eps=1e-6):
    return torch.empty_like(x)


rules = decomp.Rules()


@rules.register("composed::rms_norm")
def rms_norm_by_mean(x, weight, eps=1e-6):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x):
        return rms_norm(rms_norm(x, self.weight, 0.1), self.weight)


def test_a_custom_op_runs_natively_where_the_backend_knows_it():
    from decomp_rules import RULES

    chip, seen = numpy_arrays.make(), []
    found = decomp.lower(
        Norms(), to=chip.target, args=(x,), rules=rules | RULES, composites={"composed::rms_norm"}, training=False
    )
    torch.testing.assert_close(chip.load(found)(x), Norms()(x))

    @chip.implements("composed::rms_norm")
    def native(x, weight, eps=1e-6):
        seen.append(eps)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * weight

    torch.testing.assert_close(chip.load(found)(x), Norms()(x))
    torch.testing.assert_close(chip.load(found.result)(x), Norms()(x))
    assert seen == [0.1, 1e-6] * 2


class Largest(nn.Module):
    def forward(self, x):
        values, places = x.max(1)
        return values * 2, places + 1, x.max(0)[1], F.gelu(x, approximate="tanh")


def test_a_function_gives_the_results_that_are_read():
    chip, seen = numpy_arrays.make(), []
    found = decomp.lower(Largest(), to=chip.target, args=(x,), composites={"max", "gelu"})

    @chip.implements("max.dim")
    def largest(x, dim, keepdim=False):
        seen.append(dim)
        return x.max(dim, keepdims=keepdim), x.argmax(dim, keepdims=keepdim)

    torch.testing.assert_close(chip.load(found)(x), Largest()(x))
    assert seen == [1, 0]


def test_a_function_for_other_calls_leaves_the_body():
    chip, seen = numpy_arrays.make(), []
    found = decomp.lower(Largest(), to=chip.target, args=(x,), composites={"gelu"})
    exact = {"when": lambda call: call.argument("approximate") == "none", "reason": "it must be exact"}
    chip.implements("gelu", **exact)(lambda x: seen.append(x))
    torch.testing.assert_close(chip.load(found)(x), Largest()(x))
    assert not seen


def softmax(x, dim, dtype=None):
    largest = np.exp(x - x.max(dim, keepdims=True))
    return largest / largest.sum(dim, keepdims=True)


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    scores = query @ key.swapaxes(-2, -1) * np.float32(query.shape[-1] ** -0.5)
    hidden = np.triu(np.full(scores.shape[-2:], -np.inf, np.float32), 1) if is_causal else np.float32(0)
    return softmax(scores + hidden, -1) @ value


KNOWN = {
    # what a backend knows: the functions that run
    "neither": [],
    "the outer one": ["scaled_dot_product_attention"] * 2,
    "the inner one": ["softmax"] * 3,
    "both": ["scaled_dot_product_attention"] * 2 + ["softmax"],
}
FUNCTIONS = {"scaled_dot_product_attention": attention, "softmax": softmax}


@pytest.mark.each_row
@pytest.mark.parametrize("known", KNOWN)
def test_a_backend_runs_the_outermost_composites_that_it_knows(known):
    chip, seen = numpy_arrays.make(), []
    found = decomp.lower(Nested(), to=chip.target, args=(queries(),), rules=NESTED_RULES, composites=NESTED)
    for name in dict.fromkeys(KNOWN[known]):
        chip.implements(name)(lambda *args, name=name, **kwargs: seen.append(name) or FUNCTIONS[name](*args, **kwargs))
    torch.testing.assert_close(chip.load(found)(queries()), Nested()(queries()))
    assert seen == KNOWN[known]
