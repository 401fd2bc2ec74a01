"""The backward kernels of the activations, which autograd leaves in training graphs: gradients as functions of the
gradient of the output and of what the forward kernel saved. The formula of each is PyTorch's, kinks included; half
types are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.pointwise.activation import logistic
from decomp_rules.pointwise.exponential import at_least, exp_up_to
from decomp_rules.support.floating import float_math
from decomp_rules.support.operands import above_zero, same_size, wide

RULES = Rules(level="exact")
register = RULES.register


@register(aten.sigmoid_backward)
@float_math
def sigmoid_backward(grad: Tensor, output: Tensor) -> Tensor:
    """g·y·(1 − y)."""
    return grad * (1 - output) * output


@register(aten.tanh_backward)
@float_math
def tanh_backward(grad: Tensor, output: Tensor) -> Tensor:
    """g·(1 − y²), as (1 − y)·(1 + y), which keeps its digits next to ±1. ≤ 2.5 ULP; its own gradient is off by ε."""
    return grad * ((1 - output) * (1 + output))


@register(aten.silu_backward)
@float_math
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """g·s·(1 + x·(1 − s)) with s = sigmoid(x)."""
    s = torch.sigmoid(x)
    return grad * s * (1 + x * (1 - s))


@register(aten.softplus_backward)
@float_math
def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    """g·sigmoid(βx), g above the threshold."""
    z = x * beta
    # Not by sigmoid, whose kernel has no subnormal results, so that ∞ would meet 0.
    negative = z < 0
    e = torch.exp(torch.where(negative, z, -z))
    share = torch.where(negative, e, 1.0) * torch.reciprocal(1 + e)
    return torch.where(z > threshold, grad, grad * share)


@register(aten.softplus_backward, level="standard")
@float_math
def softplus_backward_of_logistic(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    """g·sigmoid(βx), g above the threshold."""
    return _softplus_of_logistic(grad, x, beta, threshold)


@register(aten.softplus_backward, level="standard")
@float_math
def softplus_backward_of_shifted_logistic(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    """The same for targets without trunc and maximum."""
    return _softplus_of_logistic(grad, x, beta, threshold, few_ops=True)


def _softplus_of_logistic(grad: Tensor, x: Tensor, beta: float, threshold: float, few_ops: bool = False) -> Tensor:
    z = x if beta == 1 else x * beta
    return grad * torch.where(z > threshold, 1.0, logistic(z, few_ops))


@register(aten.log_sigmoid_backward)
@float_math
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Any) -> Tensor:
    """g·sigmoid(−x), from the buffer z = e^−|x| of the CPU kernel as z / (1 + z) above 0, or 1 less that below; on a
    GPU the buffer is empty."""
    if buffer.dim() and not all(map(same_size, buffer.shape, x.shape)):
        return grad * torch.sigmoid(-x)
    share = buffer * torch.reciprocal(1 + buffer)
    return grad * torch.where(x < 0, 1 - share, share)


@register(aten.mish_backward)
@float_math
def mish_backward(grad: Tensor, x: Tensor) -> Tensor:
    """g·(t + x·sigmoid(x)·(1 − t²)) with t = tanh(softplus(x))."""
    t = torch.tanh(torch.nn.functional.softplus(x))
    return grad * (t + x * torch.sigmoid(x) * (1 - t * t))


# From where on the gradient of mish is 1.
_MISH_END = {torch.float32: 12.0, torch.float64: 24.0}


@register(aten.mish_backward, level="standard")
@float_math
def mish_backward_of_parts(grad: Tensor, x: Tensor) -> Tensor:
    """g·(n·v + x·4·e·(1 + e)·v²) with n = e·(e + 2), v = 1 / (n + 2) and e = eˣ, up to where it is 1."""
    return _mish_of_parts(grad, x)


@register(aten.mish_backward, level="standard")
@float_math
def mish_backward_of_bounded_parts(grad: Tensor, x: Tensor) -> Tensor:
    """The same for targets without trunc and maximum."""
    return _mish_of_parts(grad, x, few_ops=True)


def _mish_of_parts(grad: Tensor, x: Tensor, few_ops: bool = False) -> Tensor:
    turned = at_least(-x, -_MISH_END[x.dtype], few_ops)
    e = exp_up_to(turned, -1.0, few_ops)
    n = e * (e + 2)
    inverse = torch.reciprocal(n + 2)
    return grad * (n * inverse + turned * (e * inverse) * ((1 + e) * inverse) * -4)


@register(aten.elu_backward)
@float_math
def elu_backward(
    grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, self_or_result: Tensor
) -> Tensor:
    """g·scale above 0; at 0 and below g·input_scale·alpha·scale·e^(input_scale·x), or from y with y + alpha·scale."""
    # The second derivative is 0 at 0.
    below = torch.where(self_or_result >= 0, 0.0, self_or_result)
    if is_result:
        curve = (below + alpha * scale) * input_scale
    else:
        curve = torch.exp(below * input_scale) * (alpha * scale * input_scale)
    return grad * torch.where(self_or_result > 0, scale, curve)


@register(aten.threshold_backward)
def threshold_backward(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    """g above the threshold, else 0. Exact."""
    return torch.where(wide(x) <= threshold, 0, grad).to(torch.result_type(grad, x))


@register(aten.hardtanh_backward)
def hardtanh_backward(grad: Tensor, x: Tensor, min_val: float, max_val: float) -> Tensor:
    """g strictly between the bounds, else 0. Exact."""
    x = wide(x)
    return torch.where(torch.logical_and(x > min_val, x < max_val), grad, 0.0)


@register(aten.hardsigmoid_backward)
@float_math
def hardsigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    """g / 6 strictly between −3 and 3, else 0."""
    return torch.where(torch.logical_and(x > -3, x < 3), grad * (1 / 6), 0.0)


@register(aten.hardswish_backward)
@float_math
def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    """g·(x/3 + 1/2) strictly between −3 and 3, 0 below, g above."""
    below = x <= -3
    slope = torch.where(below, 0.0, torch.where(x >= 3, 1.0, x / 3 + 0.5))
    return torch.where(below, 0.0, grad * slope)


@register(aten.leaky_relu_backward, level="standard")
def leaky_relu_backward_where_negative(grad: Tensor, x: Tensor, negative_slope: float, self_is_result: bool) -> Tensor:
    """g above 0, slope·g at 0 and below; the sign of the result is that of x. Exactly the op."""
    return torch.where(x < above_zero(x.dtype), grad * negative_slope, grad)


@register(aten.leaky_relu_backward)
@float_math
def leaky_relu_backward(grad: Tensor, x: Tensor, negative_slope: float, self_is_result: bool) -> Tensor:
    """g above 0, slope·g at 0 and below; the sign of the result is that of x."""
    return torch.where(x > 0, grad, grad * negative_slope)


@register(aten._prelu_kernel_backward)
def prelu_kernel_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """g above 0 and weight·g below; for the weight 0 and x·g, not yet summed."""
    positive = x > 0
    below = torch.where(positive, 0.0, x)
    return grad * torch.where(positive, 1.0, weight), torch.where(positive, 0.0, below * grad)


@register(aten.rrelu_with_noise_backward)
@float_math
def rrelu_with_noise_backward(
    grad: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, self_is_result: bool
) -> Tensor:
    """g times the slope that was drawn; out of training that of leaky ReLU with the middle slope."""
    if training and upper - lower > 1e-6:
        return grad * noise
    return torch.where(x > 0, grad, grad * ((lower + upper) / 2))


@register(aten.hardshrink_backward)
def hardshrink_backward(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    """0 within ±lambd, else g. Exact."""
    return torch.where(torch.logical_or(x < -lambd, x > lambd), grad, 0.0)


@register(aten.softshrink_backward)
def softshrink_backward(grad: Tensor, x: Tensor, lambd: float) -> Tensor:
    """0 within ±lambd, else g. Exact."""
    return torch.where(torch.logical_or(x < -lambd, x > lambd), grad, 0.0)


@register(aten.glu_backward)
@float_math
def glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    """g·s for the value and g·value·s·(1 − s) for the gate, with s = sigmoid(gate)."""
    value, gate = torch.chunk(x, 2, dim)
    s = torch.sigmoid(gate)
    through = grad * s
    return torch.cat([through, through * (1 - s) * value], dim)


@register(aten.logit_backward)
@float_math
def logit_backward(grad: Tensor, x: Tensor, eps: Any = None) -> Tensor:
    """g / (x·(1 − x)); outside [eps, 1 − eps] and at NaN 0, or NaN outside [0, 1] where there is no eps."""
    low, high = (0.0, 1.0) if eps is None else (eps, 1.0 - eps)
    inside = torch.logical_and(x >= low, x <= high)
    return torch.where(inside, grad / (x * (1 - x)), math.nan if eps is None else 0.0)
