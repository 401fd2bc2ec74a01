"""Activation functions: each from the accurate elementary function (expm1, log1p, sigmoid), so that nothing overflows
on the way, no digits are lost near zero, and no NaN comes out of the branch of a `where` that is not taken, nor out of
its gradient. At a kink the gradient is PyTorch's (that of relu at 0 is 0, that of hardtanh at its bounds too). Half
types are computed in float32 and rounded once, as PyTorch's kernels do. Errors are in ULP against float64, over all
float32. The rules of the backward kernels are in `activation_backward`.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.pointwise import exponential
from decomp_rules.pointwise.logarithm import log_of_one_and
from decomp_rules.support.floating import LN_2, LOG2_E, float_math, own_float_math
from decomp_rules.support.operands import above_zero, cast, constant, number_below, wide

RULES = Rules(level="exact")
register = RULES.register


# Smooth: sigmoid, SiLU, softplus


@register(aten.sigmoid)
@float_math
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e⁻ˣ), below 0 as eˣ / (1 + eˣ): the exponential never overflows. ≤ 2.7 ULP."""
    negative = x < 0
    e = torch.exp(torch.where(negative, x, -x))
    return torch.where(negative, e, 1.0) * torch.reciprocal(1 + e)


# From where on the sigmoid is 1.
_SIGMOID_END = 40.0


@register(aten.sigmoid, level="standard")
@float_math
def sigmoid_of_parts(x: Tensor) -> Tensor:
    """p / (p + 2^(r·log₂e)) with e⁻ˣ = eʳ / p and a power p of two, which has no gradient. Neither overflows, and the
    gradient has all digits down to where it is 0. ≤ 3.6 ULP."""
    return logistic(x)


@register(aten.sigmoid, level="standard")
@float_math
def sigmoid_of_shifted_parts(x: Tensor) -> Tensor:
    """The same for targets without trunc and maximum. ≤ 2.6 ULP."""
    return logistic(x, few_ops=True)


def logistic(x: Tensor, few_ops: bool = False) -> Tensor:
    """`sigmoid_of_parts`, for rules that need its gradients also where the target has a sigmoid."""
    power, e = logistic_parts(x, few_ops)
    return power * torch.reciprocal(power + e)


def logistic_parts(x: Tensor, few_ops: bool = False) -> tuple[Tensor, Tensor]:
    """A power p of two and a number e next to 1 so that e⁻ˣ is e/p."""
    low = exponential.NOTHING[x.dtype]
    z = exponential.at_least(-exponential.at_least(x, low, few_ops), -_SIGMOID_END, few_ops)
    power, rest = exponential.steps_and_rest(z, -1.0, exponential.shifted if few_ops else torch.trunc)
    return torch.exp2(power), torch.exp2(rest * LOG2_E)


@register(aten.sigmoid, level="fast")
@own_float_math
def sigmoid_by_binary(x: Tensor) -> Tensor:
    """1 / (1 + e⁻ˣ): ≤ 64 ULP for |x| ≤ 40. The exponential is a square, so that the gradient is no NaN above −176."""
    root = torch.exp2(exponential.finite_root(x, -16.0) * (-0.5 * LOG2_E))
    return torch.reciprocal(1 + root * root)


@register(aten.silu, level="fast")
@own_float_math
def silu_of_sigmoid(x: Tensor) -> Tensor:
    """x·sigmoid(x), as far as that is."""
    return x * torch.sigmoid(x)


@register(aten.silu)
@float_math
def silu(x: Tensor) -> Tensor:
    """x·sigmoid(x). ≤ 3.3 ULP."""
    return x * torch.sigmoid(x)


@register(aten.softplus)
@float_math
def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """log(1 + e^βx) / β, as max(z, 0) + log1p(e^−|z|) so that it neither overflows nor loses small z. ≤ 2.5 ULP."""
    z = x * beta
    # Both branches pass a gradient at 0, where those of clamp and abs would not add up to 1/2.
    negative = z < 0
    smooth = torch.where(negative, 0.0, z) + torch.log1p(torch.exp(torch.where(negative, z, -z)))
    return torch.where(z > threshold, x, smooth if beta == 1 else smooth / beta)


# Beyond, 1 is nothing beside eˣ, nor beside its square root.
_LARGE = {torch.float32: 30.0, torch.float64: 40.0}


