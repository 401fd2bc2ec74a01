"""GELU, x·Φ(x) with the normal distribution Φ, and its backward kernel.

A target without erf gets Φ itself: around 0 from a polynomial in x², else from h(s) = Φ(−s) = e^(−s²/2)·t·p(t) with
t = 1 / (1 + s/2), as h or 1 − h. Coefficients are minimax fits made with 40 digits (Lawson weights): to 3e-8 of 1 − Φ
around 0, and beyond to 2e-8 of the result or, where Φ is small, to 2e-6 of it. Errors are in ULP against float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.pointwise.activation import logistic
from decomp_rules.pointwise.exponential import at_least
from decomp_rules.support.floating import LOG2_E, float_math, own_float_math, polynomial
from decomp_rules.support.operands import cast

RULES = Rules(level="exact")
register = RULES.register

_AROUND_ZERO = (
    0.39894215273999867,
    -0.06648819618427095,
    0.009962396499876907,
    -0.0011631147271499627,
    9.151231828991141e-05,
)
"""(Φ(x) − 1/2) / x in powers of x², for |x| ≤ 1."""
# fmt: off
# As many coefficients a line as fit.
_TAIL = (
    0.19937105126794996, 0.2017722391293479, 0.12881707591706454, 0.1440593670790893, -0.28337219058380875,
    0.11026110144367657,
)
"""Φ(−s)·e^(s²/2) / t in powers of t = 1 / (1 + s/2), for s ≥ 1."""
_LOGIT = (
    -2.3022092360777, 0.10483845314997, 0.00010108078701075, -0.00015426122675699, -9.5549699353667e-06,
    -3.2198169998336e-08, 3.0259477976866e-08, 1.9308485000113e-09, 5.2889225657994e-11, 5.652960677096e-13,
)
"""log₂(Φ(−x) / Φ(x)) / x in powers of −x², for |x| ≤ 5.8, fitted so that x·Φ(x) and its derivative are right."""
_SHORT_LOGIT = (
    -2.302209311962647, -0.10483554023914288, 9.45105084872921e-05, 0.0001594875381666068, -1.1436212832869191e-05,
    3.8203725404182653e-07, -5.082911653061326e-09,
)
"""The same in powers of x², minimax for |x| ≤ 5.4 by linear programming: x·Φ(x) to 8·10⁻⁸ of it above −1 and to 2·10⁻⁷
below, its derivative to 4·10⁻⁷, the second to 3·10⁻⁶. Beyond, both sides fall faster."""
_LOGIT_ROUGHLY = (
    -2.302207005, -0.10484404484, 0.00010270218572, 0.00015642087064, -1.0946938192e-5, 3.4942004722e-7,
    -4.377604635e-9,
)
# fmt: on
"""The same in powers of x², for |x| ≤ 5."""
_LOGIT_OF_TANH = (-LOG2_E * math.sqrt(8 / math.pi), -LOG2_E * math.sqrt(8 / math.pi) * 0.044715)
"""Of the approximation by tanh."""
DENSITY = 1 / math.sqrt(2 * math.pi)


@register(aten.gelu, needs=("sigmoid",))
@float_math
def gelu_of_sigmoid(x: Tensor, approximate: str = "none") -> Tensor:
    """x·sigmoid(u) for "tanh", in one op of targets that have it. The second gradient has the digits of 1 − s, which
    are few where s is almost 1: of 10⁻⁴ at 4.5 it is off by 4%, of 10⁻⁵ at 5 by all. To keep it takes five more ops.
    """
    return x * torch.sigmoid(tanh_argument(x)) if approximate == "tanh" else decline("only the approximation by tanh")


@register(aten.gelu, needs=("erf",))
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x·(1 + erf(x/√2)) / 2, or with "tanh" x·sigmoid(√(8/π)·(x + 0.044715·x³)), which is the same as with tanh and
    keeps its digits in the lower tail."""
    return _of_tanh(x) if approximate == "tanh" else _of_erf(x)


