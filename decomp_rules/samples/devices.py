"""Calls of ops that have no kernel on this processor: batch norms, convolutions, attention and scaled products of
graphics cards. Beside each is what it is documented to compute, by PyTorch's own kernels for this processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Sample
from decomp.ops import aten
from decomp_rules.samples.making import f, f8, p

Documented = Callable[..., Any]


# Batch norm


def _reserved() -> Tensor:
    return torch.zeros(0, dtype=torch.uint8)


def _norm(train: bool) -> tuple[Any, ...]:
    return f(4, 3, 5), f(3), f(3), f(3), p(3), train, 0.1, 1e-5


def _cudnn_batch_norm(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return *torch.native_batch_norm(x, *rest), _reserved()


def _norm_backward() -> tuple[Any, ...]:
    x, weight, bias, mean, var, *_ = _norm(True)
    _, saved, inverse = torch.native_batch_norm(x, weight, bias, mean.clone(), var.clone(), True, 0.1, 1e-5)
    return x, f(4, 3, 5), weight, mean, var, saved, inverse, 1e-5


def _batch_norm_backward(x: Tensor, grad: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    mean, var, saved, inverse, eps = rest[:5]
    found = aten.native_batch_norm_backward(grad, x, weight, mean, var, saved, inverse, True, eps, [True] * 3)
    return tuple(found)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _channels(x: Tensor) -> Tensor:
    """Each channel a row."""
    return _at_least_float32(x).transpose(0, 1).flatten(1)


def _across(t: Tensor, like: Tensor) -> Tensor:
    return _at_least_float32(t).reshape([1, -1] + [1] * (like.dim() - 2))


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(_channels(x), 1, correction=0)
    return mean, torch.rsqrt(var + eps)


def _elemt(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    out = (_at_least_float32(x) - _across(mean, x)) * _across(invstd, x) * _across(weight, x) + _across(bias, x)
    return out.to(x.dtype)


def _reduce(grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor, *asked: bool) -> tuple[Tensor, ...]:
    g, centred = _channels(grad), _channels(x) - _at_least_float32(mean)[:, None]
    along = (g * centred).sum(1)
    return g.sum(1), along, (along * _at_least_float32(invstd)).to(weight.dtype), g.sum(1).to(weight.dtype)


def _backward_elemt(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor, total: Tensor, along: Tensor, count: Tensor
) -> Tensor:
    n = int(count.sum())
    centred, r = _at_least_float32(x) - _across(mean, x), _across(invstd, x)
    inner = _at_least_float32(grad) - _across(total, x) / n - centred * r * r * _across(along, x) / n
    return (inner * r * _across(weight, x)).to(x.dtype)


def _shares() -> tuple[Any, ...]:
    return f(4, 3, 5), f(4, 3, 5), f(3), p(3), f(3)


BATCH_NORMS: Mapping[str, tuple[Callable[[], Any], Documented]] = {
    "cudnn_batch_norm": (lambda: (_norm(True), _norm(False)), _cudnn_batch_norm),
    "miopen_batch_norm": (lambda: (_norm(True), _norm(False)), torch.native_batch_norm),
    "cudnn_batch_norm_backward": (
        lambda: ((*_norm_backward(), torch.zeros(0, dtype=torch.uint8)),),
        _batch_norm_backward,
    ),
    "miopen_batch_norm_backward": (lambda: (_norm_backward(),), _batch_norm_backward),
    "batch_norm_stats": (lambda: ((f(4, 3, 5), 1e-5),), _stats),
    "batch_norm_elemt": (lambda: ((f(4, 3, 5), f(3), f(3), f(3), p(3), 1e-5),), _elemt),
    "batch_norm_backward_reduce": (lambda: ((*_shares(), True, True, True),), _reduce),
    "batch_norm_backward_elemt": (
        lambda: ((*_shares(), f(3), f(3), torch.tensor([12, 8], dtype=torch.int32)),),
        _backward_elemt,
    ),
}


# Convolutions


def _convolved(x: Tensor, w: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    return torch.convolution(x, w, bias, stride, padding, dilation, False, [0] * len(stride), groups)


def _depthwise(x: Tensor, w: Tensor, size: Any, bias: Any, stride: Any, padding: Any, dilation: Any) -> Tensor:
    return _convolved(x, w, bias, stride, padding, dilation, x.shape[1])


def _by_library(
    x: Tensor, w: Tensor, bias: Any, padding: Any, stride: Any, dilation: Any, groups: int, *_: Any
) -> Tensor:
    return _convolved(x, w, bias, stride, padding, dilation, groups)


def _unbiased(x: Tensor, w: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, *_: Any) -> Tensor:
    return _convolved(x, w, None, stride, padding, dilation, groups)


def _transposed(
    x: Tensor, w: Tensor, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int, *_: Any
) -> Tensor:
    return torch.convolution(x, w, None, stride, padding, dilation, True, output_padding, groups)


def _relu(*args: Any) -> Tensor:
    return torch.relu(_convolved(*args))


def _add_relu(x: Tensor, w: Tensor, z: Tensor, alpha: Any, *rest: Any) -> Tensor:
    return torch.relu(_convolved(x, w, *rest) + (1 if alpha is None else alpha) * z)


def _double_backward(
    ggx: Tensor, ggw: Tensor, ggb: Tensor, grad: Tensor, weight: Tensor, x: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    """By PyTorch's own derivatives of the gradients of a convolution."""
    *settings, _ = rest
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (grad, weight, x)]
        g, w, y = leaves
        bias = torch.zeros(w.shape[0], dtype=w.dtype, requires_grad=True)
        out = torch.convolution(y, w, bias, *settings)
        gradients = torch.autograd.grad(out, [y, w, bias], g, create_graph=True)
        found = torch.autograd.grad(gradients, [g, y, w], [ggx, ggw, ggb], allow_unused=True)
    return tuple(found)


