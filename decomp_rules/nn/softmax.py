"""Softmax in its spellings and its backward: the largest entry is subtracted first, so nothing overflows. Dtypes
narrower than 32 bits are computed in float32 and rounded once, as PyTorch's CPU kernels do. Errors are the largest seen
on 500 rows of 768 normal numbers, in float32."""

import math

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.pointwise.exponent_bits import (
    LONG_EXP,
    LOWEST,
    NEEDS,
    SHORT_EXP,
    power_and_factor,
    with_own_derivatives,
)
from decomp_rules.pointwise.exponential import at_least, exp_up_to
from decomp_rules.reduce.reduction import known_empty
from decomp_rules.support.floating import LOG2_E
from decomp_rules.support.operands import cast, wide

RULES = Rules(level="exact")
register = RULES.register


@register(aten.softmax)
def softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """exp(xᵢ) / Σ exp(xⱼ), by the kernel."""
    return torch._softmax(cast(x, dtype or x.dtype), dim, False)


@register(aten._softmax)
def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """e / Σe with e = exp(x − max x). 6.8 ULP, the kernel 7.2: x − max x is rounded in both."""
    if half_to_float:
        return decline("half_to_float is for GPUs")
    if known_empty(x):
        return x.clone()
    powers = torch.exp(below_largest(wide(x), dim))
    # The sum is at least 1, so that its reciprocal neither overflows nor loses accuracy.
    return cast(powers * torch.reciprocal(torch.sum(powers, [dim], keepdim=True)), x.dtype)


