"""Calls of ops that programs hold after quantisation, fusing or selection by data; and where ops can be asked whose
kernels take as many steps as an argument says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
import operator
from typing import Any

import torch
from torch import Tensor

from decomp import Sample
from decomp.ops import aten
from decomp_rules.samples.making import Calls, b, f, f8, i, p, t

Columns = Sequence[Tensor]


def _lost(high: int, *shape: int) -> Tensor:
    return torch.randint(-high, high, shape, dtype=torch.int8)


def _quantised() -> tuple[Any, ...]:
    """A scale and a zero for all, as tensors."""
    return f(4, 5) * 3, t(0.1), torch.tensor([3], dtype=torch.int32)


def _by_channel() -> tuple[Any, ...]:
    return f(4, 5, 3) * 3, p(5) / 10, torch.tensor([3, 0, -2, 1, 5], dtype=torch.int32), 1, -10, 20


def _classified() -> tuple[Any, ...]:
    return f(6, 5), f(4, 5), t(0, 3, 2, 1, -100, 3), f(4)


def _cell(reverse: bool) -> tuple[Any, ...]:
    weights = f(20, 3), f(20, 5), f(20), f(20)
    return f(4, 2, 3), *weights, f(2, 5), f(2, 5), reverse, [], 2, 5, 1, True, False, False, False


CALLS: Calls = {
    # quantisation
    "fake_quantize_per_tensor_affine": lambda: ((f(4, 5) * 3, 0.1, 3, -10, 20), (*_quantised(), -10, 20)),
    "fake_quantize_per_tensor_affine_cachemask": lambda: ((f(4, 5) * 3, 0.1, 3, -10, 20),),
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": lambda: (
        (*_quantised(), t(1), -10, 20),
        (*_quantised(), t(0), -10, 20),
    ),
    "fake_quantize_per_channel_affine": lambda: (_by_channel(),),
    "fake_quantize_per_channel_affine_cachemask": lambda: (_by_channel(),),
    "fake_quantize_per_tensor_affine_cachemask_backward": lambda: ((f(4, 5), b(4, 5)),),
    "fake_quantize_per_channel_affine_cachemask_backward": lambda: ((f(4, 5), b(4, 5)),),
    "_fake_quantize_learnable_per_tensor_affine": lambda: ((f(4, 5) * 3, t(0.1), t(3.3), -10, 20, 0.7),),
    "_fake_quantize_learnable_per_channel_affine": lambda: ((f(4, 5, 3) * 3, p(5) / 10, f(5) * 3, 1, -10, 20, 0.7),),
    "_fake_quantize_learnable_per_tensor_affine_backward": lambda: (
        (f(4, 5), f(4, 5) * 3, t(0.1), t(3.3), -10, 20, 0.7),
    ),
    "_fake_quantize_learnable_per_channel_affine_backward": lambda: (
        (f(4, 5, 3), f(4, 5, 3) * 3, p(5) / 10, f(5) * 3, 1, -10, 20, 0.7),
    ),
    "_int_mm": lambda: ((_lost(128, 17, 8), _lost(128, 8, 8)),),
    "_weight_int8pack_mm": lambda: ((f(3, 32), _lost(128, 32, 32), p(32)),),
    "_scaled_mm": lambda: (
        (f8(16, 32), f8(16, 32).t(), t(0.3), t(0.7), {"out_dtype": torch.bfloat16}),
        (f8(16, 32), f8(16, 32).t(), p(16, 1), p(1, 16), f(16), {"out_dtype": torch.float32}),
    ),
    "_scaled_mm_v2": lambda: (
        (f8(16, 32), f8(16, 32).t(), [t(0.3)], [0], [0], [t(0.7)], [0], [0], None, torch.float32),
    ),
    # fused layers
    "_linear_cross_entropy_batch_chunked": lambda: (
        (*_classified(), None, "mean", -100, 0.0, 2, "compact", torch.float32, True, True, True, True),
        (*_classified(), p(4), "sum", -100, 0.0, 2, "compact", torch.float32, True, True, True, True),
    ),
    "_linear_cross_entropy_batch_chunked_no_reduction": lambda: (
        (*_classified(), None, -100, 2, "compact", torch.float32),
    ),
    "_fused_rms_norm_backward": lambda: (
        (f(3, 8), x := f(3, 8), [8], ((x * x).mean(1, keepdim=True) + 1e-6).rsqrt(), f(8), [True, True]),
    ),
    "mkldnn_rnn_layer": lambda: (_cell(False), _cell(True)),
    "_fused_dropout": lambda: ((p(64, 64), 0.3),),
    # selection by data, hashes, casts
    "nonzero_numpy": lambda: ((f(3, 4).round(),),),
    "_unique": lambda: ((i(3, 12),), (i(3, 2, 6), True, True)),
    "unique_dim": lambda: ((i(2, 6, 2), 0), (i(2, 2, 7), 1, True, True, True)),
    "unique_dim_consecutive": lambda: ((i(2, 6, 2), 0), (i(2, 1, 9), 1, True, True)),
    "hash_tensor": lambda: ((f(3, 8),), (f(3, 8), [1]), (i(99, 3, 8), [0], {"keepdim": True})),
    "_autocast_to_full_precision": lambda: ((f(3, 4), False, True),),
}

PARAMETERS: Mapping[str, tuple[int, ...]] = {
    "_weight_int8pack_mm": (2,),
    "_scaled_mm": (2, 3),
    "_scaled_mm_v2": (2, 3),
    "mkldnn_rnn_layer": (1, 2, 3, 4, 5, 6),
    "_ctc_loss_backward": (3, 4),
    "_fused_rms_norm_backward": (2, 3),
    **{name: (1, 2) for name in CALLS if "quantize" in name and "backward" not in name},
    **{name: (2, 3) for name in CALLS if "learnable" in name and "backward" in name},
}
"""Which tensors are weights, scales and zeros, by position."""

FIXED: Mapping[str, tuple[int, ...]] = {
    "fractional_max_pool2d": (1,),
    "fractional_max_pool3d": (1,),
    **{name: places for name, places in PARAMETERS.items() if "quantize" in name},
    "mkldnn_rnn_layer": (0,),
    "searchsorted": (0,),
    "bucketize": (1,),
    "histogram": (1,),
}
"""Which tensors must not be perturbed: scales, which are positive, edges, which ascend, and factors of weights that
saturate."""

OWN = {name for name in CALLS if "quantize" in name} | {"hash_tensor", "_autocast_to_full_precision"}
"""Ops of whose meaning the dtype is a part: scales are float32, hashes are of bits."""


def _without_workspace(*args: Any) -> tuple[Tensor, ...]:
    return *aten.mkldnn_rnn_layer(*args)[:3], torch.zeros(0, dtype=torch.uint8)


def _kept(x: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    mask = torch.rand(x.shape) < probability
    return x * mask / probability, mask.to(torch.uint8)


def _rms_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    """By the definition, y = x r w with r = (mean x² + ε)^−½: dr / dx = −x r³ / n."""
    kind = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    g, v, r, w = (value.to(kind) for value in (grad, x, rstd, weight))
    slope = g * w * r - v * r**3 * (g * w * v).mean(-1, keepdim=True)
    return slope.to(x.dtype), (g * v * r).sum(0).to(weight.dtype)


DOCUMENTED: Mapping[str, Callable[..., Any]] = {
    "mkldnn_rnn_layer": _without_workspace,
    "_fused_dropout": _kept,
    "_fused_rms_norm_backward": _rms_norm_backward,
}
"""Reference functions for ops without a kernel on this processor, or with results that do not matter."""


def _rms_saved(args: tuple[Any, ...]) -> tuple[Any, ...]:
    x = args[1].double() if args[1].dtype is torch.float64 else args[1].float()
    return *args[:3], ((x * x).mean(1, keepdim=True) + 1e-6).rsqrt(), *args[4:]


def _ctc_saved(args: tuple[Any, ...]) -> tuple[Any, ...]:
    if args[1].dtype not in (torch.float32, torch.float64):
        return args  # neither of the two takes it
    return *args[:5], *aten._ctc_loss(*args[1:5]), *args[7:]


SAVED: Mapping[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {
    "_fused_rms_norm_backward": _rms_saved,
    "_ctc_loss_backward": _ctc_saved,
}
"""How what a forward op saved follows from the other arguments."""


def items() -> tuple[Sample, ...]:
    """Parts of a tensor."""
    x = f(3, 4, 5)
    indices = (1, slice(1, 3), (..., 2), (None, slice(0, 3, 2), -1), (t(0, 2), slice(None), t(1, 3)))
    return tuple(Sample(operator.getitem, (x, index)) for index in indices)


# Quantised programs

_RANGES = ((-128, 127, torch.int8), (0, 255, torch.uint8), (-8, 7, torch.int8), (-32768, 32767, torch.int16))


def _quantised_op(name: str, *calls: tuple[Any, ...]) -> tuple[Sample, ...]:
    """Calls of an op of `quantized_decomposed`, whose dtypes are a part of what it computes. NaN cast to an integer is
    undefined in C++, so only ops without such a cast are tried with it."""
    packet = getattr(torch.ops.quantized_decomposed, name)
    first = int("dequantize" in name or "fake" in name or "convert" in name)
    places = tuple(range(9))
    return tuple(Sample.of(packet, args, exact="own", parameters=places[first:], fixed=places[1:]) for args in calls)


def _whole(*shape: int) -> Tensor:
    return torch.randint(-5, 6, shape)


def _stepped(*shape: int) -> Tensor:
    """Values, some of them halfway between two quantised ones, for steps of a quarter."""
    return i(80, *shape) / 8 - 5


QUANTISED: Mapping[str, Callable[[], tuple[Sample, ...]]] = {
    f"quantized_decomposed.{name}": functools.partial(lambda name, make: _quantised_op(name, *make()), name, make)
    for name, make in {
        "quantize_per_tensor": lambda: (
            *((x, 0.25, 3, *ends) for x in (f(4, 5) * 3, _stepped(4, 5)) for ends in _RANGES),
            (f(4, 5) * 3, t(0.1), t(3), *_RANGES[0]),
            (f(4, 5) * 3, t(0.1).double(), t(3), *_RANGES[1]),
            (f(4, 5) * 3, t(0.1), t(3), t(-128), t(127), torch.int8),
        ),
        "dequantize_per_tensor": lambda: (
            *((_lost(8, 4, 5).to(ends[2]), 0.1, 3, *ends) for ends in _RANGES),
            (_lost(128, 4, 5), t(0.1), t(3), *_RANGES[0]),
            (_lost(128, 4, 5), t(0.1), t(3), t(-128), t(127), torch.int8),
        ),
        "quantize_per_channel": lambda: tuple((f(4, 5, 3) * 3, p(5) / 10, _whole(5), 1, *ends) for ends in _RANGES),
        "dequantize_per_channel": lambda: (
            (_lost(128, 4, 5), p(5) / 10, _whole(5), 1, *_RANGES[0]),
            (_lost(128, 4, 5), p(4) / 10, None, 0, *_RANGES[0]),
        ),
        "quantize_per_token": lambda: ((f(4, 5) * 3, p(4, 1).double() / 10, _whole(4, 1), *_RANGES[0]),),
        "dequantize_per_token": lambda: (
            (_lost(128, 4, 5), p(4, 1).double() / 10, _whole(4, 1), *_RANGES[0], torch.float32),
        ),
        "quantize_per_channel_group": lambda: ((f(4, 6), p(4, 2) / 4, _whole(4, 2).int(), *_RANGES[2], 3),),
        "dequantize_per_channel_group": lambda: (
            (_lost(8, 4, 6), p(4, 2) / 4, _whole(4, 2).int(), *_RANGES[2], 3, torch.float32),
            (_lost(8, 4, 6), p(4, 2) / 4, None, *_RANGES[2], 3, torch.float32),
        ),
        "fake_quant_per_channel": lambda: ((f(4, 5, 3) * 3, p(5) / 10, _whole(5).int(), 1, -10, 20),),
        "choose_qparams": lambda: tuple((f(4, 5) * 3, *ends[:2], 1e-5, ends[2]) for ends in _RANGES),
        "choose_qparams_symmetric": lambda: tuple((f(4, 5) * 3, *ends[:2], 1e-5, ends[2]) for ends in _RANGES),
        "choose_qparams_per_token_asymmetric": lambda: ((f(4, 5) * 3, torch.int8),),
        "_choose_qparams_per_token_asymmetric_impl": lambda: ((f(4, 5) * 3, torch.int8),),
        "convert_element_type": lambda: ((f(4, 5) * 3, torch.float64), (f(4, 5) * 3, torch.bfloat16)),
    }.items()
}
"""Sample calls of the ops of quantised programs, by name."""


# Where ops can be asked

LARGEST_DEGREE = 200.0


def _whole_degree(n: Tensor) -> Tensor:
    """Degrees up to 200 as they are, larger ones by their remainder; and so are infinities and NaN, whose conversion is
    undefined in C++."""
    small = torch.where(n.isfinite(), n, 7.0)
    return torch.where(small.abs() <= LARGEST_DEGREE, small, torch.fmod(small, 37.0))


def _not_far_left(q: Tensor) -> Tensor:
    """Numbers from −500 on as they are, those further left by their remainder."""
    return torch.where(q.isfinite() & (q < -500), torch.fmod(q, 500.0), q)


def _probability(t: Tensor) -> Tensor:
    """A number between 0 and 1, in steps."""
    return torch.where(t.isfinite(), (t.double().abs() % 1 * 256).round() / 256, 0.5).to(t.dtype)


def _logistic(columns: Columns) -> Columns:
    """Any logit, a target between 0 and 1, and moderate weights."""
    if columns[0].is_complex():
        return columns
    weights = (torch.where(w.isfinite(), w.abs().clamp(1 / 256, 256), 1.0) for w in columns[2:])
    return columns[0], _probability(columns[1]), *weights


def domain_of(overload: Any) -> Callable[[Columns], Columns] | None:
    """Where an op can be asked whose last argument says how many steps its kernel takes, whose second is a probability,
    or whose first is a modulus; None if everywhere."""
    name = str(overload)
    if "binary_cross_entropy_with_logits" in name:
        return _logistic
    if "_polynomial_" in name:
        return functools.partial(_of_degree, name)
    if name.startswith("aten.binary_cross_entropy_with_logits."):
        return _with_probabilities
    if name.startswith("aten.polar."):
        return lambda columns: (columns[0].abs(), columns[1])
    if "zeta" in name or "polygamma" in name:
        return lambda columns: _last(columns, _not_far_left)
    return None


def _of_degree(name: str, columns: Columns) -> Columns:
    """Degrees that end, and numbers: for NaN most kernels return uninitialised memory."""
    if columns[-1].is_complex():
        return columns
    if not name.endswith("n_scalar"):
        columns = _last(columns, _whole_degree)
    if name.endswith("x_scalar") or "hermite" in name:
        return columns
    return torch.where(columns[0].isnan(), 0.75, columns[0]), *columns[1:]


def _with_probabilities(columns: Columns) -> Columns:
    """The second between 0 and 1, as targets are documented to be."""
    x, target, *rest = columns
    if target.is_complex():
        return columns
    return x, torch.where(target.isfinite(), (target.abs() % 1 * 256).round() / 256, 0.5), *rest


def _last(columns: Columns, change: Callable[[Tensor], Tensor]) -> Columns:
    return columns if columns[-1].is_complex() else (*columns[:-1], change(columns[-1]))