_IMAGE = ([1, 1], [1, 1], [1, 1])

CONVOLUTIONS: Mapping[str, tuple[Callable[[], Any], Documented]] = {
    "_conv_depthwise2d": (
        lambda: ((f(2, 4, 6, 6), f(4, 1, 3, 3), [3, 3], f(4), [2, 1], [1, 1], [1, 1]),), _depthwise,
    ),
    "conv_depthwise3d": (
        lambda: ((f(1, 2, 4, 4, 4), f(2, 1, 2, 2, 2), [2] * 3, f(2), [1] * 3, [0] * 3, [1] * 3),), _depthwise,
    ),
    "miopen_convolution": (
        lambda: ((f(2, 4, 6, 6), f(6, 2, 3, 3), f(6), [1, 1], [2, 1], [1, 1], 2, False, False),), _by_library,
    ),
    "miopen_depthwise_convolution": (
        lambda: ((f(2, 4, 6, 6), f(4, 1, 3, 3), f(4), [1, 1], [1, 1], [1, 1], 4, False, False),), _by_library,
    ),
    "mkldnn_convolution": (lambda: ((f(2, 4, 6, 6), f(6, 2, 3, 3), f(6), [1, 1], [2, 1], [1, 1], 2),), _by_library),
    "cudnn_convolution": (
        lambda: ((f(2, 4, 6, 6), f(6, 2, 3, 3), [1, 1], [2, 1], [1, 1], 2, False, False, False),), _unbiased,
    ),
    "cudnn_convolution_transpose": (
        lambda: ((f(2, 4, 5, 5), f(4, 3, 2, 2), [0, 0], [0, 1], [2, 2], [1, 1], 2, False, False, False),), _transposed,
    ),
    "cudnn_convolution_relu": (lambda: ((f(2, 4, 6, 6), f(6, 4, 3, 3), f(6), *_IMAGE, 1),), _relu),
    "cudnn_convolution_add_relu": (
        lambda: ((f(2, 4, 6, 6), f(6, 4, 3, 3), f(2, 6, 6, 6), 0.5, f(6), *_IMAGE, 1),), _add_relu,
    ),
    "convolution_overrideable": (
        lambda: ((f(2, 4, 6, 6), f(6, 4, 3, 3), f(6), *_IMAGE, False, [0, 0], 1),), torch.convolution,
    ),
    "_convolution_double_backward": (
        lambda: (
            (f(2, 4, 6, 6), f(6, 4, 3, 3), f(6), f(2, 6, 6, 6), f(6, 4, 3, 3), f(2, 4, 6, 6), *_IMAGE, False, [0, 0], 1,
             [True, True, True]),
        ),
        _double_backward,
    ),
}  # fmt: skip # a call a line, with its operands


