"""Attention stays attention on targets whose converters make NaN of a query that sees no key, under a mask that shows
each query a key."""

import math

import pytest
import torch
from torch.nn import functional as F

import decomp
from decomp_rules import targets
from decomp_rules.targets.attention_masks import TARGETS
from tests.forms import Holder

HEADS = [torch.randn(2, 2, 5, 8) for _ in range(3)]
BOOLS = torch.ones(5, 5).tril(-1) > 0
NUMBERS = torch.where(BOOLS, 0.5, -math.inf)
ATTENTION = "scaled_dot_product_attention"


def attend(q, k, v, mask, **options):
    return F.scaled_dot_product_attention(q, k, v, mask, **options)


def lowered(function, *args, to=targets.openvino):
    """The ops, verified against the function in float64, as `verify="values"` does."""
    found = decomp.lower(Holder(function), to=to, args=args, training=False, verify="values")
    return [call.op.short for call in decomp.calls(found.result)]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("mask", [BOOLS, NUMBERS], ids=["bools", "numbers"])
def test_rows_that_hide_all_keys_are_shown_and_zero(name, mask):
    found = lowered(attend, *HEADS, mask, to=targets.get(name))
    assert found.count(ATTENTION) == 1 and "any" in found and found[-1] == "where"


def test_without_a_mask_attention_is_as_it_was():
    causal = lowered(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *HEADS)
    assert causal == lowered(F.scaled_dot_product_attention, *HEADS) == [ATTENTION]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(
    "mask_of",
    [
        lambda mask: torch.where(mask, torch.full((), 0.0), torch.full((), -1e9)),
        lambda mask: (found := mask.float().log2()).where((found != -math.inf).any(-1, True), 0.0),
    ],
    ids=["finite", "guarded"],
)
def test_a_mask_that_shows_a_key_to_each_query_is_kept(name, mask_of):
    found = lowered(lambda q, k, v, mask: attend(q, k, v, mask_of(mask)), *HEADS, BOOLS, to=targets.get(name))
    assert found.count(ATTENTION) == 1 and found[-1] == ATTENTION


@pytest.mark.parametrize(
    "mask_of",
    [
        lambda mask: torch.where(mask, 0.0, -math.inf),
        lambda mask: torch.where(mask, 0.0, -1e9),
        lambda mask: torch.where(mask, 0.0, -3e38).unsqueeze(0) * 2,
        lambda mask: (found := torch.where(mask, 0.0, -math.inf)).where((found != 0).any(-1, True), 0.0),
        lambda mask: (found := torch.where(mask, 0.0, -math.inf)).where((found != -math.inf).any(0, True), 0.0),
    ],
    ids=["infinite", "finite in another form", "overflows", "guards otherwise", "guards columns"],
)
def test_another_mask_is_guarded(mask_of):
    found = lowered(lambda q, k, v, mask: attend(q, k, v, mask_of(mask)), *HEADS, BOOLS)
    assert found.count(ATTENTION) == 1 and found[-1] == "where"


@pytest.mark.parametrize("mask", [BOOLS | (torch.eye(5) > 0).flip(0), NUMBERS], ids=["bools", "numbers"])
def test_a_row_of_which_mask_and_later_keys_hide_all_is_zero(mask):
    found = lowered(lambda *args: attend(*args, is_causal=True), *HEADS, mask)
    assert found.count(ATTENTION) == 1 and found[-1] == "where"


@pytest.mark.parametrize("mask", [None, NUMBERS], ids=["without mask", "masked"])
def test_heads_that_queries_share_are_repeated(mask):
    q, k, v = HEADS
    given = (q, k[:, :1], v[:, :1]) if mask is None else (q, k[:, :1], v[:, :1], mask)
    found = lowered(lambda *args: F.scaled_dot_product_attention(*args, enable_gqa=True), *given)
    assert found.count(ATTENTION) == 1 and found.count("expand") == 2
