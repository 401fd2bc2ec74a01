"""Random ops, each from one call of `torch.rand`.

The stream of random numbers is not PyTorch's own for the op, so that only distributions agree. Decisions by a
probability compare float32 numbers for any dtype of the tensor, because half precision only has steps of 1/256.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import HALVES, cast, is_scalar

RULES = Rules(level="exact")
register = RULES.register

RANDOM = """
    rand rand_like randn randn_like randint randint_like randperm bernoulli uniform normal normal_functional random
    exponential cauchy log_normal geometric multinomial dropout native_dropout _fused_dropout feature_dropout
    alpha_dropout feature_alpha_dropout rrelu rrelu_with_noise rrelu_with_noise_functional
""".split()

RULES.limit(*(getattr(aten, name) for name in RANDOM), reason="the target has no random numbers", needs=("rand",))
RULES.limit(
    aten.poisson,
    aten.binomial,
    aten._standard_gamma,
    aten._sample_dirichlet,
    reason="it is drawn by rejection: how many random numbers it takes is data",
)


@register(aten.dropout)
def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """y = x · (u < 1 − p) / (1 − p) in training, else x."""
    if not train or p == 0:
        return x
    return torch.native_dropout(x, p, True)[0]


@register(aten.native_dropout)
def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """(x · m / (1 − p), m) with m = u < 1 − p; everything is kept if not training."""
    if train is False:
        return x.clone(), torch.full(x.shape, True, dtype=torch.bool, device=x.device)
    mask = _chosen(x.shape, 1 - p, x.device)
    return x * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


@register(aten.native_dropout_backward)
def native_dropout_backward(grad_output: Tensor, mask: Tensor, scale: float) -> Tensor:
    """dx = dy · m · scale."""
    return grad_output * (cast(mask, grad_output.dtype) * scale)


@register(aten._fused_dropout)
def _fused_dropout(x: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """(x · m / p, m) with m = u < p: here p is the probability to be kept."""
    mask = _chosen(x.shape, p, x.device)
    return x * mask * (1 / p), cast(mask, torch.uint8)


@register(aten.feature_dropout)
def feature_dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Dropout of whole channels: one decision for each image and channel."""
    if not train or p == 0:
        return x
    noise = cast(_chosen(_feature_shape(x), 1 - p, x.device), x.dtype)
    return x * (noise if p == 1 else noise / (1 - p))


@register(aten.alpha_dropout)
def alpha_dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """y = a · x where kept and a · (−α) elsewhere, shifted: mean and variance stay those of a self-normalising net."""
    return _alpha_dropout(x, list(x.shape), p, train)