# Attention


def _attention() -> tuple[Tensor, Tensor, Tensor]:
    return f(2, 2, 4, 8), f(2, 2, 6, 8), f(2, 2, 6, 8)


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    q, k = _at_least_float32(q), _at_least_float32(k)
    found = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    found = found if bias is None else found + bias
    above = torch.ones(found.shape[-2:], dtype=torch.bool).triu(1)
    return found.masked_fill(above, -math.inf) if causal else found


def _attended(
    q: Tensor, k: Tensor, v: Tensor, bias: Any = None, causal: bool = False, scale: Any = None
) -> tuple[Tensor, Tensor]:
    scores = _scores(q, k, bias, causal, scale)
    none = (scores == -math.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(none, 0)
    weights, lse = scores.softmax(-1).masked_fill(none, 0), scores.logsumexp(-1).masked_fill(none.squeeze(-1), 0)
    return (weights @ _at_least_float32(v)).to(q.dtype), lse


def _state(dtype: torch.dtype = torch.int64, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def _empty() -> Tensor:
    """Where sequences end: they are of one length."""
    return torch.zeros(0, dtype=torch.int32)


def _efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: Any, lse: bool, dropout: float = 0.0, causal: bool = False, scale: Any = None
) -> tuple[Any, ...]:
    out, found = _attended(q, k, v, bias, causal, scale)
    found = F.pad(found, (0, -found.shape[-1] % 32), value=math.inf)
    return out, found if lse else found[..., :0], _state(), _state()


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: Any = None,
) -> tuple[Any, ...]:
    out, lse = _attended(q, k, v, None, causal, scale)
    seeds = _state(torch.uint64, 2), _state(torch.uint64)
    return out, lse, None, None, q.shape[2], k.shape[2], *seeds, torch.zeros(0, dtype=q.dtype)


def _cudnn(q: Tensor, k: Tensor, v: Tensor, bias: Any, lse: bool, *rest: Any, scale: Any = None) -> tuple[Any, ...]:
    causal = len(rest) > 1 and rest[1]
    out, found = _attended(q, k, v, bias, causal, scale)
    return out, found[..., None] if lse else None, None, None, q.shape[2], k.shape[2], _state(), _state(), None


def _overrideable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Any = None,
    dropout: float = 0.0,
    causal: bool = False,
    *_: Any,
    scale: Any = None,
) -> tuple[Any, ...]:
    out, lse = _attended(q, k, v, bias, causal, scale)
    return out, lse, None, None, q.shape[2], k.shape[2], _state(), _state(), None


def _flash_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    out, lse = _attended(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, rest[5])
    seeds = _state(torch.uint64, 2), _state(torch.uint64)
    return out.transpose(1, 2), lse, *seeds, torch.zeros(0, dtype=q.dtype)


def _efficient_forward(q: Tensor, k: Tensor, v: Tensor, bias: Any, *rest: Any) -> tuple[Any, ...]:
    heads = (x.transpose(1, 2) for x in (q, k, v))
    out, lse, *states = _efficient(next(heads), next(heads), next(heads), bias, rest[6], 0.0, rest[5] == 1)
    return out.transpose(1, 2), lse, *states, q.shape[1], k.shape[1]