@register(aten.gelu)
def gelu_of_parts(x: Tensor, approximate: str = "none") -> Tensor:
    """x·Φ(x), ≤ 2.5 ULP above −1; below, its error is less than that of PyTorch's kernel. The slope, Φ(x) + x·φ(x), is
    a term of its own that adds nothing to the value: gradients are right up to the second."""
    if approximate == "tanh":
        return _of_tanh(x)
    return _of_erf(x) if x.dtype == torch.float64 else _of_parts(x)


@register(aten.gelu, level="standard")
@float_math
def gelu_of_logistic(x: Tensor, approximate: str = "none") -> Tensor:
    """x / (1 + e⁻ᵘ), where u = ln(Φ(x) / Φ(−x)) is x times a polynomial in x², and 0 below −6, as PyTorch's kernel is.
    ≤ 4 ULP above −1; below, its error is less than that of the kernel. The gradient to 6·10⁻⁷, as the op's own is to
    3·10⁻⁷, the second to 3·10⁻⁶. With "tanh", u is the polynomial that the op is defined by."""
    if approximate == "tanh":
        return _of_tanh_by_logistic(x)
    if x.dtype == torch.float64:
        return decline("the polynomial is for float32")
    # NaN stays in a product with 0, and so does −∞. Selections have a cheaper gradient than maxima; by a number on the
    # right, for PyTorch (2.13) takes a comparison of two tensors for a reduction, and keeps its result.
    x = torch.where(x < -6.0, x.detach() * 0.0, x)
    bounded = torch.where(-x < -6.0, 6.0, x)
    return x * torch.reciprocal(1 + torch.exp2(bounded * polynomial(bounded * bounded, _SHORT_LOGIT)))


@register(aten.gelu, level="standard")
@float_math
def gelu_of_bounded_logistic(x: Tensor, approximate: str = "none") -> Tensor:
    """The same for targets without trunc and maximum, u being continued along a line beyond ±5.8."""
    if approximate == "tanh":
        return _of_tanh_by_logistic(x, few_ops=True)
    if x.dtype == torch.float64:
        return decline("the polynomial is for float32")
    x = x * _counted(x)
    square = at_least(-x * x, -(5.8**2), few_ops=True)
    return x * torch.reciprocal(1 + torch.exp2(x * polynomial(square, _LOGIT)))


def _of_tanh_by_logistic(x: Tensor, few_ops: bool = False) -> Tensor:
    slope = math.sqrt(8 / math.pi)
    return x * logistic(x * (slope + (slope * 0.044715) * (x * x)), few_ops)


def _counted(x: Tensor) -> Tensor:
    """1, and 0 below −6, where PyTorch's kernel is 0; NaN stays in products with it, and so does −∞."""
    return cast(-x < 6.0, x.dtype)


@register(aten.gelu, level="fast")
@own_float_math
def gelu_by_binary(x: Tensor, approximate: str = "none") -> Tensor:
    """x / (1 + e⁻ᵘ) with fewer terms of u, and without the care for what is far below 0, where it is no less than about
    −10⁻⁶ (in float16 −10⁻⁴): ≤ 64 ULP above −3."""
    return _by_binary(x, approximate)


@register(aten.gelu, level="fast")
@own_float_math
def gelu_of_pairs_by_binary(x: Tensor, approximate: str = "none") -> Tensor:
    """The same for targets without maximum."""
    return _by_binary(x, approximate, few_ops=True)


def _by_binary(x: Tensor, approximate: str, few_ops: bool = False) -> Tensor:
    half, tanh = x.dtype == torch.float16, approximate == "tanh"
    if half and not tanh:
        return decline("the terms need the range of a float32")
    if x.dtype == torch.float64 and not tanh:
        return decline("the terms are for float32")
    inner = at_least(x, -3.6 if half else -9.0 if tanh else -5.0, few_ops)
    e = torch.exp2(inner * polynomial(inner * inner, _LOGIT_OF_TANH if tanh else _LOGIT_ROUGHLY))
    return inner * torch.reciprocal(1 + e)