@register(aten._softmax, level="standard")
def softmax_of_parts(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """e / Σe with e = exp(x − max x), which is at most 1. As `_softmax`, 6.9 ULP."""
    return _of_parts(x, dim, half_to_float)


@register(aten._softmax, level="standard")
def softmax_of_bounded_parts(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """The same for targets without trunc and where."""
    return _of_parts(x, dim, half_to_float, few_ops=True)


def _of_parts(x: Tensor, dim: int, half_to_float: bool, few_ops: bool = False) -> Tensor:
    if half_to_float or known_empty(x):
        return decline("half_to_float is for GPUs" if half_to_float else "an empty tensor has no largest entry")
    powers = exp_up_to(below_largest(wide(x), dim), few_ops=few_ops)
    return cast(powers * torch.reciprocal(torch.sum(powers, [dim], keepdim=True)), x.dtype)


@register(aten._softmax, level="standard", needs=NEEDS, forward_only=True)
def softmax_of_powers(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """e / Σe with e = exp(x − max x), 0 where that is subnormal. As `_softmax`, 6.9 ULP."""
    if half_to_float or known_empty(x):
        return decline("half_to_float is for GPUs" if half_to_float else "an empty tensor has no largest entry")
    wider = wide(x)
    if wider.dtype != torch.float32:
        return decline("the polynomial is for float32")
    # A long polynomial is faster here: Inductor (torch 2.13) computes the powers a second time, rather than keep them,
    # unless they take more than 50 operations, constants included.
    power, factor = power_and_factor(at_least(below_largest(wider, dim), LOWEST), coefficients=LONG_EXP)
    powers = factor * power
    return cast(powers * torch.reciprocal(torch.sum(powers, [dim], keepdim=True)), x.dtype)


@register(aten._softmax, level="standard", needs=(*NEEDS, "prod"))
def softmax_of_powers_trained(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """The same with gradients, the powers having their derivatives from themselves."""
    if half_to_float or known_empty(x):
        return decline("half_to_float is for GPUs" if half_to_float else "an empty tensor has no largest entry")
    wider = wide(x)
    if wider.dtype != torch.float32:
        return decline("the polynomial is for float32")
    shifted = at_least(below_largest(wider.detach(), dim), LOWEST)
    power, factor = power_and_factor(shifted, coefficients=[0.5 * c for c in SHORT_EXP])
    # A product over one element, so that the value that the backward needs is computed in the forward and kept. Without
    # it, PyTorch (2.13) finds it cheapest to recompute the value from x, and does so twice.
    half = torch.prod((factor * power).unsqueeze(-1), -1)
    finite = at_least(wider, torch.finfo(torch.float32).min)
    powers = with_own_derivatives(half, finite - finite.detach())
    return cast(powers * torch.reciprocal(torch.sum(powers, [dim], keepdim=True)), x.dtype)


@register(aten._softmax, level="fast")
def softmax_by_binary(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """The same with 2^(s·log₂e) for exp(s), in the dtype of x: ≤ 64 ULP where s ≥ −40."""
    if half_to_float or known_empty(x):
        return decline("half_to_float is for GPUs" if half_to_float else "an empty tensor has no largest entry")
    # The gradients of the largest entry add up to 0, but for their rounding.
    powers = torch.exp2((x - torch.amax(x, [dim], keepdim=True)) * LOG2_E)
    return powers * torch.reciprocal(torch.sum(powers, [dim], keepdim=True))


@register(aten.log_softmax)
def log_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """xᵢ − log Σ exp(xⱼ), by the kernel."""
    return torch._log_softmax(cast(x, dtype or x.dtype), dim, False)


@register(aten._log_softmax)
def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """s − log Σ exp(s) with s = x − max x. 1.4 ULP, as the kernel."""
    if half_to_float:
        return decline("half_to_float is for GPUs")
    if known_empty(x):
        return x.clone()
    shifted = below_largest(wide(x), dim)
    return cast(shifted - torch.log(torch.sum(torch.exp(shifted), [dim], keepdim=True)), x.dtype)


@register(aten._log_softmax, level="standard")
def log_softmax_by_binary(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """s − ln Σ 2^(s·log₂e) with s = x − max x. An entry's error of |s| ε is weighted by its share in the sum, which is
    smaller the larger |s| is. As `_log_softmax`, 1.5 ULP."""
    if half_to_float or known_empty(x):
        return decline("half_to_float is for GPUs" if half_to_float else "an empty tensor has no largest entry")
    shifted = below_largest(wide(x), dim)
    return cast(shifted + _minus_log_sum(shifted, dim), x.dtype)


@register(aten._log_softmax, level="fast")
def log_softmax_in_own_dtype(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """The same in the dtype of x."""
    if half_to_float or known_empty(x):
        return decline("half_to_float is for GPUs" if half_to_float else "an empty tensor has no largest entry")
    shifted = x - torch.amax(x, [dim], keepdim=True)
    return shifted + _minus_log_sum(shifted, dim)


def _minus_log_sum(x: Tensor, dim: int) -> Tensor:
    return torch.log2(torch.sum(torch.exp2(x * LOG2_E), [dim], keepdim=True)) * -math.log(2)


@register(aten._softmax_backward_data)
def _softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """y (g − Σ g y)."""
    grad, y = wide(grad_output), wide(output)
    return cast(y * (grad - torch.sum(grad * y, [dim], keepdim=True)), input_dtype)


@register(aten._log_softmax_backward_data)
def _log_softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """g − exp(y) Σ g."""
    grad = wide(grad_output)
    return cast(grad - torch.exp(wide(output)) * torch.sum(grad, [dim], keepdim=True), input_dtype)


@register(aten._safe_softmax)
def _safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax that is 0, with no gradient, along rows that are −∞ throughout."""
    x = cast(x, dtype or x.dtype)
    if x.dim() and type(x.shape[dim]) is int and x.shape[dim] == 0:
        return torch._softmax(x, dim, False)
    masked = torch.amax(x.detach(), [dim], keepdim=True) == -math.inf
    return torch.where(masked, 0, torch._softmax(torch.where(masked, 0, x), dim, False))


@register(aten._safe_softmax, level="standard")
def safe_softmax_of_parts(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax with a largest entry that is finite and a sum that is not 0, so that rows of −∞ come to 0. As `_softmax`
    else, whose sums are 1 or more."""
    return _safe_of_parts(x, dim, dtype)


@register(aten._safe_softmax, level="standard")
def safe_softmax_of_bounded_parts(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """The same for targets without trunc and maximum."""
    return _safe_of_parts(x, dim, dtype, few_ops=True)


def _safe_of_parts(x: Tensor, dim: int, dtype: torch.dtype | None, few_ops: bool = False) -> Tensor:
    outer = dtype or x.dtype
    x = wide(cast(x, outer))
    if known_empty(x) or not x.is_floating_point():
        return decline("only floats, of which there are some")
    largest = torch.amax(x, [dim], keepdim=True).detach()
    largest = at_least(largest, torch.finfo(x.dtype).min, few_ops)
    powers = exp_up_to(x - largest, few_ops=few_ops)
    total = at_least(torch.sum(powers, [dim], keepdim=True), 0.5, few_ops)
    return cast(powers * torch.reciprocal(total), outer)


@register(aten._masked_softmax)
def _masked_softmax(x: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None) -> Tensor:
    """Softmax over what `mask` does not hide (True hides); NaN where it hides a whole row."""
    rows = x.dim() - 1 if dim is None else dim
    if mask_type == 0:  # (L, S), the same for every batch and head
        mask = mask.view(1, 1, *mask.shape) if mask.dim() == 2 and x.dim() == 4 else mask
    elif mask_type == 1:  # (B, S), the same for every head and query
        mask = mask.view(mask.shape[0], 1, 1, mask.shape[1]) if mask.dim() == 2 and x.dim() == 4 else mask
    return torch._softmax(torch.where(mask, -math.inf, x), rows, False)


@register(aten._masked_softmax_backward)
def _masked_softmax_backward(grad_output: Tensor, output: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """y (g − Σ g y), the sum being over what is not hidden; 0 at what is."""
    grad, y = (torch.where(mask, 0, wide(x)) for x in (grad_output, output))
    total = torch.sum(grad * y, [-1 if dim is None else dim], keepdim=True)
    return cast(torch.where(mask, 0, y * (grad - total)), output.dtype)


def below_largest(x: Tensor, dim: int) -> Tensor:
    """x − max x along `dim`. The shift cancels in what follows, so no gradient goes through it."""
    return x - torch.amax(x, [dim], keepdim=True).detach()
