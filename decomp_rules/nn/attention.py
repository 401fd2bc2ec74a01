"""Scaled dot-product attention in its spellings. All of them become two matrix products and a softmax, never a fused
kernel, so that forward and backward see the same numbers on any device. Dtypes narrower than 32 bits are computed in
float32 and rounded once, as PyTorch's CPU kernels do."""

from collections.abc import Callable
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.reduce.reduction import known_empty
from decomp_rules.support.floating import LOG2_E
from decomp_rules.support.operands import cast, constant, wide

RULES = Rules(level="exact")
register = RULES.register

Exp = Callable[[Tensor], Tensor]
UNPAIRED = "keys and values differ in number"


@register(aten.scaled_dot_product_attention, needs=(("softmax", "_softmax"),))
def attention_by_softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q kᵀ · scale + mask) v; a row whose scores are all −∞, masked or not, gives 0. Its error is the flash
    kernel's."""
    if unpaired(key, value):
        return decline(UNPAIRED)
    values, scored = _scored(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    weights = weights_of(*opened(scored))
    if dropout_p > 0.0:
        weights = F.dropout(weights, dropout_p, True)
    return cast(torch.matmul(weights, values), query.dtype)


@register(aten.scaled_dot_product_attention)
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """(e v) / Σe with e = exp(s − max s) and the scores s = q kᵀ · scale + mask: as in the flash kernel, and with its
    error, the division is applied to the result and not to the scores, of which there are more. A row whose scores are
    all −∞ is 0."""
    if unpaired(key, value):
        return decline(UNPAIRED)
    values, scored = _scored(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if known_empty(scored):
        return attention_by_softmax(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    largest = torch.amax(scored.detach(), [-1], keepdim=True)
    powers = torch.exp(scored - torch.clamp_min(largest, torch.finfo(scored.dtype).min))
    # The sum is 1 or more, or 0: its inverse needs none of the care that a quotient takes.
    share = torch.reciprocal(torch.clamp_min(torch.sum(powers, [-1], keepdim=True), 0.5))
    if dropout_p > 0.0:
        powers = F.dropout(powers, dropout_p, True)
    return cast(torch.matmul(powers, values) * share, query.dtype)


@register(aten.scaled_dot_product_attention, level="standard")
def attention_by_exponentials(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """(e v) / Σe with e = exp(s − max s). Rows that are fully hidden are only checked for if there is a mask."""
    given = (query, key, value, attn_mask, dropout_p, is_causal, softmax_scale(query, scale), enable_gqa)
    return _by_exponentials(*given, torch.exp)


@register(aten.scaled_dot_product_attention, level="standard", needs=("exp2",))
def attention_by_powers(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """(e v) / Σe with e = 2^((s − max s) · log₂e): where that is rounded most, the weight is negligible."""
    given = (query, key, value, attn_mask, dropout_p, is_causal, softmax_scale(query, scale), enable_gqa)
    return _by_exponentials(*given, _power)


@register(aten.scaled_dot_product_attention, level="fast", needs=("exp2",))
def attention_by_scaled_powers(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """(e v) / Σe with e = 2^(s − max s), where the queries are scaled by log₂e as well."""
    if attn_mask is not None:
        return decline("a mask is not to be scaled: the smallest number that there is would be −∞")
    given = (query, key, value, None, dropout_p, is_causal, softmax_scale(query, scale) * LOG2_E, enable_gqa)
    return _by_exponentials(*given, torch.exp2)


@register(aten._scaled_dot_product_flash_attention_for_cpu, level="standard")
def flash_attention_by_exponentials(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(e v) / Σe with e = exp(s − max s), and max s + log Σe."""
    return _flash_by_exponentials(query, key, value, dropout_p, is_causal, attn_mask, scale, torch.exp)


@register(aten._scaled_dot_product_flash_attention_for_cpu, level="standard", needs=("exp2",))
def flash_attention_by_powers(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(e v) / Σe with e = 2^((s − max s) · log₂e), and max s + log Σe."""
    return _flash_by_exponentials(query, key, value, dropout_p, is_causal, attn_mask, scale, _power)


def _power(x: Tensor) -> Tensor:
    """exp(x) of what is not positive, with an error that is small beside 1."""
    return torch.exp2(x * LOG2_E)


def _by_exponentials(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
    exp: Exp,
) -> Tensor:
    if unpaired(key, value):
        return decline(UNPAIRED)
    if known_empty(query) or known_empty(key):
        return decline("there is nothing to attend to")
    q, k, v = wide(query), wide(key), wide(value)
    if enable_gqa:
        k, v = repeated_heads(k, q), repeated_heads(v, q)
    powers, total, _ = _exponentials(q, k, attn_mask, is_causal, scale, exp)
    if dropout_p > 0.0:
        powers = F.dropout(powers, dropout_p, True)
    return cast(torch.matmul(powers, v) * torch.reciprocal(total), query.dtype)


def _flash_by_exponentials(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Tensor | None,
    scale: float | None,
    exp: Exp,
) -> tuple[Tensor, Tensor]:
    if unpaired(key, value):
        return decline(UNPAIRED)
    if dropout_p > 0.0 or attn_mask is not None or known_empty(query) or known_empty(key):
        return decline("only of what is there, without dropout or mask")
    by = softmax_scale(query, scale)
    powers, total, largest = _exponentials(wide(query), wide(key), None, is_causal, by, exp)
    out = torch.matmul(powers, wide(value)) * torch.reciprocal(total)
    return cast(out, query.dtype), (largest + torch.log(total)).squeeze(-1)


@register(aten.scaled_dot_product_attention, level="standard", needs=(("softmax", "_softmax"),))
def unmasked_attention_by_softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q kᵀ · scale) v, the heads of all batches in a row: compilers know that for attention."""
    if attn_mask is not None:
        return decline("there is a mask")
    if unpaired(key, value):
        return decline(UNPAIRED)
    q, k, v = wide(query), wide(key), wide(value)
    if known_empty(q) or known_empty(k):
        return decline("there is nothing to attend to")
    if enable_gqa:
        k, v = repeated_heads(k, q), repeated_heads(v, q)
    return cast(_by_softmax(q, k, v, dropout_p, is_causal, scale)[0], query.dtype)


@register(aten._scaled_dot_product_flash_attention_for_cpu, level="standard", needs=(("softmax", "_softmax"),))
def unmasked_flash_attention_by_softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ · scale) v, the heads of all batches in a row, and log Σ exp of the scores."""
    if dropout_p > 0.0 or attn_mask is not None or unpaired(key, value):
        return decline("only of pairs, without dropout or mask")
    q, k, v = wide(query), wide(key), wide(value)
    if known_empty(q) or known_empty(k):
        return decline("there is nothing to attend to")
    out, scored = _by_softmax(q, k, v, dropout_p, is_causal, scale)
    return cast(out, query.dtype), torch.logsumexp(scored, [-1]).view(q.shape[:-1])


def _by_softmax(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """softmax(s) v and the scores s, of all heads in a row where queries, keys and values have the same."""
    in_a_row = q.dim() > 3 and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    rows, columns, values = (x.flatten(0, -3) for x in (q, k, v)) if in_a_row else (q, k, v)
    scored = torch.matmul(rows * softmax_scale(q, scale), columns.transpose(-2, -1))
    scored = unmasked_or_causal(scored, is_causal)
    weights = torch.softmax(scored, -1)
    if dropout_p > 0.0:
        weights = F.dropout(weights, dropout_p, True)
    out = torch.matmul(weights, values)
    return out.view(*q.shape[:-1], v.shape[-1]) if in_a_row else out, scored


def _exponentials(
    q: Tensor, k: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float, exp: Exp
) -> tuple[Tensor, Tensor, Tensor]:
    """exp(s − m) of the scores s = q kᵀ · scale + mask, their sum along each row, and m = max s. With a mask m is made
    finite, and the sum of a fully hidden row slightly positive."""
    bias = bias_of(attn_mask, is_causal, q, k)
    scored = torch.matmul(q * scale, k.transpose(-2, -1))
    scored = unmasked_or_causal(scored, is_causal) if bias is None else scored + bias
    largest = torch.amax(scored.detach(), [-1], keepdim=True)
    if attn_mask is not None:
        largest = torch.maximum(largest, constant(largest, torch.finfo(scored.dtype).min))
    powers = exp(scored - largest)
    total = torch.sum(powers, [-1], keepdim=True)
    return powers, total if attn_mask is None else total + 2.0**-60, largest


@register(aten._scaled_dot_product_attention_math)
def _scaled_dot_product_attention_math(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Tensor | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ · scale + mask) v, and the softmax."""
    if dropout_p > 0.0 or dropout_mask is not None:
        return decline("only without dropout")
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        return decline("only masks that are added")
    values, scored = _scored(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    weights = weights_of(*opened(scored))
    return cast(torch.matmul(weights, values), query.dtype), cast(weights, query.dtype)


@register(aten._scaled_dot_product_flash_attention_for_cpu)
def _scaled_dot_product_flash_attention_for_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """exp(s − lse) v and lse = log Σ exp(s), with the scores s = q kᵀ · scale + mask."""
    if unpaired(key, value):
        return decline(UNPAIRED)
    if dropout_p > 0.0:
        return decline("the kernel has no dropout")
    return attended(query, key, value, attn_mask, is_causal, scale)


@register(aten._scaled_dot_product_flash_attention_for_cpu_backward)
def _scaled_dot_product_flash_attention_for_cpu_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """With p = exp(s − lse) and t = p (g vᵀ − Σ g out): t k · scale, tᵀ q · scale and pᵀ g."""
    if dropout_p > 0.0:
        return decline("the kernel has no dropout")
    grad, q, k, v = wide(grad_out), wide(query), wide(key), wide(value)
    bias = bias_of(attn_mask, is_causal, q, k)
    p = torch.exp(kernel_scores(q, k, scale, bias, is_causal) - logsumexp.unsqueeze(-1))
    along = torch.sum(grad * wide(out), [-1], keepdim=True)
    through = p * (torch.matmul(grad, v.transpose(-2, -1)) - along) * softmax_scale(query, scale)
    grad_query = torch.matmul(through, k)
    grad_key = torch.matmul(through.transpose(-2, -1), q)
    grad_value = torch.matmul(p.transpose(-2, -1), grad)
    return cast(grad_query, query.dtype), cast(grad_key, key.dtype), cast(grad_value, value.dtype)


@register(aten._native_multi_head_attention)
def _native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The projection of each head's softmax(q kᵀ / √d) v, and the softmax, averaged over the heads, if it is wanted."""
    if not isinstance(qkv_weight.shape[0], int):
        return decline("the width of the projections is not known")
    if need_weights and mask is not None and mask.dtype != torch.bool:
        return decline("only boolean masks")
    sources = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3))
    q, k, v = (split_heads(F.linear(source, weight, bias), num_head) for source, weight, bias in sources)
    scored = scores(wide(q), wide(k))
    if mask is not None:
        scored = torch.where(hidden(mask, mask_type), -math.inf, scored)
    weights = cast(torch.softmax(scored, -1), query.dtype)
    mixed = torch.matmul(weights, v).transpose(1, 2).flatten(2)
    out = F.linear(mixed, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, torch.mean(weights, [1]) if average_attn_weights else weights


@register(aten._transformer_encoder_layer_fwd)
def _transformer_encoder_layer_fwd(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Attention and a feed-forward network, each with its residual and layer norm, before or after."""
    if not isinstance(qkv_weight.shape[0], int):
        return decline("the width of the projections is not known")

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, [embed_dim], norm_weight_2, norm_bias_2, eps)

    def attend(x: Tensor) -> Tensor:
        return _native_multi_head_attention(
            x,
            x,
            x,
            embed_dim,
            num_heads,
            qkv_weight,
            qkv_bias,
            proj_weight,
            proj_bias,
            mask,
            need_weights=False,
            mask_type=mask_type,
        )[0]

    def feed_forward(x: Tensor) -> Tensor:
        inner = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(inner) if use_gelu else F.relu(inner), ffn_weight_2, ffn_bias_2)

    if norm_first:
        src = src + attend(norm_1(src))
        return src + feed_forward(norm_2(src))
    src = norm_1(src + attend(src))
    return norm_2(src + feed_forward(src))


def unpaired(key: Tensor, value: Tensor) -> bool:
    """Whether there are more keys than values, or fewer, or in another batch: PyTorch accepts these if there is nothing
    to compute."""
    keys, values, width = key.shape[-2], value.shape[-2], value.shape[-1]
    return type(keys) is int and type(values) is int and keys != values or type(width) is int and width == 0


def _scored(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> tuple[Tensor, Tensor]:
    """The values, with as many heads as the queries, and the scores."""
    q, k, v = wide(query), wide(key), wide(value)
    if enable_gqa:
        k, v = repeated_heads(k, q), repeated_heads(v, q)
    return v, scores(q, k, scale, bias_of(attn_mask, is_causal, q, k), is_causal)


def scores(
    q: Tensor, k: Tensor, scale: float | None = None, bias: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """q kᵀ · scale + bias. The queries are scaled, as they are fewer than the scores, and a bias that all heads share
    goes into the product: two passes fewer over the scores, where attention spends most of its time."""
    rows, columns = q * softmax_scale(q, scale), k.transpose(-2, -1)
    if bias is None:
        return unmasked_or_causal(torch.matmul(rows, columns), is_causal)
    shared = all(isinstance(size, int) and size == 1 for size in bias.shape[:-2])
    if not shared or q.dim() < 3 or q.shape[:-2] != k.shape[:-2]:
        return torch.matmul(rows, columns) + bias
    bias = bias.flatten(0, -3) if bias.dim() > 3 else bias
    return torch.baddbmm(bias, rows.flatten(0, -3), columns.flatten(0, -3)).view(*q.shape[:-1], k.shape[-2])


def kernel_scores(q: Tensor, k: Tensor, scale: float | None, bias: Tensor | None, is_causal: bool) -> Tensor:
    """q kᵀ · scale + bias, scaled after the product: rounded as by the kernels, whose log Σ exp is given backward."""
    scored = torch.matmul(q, k.transpose(-2, -1)) * softmax_scale(q, scale)
    return unmasked_or_causal(scored, is_causal) if bias is None else scored + bias


def unmasked_or_causal(scored: Tensor, is_causal: bool) -> Tensor:
    """The scores, with −∞ at later keys; even a NaN there is hidden."""
    return torch.where(past(scored.shape[-2], scored.shape[-1], scored), scored, -math.inf) if is_causal else scored


def softmax_scale(q: Tensor, scale: float | None) -> float:
    """The factor of the scores: `scale`, or 1 / √d."""
    if scale is not None:
        return scale
    width = q.shape[-1]
    if not isinstance(width, int):
        return width**-0.5  # a root of a symbol would guard on it
    return 1.0 / math.sqrt(max(width, 1))  # d = 0: sums over nothing are 0, so the factor does not matter


def attended(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ · scale + mask) v in the dtype of the query, and log Σ exp of the scores, 0 for an empty row."""
    q, k, v = wide(query), wide(key), wide(value)
    scored, seen = opened(kernel_scores(q, k, scale, bias_of(attn_mask, is_causal, q, k), is_causal))
    out = cast(torch.matmul(weights_of(scored, seen), v), query.dtype)
    total = torch.logsumexp(scored, [-1])
    return out, total if seen is None else zero_unless(seen.squeeze(-1), total)


def bias_of(attn_mask: Tensor | None, is_causal: bool, q: Tensor, k: Tensor) -> Tensor | None:
    """The tensor that a mask adds to the scores: itself, or −∞ where a boolean mask is False; and −∞ above the
    diagonal."""
    if attn_mask is None:
        return None
    bias = cast(attn_mask, q.dtype)
    if attn_mask.dtype == torch.bool:
        # log₂ of 0 or 1 is −∞ or 0. Inductor would recompute a `where` for every head, twice, but keeps a logarithm.
        bias = torch.log2(bias)
    return torch.where(past(q.shape[-2], k.shape[-2], q), bias, -math.inf) if is_causal else bias


def past(queries: int, keys: int, like: Tensor) -> Tensor:
    """A mask of the keys that are no later than each query."""
    return torch.arange(keys, device=like.device) <= torch.arange(queries, device=like.device).unsqueeze(1)


def opened(scored: Tensor) -> tuple[Tensor, Tensor | None]:
    """The scores, 0 in rows that are −∞ throughout, so that neither their softmax nor its gradient is NaN; and the rows
    that are not fully hidden, as a column (None: all rows)."""
    if known_empty(scored):
        return scored, None
    seen = torch.amax(scored.detach(), [-1], True) != -math.inf
    return torch.where(seen, scored, 0), seen


def weights_of(scored: Tensor, seen: Tensor | None) -> Tensor:
    """The softmax of scores that were `opened`, 0 in fully hidden rows, unless a value there is NaN."""
    return zero_unless(seen, torch.softmax(scored, -1))


def zero_unless(seen: Tensor | None, rows: Tensor) -> Tensor:
    """The rows, and 0 in those that are fully hidden."""
    return rows if seen is None else torch.where(seen, rows, 0)


def repeated_heads(x: Tensor, query: Tensor) -> Tensor:
    """x with each of its heads repeated, so that there are as many as in the query."""
    heads, wanted = x.shape[-3], query.shape[-3]
    wider = x.unsqueeze(-3).expand(*x.shape[:-2], wanted // heads, *x.shape[-2:])
    return wider.flatten(-4, -3)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads · d) as (batch, heads, length, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def hidden(mask: Tensor, mask_type: int | None) -> Tensor:
    """A mask whose True hides, in a shape that broadcasts to the scores: (L, S) for type 0, (B, S) for type 1."""
    if mask_type == 1 and mask.dim() == 2:
        return mask.unsqueeze(1).unsqueeze(1)
    return mask