@register(aten.softplus, level="standard")
@float_math
def softplus_of_parts(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """log(1 + e^βx) / β, as the logarithm of the rounded sum and what the rounding took. ≤ 3 ULP."""
    return _softplus(x, beta, threshold, exponential.exp_up_to)


@register(aten.softplus, level="standard")
@float_math
def softplus_of_bounded_parts(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """The same for targets without trunc and maximum. ≤ 3.5 ULP."""
    return _softplus(x, beta, threshold, _exp_of_few_ops, few_ops=True)


@register(aten.softplus, level="fast")
@own_float_math
def softplus_by_binary(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """The same with e^βx = 2^(βx·log₂e): ≤ 64 ULP for |βx| ≤ 40."""
    return _softplus(x, beta, threshold, _exp2_of_product)


def _exp2_of_product(x: Tensor, sign: float) -> Tensor:
    return torch.exp2(x * (sign * LOG2_E))


def _exp_of_few_ops(x: Tensor, sign: float) -> Tensor:
    return exponential.exp_up_to(x, sign, few_ops=True)


def _softplus(
    x: Tensor, beta: float, threshold: float, exp: Callable[[Tensor, float], Tensor], few_ops: bool = False
) -> Tensor:
    end = min(threshold, _LARGE.get(x.dtype, 10.0))
    turned = x * -beta
    e = exp(exponential.at_least(turned, -end - 1, few_ops), -1.0)  # at the end itself the gradient is whole
    u = 1 + e
    smooth = torch.log2(u) * float(LN_2) + (e - (u - 1)) * torch.reciprocal(u)
    return torch.where(turned < -end, x, smooth if beta == 1 else smooth * (1 / beta))


@register(aten.log_sigmoid)
def log_sigmoid(x: Tensor) -> Tensor:
    """min(x, 0) − log1p(e^−|x|). ≤ 2.5 ULP."""
    return _log_sigmoid(x)


@register(aten.log_sigmoid, level="standard")
@float_math
def log_sigmoid_of_parts(x: Tensor) -> Tensor:
    """min(x, 0) − ln(1 + e^−|x|). ≤ 3.2 ULP."""
    negative = x < 0
    rest = log_of_one_and(exponential.exp_up_to(torch.where(negative, x, -x)), -1.0)
    return torch.where(negative, x, 0.0) + rest


@register(aten.log_sigmoid_forward)
def log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """log_sigmoid, and the buffer of its CPU kernel, which has no gradient: e^−|x|. That of CUDA is empty."""
    if x.device.type in ("cuda", "xpu"):
        return _log_sigmoid(x), torch.full((0,), 0, dtype=x.dtype, device=x.device)
    return _log_sigmoid(x), cast(torch.exp(-torch.abs(wide(x.detach()))), x.dtype)


@float_math
def _log_sigmoid(x: Tensor) -> Tensor:
    negative = x < 0
    return torch.where(negative, x, 0.0) - torch.log1p(torch.exp(torch.where(negative, x, -x)))


@register(aten.mish)
@float_math
def mish(x: Tensor) -> Tensor:
    """x·tanh(log(1 + eˣ)) = x·n / (n + 2) with n = e² + 2e and e = eˣ; above 0 all times e⁻²ˣ. ≤ 4 ULP."""
    large = x > 64
    bounded = torch.where(large, 0.0, x)
    negative = bounded < 0
    e = torch.exp(torch.where(negative, bounded, -bounded))
    square = e * e
    above = torch.where(negative, square + 2 * e, 1 + 2 * e)
    curve = bounded * (above * torch.reciprocal(above + 2 * torch.where(negative, 1.0, square)))
    return torch.where(large, x, curve)


# From where on mish is x.
_MISH_END = {torch.float32: 9.0, torch.float64: 20.0}


@register(aten.mish, level="standard")
@float_math
def mish_of_parts(x: Tensor) -> Tensor:
    """x·n / (n + 2) with n = e·(e + 2) and e = eˣ, no more than where the quotient is 1. ≤ 4 ULP."""
    return _mish(x, _MISH_END[x.dtype], exponential.exp_up_to)


@register(aten.mish, level="fast")
@own_float_math
def mish_by_binary(x: Tensor) -> Tensor:
    """The same with eˣ = 2^(x·log₂e): ≤ 64 ULP for |x| ≤ 20."""
    return _mish(x, _MISH_END.get(x.dtype, 4.0), _exp2_of_product)


def _mish(x: Tensor, end: float, exp: Callable[[Tensor, float], Tensor]) -> Tensor:
    e = exp(exponential.at_least(-x, -end), -1.0)
    n = e * (e + 2)
    inverse = torch.reciprocal(n + 2)
    # The gradient of the quotient has few digits where that is almost 1.
    return x * torch.where(x < 0, n * inverse, 1 - 2 * inverse)


# Exponential below zero: ELU and its kin


@register(aten.elu, needs=("expm1",))
@float_math
def elu_of_expm1(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """scale·x above 0, scale·alpha·(e^(input_scale·x) − 1) below. From −1 on down the slope is that of an exponential,
    as expm1's own, which is its value plus 1, loses its digits there. ≤ 2.5 ULP."""
    below = torch.where(x > 0, 0.0, _times(x, input_scale))
    curve = torch.where(below < -1, torch.exp(below) - 1, torch.expm1(below))
    return torch.where(x > 0, _times(x, scale), _times(curve, alpha * scale))


@register(aten.elu)
@float_math
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """scale·x above 0, scale·alpha·(e^(input_scale·x) − 1) below. ≤ 2.5 ULP."""
    below = torch.where(x > 0, 0.0, _times(x, input_scale))
    return torch.where(x > 0, _times(x, scale), _times(exponential.expm1(below), alpha * scale))


# Where eˣ is 0.
_ELU_END = {torch.float32: 88.0, torch.float64: 700.0}


@register(aten.elu, level="standard")
@float_math
def elu_of_parts(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """scale·x above 0, scale·alpha·(e^(input_scale·x) − 1) below. ≤ 2.5 ULP, the gradients to 10⁻⁵."""
    turned = exponential.minus_within(_times(x, input_scale), _ELU_END[x.dtype])
    curve = exponential.expm1_of_minus(turned)
    return torch.where(turned * input_scale < 0, _times(x, scale), _times(curve, alpha * scale))


@register(aten.elu, level="fast")
@own_float_math
def elu_by_binary(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """scale·x above 0, scale·alpha·(2^(input_scale·x·log₂e) − 1) below: ≤ 64 ULP for |x| ≥ 0.05, nearer to 0 to 10⁻⁷
    of alpha in float32."""
    below = -torch.maximum(x * (-LOG2_E * input_scale), constant(x, -1.0))
    return torch.where(x > 0, _times(x, scale), _times(torch.exp2(below) - 1, alpha * scale))


@register(aten.celu)
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """ELU with e^(x/alpha)."""
    return aten.elu(x, alpha, 1.0, 1.0 / alpha)


@register(aten.selu)
def selu(x: Tensor) -> Tensor:
    """ELU with the constants of G. Klambauer et al., *Self-Normalizing Neural Networks*, 2017."""
    return aten.elu(x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1.0)


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


# Piecewise linear


@register(aten.relu, level="standard")
def relu_where_positive(x: Tensor) -> Tensor:
    """x from the first normal number on, else 0, with gradient 0 there; NaN stays. Exact."""
    return torch.where(x < above_zero(x.dtype), 0, x) if x.is_floating_point() else decline("only floats")


@register(aten.relu, level="standard", needs=("amax",))
def relu_by_amax(x: Tensor) -> Tensor:
    """max(x, s) − s with the least number s, so that there is no tie at 0 and the gradient is 0. ≤ 1 ULP."""
    if not x.is_floating_point():
        return decline("only floats")
    least = torch.finfo(x.dtype).smallest_normal * torch.finfo(x.dtype).eps
    return torch.amax(torch.constant_pad_nd(x.unsqueeze(-1), [0, 1], least), [x.dim()]) - least


@register(aten.hardtanh, level="standard")
def hardtanh_beyond_bounds(x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    """min(max(x, min), max), with gradient 0 at both. Exact."""
    if not x.is_floating_point() or not min_val < max_val:
        return decline("only floats between two bounds")
    above = torch.where(x <= min_val, min_val, x)
    return torch.where(x >= max_val, max_val, above)


@register(aten.hardsigmoid, level="standard")
@float_math
def hardsigmoid_between_kinks(x: Tensor) -> Tensor:
    """(x + 3) / 6 between −3 and 3, else 0 or 1, with gradient 0 there. ≤ 1.5 ULP of the op."""
    # One selection has a gradient: each would have its mask kept for the backward, which Inductor writes slowly.
    outside = torch.lt(-x * x, -number_below(9.0, x.dtype))
    return torch.where(outside, torch.where(x < 0, 0.0, 1.0), (x + 3) * (1 / 6))


@register(aten.hardswish, level="standard")
@float_math
def hardswish_between_kinks(x: Tensor) -> Tensor:
    """x·(x + 3) / 6 from −3 to 3, 0·x below and x above. ≤ 2 ULP of the op."""
    inner = number_below(3.0, x.dtype)
    # By a number on the right: a comparison of two tensors PyTorch (2.13) takes for a reduction, and keeps its result.
    above = torch.where(torch.lt(-x, -inner), x, x * ((x + 3) * (1 / 6)))
    return torch.where(torch.lt(x, -inner), x * 0.0, above)


@register(aten.leaky_relu, level="standard")
def leaky_relu_where_negative(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x above 0, slope·x below and at 0. Exactly the op."""
    return torch.where(x < above_zero(x.dtype), x * negative_slope, x)


@register(aten._prelu_kernel, level="standard")
def prelu_kernel_where_negative(x: Tensor, weight: Tensor) -> Tensor:
    """x above 0, weight·x below and at 0, for a weight that broadcasts. Exactly the op."""
    return torch.where(x < above_zero(x.dtype), x * weight, x)


@register(aten.hardshrink, level="standard")
def hardshrink_within(x: Tensor, lambd: float = 0.5) -> Tensor:
    """0 where |x| ≤ lambd, else x; NaN stays. Exactly the op."""
    return torch.where(torch.abs(x) <= lambd, 0.0, x) if x.is_floating_point() else decline("only floats")


@register(aten.softshrink, level="standard")
def softshrink_by_clamp(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x less x clamped to ±lambd. Exactly the op."""
    y = wide(x)
    return cast(y - torch.clamp(y, -lambd, lambd), x.dtype) if x.is_floating_point() else decline("only floats")


@register(aten.relu)
def relu(x: Tensor) -> Tensor:
    """max(x, 0), with gradient 0 at 0 and 1 at NaN, which stays. Exact."""
    return torch.where(x != 0, torch.where(x < 0, 0, x), x.detach())


@register(aten.relu6)
def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6), with gradient 0 at both. Exact."""
    return F.hardtanh(x, 0.0, 6.0)


@register(aten.hardtanh)
def hardtanh(x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    """min(max(x, min), max), with gradient 0 at both. Exact."""
    if not x.is_floating_point():
        return torch.clamp(x, int(min_val), int(max_val))
    inside = torch.logical_and(x > min_val, x < max_val)
    return torch.where(inside, x, torch.clamp(x.detach(), min_val, max_val))


@register(aten.hardsigmoid)
@float_math
def hardsigmoid(x: Tensor) -> Tensor:
    """min(max(x + 3, 0), 6) / 6, with gradient 0 at both ends. ≤ 1.5 ULP of the op in float32."""
    inside = torch.logical_and(x > -3, x < 3)
    return torch.where(inside, x + 3, torch.clamp(x.detach() + 3, 0.0, 6.0)) / 6


@register(aten.hardswish)
@float_math
def hardswish(x: Tensor) -> Tensor:
    """x·min(max(x + 3, 0), 6) / 6. ≤ 1 ULP more than the op in float32."""
    outside = torch.logical_or(x <= -3, x >= 3)
    inner = torch.where(outside, 0.0, x)
    return torch.where(outside, torch.where(x <= -3, x * 0.0, x), inner * (inner + 3) / 6)


@register(aten.leaky_relu)
@float_math
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x above 0, slope·x below and at 0. Exactly the op."""
    return torch.where(x > 0, x, x * negative_slope)


@register(aten.prelu)
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x above 0, weight·x below and at 0, one weight for all or one for each index of dimension 1. Exactly the op."""
    if weight.dim() == 1 and x.dim() > 1:
        weight = weight.view([-1 if dim == 1 else 1 for dim in range(x.dim())])
    elif weight.dim() == 1:
        weight = weight.view([-1] if x.dim() else [])
    return _prelu(x, weight)


@register(aten._prelu_kernel)
def prelu_kernel(x: Tensor, weight: Tensor) -> Tensor:
    """x above 0, weight·x below and at 0, for a weight that broadcasts. Exactly the op."""
    return _prelu(x, weight)


@float_math
def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    positive = x > 0
    return torch.where(positive, x, torch.where(positive, 0.0, x) * weight)


@register(aten.rrelu)
def rrelu(x: Tensor, lower: float = 0.125, upper: float = 0.3333333333333333, training: bool = False) -> Tensor:
    """leaky ReLU with the middle slope; in training with a slope drawn for each element below 0 or at it."""
    if not training:
        return F.leaky_relu(x, (lower + upper) / 2)
    slope = torch.rand(x.shape, dtype=x.dtype, device=x.device) * (upper - lower) + lower
    return torch.where(x <= 0, x * slope, x)


@register(aten.rrelu_with_noise_functional)
def rrelu_with_noise_functional(
    x: Tensor, noise: Tensor, lower: float = 0.125, upper: float = 0.3333333333333333, training: bool = False
) -> tuple[Tensor, Tensor]:
    """rrelu, and the slope of each element (1 above 0) in training."""
    if not training:
        return F.leaky_relu(x, (lower + upper) / 2), noise.detach().clone()
    drawn = torch.rand(x.shape, dtype=x.dtype, device=x.device) * (upper - lower) + lower
    slope = torch.where(x.detach() <= 0, drawn, 1.0)
    return x * slope, slope


@register(aten.threshold)
def threshold(x: Tensor, threshold: float, value: float) -> Tensor:
    """x above the threshold, else the value. Exactly the op: for integers both are cut off to integers."""
    if not x.is_floating_point():
        if not math.isfinite(threshold) or not math.isfinite(value):
            return decline("an integer is compared with an infinity")
        threshold, value = int(threshold), int(value)
    return torch.where(wide(x) <= threshold, value, x)


@register(aten.hardshrink)
def hardshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """0 within ±lambd, else x; NaN stays, without a gradient. Exactly the op."""
    outside = torch.logical_or(x < -lambd, x > lambd)
    return torch.where(outside, x, x.detach() * 0.0 + 0.0)


@register(aten.softshrink)
@float_math
def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, and 0 within ±lambd; NaN stays, without a gradient. Exactly the op."""
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, x.detach() * 0.0 + 0.0))


# Compositions


@register(aten.glu)
def glu(x: Tensor, dim: int = -1) -> Tensor:
    """a·sigmoid(b) of the two halves of x along dim. ≤ 3 ULP."""
    if x.shape[dim] % 2:
        return decline("the dimension is odd")
    # Not in chunks: half of an even symbol, rounded up, is another expression than half of it.
    half = x.shape[dim] // 2
    value, gate = (torch.narrow(wide(x), dim, start, half) for start in (0, half))
    return cast(value * torch.sigmoid(gate), x.dtype)


@register(F.softsign)
def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|). Exactly the op but for the quotient, ≤ 2 ULP."""
    return input / (1 + torch.abs(input))


@register(F.tanhshrink)
def tanhshrink(input: Tensor) -> Tensor:
    """x − tanh x. Exactly the op, which loses digits near 0."""
    return input - torch.tanh(input)


@register(aten.logit)
@float_math
def logit(x: Tensor, eps: Any = None) -> Tensor:
    """log(x / (1 − x)), around 1/2 as log1p((2x − 1) / (1 − x)). With eps, x is clamped to [eps, 1 − eps]; without, the
    gradient is NaN as the value is outside [0, 1]. ≤ 4 ULP."""
    if eps is not None:
        x = torch.clamp(x, eps, 1 - eps)
    else:
        x = x * torch.where(torch.logical_or(x < 0, x > 1), math.nan, 1.0)
    middle = torch.abs(x - 0.5) < 0.25
    inner = torch.where(middle, x, 0.5)
    around_half = torch.log1p((inner - 0.5) * 2 * torch.reciprocal(1 - inner))
    return torch.where(middle, around_half, torch.log(x) - torch.log1p(-x))