def _gradients(
    grad: Tensor,
    qkv: Sequence[Tensor],
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    wanted: Sequence[bool] = (True,) * 4,
) -> tuple[Any, ...]:
    """The gradients of softmax(s) v with s = q kᵀ / √d + bias, from what was saved (Dao, FlashAttention-2, 2023)."""
    q, k, v = map(_at_least_float32, qkv)
    g = _at_least_float32(grad)
    p = torch.exp(_scores(q, k, bias, causal, None) - lse[..., None])
    slope = p * (g @ v.mT - (g * out).sum(-1, keepdim=True))
    scaled = slope / math.sqrt(q.shape[-1])
    found = [scaled @ k, scaled.mT @ q, p.mT @ g, None if bias is None else slope.sum_to_size(bias.shape)]
    dtypes = [t.dtype for t in qkv] + [grad.dtype if bias is None else bias.dtype]
    return tuple(x.to(d) if x is not None and w else None for x, d, w in zip(found, dtypes, wanted))


def _saved(bias: Tensor | None = None) -> tuple[Any, ...]:
    q, k, v = _attention()
    return f(2, 2, 4, 8), q, k, v, *_attended(q, k, v, bias)


def _efficient_backward_call() -> tuple[Any, ...]:
    bias = f(2, 2, 4, 6)
    grad, q, k, v, out, lse = _saved(bias)
    padded = F.pad(lse, (0, 28), value=math.inf)
    return grad, q, k, v, bias, out, padded, _state(), _state(), 0.0, [True] * 4, False


def _flash_backward_call() -> tuple[Any, ...]:
    return *_saved(), _empty(), _empty(), 4, 6, 0.0, False, _state(torch.uint64, 2), _state(torch.uint64)


def _cudnn_backward_call() -> tuple[Any, ...]:
    bias = f(2, 2, 4, 6)
    *rest, lse = _saved(bias)
    return *rest, lse[..., None], _state(), _state(), bias, _empty(), _empty(), 4, 6, 0.0, False


def _overrideable_backward_call() -> tuple[Any, ...]:
    bias = f(2, 2, 4, 6)
    grad, q, k, v, out, lse = _saved(bias)
    return grad, q, k, v, bias, [True] * 4, out, lse, _empty(), _empty(), 4, 6, 0.0, False, _state(), _state()


ATTENTION: Mapping[str, tuple[Callable[[], Any], Documented]] = {
    "_scaled_dot_product_efficient_attention": (
        lambda: ((*_attention(), None, True), (*_attention(), f(2, 2, 4, 6), True)), _efficient,
    ),
    "_scaled_dot_product_flash_attention": (
        lambda: (_attention(), (f(2, 2, 4, 8), f(2, 2, 4, 8), f(2, 2, 4, 8), 0.0, True)), _flash,
    ),
    "_scaled_dot_product_cudnn_attention": (lambda: ((*_attention(), None, True),), _cudnn),
    "_scaled_dot_product_fused_attention_overrideable": (
        lambda: ((*_attention(), f(2, 2, 4, 6).index_fill(2, torch.tensor(1), -math.inf)),), _overrideable,
    ),
    "_flash_attention_forward": (
        lambda: ((f(2, 4, 2, 8), f(2, 6, 2, 8), f(2, 6, 2, 8), None, None, 4, 6, 0.0, False, False),), _flash_forward,
    ),
    "_efficient_attention_forward": (
        lambda: (
            (f(2, 4, 2, 8), f(2, 6, 2, 8), f(2, 6, 2, 8), f(2, 2, 4, 6), None, None, None, None, 0.0, 0, True),
            (f(2, 4, 2, 8), f(2, 6, 2, 8), f(2, 6, 2, 8), None, None, None, None, None, 0.0, 1, True),
        ),
        _efficient_forward,
    ),
    "_scaled_dot_product_efficient_attention_backward": (
        lambda: (_efficient_backward_call(),),
        lambda g, q, k, v, bias, out, lse, *rest: _gradients(
            g, (q, k, v), bias, out, lse[..., : q.shape[2]], rest[4], rest[3]
        ),
    ),
    "_scaled_dot_product_flash_attention_backward": (
        lambda: (_flash_backward_call(),),
        lambda g, q, k, v, out, lse, *rest: _gradients(g, (q, k, v), None, out, lse, rest[5])[:3],
    ),
    "_scaled_dot_product_cudnn_attention_backward": (
        lambda: (_cudnn_backward_call(),),
        lambda g, q, k, v, out, lse, *rest: _gradients(g, (q, k, v), rest[2], out, lse[..., 0], rest[8])[:3],
    ),
    "_scaled_dot_product_fused_attention_overrideable_backward": (
        lambda: (_overrideable_backward_call(),),
        lambda g, q, k, v, bias, wanted, out, lse, *rest: _gradients(g, (q, k, v), bias, out, lse, rest[5], wanted),
    ),
}  # fmt: skip # a call a line, with its operands


