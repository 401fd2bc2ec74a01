"""Attention that stays attention: calls that a target lacks, in a form that it has. A mask hides no row there, as
backends that have the op are NaN, or the mean of the values, where PyTorch gives 0."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.nn.attention import bias_of, past, repeated_heads
from decomp_rules.support.operands import constant

RULES = Rules(level="exact")
register = RULES.register


@register(aten.scaled_dot_product_attention, needs=("scaled_dot_product_attention",))
def attention_with_repeated_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The op with a head of keys and values for each head of queries."""
    if not enable_gqa:
        return decline("there are as many heads of keys as of queries")
    k, v = repeated_heads(key, query), repeated_heads(value, query)
    return F.scaled_dot_product_attention(query, k, v, attn_mask, dropout_p, is_causal, scale=scale)


@register(aten.scaled_dot_product_attention, needs=("scaled_dot_product_attention",))
def attention_with_a_mask_of_numbers(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The op with the least number, not −∞, where a mask of bools hides a key; rows of which all are hidden are 0. The
    weights of hidden keys are exactly 0 in both."""
    if attn_mask is None or attn_mask.dtype != torch.bool:
        return decline("there is no mask of bools")
    shown = past(query.shape[-2], key.shape[-2], query) & attn_mask if is_causal else attn_mask
    least = torch.finfo(query.dtype).min
    numbers = torch.where(shown, constant(query, 0.0), constant(query, least))
    found = F.scaled_dot_product_attention(query, key, value, numbers, dropout_p, scale=scale, enable_gqa=enable_gqa)
    return torch.where(torch.any(shown, -1, True), found, 0.0)


@register(aten.scaled_dot_product_attention, needs=("scaled_dot_product_attention",))
def attention_without_hidden_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The op with zeros in the rows of a mask of numbers that are −∞ throughout, where backends are NaN or the mean of
    the values; these rows of the result are 0."""
    bias = bias_of(attn_mask, is_causal, query, key)
    if bias is None or attn_mask is None or attn_mask.dtype == torch.bool:
        return decline("there is no mask of numbers")
    seen = torch.any(bias != -math.inf, -1, True)
    shown = torch.where(seen, bias, 0.0)
    found = F.scaled_dot_product_attention(query, key, value, shown, dropout_p, scale=scale, enable_gqa=enable_gqa)
    return torch.where(seen, found, 0.0)
