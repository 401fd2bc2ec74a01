"""Calls of the ops in layers: convolutions, pools, norms, recurrent cells, attention, losses over classes, and
their backward kernels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp.ops import aten
from decomp_rules.samples.making import Calls, b, f, i, p, t, u

Args = tuple[tuple[Any, ...], ...]


def _convolution() -> Args:
    """A plain one, a grouped one with unequal strides and dilations, a transposed one, and one of one dimension."""
    return (
        (f(2, 4, 8, 8), f(6, 4, 3, 3), f(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
        (f(2, 4, 8, 8), f(4, 2, 3, 3), None, [2, 1], [0, 1], [1, 2], False, [0, 0], 2),
        (f(2, 4, 5, 5), f(4, 6, 2, 2), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1),
        (f(2, 4, 9), f(6, 4, 3), f(6), [2], [1], [1], False, [0], 1),
    )


def _convolution_backward() -> Args:
    found = []
    for x, weight, bias, *rest in _convolution():
        out = aten.convolution(x, weight, bias, *rest)
        found.append((f(*out.shape), x, weight, None if bias is None else [6], *rest, [True, True, bias is not None]))
    return tuple(found)


def _image(n: int) -> Tensor:
    return f(2, 3, *[8, 7, 6][:n])


def _pools(n: int, *rest: Any) -> Args:
    """Windows side by side; that overlap, with padding and the other options; and that fill the input."""
    options = [option * n if isinstance(option, list) else option for option in rest]
    return (_image(n), [2] * n), (_image(n), [3] * n, [2] * n, *options), (f(2, 3, *[4] * n), [2] * n, [2] * n)


def _pooled(name: str, x: Tensor, *args: Any) -> tuple[Any, ...]:
    """The arguments of the backward kernel of a max pool, which needs the places of the maxima."""
    out, indices = getattr(aten, name)(x, *args)
    return f(*out.shape), x, *args, indices


def _norm(train: bool = True) -> tuple[Any, ...]:
    return f(4, 3, 5), f(3), f(3), f(3), p(3), train, 0.1, 1e-5


def _norm_backward(functional: bool = False) -> tuple[Any, ...]:
    x, weight, bias, mean, var, *_ = _norm()
    _, saved, inverse = aten.native_batch_norm(x, weight, bias, mean, var, True, 0.1, 1e-5)
    return f(4, 3, 5), x, weight, mean, var, saved, inverse


def _recurrent(gates: int, states: int, bidirectional: bool = False) -> tuple[Any, ...]:
    """Two layers over a sequence of 3 steps, 3 features, width 5."""
    directions = 2 if bidirectional else 1
    weights = []
    for layer in range(2):
        for _ in range(directions):
            features = 3 if layer == 0 else 5 * directions
            weights += [f(gates * 5, features) / 2, f(gates * 5, 5) / 2, f(gates * 5), f(gates * 5)]
    state = f(2 * directions, 2, 5)
    return (
        f(3, 2, 3),
        [state, state.sin()] if states == 2 else state,
        weights,
        True,
        2,
        0.0,
        False,
        bidirectional,
        False,
    )


def _packed(gates: int, states: int) -> tuple[Any, ...]:
    """The same over two sequences of 3 steps and of 2, packed into one."""
    _, state, weights, biases, layers, dropout, train, bidirectional, _ = _recurrent(gates, states)
    return f(5, 3), t(2, 2, 1), state, weights, biases, layers, dropout, train, bidirectional


def _cell(gates: int, states: int) -> tuple[Any, ...]:
    state: Any = [f(32, 5), f(32, 5)] if states == 2 else f(32, 5)
    return f(32, 3), state, f(gates * 5, 3), f(gates * 5, 5), f(gates * 5), f(gates * 5)


def _attention() -> tuple[Tensor, Tensor, Tensor]:
    return f(2, 2, 4, 8), f(2, 2, 6, 8), f(2, 2, 6, 8)


def _mask() -> Tensor:
    """Which keys a query sees; the second sees none."""
    return b(4, 6) & t(True, False, True, True).unsqueeze(1)


def _flash_backward() -> tuple[Any, ...]:
    query, key, value = _attention()
    out, logsumexp = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)
    return f(*out.shape), query, key, value, out, logsumexp, 0.0, False


def _encoder_layer() -> tuple[Any, ...]:
    """A layer of width 8 with two heads."""
    norms = (f(8), f(8), f(8), f(8))
    return f(2, 5, 8), 8, 2, f(24, 8), f(24), f(8, 8), f(8), False, False, 1e-5, *norms, f(16, 8), f(16), f(8, 16), f(8)


def _upsampled(n: int, mode: str) -> Args:
    """Larger, and smaller by a factor that is no whole number."""
    size = [5, 4, 3][:n]
    larger, smaller = [2 * s for s in size], [s - 1 for s in size]
    aligned: Any = [()] if mode == "nearest" else [(False,), (True,)]
    return tuple((f(2, 2, *size), to, *flag) for to in (larger, smaller) for flag in aligned)


def _upsampled_by_size_or_factor(n: int, mode: str) -> Args:
    """The same, and by a factor."""
    found = _upsampled(n, mode)
    return *found, *((x, None, *flag, [1.6] * n) for x, _, *flag in found[: len(found) // 2])


def _upsampled_backward(n: int, mode: str) -> Args:
    return tuple((f(2, 2, *to), to, list(x.shape), *flag) for x, to, *flag in _upsampled(n, mode))


def _ctc() -> tuple[Any, ...]:
    targets = t([1, 2, 1], [3, 3, 0], [2, 1, 0], [3, 0, 0])
    return f(7, 4, 4).log_softmax(2), targets, [7, 6, 4, 2], [3, 2, 2, 1]


def _ctc_backward() -> tuple[Any, ...]:
    args = f(7, 2, 4).log_softmax(2), t([1, 2, 1], [3, 3, 2]), [7, 7], [3, 3]
    loss, alpha = aten._ctc_loss(*args)
    return f(2), *args, loss, alpha, 0


def _bag(mode: int) -> tuple[Any, ...]:
    return f(7, 4), t(1, 0, 6, 2, 2), t(0, 2), False, mode


CALLS: Calls = {
    # convolutions
    "convolution": _convolution,
    "_convolution": lambda: tuple((*args, False, False, True, True) for args in _convolution()),
    "convolution_backward": _convolution_backward,
    "conv1d": lambda: ((f(2, 4, 9), f(6, 4, 3)), (f(2, 4, 9), f(6, 2, 3), f(6), [2], "valid", [1], 2)),
    "conv2d": lambda: (
        (f(2, 4, 8, 8), f(6, 4, 3, 3), f(6)),
        (f(2, 4, 8, 8), f(6, 4, 3, 3), None, [1, 1], "same", [2, 2]),
    ),
    "conv3d": lambda: ((f(1, 2, 4, 4, 4), f(3, 2, 2, 2, 2), f(3)),),
    "conv_transpose1d": lambda: ((f(2, 4, 5), f(4, 6, 3), f(6), [2], [1], [1]),),
    "conv_transpose2d": lambda: (
        (f(2, 4, 5, 5), f(4, 6, 2, 2), f(6), [2, 2], [0, 1]),
        (f(2, 4, 5, 5), f(4, 3, 2, 2), None, [1, 1], [0, 0], [0, 0], 2),
    ),
    "conv_transpose3d": lambda: ((f(1, 2, 3, 3, 3), f(2, 3, 2, 2, 2)),),
    "_convolution_mode": lambda: ((f(2, 4, 8, 8), f(6, 4, 3, 3), f(6), [1, 1], "same", [1, 1], 1),),
    **{
        name: (lambda: ((f(2, 4, 8, 8), f(6, 4, 3, 3), [3, 3], f(6), [2, 2], [1, 1]),))
        for name in ("thnn_conv2d", "_slow_conv2d_forward", "slow_conv_dilated2d")
    },
    **{
        name: (lambda: ((f(1, 2, 4, 4, 4), f(3, 2, 2, 2, 2), [2, 2, 2], f(3), [1, 1, 1], [0, 0, 0]),))
        for name in ("slow_conv3d", "slow_conv3d_forward", "slow_conv_dilated3d")
    },
    "slow_conv_transpose2d": lambda: ((f(2, 4, 5, 5), f(4, 6, 2, 2), [2, 2], f(6), [2, 2]),),
    "slow_conv_transpose3d": lambda: ((f(1, 2, 3, 3, 3), f(2, 3, 2, 2, 2), [2, 2, 2], f(3), [2, 2, 2]),),
    "conv_tbc": lambda: ((f(9, 2, 4), f(3, 4, 5), f(5), 1),),
    "conv_tbc_backward": lambda: ((f(9, 2, 5), f(9, 2, 4), f(3, 4, 5), f(5), 1),),
    # pools
    **{f"max_pool{n}d": partial(_pools, n, [1]) for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": partial(_pools, n, [1], [1], True) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": partial(_pools, n, [1], True, False) for n in (1, 2, 3)},
    **{
        name: (lambda: ((f(2, 3, 9), [3]), (f(2, 3, 9), [4]), (f(2, 3, 9), [1])))
        for name in ("adaptive_avg_pool1d", "adaptive_max_pool1d")
    },
    **{
        name: (lambda: ((f(2, 3, 8, 7), [2, 3]), (f(2, 3, 8, 7), [1, 1])))
        for name in ("adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d")
    },
    **{
        name: (lambda: ((f(2, 3, 4, 6, 5), [2, 3, 4]),))
        for name in ("adaptive_avg_pool3d", "_adaptive_avg_pool3d", "adaptive_max_pool3d")
    },
    "_adaptive_avg_pool2d_backward": lambda: ((f(2, 3, 2, 3), f(2, 3, 8, 7)),),
    "_adaptive_avg_pool3d_backward": lambda: ((f(2, 3, 2, 3, 4), f(2, 3, 4, 6, 5)),),
    "adaptive_max_pool2d_backward": lambda: (
        (f(2, 3, 2, 3), x := f(2, 3, 8, 7), aten.adaptive_max_pool2d(x, [2, 3])[1]),
    ),
    "adaptive_max_pool3d_backward": lambda: (
        (f(2, 3, 2, 3, 4), x := f(2, 3, 4, 6, 5), aten.adaptive_max_pool3d(x, [2, 3, 4])[1]),
    ),
    "max_pool2d_with_indices_backward": lambda: (
        _pooled("max_pool2d_with_indices", f(2, 3, 8, 7), [3, 3], [2, 2], [1, 1], [1, 1], False),
    ),
    "max_pool3d_with_indices_backward": lambda: (
        _pooled("max_pool3d_with_indices", f(2, 3, 4, 6, 5), [2, 2, 2], [2, 2, 2], [0, 0, 0], [1, 1, 1], False),
    ),
    "avg_pool2d_backward": lambda: ((f(2, 3, 4, 4), f(2, 3, 8, 7), [3, 3], [2, 2], [1, 1], False, True, None),),
    "avg_pool3d_backward": lambda: (
        (f(2, 3, 2, 3, 2), f(2, 3, 4, 6, 5), [2, 2, 2], [2, 2, 2], [0, 0, 0], False, True, None),
    ),
    "max_unpool2d": lambda: (x := F.max_pool2d(f(2, 3, 6, 8), 2, return_indices=True)) and ((*x, [6, 8]),),
    "max_unpool3d": lambda: (
        (x := F.max_pool3d(f(2, 3, 4, 6, 8), 2, return_indices=True)) and ((*x, [4, 6, 8], [2, 2, 2], [0, 0, 0]),)
    ),
    "fractional_max_pool2d": lambda: ((f(2, 3, 8, 7), [2, 2], [4, 3], u(2, 3, 2)),),
    "fractional_max_pool3d": lambda: ((f(2, 3, 6, 8, 7), [2, 2, 2], [3, 4, 3], u(2, 3, 3)),),
    "fractional_max_pool2d_backward": lambda: (
        _pooled("fractional_max_pool2d", f(2, 3, 8, 7), [2, 2], [4, 3], u(2, 3, 2))[:4] + (i(56, 2, 3, 4, 3),),
    ),
    "fractional_max_pool3d_backward": lambda: (
        _pooled("fractional_max_pool3d", f(2, 3, 6, 8, 7), [2, 2, 2], [3, 4, 3], u(2, 3, 3))[:4]
        + (i(336, 2, 3, 3, 4, 3),),
    ),
    # norms
    "layer_norm": lambda: ((f(3, 8), [8], f(8), f(8)), (f(2, 3, 4), [3, 4]), (f(3, 40), [40])),
    "native_layer_norm": lambda: ((f(3, 8), [8], f(8), f(8), 1e-5), (f(2, 3, 4), [3, 4], None, None, 1e-5)),
    "native_layer_norm_backward": lambda: (
        (
            f(3, 8),
            x := f(3, 8),
            [8],
            x.mean(1, True),
            (x.var(1, correction=0, keepdim=True) + 1e-5).rsqrt(),
            f(8),
            f(8),
            [True, True, True],
        ),
    ),
    "rms_norm": lambda: ((f(3, 8), [8], f(8), 1e-6), (f(3, 8), [8])),
    "_fused_rms_norm": lambda: ((f(3, 8), [8], f(8), 1e-6),),
    "group_norm": lambda: ((f(2, 4, 8, 8), 2, f(4), f(4)), (f(2, 4, 5), 4)),
    "native_group_norm": lambda: ((f(2, 4, 6), f(4), f(4), 2, 4, 6, 2, 1e-5),),
    "native_group_norm_backward": lambda: (
        (
            f(2, 4, 6),
            x := f(2, 4, 6),
            x.view(2, 2, 12).mean(2),
            (x.view(2, 2, 12).var(2, correction=0) + 1e-5).rsqrt(),
            f(4),
            2,
            4,
            6,
            2,
            [True, True, True],
        ),
    ),
    "instance_norm": lambda: (
        (f(2, 3, 8), f(3), f(3), None, None, True, 0.1, 1e-5, False),
        (f(2, 3, 8), None, None, f(3), p(3), False, 0.1, 1e-5, False),
    ),
    "batch_norm": lambda: (
        (*_norm(), False),
        (*_norm(False), False),
        (f(4, 3), None, None, None, None, True, 0.1, 1e-5, False),
    ),
    **{
        name: (lambda: (_norm(), _norm(False))) for name in ("native_batch_norm", "_native_batch_norm_legit_functional")
    },
    "_native_batch_norm_legit": lambda: ((f(4, 3, 5), f(3), f(3), True, 0.1, 1e-5), _norm(), _norm(False)),
    "_native_batch_norm_legit_no_training": lambda: ((*_norm()[:5], 0.1, 1e-5),),
    "_batch_norm_with_update_functional": lambda: ((*_norm()[:5], 0.1, 1e-5),),
    "_batch_norm_no_update": lambda: ((*_norm()[:5], 0.1, 1e-5),),
    "native_batch_norm_backward": lambda: (
        (*_norm_backward(), True, 1e-5, [True, True, True]),
        (*_norm_backward(), False, 1e-5, [True, True, True]),
    ),
    "batch_norm_backward": lambda: ((*_norm_backward(), True, 1e-5, [True, True, True], t(0.0)[:0]),),
    "_weight_norm": lambda: ((f(3, 4), p(3, 1)), (f(3, 4), p(1, 4), 1)),
    "_weight_norm_interface": lambda: ((f(3, 4), p(3, 1)), (f(3, 4, 2), p(1, 1, 2), 2)),
    "_weight_norm_interface_backward": lambda: ((f(3, 4), v := f(3, 4), p(3, 1), v.norm(dim=1, keepdim=True), 0),),
    # recurrent
    "lstm": lambda: (_recurrent(4, 2), _recurrent(4, 2, True), _packed(4, 2)),
    "gru": lambda: (_recurrent(3, 1), _recurrent(3, 1, True), _packed(3, 1)),
    **{name: (lambda: (_recurrent(1, 1), _recurrent(1, 1, True), _packed(1, 1))) for name in ("rnn_tanh", "rnn_relu")},
    "lstm_cell": lambda: (_cell(4, 2),),
    "gru_cell": lambda: (_cell(3, 1),),
    **{name: (lambda: (_cell(1, 1),)) for name in ("rnn_tanh_cell", "rnn_relu_cell")},
    # attention
    "scaled_dot_product_attention": lambda: (
        _attention(),
        (f(2, 2, 4, 8), f(2, 2, 4, 8), f(2, 2, 4, 8), None, 0.0, True),
        (*_attention(), _mask()),
        (*_attention(), f(4, 6), 0.0, False, {"scale": 0.3}),
        (f(2, 4, 4, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), {"enable_gqa": True}),
        # Whole numbers, whose exponentials overflow, and whose products are exact.
        (*(x.round() for x in _attention()), {"scale": 16.0}),
    ),
    "_scaled_dot_product_attention_math": lambda: (_attention(), (*_attention(), f(4, 6))),
    "_scaled_dot_product_flash_attention_for_cpu": lambda: (
        _attention(),
        (*_attention(), {"attn_mask": _mask().float().log()}),
        (f(2, 2, 4, 8), f(2, 2, 4, 8), f(2, 2, 4, 8), 0.0, True),
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda: (_flash_backward(),),
    "_native_multi_head_attention": lambda: ((x := f(2, 5, 8), x, x, 8, 2, f(24, 8), f(24), f(8, 8), f(8)),),
    "_transformer_encoder_layer_fwd": lambda: (_encoder_layer(),),
    # losses over classes
    "cross_entropy_loss": lambda: (
        (f(3, 5), t(0, 4, 2)),
        (f(3, 5), t(0, 4, 2), p(5), 0, -100, 0.1),
        (f(3, 5), f(3, 5).softmax(1)),
        (f(2, 5, 3), i(5, 2, 3), None, 1, 2),
    ),
    **{
        name: (lambda: ((f(3, 5), t(0, 4, 2)), (f(3, 5), t(0, 4, 2), p(5), 0), (f(3, 5), t(0, 4, 2), p(5), 1, 2)))
        for name in ("nll_loss", "nll_loss_nd")
    },
    "nll_loss2d": lambda: ((f(2, 5, 3, 3), i(5, 2, 3, 3)),),
    "nll_loss_forward": lambda: (
        (f(3, 5), t(0, 4, 2), None, 1, -100),
        (f(3, 5), t(0, 4, 2), p(5), 2, 2),
        (f(3, 5), t(0, 4, 2), p(5), 0, -100),
    ),
    "nll_loss2d_forward": lambda: ((f(2, 5, 3, 3), i(5, 2, 3, 3), p(5), 1, -100),),
    "nll_loss_backward": lambda: (
        (t(0.7).squeeze(), f(3, 5), t(0, 4, 2), p(5), 1, -100, t(2.5).squeeze()),
        (f(3), f(3, 5), t(0, 4, 2), None, 0, 2, t(0.0).squeeze()),
    ),
    "nll_loss2d_backward": lambda: ((t(0.7).squeeze(), f(2, 5, 3, 3), i(5, 2, 3, 3), p(5), 1, -100, t(9.5).squeeze()),),
    "multi_margin_loss": lambda: ((f(3, 5), t(0, 4, 2)), (f(3, 5), t(0, 4, 2), 2, 0.5, p(5), 0)),
    "multi_margin_loss_backward": lambda: (
        (t(0.7).squeeze(), f(3, 5), t(0, 4, 2), 1, 1.0),
        (f(3), f(3, 5), t(0, 4, 2), 2, 0.5, p(5), 0),
    ),
    **{name: (lambda: ((f(2, 4), t([3, 0, -1, 1], [1, -1, 0, 2])),)) for name in ("multilabel_margin_loss",)},
    "multilabel_margin_loss_forward": lambda: ((f(2, 4), t([3, 0, -1, 1], [1, -1, 0, 2]), 1),),
    "multilabel_margin_loss_backward": lambda: (
        (
            t(0.7).squeeze(),
            x := f(2, 4),
            y := t([3, 0, -1, 1], [1, -1, 0, 2]),
            1,
            aten.multilabel_margin_loss_forward(x, y, 1)[1],
        ),
    ),
    "cosine_embedding_loss": lambda: (
        (f(3, 5), f(3, 5), t(1.0, -1.0, 1.0)),
        (f(3, 5), f(3, 5), t(1.0, -1.0, 1.0), 0.3, 0),
    ),
    "triplet_margin_loss": lambda: ((f(3, 5), f(3, 5), f(3, 5)), (f(3, 5), f(3, 5), f(3, 5), 0.5, 1.0, 1e-6, True, 0)),
    "ctc_loss": lambda: (_ctc(), (*_ctc(), 0, 0, True)),
    "_ctc_loss": lambda: (_ctc(),),
    "_ctc_loss_backward": lambda: (_ctc_backward(),),
    # bags of embeddings
    **{
        name: (lambda: (_bag(0), _bag(1), _bag(2)))
        for name in ("_embedding_bag", "_embedding_bag_forward_only", "embedding_bag")
    },
    "_embedding_bag_backward": lambda: (
        (f(2, 4), t(1, 0, 6, 2, 2), t(0, 2), t(0, 0, 1, 1, 1), t(2, 3), t(0)[:0], 7, False, 0, False, None),
    ),
    "_embedding_bag_dense_backward": lambda: (
        (f(2, 4), t(1, 0, 6, 2, 2), t(0, 0, 1, 1, 1), t(2, 3), t(0)[:0], 7, False, 0, None),
    ),
    "_embedding_bag_per_sample_weights_backward": lambda: (
        (f(2, 4), f(7, 4), t(1, 0, 6, 2, 2), t(0, 2), t(0, 0, 1, 1, 1), 0),
    ),
    # resampling
    **{
        f"upsample_{mode}{n}d{back}": partial(_upsampled_backward if back else _upsampled_by_size_or_factor, n, mode)
        for mode, dims in (
            ("nearest", (1, 2, 3)),
            ("linear", (1,)),
            ("bilinear", (2,)),
            ("bicubic", (2,)),
            ("trilinear", (3,)),
        )
        for n in dims
        for back in ("", "_backward")
    },
    **{
        f"_upsample_nearest_exact{n}d{back}": partial(
            _upsampled_backward if back else _upsampled_by_size_or_factor, n, "nearest"
        )
        for n in (1, 2, 3)
        for back in ("", "_backward")
    },
    **{
        f"_upsample_{mode}2d_aa{back}": partial(
            _upsampled_backward if back else _upsampled_by_size_or_factor, 2, "linear"
        )
        for mode in ("bilinear", "bicubic", "lanczos")
        for back in ("", "_backward")
    },
    **{
        name: (
            lambda: tuple(
                (f(2, 3, 5, 6), u(2, 3, 4, 2) * 2 - 1, mode, pad, aligned)
                for mode, pad, aligned in ((0, 0, False), (1, 1, True), (2, 2, False))
            )
        )
        for name in ("grid_sampler", "grid_sampler_2d")
    },
    "grid_sampler_3d": lambda: ((f(2, 3, 3, 4, 5), u(2, 2, 3, 4, 3) * 2 - 1, 0, 0, False),),
    "grid_sampler_2d_backward": lambda: (
        (f(4, 3, 3, 4), f(4, 3, 5, 6), u(4, 3, 4, 2) * 2 - 1, 0, 0, False, [True, True]),
    ),
    "grid_sampler_3d_backward": lambda: (
        (f(2, 3, 2, 3, 4), f(2, 3, 3, 4, 5), u(2, 2, 3, 4, 3) * 2 - 1, 0, 0, False, [True, True]),
    ),
    "affine_grid_generator": lambda: (
        (f(2, 2, 3), [2, 3, 4, 5], False),
        (f(2, 2, 3), [2, 3, 4, 5], True),
        (f(2, 3, 4), [2, 3, 3, 4, 5], False),
    ),
    "affine_grid_generator_backward": lambda: ((f(2, 4, 5, 2), [2, 3, 4, 5], False),),
    # random draws, large enough to distinguish distributions
    "dropout": lambda: ((f(64, 64), 0.3, True), (f(64, 64), 0.3, False)),
    # Of the overload `from` torch.fx of torch 2.13 writes no Python.
    "random": lambda: ((f(64, 64),), (f(64, 64), 9)),
    "native_dropout": lambda: ((p(64, 64), 0.3, True),),
    "native_dropout_backward": lambda: ((f(8, 8), b(8, 8), 1.5),),
    **{
        name: (lambda: ((p(64, 64, 2), 0.3, True),))
        for name in ("feature_dropout", "alpha_dropout", "feature_alpha_dropout")
    },
    "bernoulli": lambda: ((u(64, 64),), (f(64, 64), 0.3)),
    "rand": lambda: (([64, 64],),),
    "randn": lambda: (([64, 64],), ([64, 64], {"dtype": torch.complex64})),
    **{
        name: (lambda: ((f(64, 64),),))
        for name in ("rand_like", "randn_like", "normal_functional", "uniform", "exponential", "cauchy", "log_normal")
    },
    "geometric": lambda: ((f(64, 64), 0.3),),
    "randint": lambda: ((9, [64, 64]), (3, 9, [64, 64])),
    "randint_like": lambda: ((f(64, 64), 9), (f(64, 64), 3, 9)),
    "randperm": lambda: ((64,),),
    "normal": lambda: ((f(64, 64), 0.5), (f(64, 64), p(64, 64)), (0.5, p(64, 64)), (0.0, 1.0, [64, 64])),
    "multinomial": lambda: ((p(64, 8), 3, True), (p(64, 8), 3)),
    "poisson": lambda: ((p(64, 64),),),
}


PARAMETERS: Mapping[str, tuple[int, ...]] = {
    **{
        name: (1, 2)
        for name in "layer_norm native_layer_norm group_norm native_group_norm rms_norm _fused_rms_norm"
        " conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution"
        " _convolution_mode thnn_conv2d _slow_conv2d_forward slow_conv_dilated2d slow_conv3d slow_conv3d_forward"
        " slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d conv_tbc".split()
    },
    "convolution_backward": (2,),
    "conv_tbc_backward": (2, 3),
    **{
        name: (1, 2, 3, 4)
        for name in "instance_norm batch_norm native_batch_norm _native_batch_norm_legit _batch_norm_no_update"
        " _native_batch_norm_legit_functional _native_batch_norm_legit_no_training"
        " _batch_norm_with_update_functional".split()
    },
    "native_layer_norm_backward": (2, 3, 4, 5),
    "native_group_norm_backward": (2, 3, 4),
    "native_batch_norm_backward": (2, 3, 4, 5, 6),
    "batch_norm_backward": (2, 3, 4, 5, 6),
    "_native_multi_head_attention": (3, 4, 5, 6),
    "_transformer_encoder_layer_fwd": tuple(range(1, 13)),
}
"""Which tensors of a call are weights, biases and statistics, by position, where it has so many."""