def _saved_anew(
    args: tuple[Any, ...], bias: int | None, out: int, shape: Callable[[Tensor], Tensor]
) -> tuple[Any, ...]:
    q, k, v = args[1:4]
    found, lse = _attended(q, k, v, None if bias is None else args[bias])
    return *args[:out], found, shape(lse), *args[out + 2 :]


SAVED: Mapping[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {
    "_scaled_dot_product_efficient_attention_backward": (
        lambda args: _saved_anew(args, 4, 5, lambda lse: F.pad(lse, (0, 28), value=math.inf))
    ),
    "_scaled_dot_product_flash_attention_backward": lambda args: _saved_anew(args, None, 4, lambda lse: lse),
    "_scaled_dot_product_cudnn_attention_backward": lambda args: _saved_anew(args, 8, 4, lambda lse: lse[..., None]),
    "_scaled_dot_product_fused_attention_overrideable_backward": lambda args: _saved_anew(args, 4, 6, lambda lse: lse),
}


# Products in float8


def _grouped(left: Tensor, right: Tensor, rows: Tensor, columns: Tensor, ends: Tensor | None = None) -> Tensor:
    decoded = (
        left.float() * rows.reshape(*left.shape[:-1], 1),
        right.float() * columns.reshape(*right.shape[:-2], 1, right.shape[-1]),
    )
    return torch._grouped_mm(*decoded, offs=ends).bfloat16()


PRODUCTS: Mapping[str, tuple[Callable[[], Any], Documented]] = {
    "_scaled_grouped_mm": (
        lambda: (
            (
                f8(8, 16),
                f8(3, 16, 16).mT,
                p(8),
                p(3, 16),
                torch.tensor([2, 2, 8], dtype=torch.int32),
            ),
            (f8(3, 4, 16), f8(3, 16, 16).mT, p(3, 4), p(3, 16)),
        ),
        _grouped,
    ),
    "_scaled_grouped_mm_v2": (
        lambda: (
            (
                *(f8(8, 16), f8(3, 16, 16).mT),
                *([p(8)], [1], [0], [p(3, 16)], [1], [0]),
                torch.tensor([2, 2, 8], dtype=torch.int32),
            ),
        ),
        lambda left, right, rows, _, __, columns, *rest: _grouped(left, right, rows[0], columns[0], rest[-1]),
    ),
}


CALLS = {**BATCH_NORMS, **CONVOLUTIONS, **ATTENTION, **PRODUCTS}


def calls_of(op: torch._ops.OpOverloadPacket, name: str) -> tuple[Sample, ...]:
    """The calls of an op without a kernel here; none of others."""
    if name not in CALLS:
        return ()
    made, documented = CALLS[name]
    kept: tuple[int, ...] = (2, 3) if name in PRODUCTS else ()
    if name in BATCH_NORMS:
        kept = tuple(range(2 if "backward" in name else 1, 8))
    return tuple(Sample.of(op, args, documented=documented, parameters=kept, saved=SAVED.get(name)) for args in made())
