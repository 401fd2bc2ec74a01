"""The backward ops of losses, which autograd records in graphs: the slope of the loss at each element
times the incoming gradient, which the mean has divided by the number of elements."""

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.nn.loss import LEAST, MEAN, NONE
from decomp_rules.support.operands import cast, wide

RULES = Rules(level="exact")
register = RULES.register


@register(aten.mse_loss_backward)
def mse_loss_backward(grad_output: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """2 (x − t) g."""
    error = wide(x) - wide(target)
    return shared((error / error.numel() if reduction == MEAN else error) * 2, grad_output, x, NONE)


@register(aten.smooth_l1_loss_backward)
def smooth_l1_loss_backward(grad_output: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """(x − t) / β g where |x − t| < β, or is NaN, else ±g."""
    error = wide(x) - wide(target)
    slope = torch.sign(error)
    if beta:
        slope = torch.where(torch.abs(error) >= beta, slope, error / beta)
    return shared(slope, grad_output, x, reduction)


@register(aten.huber_loss_backward)
def huber_loss_backward(grad_output: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    """(x − t) g, clamped to ±δ g."""
    return shared(torch.clamp(wide(x) - wide(target), -delta, delta), grad_output, x, reduction)


@register(aten.soft_margin_loss_backward)
def soft_margin_loss_backward(grad_output: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """−t g z / (1 + z) with z = exp(−t x), which is NaN where z is infinite, as in the op."""
    if x.is_complex():
        return decline("only real inputs")
    t = wide(target)
    z = torch.exp(-t * wide(x))
    return shared(z / (z + 1) * -t, grad_output, x, reduction)


@register(aten.binary_cross_entropy_backward)
def binary_cross_entropy_backward(
    grad_output: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """(x − t) / max(x (1 − x), 10⁻¹²) w g."""
    p = wide(x)
    slope = (p - wide(target)) * wide(grad_output) / torch.clamp_min((1 - p) * p, LEAST)
    slope = slope if weight is None else slope * wide(weight)
    return cast(slope / slope.numel() if reduction == MEAN else slope, x.dtype)


@register(aten.nll_loss_backward, aten.nll_loss2d_backward)
def nll_loss_backward(
    grad_output: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """−w g at the target class, over the total weight for the mean, and 0 elsewhere."""
    classes = 0 if x.dim() == 1 else 1
    along = [1] * x.dim()
    along[classes] = -1
    here = target.unsqueeze(classes)
    hit = (torch.arange(x.shape[classes], device=x.device).view(along) == here) & (here != ignore_index)
    grad = wide(grad_output)
    grad = grad.unsqueeze(classes) if grad.dim() == target.dim() and grad.dim() else grad
    grad = grad / wide(total_weight) if reduction == MEAN else grad
    slope = -grad if weight is None else -grad * wide(weight).view(along)
    return cast(torch.where(hit, slope, 0), x.dtype)


@register(aten.multi_margin_loss_backward)
def multi_margin_loss_backward(
    grad_output: Tensor,
    x: Tensor,
    target: Tensor,
    p: float,
    margin: float,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """p max(margin − xₜ + xⱼ, 0)ᵖ⁻¹ w g / C at the classes j ≠ t, and minus their sum at t."""
    count = x.shape[-1] if x.dim() else 1
    rows, index = wide(x).reshape(-1, count), target.reshape(-1, 1)
    gap = margin - torch.gather(rows, 1, index) + rows
    at_target = torch.arange(count, device=x.device) == index
    slope = (2 * gap if p == 2 else torch.ones_like(gap)) / count
    slope = slope if weight is None else slope * torch.index_select(wide(weight), 0, index.reshape(-1)).unsqueeze(1)
    slope = torch.where((gap > 0) & ~at_target, slope, 0)
    slope = torch.where(at_target, 0 - torch.sum(slope, [1], keepdim=True), slope)
    grad = wide(grad_output)
    grad = grad.reshape(-1, 1) if grad.dim() else grad
    grad = grad / rows.shape[0] if reduction == MEAN else grad
    return cast((slope * grad).reshape(x.shape), x.dtype)


@register(aten.multilabel_margin_loss_backward)
def multilabel_margin_loss_backward(
    grad_output: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    """g / C at each class j for every target t with 1 − xₜ + xⱼ > 0, and as much less at t."""
    count = x.shape[-1] if x.dim() else 1
    rows, labels = wide(x).reshape(-1, count), target.reshape(-1, count)
    used = torch.cumsum((labels < 0).to(torch.int64), 1) == 0
    index = torch.where(used, labels, 0)
    gap = 1 - torch.gather(rows, 1, index).unsqueeze(2) + rows.unsqueeze(1)
    missed = (gap > 0) & used.unsqueeze(2) & (is_target.reshape(-1, 1, count) == 0)
    share = missed.to(rows.dtype) / count
    hit = (index.unsqueeze(2) == torch.arange(count, device=x.device)).to(rows.dtype)
    slope = torch.sum(share, [1]) - torch.sum(torch.sum(share, [2], keepdim=True) * hit, [1])
    grad = wide(grad_output)
    grad = grad.reshape(-1, 1) if grad.dim() else grad
    grad = grad / rows.shape[0] if reduction == MEAN else grad
    return cast((slope * grad).reshape(x.shape), x.dtype)


def shared(slope: Tensor, grad_output: Tensor, x: Tensor, reduction: int) -> Tensor:
    """The slope times the gradient, over the number of elements for the mean, in the dtype of x."""
    grad = slope * wide(grad_output)
    return cast(grad / slope.numel() if reduction == MEAN else grad, x.dtype)