@register(aten.feature_alpha_dropout)
def feature_alpha_dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Alpha dropout of whole channels."""
    return _alpha_dropout(x, _feature_shape(x), p, train)


def _alpha_dropout(x: Tensor, shape: Sequence[Any], p: float, train: bool) -> Tensor:
    """a = 1/√((α²p + 1)(1 − p)); y = a·m·x + α·a·(m − 1 + p), α = 1.7580993408473766 (Klambauer et al., 2017)."""
    if not train or p == 0:
        return x
    if p == 1:
        return x * torch.zeros_like(x)
    alpha = 1.7580993408473766
    a = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
    noise = cast(_chosen(shape, 1 - p, x.device), x.dtype)
    return x * (noise * a) + ((noise - 1) * (alpha * a) + alpha * a * p)


def _feature_shape(x: Tensor) -> list[Any]:
    """One decision for each image and channel."""
    return list(x.shape[:2]) + [1] * (x.dim() - 2)


def _chosen(shape: Sequence[Any], probability: Any, device: torch.device) -> Tensor:
    """True with `probability`: bool, `shape`."""
    return torch.rand(list(shape), dtype=torch.float32, device=device) < probability


@register(aten.bernoulli)
def bernoulli(x: Tensor) -> Tensor:
    """1 with the probability that stands at the place, else 0."""
    return cast(_chosen(x.shape, x.detach(), x.device), x.dtype)


@register(aten.bernoulli)
def bernoulli_p(x: Tensor, p: Any) -> Tensor:
    """1 with probability p, else 0; the shape and dtype are those of x."""
    return cast(_chosen(x.shape, p, x.device), x.dtype)


@register(aten.rand_like)
def rand_like(x: Tensor, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """Uniform in [0, 1), in the shape of x."""
    return torch.rand(list(x.shape), dtype=dtype or x.dtype, device=device or x.device)


@register(aten.randn_like)
def randn_like(x: Tensor, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """Normal, in the shape of x."""
    return torch.randn(list(x.shape), dtype=dtype or x.dtype, device=device or x.device)


@register(aten.randn)
def randn(size: Sequence[Any], dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """Box–Muller: √(−2 ln(1 − u)) · cos(2πv); 1 − u is never 0, so that every result is finite."""
    dtype = dtype or torch.get_default_dtype()
    if not dtype.is_floating_point:
        return decline("only real floats")
    compute = torch.float32 if dtype in HALVES else dtype
    u = torch.rand([2, *size], dtype=compute, device=device)
    radius = torch.sqrt(-2 * torch.log(1 - u.select(0, 0)))
    return cast(radius * torch.cos(u.select(0, 1) * (2 * math.pi)), dtype)


def _uniform(x: Tensor) -> Tensor:
    """Uniform in [0, 1), at least in float32, in the shape of x."""
    return torch.rand(list(x.shape), dtype=torch.float32 if x.dtype in HALVES else x.dtype, device=x.device)


@register(aten.uniform)
def uniform(x: Tensor, from_: float = 0.0, to: float = 1.0) -> Tensor:
    """from + (to − from) · u, in the shape of x."""
    return cast(_uniform(x) * (to - from_) + from_, x.dtype)


@register(aten.normal_functional)
def normal_functional(x: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """mean + std · n, in the shape of x."""
    return torch.randn(list(x.shape), dtype=x.dtype, device=x.device) * std + mean


@register(aten.normal)
def normal(mean: Any, std: Any = 1.0) -> Tensor:
    """mean + std · n, where at least one of them is a tensor."""
    shape = torch.broadcast_shapes(*[t.shape for t in (mean, std) if not is_scalar(t)])
    like = std if is_scalar(mean) else mean
    return torch.randn(list(shape), dtype=like.dtype, device=like.device) * std + mean


@register(aten.normal)
def normal_of_size(
    mean: float, std: float, size: Sequence[Any], dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Tensor:
    """mean + std · n, of a given size."""
    return torch.randn(list(size), dtype=dtype or torch.get_default_dtype(), device=device) * std + mean


@register(aten.exponential)
def exponential(x: Tensor, lambd: float = 1.0) -> Tensor:
    """−ln(1 − u) / λ."""
    return cast(torch.log(1 - _uniform(x)) / -lambd, x.dtype)


@register(aten.cauchy)
def cauchy(x: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    """median + σ · tan(π(u − ½))."""
    return cast(torch.tan((_uniform(x) - 0.5) * math.pi) * sigma + median, x.dtype)


@register(aten.log_normal)
def log_normal(x: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    """exp(mean + std · n)."""
    return torch.exp(torch.randn(list(x.shape), dtype=x.dtype, device=x.device) * std + mean)


@register(aten.geometric)
def geometric(x: Tensor, p: float) -> Tensor:
    """⌈ln(1 − u) / ln(1 − p)⌉, at least 1."""
    draws = torch.rand(list(x.shape), dtype=torch.float32, device=x.device)
    return cast(torch.ceil(torch.log(1 - draws) / math.log1p(-p)).clamp(min=1), x.dtype)


@register(aten.randint)
def randint(
    high: Any,
    size: Sequence[Any],
    low: Any = 0,
    dtype: torch.dtype | None = torch.int64,
    device: torch.device | None = None,
) -> Tensor:
    """low + ⌊(high − low) · u⌋, in float64: exact to 2⁵³ values."""
    return _integers(low, high, size, _integer(dtype), device)


@register(aten.randint_like)
def randint_like(
    x: Tensor, high: Any, low: Any = 0, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Tensor:
    """low + ⌊(high − low) · u⌋, in the shape of x."""
    if not is_scalar(high):
        return decline("only numbers as bounds")
    return _integers(low, high, list(x.shape), dtype or x.dtype, device or x.device)


def _integer(dtype: Any) -> torch.dtype:
    """int64 unless another dtype is given: the schema's default is the number 4, which is the code of int64."""
    return dtype if isinstance(dtype, torch.dtype) else torch.int64


def _integers(low: Any, high: Any, size: Sequence[Any], dtype: torch.dtype, device: torch.device | None) -> Tensor:
    u = torch.rand(list(size), dtype=torch.float64, device=device)
    return cast(cast(torch.floor(u * (high - low)), torch.int64) + low, dtype)


