"""Rules for programs that are not trained. Their values agree with the op, but their gradients do not: at ties and
kinks, or far from zero, where the shorter formula loses them. The planner does not use them if anything may be
trained."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.floating import float_math, polynomial
from decomp_rules.support.operands import cast, constant, is_scalar, promoted

RULES = Rules(level="exact")


def register(*spellings: Any, **how: Any) -> Any:
    """`RULES.register`, for programs that are not trained."""
    return RULES.register(*spellings, forward_only=True, **how)


@register(aten.relu, level="standard", needs=("maximum",))
def relu_by_maximum(x: Tensor) -> Tensor:
    """max(x, 0), which may be 0 where x is −0. Exact otherwise."""
    return torch.maximum(x, constant(x, 0))


@register(aten.clamp, needs=("maximum", "minimum"))
def clamp_by_extrema(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """min(max(x, min), max), NaN of a NaN bound. Exact."""
    dtype = promoted(*(operand for operand in (x, min, max) if operand is not None))
    x = cast(x, dtype)
    for bound, extremum in ((min, torch.maximum), (max, torch.minimum)):
        if bound is not None:
            x = extremum(x, constant(x, bound) if is_scalar(bound) else cast(bound, dtype))
    return x


@register(aten.hardtanh)
def hardtanh_by_clamp(x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    """min(max(x, min), max). Exact."""
    whole = not x.is_floating_point()
    return torch.clamp(x, int(min_val) if whole else min_val, int(max_val) if whole else max_val)


@register(aten.hardsigmoid, level="standard")
@float_math
def hardsigmoid_by_clamp(x: Tensor) -> Tensor:
    """min(max(x + 3, 0), 6) / 6. ≤ 1.4 ULP of the op."""
    return torch.clamp(x + 3, 0.0, 6.0) * (1 / 6)


@register(aten.hardswish, level="standard")
@float_math
def hardswish_by_clamp(x: Tensor) -> Tensor:
    """x·min(max(x + 3, 0), 6) / 6. ≤ 2.4 ULP of the op."""
    return x * (torch.clamp(x + 3, 0.0, 6.0) * (1 / 6))


# log₂(Φ(−x) / Φ(x)) / x in powers of x²: minimax for |x| ≤ 5.5, weighted so that x·Φ(x) is right above −1, and as right
# as PyTorch's kernel below; beyond, it falls faster, so that far below 0 less is left of x·Φ(x) than should be.
_LOGIT = (
    -2.3022089530023,
    -0.10483741230147,
    9.71336174248e-05,
    0.00015819354894212,
    -1.1181296585896e-05,
    3.6110233426634e-07,
    -4.5000104475611e-09,
)


@register(aten.gelu, level="standard")
@float_math
def gelu_of_logit(x: Tensor, approximate: str = "none") -> Tensor:
    """x / (1 + e⁻ᵘ) with u = ln(Φ(x) / Φ(−x)), which is x times a polynomial in x². ≤ 4 ULP above −1; below, its error
    is less than twice that of the kernel."""
    if approximate == "tanh" or x.dtype == torch.float64:
        return decline("the polynomial is for float32, and not for the approximation by tanh")
    return x * torch.reciprocal(1 + torch.exp2(x * polynomial(x * x, _LOGIT)))


@register(aten.prelu)
def prelu_of_kernel(x: Tensor, weight: Tensor) -> Tensor:
    """x above 0, weight·x below and at 0, one weight for all or one for each index of dimension 1. Exactly the op."""
    if weight.dim() == 1:
        weight = weight.view([-1 if dim == 1 else 1 for dim in range(x.dim())] if x.dim() > 1 else [-1] * x.dim())
    return torch._prelu_kernel(x, weight)


@register(aten.expm1, level="standard", needs=("tanh", "exp"))
@float_math
def expm1_by_tanh(x: Tensor) -> Tensor:
    """tanh(x / 2)·(eˣ + 1): no digits are lost next to 0. ≤ 3 ULP."""
    return torch.tanh(x * 0.5) * (torch.exp(x) + 1)


@register(aten.elu)
@float_math
def elu_of_all(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """scale·x above 0, scale·alpha·(e^(input_scale·x) − 1) below, whatever that is above. ≤ 2.5 ULP."""
    curve = _times(torch.expm1(_times(x, input_scale)), alpha * scale)
    return torch.where(x > 0, _times(x, scale), curve)


def _times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


_MISH_END = 20.0  # from here on mish is x, in all dtypes


@register(aten.mish, level="standard", needs=("exp", "minimum"))
@float_math
def mish_of_bounded(x: Tensor) -> Tensor:
    """x·n / (n + 2) with n = e·(e + 2) and e = eˣ, which is 1 from where eˣ is bounded on. ≤ 4 ULP,
    below −87, where eˣ is subnormal, ≤ 19."""
    e = torch.exp(torch.minimum(x, constant(x, _MISH_END)))
    n = e * (e + 2)
    return x * (n / (n + 2))


@register(aten.softplus, level="standard", needs=("atanh", "exp", "maximum"))
@float_math
def softplus_by_atanh(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """max(z, 0) + log(1 + e^−|z|), over β, with z = βx. ≤ 3 ULP."""
    z = _times(x, beta)
    smooth = _times(torch.maximum(z, constant(x, 0.0)) + _log_of_one_and(torch.exp(-torch.abs(z))), 1 / beta)
    return torch.where(z > threshold, x, smooth)


@register(aten.log_sigmoid, level="standard", needs=("atanh", "exp", "minimum"))
@float_math
def log_sigmoid_by_atanh(x: Tensor) -> Tensor:
    """min(x, 0) − log(1 + e^−|x|). ≤ 3 ULP."""
    return torch.minimum(x, constant(x, 0.0)) - _log_of_one_and(torch.exp(-torch.abs(x)))


def _log_of_one_and(u: Tensor) -> Tensor:
    """log(1 + u) = 2·artanh(u / (2 + u)), for u from 0 to 1."""
    return 2 * torch.atanh(u / (u + 2))
