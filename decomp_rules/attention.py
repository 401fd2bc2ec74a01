"""Scaled dot-product attention in its spellings. All of them become two matrix products and a softmax, never a fused
kernel, so that forward and backward see the same numbers whatever the device. What is narrower than 32 bits is computed
in float32 and rounded once, as PyTorch's CPU kernels do."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rules, decline
from decomp_rules.operands import cast, wide

RULES = Rules()
register = RULES.register
aten = torch.ops.aten


@register(aten.scaled_dot_product_attention)
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:
    """softmax(q kᵀ · scale + mask) v; a row that is masked throughout gives 0. Its error is the flash kernel's."""
    q, k, v = wide(query), wide(key), wide(value)
    if enable_gqa:
        k, v = repeated_heads(k, q), repeated_heads(v, q)
    scores = masked(scaled_scores(q, k, scale), attn_mask, is_causal)
    weights = probabilities(scores, attn_mask)
    if dropout_p > 0.0:
        weights = F.dropout(weights, dropout_p, True)
    return cast(torch.matmul(weights, v), query.dtype)


@register(aten._scaled_dot_product_attention_math)
def _scaled_dot_product_attention_math(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, dropout_mask: Tensor | None = None, scale: float | None = None, enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ · scale + mask) v, and the softmax."""
    if dropout_p > 0.0 or dropout_mask is not None:
        return decline("only without dropout")
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        return decline("only masks that are added")
    q, k, v = wide(query), wide(key), wide(value)
    if enable_gqa:
        k, v = repeated_heads(k, q), repeated_heads(v, q)
    weights = probabilities(masked(scaled_scores(q, k, scale), attn_mask, is_causal), attn_mask)
    return cast(torch.matmul(weights, v), query.dtype), cast(weights, query.dtype)


@register(aten._scaled_dot_product_flash_attention_for_cpu)
def _scaled_dot_product_flash_attention_for_cpu(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """exp(s − lse) v and lse = log Σ exp(s), with the scores s = q kᵀ · scale + mask."""
    if dropout_p > 0.0:
        return decline("the kernel has no dropout")
    q, k, v = wide(query), wide(key), wide(value)
    scores = masked(scaled_scores(q, k, scale), attn_mask, is_causal)
    out = cast(torch.matmul(probabilities(scores, attn_mask), v), query.dtype)
    return out, logsumexp_or_zero(scores, attn_mask)


@register(aten._scaled_dot_product_flash_attention_for_cpu_backward)
def _scaled_dot_product_flash_attention_for_cpu_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, dropout_p: float,
    is_causal: bool, attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """With p = exp(s − lse) and t = p (g vᵀ − Σ g out): t k · scale, tᵀ q · scale and pᵀ g."""
    if dropout_p > 0.0:
        return decline("the kernel has no dropout")
    grad, q, k, v = wide(grad_out), wide(query), wide(key), wide(value)
    scores = masked(scaled_scores(q, k, scale), attn_mask, is_causal)
    p = torch.exp(scores - logsumexp.unsqueeze(-1))
    along = torch.sum(grad * wide(out), [-1], keepdim=True)
    through = p * (torch.matmul(grad, v.transpose(-2, -1)) - along) * softmax_scale(query, scale)
    grad_query = torch.matmul(through, k)
    grad_key = torch.matmul(through.transpose(-2, -1), q)
    grad_value = torch.matmul(p.transpose(-2, -1), grad)
    return cast(grad_query, query.dtype), cast(grad_key, key.dtype), cast(grad_value, value.dtype)


@register(aten._native_multi_head_attention)
def _native_multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, mask: Tensor | None = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The projection of each head's softmax(q kᵀ / √d) v, and the softmax, averaged over the heads, if it is wanted."""
    if not isinstance(qkv_weight.shape[0], int):
        return decline("the width of the projections is not known")
    if need_weights and mask is not None and mask.dtype != torch.bool:
        return decline("only boolean masks")
    sources = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3))
    q, k, v = (split_heads(F.linear(source, weight, bias), num_head) for source, weight, bias in sources)
    scores = scaled_scores(wide(q), wide(k), None)
    if mask is not None:
        scores = torch.where(hidden(mask, scores, mask_type), -math.inf, scores)
    weights = cast(torch.softmax(scores, -1), query.dtype)
    mixed = torch.matmul(weights, v).transpose(1, 2).flatten(2)
    out = F.linear(mixed, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, torch.mean(weights, [1]) if average_attn_weights else weights


@register(aten._transformer_encoder_layer_fwd)
def _transformer_encoder_layer_fwd(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor,
    proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Tensor, norm_bias_1: Tensor,
    norm_weight_2: Tensor, norm_bias_2: Tensor, ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor,
    ffn_bias_2: Tensor, mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:
    """Attention and a feed-forward network, each with its residual and layer norm, before or after."""
    if not isinstance(qkv_weight.shape[0], int):
        return decline("the width of the projections is not known")

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, [embed_dim], norm_weight_2, norm_bias_2, eps)

    def attend(x: Tensor) -> Tensor:
        return _native_multi_head_attention(x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias,
                                            mask, need_weights=False, mask_type=mask_type)[0]

    def feed_forward(x: Tensor) -> Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    if norm_first:
        src = src + attend(norm_1(src))
        return src + feed_forward(norm_2(src))
    src = norm_1(src + attend(src))
    return norm_2(src + feed_forward(src))


def scaled_scores(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    """q kᵀ · scale, where the scale is 1 / √d unless it is given."""
    return torch.matmul(q, k.transpose(-2, -1)) * softmax_scale(q, scale)


def softmax_scale(q: Tensor, scale: float | None) -> float:
    """What the scores are multiplied by: `scale`, or 1 / √d."""
    if scale is not None:
        return scale
    width = q.shape[-1]
    return 1.0 / math.sqrt(width) if isinstance(width, int) else width**-0.5  # a root of a symbol would guard on it


def masked(scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    """The scores with −∞ where a boolean mask is False, plus a mask of floats, and −∞ above the diagonal if causal."""
    if is_causal:
        rows = torch.arange(scores.shape[-2], device=scores.device).unsqueeze(1)
        scores = torch.where(torch.arange(scores.shape[-1], device=scores.device) <= rows, scores, -math.inf)
    if attn_mask is None:
        return scores
    if attn_mask.dtype == torch.bool:
        return torch.where(attn_mask, scores, -math.inf)
    return scores + cast(attn_mask, scores.dtype)


def probabilities(scores: Tensor, attn_mask: Tensor | None) -> Tensor:
    """The softmax of the scores; only with a mask can a row be empty, and then it is 0."""
    return torch.softmax(scores, -1) if attn_mask is None else torch._safe_softmax(scores, -1)


def logsumexp_or_zero(scores: Tensor, attn_mask: Tensor | None) -> Tensor:
    """log Σ exp(s), and 0 for a row that is masked throughout, as the flash kernel has it."""
    total = torch.logsumexp(scores, [-1])
    return total if attn_mask is None else torch.where(total == -math.inf, 0, total)


def repeated_heads(x: Tensor, query: Tensor) -> Tensor:
    """x with each of its heads repeated, so that there are as many as in the query."""
    heads, wanted = x.shape[-3], query.shape[-3]
    wider = x.unsqueeze(-3).expand(*x.shape[:-2], wanted // heads, *x.shape[-2:])
    return wider.flatten(-4, -3)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads · d) as (batch, heads, length, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def hidden(mask: Tensor, scores: Tensor, mask_type: int | None) -> Tensor:
    """A mask whose True hides, in a shape that broadcasts to the scores: (L, S) for type 0, (B, S) for type 1."""
    if mask_type == 1 and mask.dim() == 2:
        return mask.unsqueeze(1).unsqueeze(1)
    return mask
