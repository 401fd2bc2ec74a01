"""The attention kernels of GPUs: what `attention` computes, in the outputs that each of them has. Scores, probabilities
and gradients are the same; only what is saved for the kernel's own backward differs, and random state is empty."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.nn.attention import attended, bias_of, kernel_scores, softmax_scale
from decomp_rules.support.operands import cast, wide

RULES = Rules(level="exact")
register = RULES.register

FROM_THE_FIRST, FROM_THE_LAST = 1, 2
"""Causal masks of `_efficient_attention_forward`: the diagonal starts at the first query, or ends at the last."""
NO_DROPOUT = "the kernel's random numbers cannot be drawn outside of it"


@register(aten._scaled_dot_product_efficient_attention)
def _scaled_dot_product_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """softmax(q kᵀ · scale + bias) v, and log Σ exp of the scores, in rows that are a multiple of 32 long."""
    if dropout_p > 0.0:
        return decline(NO_DROPOUT)
    out, lse = attended(query, key, value, attn_bias, is_causal, scale)
    lse = torch.constant_pad_nd(lse, [0, -lse.shape[-1] % 32], math.inf) if compute_log_sumexp else lse[..., :0]
    return out, lse, state(query), state(query)


@register(aten._scaled_dot_product_flash_attention)
def _scaled_dot_product_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """softmax(q kᵀ · scale) v, and log Σ exp of the scores."""
    if dropout_p > 0.0 or return_debug_mask:
        return decline(NO_DROPOUT)
    out, lse = attended(query, key, value, None, is_causal, scale)
    random = (state(query, torch.uint64, 2), state(query, torch.uint64))
    debug = torch.full((0,), 0, dtype=query.dtype, device=query.device)
    return out, lse, None, None, query.shape[2], key.shape[2], *random, debug


@register(aten._scaled_dot_product_cudnn_attention)
def _scaled_dot_product_cudnn_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """softmax(q kᵀ · scale + bias) v, and log Σ exp of the scores as a column."""
    if dropout_p > 0.0 or return_debug_mask:
        return decline(NO_DROPOUT)
    out, lse = attended(query, key, value, attn_bias, is_causal, scale)
    lse = lse.unsqueeze(-1) if compute_log_sumexp else None
    return out, lse, None, None, query.shape[2], key.shape[2], state(query), state(query), None


@register(aten._scaled_dot_product_fused_attention_overrideable)
def _scaled_dot_product_fused_attention_overrideable(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """softmax(q kᵀ · scale + bias) v, and log Σ exp of the scores."""
    if dropout_p > 0.0 or return_debug_mask:
        return decline(NO_DROPOUT)
    out, lse = attended(query, key, value, attn_bias, is_causal, scale)
    return out, lse, None, None, query.shape[2], key.shape[2], state(query), state(query), None


@register(aten._scaled_dot_product_efficient_attention_backward)
def _scaled_dot_product_efficient_attention_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of query, key, value and bias."""
    if dropout_p > 0.0:
        return decline(NO_DROPOUT)
    lse = logsumexp[..., : query.shape[-2]]
    grads = gradients(grad_out_, query, key, value, attn_bias, out, lse, is_causal, scale)
    return tuple(grad if wanted else None for grad, wanted in zip(grads, grad_input_mask))


@register(aten._scaled_dot_product_flash_attention_backward)
def _scaled_dot_product_flash_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value."""
    if dropout_p > 0.0:
        return decline(NO_DROPOUT)
    return gradients(grad_out, query, key, value, None, out, logsumexp, is_causal, scale)[:3]


@register(aten._scaled_dot_product_cudnn_attention_backward)
def _scaled_dot_product_cudnn_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    attn_bias: Tensor | None,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value."""
    if dropout_p > 0.0:
        return decline(NO_DROPOUT)
    lse = logsumexp.squeeze(-1)
    return gradients(grad_out, query, key, value, attn_bias, out, lse, is_causal, scale)[:3]


@register(aten._scaled_dot_product_fused_attention_overrideable_backward)
def _scaled_dot_product_fused_attention_overrideable_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    grad_input_mask: Sequence[bool],
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    scale: float | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of query, key, value and bias."""
    if dropout_p > 0.0:
        return decline(NO_DROPOUT)
    grads = gradients(grad_out, query, key, value, attn_bias, out, logsumexp, is_causal, scale)
    return tuple(grad if wanted else None for grad, wanted in zip(grads, grad_input_mask))


@register(aten._flash_attention_forward)
def _flash_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    """softmax(q kᵀ · scale) v for (batch, length, heads, d), and log Σ exp of the scores."""
    if cum_seq_q is not None or cum_seq_k is not None:
        return decline("where sequences end is data")
    if dropout_p > 0.0 or return_debug_mask:
        return decline(NO_DROPOUT)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out, lse = attended(q, k, v, None, is_causal, scale)
    debug = torch.full((0,), 0, dtype=query.dtype, device=query.device)
    return out.transpose(1, 2), lse, state(query, torch.uint64, 2), state(query, torch.uint64), debug


@register(aten._efficient_attention_forward)
def _efficient_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    *,
    scale: float | None = None,
    seqlen_k: Tensor | None = None,
    window_size: int | None = None,
) -> tuple[Any, ...]:
    """softmax(q kᵀ · scale + bias) v for (batch, length, heads, d), causal from the first query or up to the last, and
    log Σ exp of the scores in rows that are a multiple of 32 long."""
    if cu_seqlens_q is not None or cu_seqlens_k is not None or seqlen_k is not None:
        return decline("where sequences end is data")
    if dropout_p > 0.0 or window_size:
        return decline(NO_DROPOUT if dropout_p > 0.0 else "only without a window")
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if custom_mask_type == FROM_THE_LAST:
        ends = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=query.device)
        hidden = torch.triu(ends, k.shape[2] - q.shape[2] + 1)
        bias = torch.where(hidden, -math.inf, 0.0 if bias is None else wide(bias))
    out, lse = attended(q, k, v, bias, custom_mask_type == FROM_THE_FIRST, scale)
    lse = torch.constant_pad_nd(lse, [0, -lse.shape[-1] % 32], math.inf) if compute_log_sumexp else lse[..., :0]
    return out.transpose(1, 2), lse, state(query), state(query), query.shape[1], key.shape[1]


def gradients(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """With p = exp(s − lse) and t = p (g vᵀ − Σ g out): t k · scale, tᵀ q · scale, pᵀ g, and t summed to the bias."""
    grad, q, k, v = wide(grad_out), wide(query), wide(key), wide(value)
    p = torch.exp(kernel_scores(q, k, scale, bias_of(bias, is_causal, q, k), is_causal) - lse.unsqueeze(-1))
    along = torch.sum(grad * wide(out), [-1], keepdim=True)
    through = p * (torch.matmul(grad, v.transpose(-2, -1)) - along)
    scaled = through * softmax_scale(query, scale)
    own = None
    if bias is not None:
        own = cast(through.sum_to_size(bias.shape), bias.dtype)
    return (
        cast(torch.matmul(scaled, k), query.dtype),
        cast(torch.matmul(scaled.transpose(-2, -1), q), key.dtype),
        cast(torch.matmul(p.transpose(-2, -1), grad), value.dtype),
        own,
    )


def state(query: Tensor, dtype: torch.dtype = torch.int64, count: int | None = None) -> Tensor:
    """The random state of a kernel that drew nothing."""
    shape = () if count is None else (count,)
    return torch.full(shape, 0, dtype=dtype, device=query.device)