@register(aten.randint)
def randint_of_32_bits(
    high: Any,
    size: Sequence[Any],
    low: Any = 0,
    dtype: torch.dtype | None = torch.int64,
    device: torch.device | None = None,
) -> Tensor:
    """low + r mod (high − low), r of 31 random bits, in float32 and int32: no value is more likely than another by more
    than (high − low) · 2⁻³¹ of its probability. For targets without float64."""
    return _integers_of_32_bits(low, high, size, _integer(dtype), device)


@register(aten.randint_like)
def randint_like_of_32_bits(
    x: Tensor, high: Any, low: Any = 0, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Tensor:
    """The same in the shape of x."""
    if not is_scalar(high):
        return decline("only numbers as bounds")
    return _integers_of_32_bits(low, high, list(x.shape), dtype or x.dtype, device or x.device)


def _integers_of_32_bits(
    low: Any, high: Any, size: Sequence[Any], dtype: torch.dtype, device: torch.device | None
) -> Tensor:
    known = isinstance(high, int) and isinstance(low, int)
    if not known or high - low > 2**31 or not -(2**31) <= low < high <= 2**31:
        return decline("only bounds that are known, within 32 bits")
    u = torch.rand([2, *size], dtype=torch.float32, device=device)
    # The first 16 and 15 of the 24 bits that each has.
    upper, lower = cast(u.select(0, 0) * 2**16, torch.int32), cast(u.select(0, 1) * 2**15, torch.int32)
    drawn = upper * 2**15 + lower
    return cast((drawn if high - low == 2**31 else torch.remainder(drawn, high - low)) + low, dtype)


@register(aten.random)
def random_between(x: Tensor, from_: int = 0, to: int | None = None) -> Tensor:
    """from + ⌊(to − from) · u⌋, in the shape of x."""
    if to is None:
        return decline("only between bounds")
    return _integers(from_, to, list(x.shape), x.dtype, x.device)


@register(aten.random)
def random(x: Tensor) -> Tensor:
    """Any whole number from 0 on that the dtype has without a gap. The upper and lower half of 64 bits are drawn
    apart."""
    if x.dtype != torch.int64:
        count = 2 if x.dtype == torch.bool else _count(x.dtype)
        return _integers(0, count, list(x.shape), x.dtype, x.device)
    halves = _integers(0, 2**32, [2, *x.shape], torch.int64, x.device)
    return (halves.select(0, 0) >> 1) * 2**32 + halves.select(0, 1)


def _count(dtype: torch.dtype) -> int:
    """How many whole numbers from 0 on a dtype has without a gap."""
    return int(2 / torch.finfo(dtype).eps) + 1 if dtype.is_floating_point else torch.iinfo(dtype).max + 1


@register(aten.randperm)
def randperm(n: Any, dtype: torch.dtype | None = torch.int64, device: torch.device | None = None) -> Tensor:
    """The order of n random numbers; in float64 no two are equal."""
    return cast(torch.argsort(torch.rand([n], dtype=torch.float64, device=device)), _integer(dtype))


@register(aten.randperm)
def randperm_of_32_bits(n: Any, dtype: torch.dtype | None = torch.int64, device: torch.device | None = None) -> Tensor:
    """The order of n pairs of float32 numbers, by the second and then, stably, by the first: of 48 random bits each.
    For targets without float64."""
    keys = torch.rand([2, n], dtype=torch.float32, device=device)
    by_second = torch.argsort(keys.select(0, 1))
    by_first = torch.argsort(torch.index_select(keys.select(0, 0), 0, by_second), stable=True)
    return cast(torch.index_select(by_second, 0, by_first), _integer(dtype))


@register(aten.multinomial)
def multinomial(x: Tensor, num_samples: Any, replacement: bool = False) -> Tensor:
    """Exponential races: who arrives first, after −ln(1 − u) / p, is drawn first; with replacement, inverse CDF."""
    weights = x if x.dtype == torch.float64 else cast(x, torch.float32)
    if replacement:
        ends = torch.cumsum(weights, -1)
        draws = torch.rand([*x.shape[:-1], num_samples, 1], dtype=weights.dtype, device=x.device)
        passed = ends.unsqueeze(-2) <= draws * ends.unsqueeze(-2)[..., -1:]
        return passed.sum(-1)
    times = torch.rand(list(x.shape), dtype=weights.dtype, device=x.device)
    speed = torch.log(1 - times) / weights
    return torch.topk(speed, num_samples, -1)[1]
