"""The cross entropy of a linear layer's outputs, as `F.linear_cross_entropy` computes it in chunks of the batch: chunks
save memory and do not change values, so the rules are the layer and the loss. The op also returns its gradients, which
these rules compute for graphs that read them; the loss itself is differentiable as well, except in the classes'
weights."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rules
from decomp_rules.nn.loss import MEAN, NONE, SUM, cross_entropy_loss
from decomp_rules.support.operands import cast, wide

RULES = Rules(level="exact")
register = RULES.register

REDUCTIONS = {"none": NONE, "mean": MEAN, "sum": SUM}


def _linear_cross_entropy_batch_chunked(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
    allow_retain_graph: bool,
    compute_input_grad: bool,
    compute_linear_weight_grad: bool,
    compute_linear_bias_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """−log softmax(x Wᵀ + b) at the target, and d x = s W, d W = sᵀ x, d b = Σ s with s = w (softmax − target), where w
    is the weight of the target, divided by the sum of weights for the mean; empty where a gradient is not requested."""
    code = REDUCTIONS[reduction]
    logits = scores(input, linear_weight, linear_bias)
    weight = None if weight is None else weight.detach()
    loss = cross_entropy_loss(logits, target, weight, code, ignore_index, label_smoothing)
    slope = slopes(logits.detach(), target, weight, code, ignore_index)
    x, matrix = wide(input).detach(), wide(linear_weight).detach()
    grads = (
        torch.matmul(slope, matrix) if compute_input_grad else torch.zeros([0, 0], device=x.device),
        torch.matmul(slope.transpose(0, 1), x) if compute_linear_weight_grad else torch.zeros([0, 0], device=x.device),
        torch.sum(slope, [0]) if compute_linear_bias_grad else torch.zeros([0], device=x.device),
    )
    return cast(loss, input.dtype), *(cast(grad, input.dtype) for grad in grads)


def _linear_cross_entropy_batch_chunked_no_reduction(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    ignore_index: int,
    batch_chunk_size: int,
    acc_policy: str,
    acc_dtype: torch.dtype,
) -> Tensor:
    """−w log softmax(x Wᵀ + b) at the target: (N,)."""
    logits = scores(input, linear_weight, linear_bias)
    weight = None if weight is None else weight.detach()
    return cast(cross_entropy_loss(logits, target, weight, NONE, ignore_index), input.dtype)


with contextlib.suppress(ImportError):  # before torch 2.13
    import torch.nn.modules.linear_cross_entropy

for _rule in (_linear_cross_entropy_batch_chunked, _linear_cross_entropy_batch_chunked_no_reduction):
    if hasattr(torch.ops.torch_nn, _rule.__name__):
        register(getattr(torch.ops.torch_nn, _rule.__name__))(_rule)


def scores(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b, at least in float32."""
    return F.linear(wide(x), wide(matrix), None if bias is None else wide(bias))


def slopes(logits: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> Tensor:
    """The gradient of the loss by the scores: (N, C)."""
    counted = target != ignore_index
    index = torch.where(counted, target, 0)
    ones = counted.to(logits.dtype) if weight is None else torch.where(counted, wide(weight)[index], 0.0)
    share = ones / torch.sum(ones) if reduction == MEAN else ones
    hit = (torch.arange(logits.shape[1], device=logits.device) == index.unsqueeze(1)).to(logits.dtype)
    return (torch.softmax(logits, 1) - hit) * share.unsqueeze(1)
