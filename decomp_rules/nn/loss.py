"""Losses: an elementwise distance, then the reduction. Dtypes narrower than 32 bits are computed in float32 and rounded
once, after the reduction. The backward ops of these losses are in `loss_backward`."""

from collections.abc import Callable
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.reduce.reduction import known_empty
from decomp_rules.support.floating import LOG2_E
from decomp_rules.support.gradients import with_gradient_of
from decomp_rules.support.operands import cast, wide

RULES = Rules(level="exact")
register = RULES.register

NONE, MEAN, SUM = 0, 1, 2
"""ATen's codes for the reductions."""
LEAST = 9.999999960041972e-13
"""The kernel's lower bound for p (1 − p): 10⁻¹² as a float32, also in float64."""


@register(aten.mse_loss)
def mse_loss(x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """(x − t)²."""
    error = _gap(x, target)
    return reduced(error * error, reduction, torch.result_type(x, target))


@register(aten.l1_loss)
def l1_loss(x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """|x − t|."""
    dtype = torch.result_type(x, target)
    return reduced(torch.abs(wide(x) - wide(target)), reduction, dtype.to_real() if dtype.is_complex else dtype)


@register(aten.smooth_l1_loss)
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = MEAN, beta: float = 1.0) -> Tensor:
    """c / β (d − ½ c) with d = |x − t| and c = min(d, β): ½ d² / β below β, d − ½ β above, without the square of an
    infinite distance, whose gradient would be NaN. For β = 0 the op's gradients are −1 where x = t, and NaN at NaN."""
    error = _gap(x, target)
    distance = torch.abs(error)
    if beta > 0:
        bounded = torch.clamp_max(distance, beta)
        distance = (distance - 0.5 * bounded) * (bounded / beta)
    elif beta == 0:
        slope = torch.where(error > 0, 1.0, torch.where(error == error, -1.0, math.nan))
        distance = torch.where(error == 0, (x.detach() - x) + (target.detach() - target), error * slope)
    return reduced(distance, reduction, torch.result_type(x, target))


@register(aten.huber_loss)
def huber_loss(x: Tensor, target: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Tensor:
    """c (d − ½ c) with d = |x − t| and c = min(d, δ): ½ d² up to δ, δ (d − ½ δ) above, without the square of an
    infinite distance, whose gradient would be NaN."""
    distance = torch.abs(_gap(x, target))
    bounded = torch.clamp_max(distance, delta)
    return reduced((distance - 0.5 * bounded) * bounded, reduction, x.dtype)


def _gap(x: Tensor, target: Tensor) -> Tensor:
    """x − t. A bool is cast to the promoted dtype first, because PyTorch does not subtract bools."""
    dtype = torch.result_type(x, target)
    x, target = (cast(t, dtype) if t.dtype == torch.bool else t for t in (x, target))
    return wide(x) - wide(target)


@register(aten.nll_loss_forward, aten.nll_loss2d_forward)
def nll_loss_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """−w xₜ of the target class, 0 where it is ignored, and the total weight that the mean divides by."""
    classes = 0 if x.dim() == 1 else 1
    counted, index = _classes_of(target, ignore_index)
    picked = torch.gather(wide(x), classes, index.unsqueeze(classes)).squeeze(classes)
    loss, total = _weighed(picked, counted, index, weight, reduction)
    if total is None:
        total = torch.full((), 0, dtype=x.dtype, device=x.device)
    return cast(loss, x.dtype), cast(total, x.dtype)


def _classes_of(target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Whether a target counts, and its class; 0 where it does not."""
    counted = target != ignore_index
    return counted, torch.where(counted, target, 0).to(torch.int64)


def _weighed(
    picked: Tensor, counted: Tensor, index: Tensor, weight: Tensor | None, reduction: int
) -> tuple[Tensor, Tensor | None]:
    """−w times what was picked of each target's class, reduced, and the total weight; None where several are left."""
    if weight is None:
        share = counted.to(picked.dtype)
    else:
        chosen = torch.index_select(wide(weight), 0, index.reshape(-1)).reshape(index.shape)
        share = torch.where(counted, chosen, 0)
    losses = -torch.where(counted, picked, 0) * share
    if reduction == NONE and picked.dim() > 0:
        return losses, None
    loss, total = torch.sum(losses), torch.sum(share)
    return loss / total if reduction == MEAN else loss, total


@register(aten.nll_loss, aten.nll_loss_nd, aten.nll_loss2d)
def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN, ignore_index: int = -100
) -> Tensor:
    """−w xₜ of the target class, 0 where it is ignored; the mean is weighted."""
    return nll_loss_forward(x, target, weight, reduction, ignore_index)[0]


@register(aten.cross_entropy_loss, needs=(("log_softmax", "_log_softmax"),))
def cross_entropy_by_log_softmax(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """−Σ w t log softmax(x) over the classes, for targets that are probabilities or the index of one class."""
    classes = 0 if x.dim() == 1 else 1
    logs = torch.log_softmax(wide(x), classes)
    if target.is_floating_point():
        loss = probability_entropy(logs, target, weight, reduction, label_smoothing, classes)
        return cast(loss, torch.result_type(x, target))
    loss, total = nll_loss_forward(logs, target, weight, reduction, ignore_index)
    if label_smoothing > 0:
        counted = target != ignore_index
        spread = -torch.sum(logs * over_classes(weight, logs, classes), [classes])
        spread = torch.where(counted, spread, 0)
        spread = spread if reduction == NONE else torch.sum(spread)
        spread = spread / total if reduction == MEAN else spread
        loss = loss * (1 - label_smoothing) + spread * (label_smoothing / x.shape[classes])
    return cast(loss, x.dtype)


@register(aten.cross_entropy_loss)
def cross_entropy_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """w (log Σ exp(x − max x) − (xₜ − max x)) of the target class t: it is selected from the inputs, so that the log
    probabilities of other classes are only computed if they are used."""
    if target.is_floating_point() or label_smoothing > 0 or known_empty(x):
        return cross_entropy_by_log_softmax(x, target, weight, reduction, ignore_index, label_smoothing)
    return _of_sums(x, target, weight, reduction, ignore_index, _log_of_sum)


@register(aten.cross_entropy_loss, level="standard")
def cross_entropy_by_binary(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """The same with ln Σ 2^(s·log₂e) for log Σ exp(s): an entry's error of |s| ε is weighted by its share in the sum,
    which is smaller the larger |s| is."""
    if target.is_floating_point() or label_smoothing > 0 or known_empty(x):
        return decline("only the index of one class, without smoothing")
    if weight is not None:
        return _of_sums(x, target, weight, reduction, ignore_index, _log_of_binary_sum)
    counted, _, (picked, largest, total) = _picked(x, target, ignore_index, _log_of_binary_sum)
    losses = torch.where(counted, (largest - picked + total).squeeze(0 if x.dim() == 1 else 1), 0)
    return cast(_over_count(losses, counted, reduction), x.dtype)


@register(aten.cross_entropy_loss, needs=(("log_softmax", "_log_softmax"),), level="standard")
def cross_entropy_by_log_softmax_and_count(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """−log softmax(x)ₜ, summed, or times one over the number of targets."""
    if target.is_floating_point() or label_smoothing > 0 or known_empty(x) or weight is not None:
        return decline("only the index of one class, without smoothing or weights")
    classes = 0 if x.dim() == 1 else 1
    counted, index = _classes_of(target, ignore_index)
    logs = torch.log_softmax(wide(x), classes)
    picked = torch.gather(logs, classes, index.unsqueeze(classes)).squeeze(classes)
    return cast(_over_count(torch.where(counted, -picked, 0), counted, reduction), x.dtype)


def _over_count(losses: Tensor, counted: Tensor, reduction: int) -> Tensor:
    """The losses, their sum, or the sum times the reciprocal of the count."""
    if reduction == NONE:
        return losses
    loss = torch.sum(losses)
    return loss * torch.reciprocal(torch.sum(counted.to(loss.dtype))) if reduction == MEAN else loss


def _of_sums(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    log_of_sum: Callable[[Tensor, int], Tensor],
) -> Tensor:
    counted, index, (picked, largest, total) = _picked(x, target, ignore_index, log_of_sum)
    logs = (picked - largest - total).squeeze(0 if x.dim() == 1 else 1)
    return cast(_weighed(logs, counted, index, weight, reduction)[0], x.dtype)


def _picked(
    x: Tensor,
    target: Tensor,
    ignore_index: int,
    log_of_sum: Callable[[Tensor, int], Tensor],
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Whether a target counts, and its class; then, along the classes, its score, the largest, and log Σ exp of all
    less that one."""
    classes, scores = 0 if x.dim() == 1 else 1, wide(x)
    counted, index = _classes_of(target, ignore_index)
    picked = torch.gather(scores, classes, index.unsqueeze(classes))
    largest = torch.amax(scores.detach(), [classes], keepdim=True)
    return counted, index, (picked, largest, log_of_sum(scores - largest, classes))


def _log_of_sum(x: Tensor, dim: int) -> Tensor:
    return torch.log(torch.sum(torch.exp(x), [dim], keepdim=True))


def _log_of_binary_sum(x: Tensor, dim: int) -> Tensor:
    return torch.log2(torch.sum(torch.exp2(x * LOG2_E), [dim], keepdim=True)) * math.log(2)


@register(aten.binary_cross_entropy)
def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN) -> Tensor:
    """−t max(log x, −100) − (1 − t) max(log(1 − x), −100). The op's gradient is (x − t) / max(x (1 − x), 10⁻¹²): where
    the maximum is 10⁻¹² the loss is continued along that slope. The gradient of the target, in the op log(1 − x) −
    log x and infinite at 0 and 1, is that of the logarithms held at −100."""
    p, t = wide(x), wide(target)
    edge = p * (1 - p) < LEAST
    inside = torch.where(edge, 0.5, p)
    outside = torch.where(edge, p, 0.5).detach()
    smooth = (t - 1) * torch.log1p(-inside) - t * torch.log(inside)
    clamped = (t - 1) * torch.clamp(torch.log1p(-outside), min=-100) - t * torch.clamp(torch.log(outside), min=-100)
    loss = torch.where(edge, clamped - (t - p).detach() / LEAST * (p - p.detach()), smooth)
    return reduced(loss if weight is None else loss * wide(weight), reduction, x.dtype)


@register(aten.binary_cross_entropy_with_logits)
def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """(1 − t) x − (1 + (pos − 1) t) log σ(x). With log σ(x) = min(x, 0) − log1p(e^−|x|) what cancels below 0 is left
    out: −pos t x + (1 + (pos − 1) t) log1p(e^−|x|). At x = −∞ it is NaN where the first form is ∞ − ∞, as in the op."""
    if target.is_complex():
        return decline("only real targets")
    z, t = wide(x), wide(target)
    negative, other = z < 0, 1 - t
    rest = torch.log1p(torch.exp(torch.where(negative, z, -z)))
    if pos_weight is None:
        loss, signs = torch.where(negative, -t, other) * z + rest, other
    else:
        positive = wide(pos_weight) * t
        factor = other + positive
        loss, signs = torch.where(negative, -positive, other) * z + factor * rest, other * factor
    loss = loss + torch.where((z > -math.inf) | (signs.detach() < 0), 0.0, math.nan)
    return reduced(loss if weight is None else loss * wide(weight), reduction, target.dtype)


@register(aten.kl_div)
def kl_div(x: Tensor, target: Tensor, reduction: int = MEAN, log_target: bool = False) -> Tensor:
    """t (log t − x), for targets that are probabilities or their logarithms. As in the op, the gradient of a target
    that is 0 is NaN."""
    z, t = wide(x), wide(target)
    product = t * z  # first, so that its gradient is added last
    loss = torch.exp(t) * (t - z) if log_target else torch.where(t == 0, 0.0, t * torch.log(t)) - product
    return reduced(loss, reduction, torch.result_type(x, target))


@register(aten.hinge_embedding_loss)
def hinge_embedding_loss(x: Tensor, target: Tensor, margin: float = 1.0, reduction: int = MEAN) -> Tensor:
    """x for the target 1, max(margin − x, 0) for −1."""
    z = wide(x)
    margin = margin if z.is_floating_point() else int(margin)
    apart = torch.where(target != 1, torch.clamp_min(margin - z, 0), 0)
    return reduced(apart + torch.where(target != -1, z, 0), reduction, x.dtype)


@register(aten.margin_ranking_loss)
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = MEAN
) -> Tensor:
    """max(−t (x₁ − x₂) + margin, 0)."""
    loss = torch.clamp_min(-wide(target) * (wide(input1) - wide(input2)) + float(margin), 0)
    return reduced(loss, reduction, float_type(input1, input2))


@register(aten.soft_margin_loss)
def soft_margin_loss(x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """log(1 + exp(−t x))."""
    return reduced(torch.log1p(torch.exp(-wide(x) * wide(target))), reduction, x.dtype)


@register(aten.multi_margin_loss)
def multi_margin_loss(
    x: Tensor, target: Tensor, p: float = 1, margin: float = 1, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """Σ max(margin − xₜ + xⱼ, 0)ᵖ / C over the classes j ≠ t, times the weight of t."""
    count = x.shape[-1] if x.dim() else 1
    rows = wide(x).reshape(-1, count)
    index = target.reshape(-1, 1)
    gap = margin - torch.gather(rows, 1, index) + rows
    missed = (gap > 0) & (torch.arange(count, device=x.device) != index)
    gap = torch.where(missed, gap, 0)
    gap = gap * gap if p == 2 else gap
    gap = gap if weight is None else gap * torch.index_select(wide(weight), 0, index.reshape(-1)).unsqueeze(1)
    loss = torch.sum(gap, [1]) / count
    return reduced(loss.reshape(target.shape) if reduction == NONE else loss, reduction, x.dtype)


@register(aten.multilabel_margin_loss_forward)
def multilabel_margin_loss_forward(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """Σ max(1 − xₜ + xⱼ, 0) / C over the targets t of a row, which end at the first −1, and the other classes j; and
    which classes are targets."""
    count = x.shape[-1] if x.dim() else 1
    rows, labels = wide(x).reshape(-1, count), target.reshape(-1, count)
    used = torch.cumsum((labels < 0).to(torch.int64), 1) == 0
    index = torch.where(used, labels, 0)
    hit = (index.unsqueeze(2) == torch.arange(count, device=x.device)) & used.unsqueeze(2)
    is_target = torch.any(hit, 1)
    gap = 1 - torch.gather(rows, 1, index).unsqueeze(2) + rows.unsqueeze(1)
    missed = (gap > 0) & used.unsqueeze(2) & ~is_target.unsqueeze(1)
    loss = torch.sum(torch.where(missed, gap, 0), [1, 2]) / count
    loss = loss.reshape(x.shape[:-1]) if reduction == NONE else loss
    return reduced(loss, reduction, x.dtype), is_target.reshape(target.shape).to(x.dtype)


@register(aten.multilabel_margin_loss)
def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """Σ max(1 − xₜ + xⱼ, 0) / C over the targets t of a row, which end at the first −1, and the other classes j."""
    return multilabel_margin_loss_forward(x, target, reduction)[0]


@register(aten.cosine_embedding_loss)
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: int = MEAN
) -> Tensor:
    """1 − cos for the target 1, max(cos − margin, 0) for −1; the squared norms have 10⁻¹² added."""
    x, y, dims = wide(input1), wide(input2), [input1.dim() - 1]
    squares = (torch.sum(x * x, dims) + 1e-12) * (torch.sum(y * y, dims) + 1e-12)
    cosine = torch.sum(x * y, dims) / torch.sqrt(squares)
    alike = torch.where(target == 1, 1 - cosine, 0)
    apart = torch.where(target == -1, torch.clamp_min(cosine - margin, 0), 0)
    return reduced(alike + apart, reduction, float_type(input1, input2))


@register(aten.triplet_margin_loss)
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: int = MEAN,
) -> Tensor:
    """max(margin + ‖a − p‖ − ‖a − n‖, 0); with `swap` the smaller of ‖a − n‖ and ‖p − n‖."""
    near = F.pairwise_distance(anchor, positive, p, eps)
    far = F.pairwise_distance(anchor, negative, p, eps)
    far = torch.min(far, F.pairwise_distance(positive, negative, p, eps)) if swap else far
    return reduced(torch.clamp_min(margin + near - far, 0), reduction, near.dtype)


@register(aten.poisson_nll_loss)
def poisson_nll_loss(x: Tensor, target: Tensor, log_input: bool, full: bool, eps: float, reduction: int) -> Tensor:
    """exp(x) − t x, or x − t log(x + ε); `full` adds Stirling's t log t − t + ½ log 2πt for t > 1."""
    dtype = float_type(x, target)
    if dtype.is_complex:
        return decline("only real inputs")
    z, t = wide(x), wide(target)
    loss = torch.exp(z) - t * z if log_input else z - t * torch.log(z + eps)
    if full:  # of a target that is 0 the op's gradient is NaN, and so it is here
        loss = loss + torch.where(t <= 1, 0.0, t * torch.log(t) - t + 0.5 * torch.log(2 * math.pi * t))
    return reduced(loss, reduction, dtype)


@register(F.gaussian_nll_loss)
def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """½ (log v + (x − t)² / v) with v = max(var, ε), whose gradient is passed to var whether or not it is the maximum;
    `full` adds ½ log 2π. Negative variances are not checked for, because they depend on data."""
    x, variance = wide(input), torch.full_like(input, var) if isinstance(var, float) else var
    if variance.dim() < x.dim() and variance.dim() == x.dim() - 1 and variance.shape != x.shape:
        variance = variance.unsqueeze(-1)
    bounded = with_gradient_of(torch.clamp_min(wide(variance), eps), wide(variance))
    gap = x - wide(target)
    loss = 0.5 * (torch.log(bounded) + gap * gap / bounded)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    dtype = torch.promote_types(torch.result_type(input, target), variance.dtype)
    return reduced(loss, ("none", "mean", "sum").index(reduction), dtype)


def reduced(loss: Tensor, reduction: int, dtype: torch.dtype) -> Tensor:
    """The losses, their mean or their sum, in `dtype`."""
    if reduction == MEAN:
        return cast(torch.mean(loss), dtype)
    return cast(torch.sum(loss) if reduction == SUM else loss, dtype)


def float_type(x: Tensor, target: Tensor) -> torch.dtype:
    """The dtype that the two promote to, the default one for integers."""
    dtype = torch.result_type(x, target)
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def probability_entropy(
    logs: Tensor, target: Tensor, weight: Tensor | None, reduction: int, label_smoothing: float, classes: int
) -> Tensor:
    """−Σ w t log p over the classes for targets that are probabilities; the mean is over all but the classes."""
    count = logs.shape[classes]
    share = wide(target) * (1 - label_smoothing) + label_smoothing / count if label_smoothing > 0 else wide(target)
    loss = -torch.sum(logs * share * over_classes(weight, logs, classes), [classes])
    if reduction == NONE:
        return loss
    return torch.mean(loss) if reduction == MEAN else torch.sum(loss)


def over_classes(weight: Tensor | None, logs: Tensor, classes: int) -> Tensor | float:
    """The weights broadcast along the dimension of the classes; 1 if there are none."""
    if weight is None:
        return 1.0
    return wide(weight).view(-1, *[1] * (logs.dim() - classes - 1))