@register(aten.gelu_backward, needs=("erf",))
@float_math
def gelu_backward(grad: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    """g·(Φ(x) + x·φ(x)), or with "tanh" the derivative of x·s with s = sigmoid(u): g·s·(1 + x·u'·(1 − s))."""
    if approximate == "tanh":
        return _tanh_backward(grad, x)
    density = torch.exp(x * x * -0.5) * DENSITY
    return grad * (0.5 * (1 + torch.erf(x * math.sqrt(0.5))) + x * density)


@register(aten.gelu_backward)
@float_math
def gelu_backward_of_parts(grad: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    """g·(Φ(x) + x·φ(x)), for targets without erf."""
    if approximate == "tanh":
        return _tanh_backward(grad, x)
    if x.dtype == torch.float64:
        return gelu_backward(grad, x)
    detached = x.detach()
    zero = x - detached
    gauss = _gauss(x, x)
    # Φ's own derivatives, φ and −x·φ, are terms that add nothing.
    slope = zero * (gauss.detach() * DENSITY) * (1 - 0.5 * zero * detached)
    return grad * (_normal_cdf(detached, gauss).detach() + slope + x * (gauss * DENSITY))


@float_math
def _of_tanh(x: Tensor) -> Tensor:
    u = tanh_argument(x)
    negative = u < 0
    e = torch.exp(torch.where(negative, u, -u))
    # As the sigmoid is written, whose own second gradient would have the few digits of 1 − s.
    return x * (torch.where(negative, e, 1.0) * torch.reciprocal(1 + e))


@float_math
def _of_erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))


@float_math
def _of_parts(x: Tensor) -> Tensor:
    detached = x.detach()
    # One factor of the square is detached, so that the slope has half of its own slope, which is counted twice.
    gauss = _gauss(x, detached)
    cdf = _normal_cdf(detached, gauss).detach()
    zero = detached - x  # but NaN at ±∞, as is the value at −∞
    # In this order what is taken away is +0 and leaves the sign of a result that is 0.
    slope = zero * cdf + zero * x * (gauss * DENSITY)
    return detached * cdf - torch.where(detached < math.inf, slope, 0.0)


def _gauss(x: Tensor, y: Tensor) -> Tensor:
    """e^(−x·y/2)."""
    return torch.exp2(x * y * (-0.5 * LOG2_E))


def _normal_cdf(x: Tensor, gauss: Tensor) -> Tensor:
    """Φ(x), given e^(−x²/2)."""
    negative = x < 0
    s = torch.where(negative, -x, x)
    t = torch.reciprocal(1 + s * 0.5)
    tail = gauss * (t * polynomial(t, _TAIL))
    around = 0.5 + x * polynomial(x * x, _AROUND_ZERO)
    return torch.where(s < 1, around, torch.where(negative, tail, 1 - tail))


def tanh_argument(x: Tensor) -> Tensor:
    """2·√(2/π)·(x + 0.044715·x³): twice the argument of tanh in the approximate GELU."""
    slope = math.sqrt(8 / math.pi)
    return x * (slope + (slope * 0.044715) * x * x)


def _tanh_backward(grad: Tensor, x: Tensor) -> Tensor:
    # Beyond ±32 the derivative is 0 or 1, and u' would overflow.
    near = torch.clamp(x, -32.0, 32.0)
    u, slope = tanh_argument(near), math.sqrt(8 / math.pi)
    steepness = slope + (3 * slope * 0.044715) * near * near
    # 1 − s has no digits where s is almost 1.
    negative = u < 0
    e = torch.exp(torch.where(negative, u, -u))
    share = torch.reciprocal(1 + e)
    s = torch.where(negative, e, 1.0) * share
    # x·0 adds nothing but the NaN that the derivative's own formula has at ∞, where x·0 is a part of it.
    return grad * (s + near * steepness * (e * share * share) + x * 0.0)
