"""Connectionist temporal classification (A. Graves et al., ICML 2006): minus the logarithm of the probability of all
alignments of a target with a sequence, by the forward recursion over the target with blanks between its labels.

The recursion is unrolled over the steps of the longest sequence. Lengths are data: a sequence that has ended keeps its
state, and labels past the end of a target count as blanks, which are never read.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.nn.loss import MEAN, NONE
from decomp_rules.support.gradients import with_gradient_of
from decomp_rules.support.operands import cast, wide

RULES = Rules(level="exact")
register = RULES.register

Lengths = Tensor | Sequence[int]


@register(aten.ctc_loss)
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    """−log p(target), over the target's length before the mean is taken. As the op's, the gradient is that of log_probs
    which are normalised: exp(log p) − posterior. Where the loss is infinite, the op's gradient is NaN, but this one is
    not."""
    batched = log_probs.dim() == 3
    logs = wide(log_probs if batched else log_probs.unsqueeze(1))
    steps, sizes = as_tensor(input_lengths, logs), as_tensor(target_lengths, logs)
    labels = extended_labels(targets, target_lengths, sizes, blank)
    total = final(forward_states(logs, labels, sizes, steps, blank)[-1], sizes)
    share = torch.sum(torch.where(running(logs, steps), torch.exp(logs), 0.0), [0, 2])
    loss = with_gradient_of(-total, share - total)
    if zero_infinity:
        loss = torch.where(loss == math.inf, 0.0, loss)
    loss = cast(loss, log_probs.dtype)
    if reduction == NONE:
        return loss if batched else loss.squeeze(0)
    return torch.mean(loss / torch.clamp(sizes, min=1)) if reduction == MEAN else torch.sum(loss)


@register(aten._ctc_loss)
def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """−log p(target), and log α of every step and place, −∞ where a sequence has ended."""
    if not isinstance(target_lengths, (list, tuple)):
        return decline("the shape of log α depends on the lengths, which are data")
    steps, sizes = as_tensor(input_lengths, log_probs), as_tensor(target_lengths, log_probs)
    labels = extended_labels(targets, target_lengths, sizes, blank)
    states = forward_states(log_probs, labels, sizes, steps, blank)
    loss = ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, NONE)
    alpha = torch.stack(states[1:], 1)
    ended = torch.arange(log_probs.shape[0], device=log_probs.device).view(1, -1, 1) >= steps.view(-1, 1, 1)
    return loss, torch.where(ended, -math.inf, alpha)


@register(aten._ctc_loss_backward)
def _ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """g (exp(log p) − posterior) while a sequence runs, where the posterior of a class is Σ α β / (p · p(target)) over
    the places with its label; NaN where the loss is NaN."""
    steps, sizes = as_tensor(input_lengths, log_probs), as_tensor(target_lengths, log_probs)
    labels = extended_labels(targets, target_lengths, sizes, blank)
    beta = torch.stack(backward_states(log_probs, labels, sizes, steps, blank), 0)
    alpha = log_alpha.transpose(0, 1)
    nowhere = (alpha == -math.inf) | (beta == -math.inf)
    both = torch.where(nowhere, -math.inf, alpha + beta + neg_log_likelihood.view(1, -1, 1))
    count = log_probs.shape[0]
    places = labels.unsqueeze(0).expand(count, *labels.shape)
    posterior = torch.zeros_like(log_probs).scatter_add(2, places, torch.exp(both))
    inside = running(log_probs, steps)
    if zero_infinity:
        inside = inside & (neg_log_likelihood != math.inf).view(1, -1, 1)
    grad = torch.where(neg_log_likelihood == neg_log_likelihood, grad, neg_log_likelihood)
    return torch.where(inside, (torch.exp(log_probs) - posterior) * grad.view(1, -1, 1), 0.0)


def as_tensor(lengths: Lengths, like: Tensor) -> Tensor:
    """The lengths as int64, (N,)."""
    if isinstance(lengths, (list, tuple)):
        return torch.tensor(list(lengths), dtype=torch.int64, device=like.device)
    return cast(lengths, torch.int64).reshape(-1).to(like.device)


def extended_labels(targets: Tensor, lengths: Lengths, sizes: Tensor, blank: int) -> Tensor:
    """The labels with blanks before, between and behind them: int64, (N, 2 L + 1). Targets are rows, or one after the
    other; L is the longest length if lengths are numbers, else the width of the targets."""
    longest = max(lengths, default=0) if isinstance(lengths, (list, tuple)) else targets.shape[-1]
    place = torch.arange(longest, device=targets.device)
    if targets.dim() == 2:
        rows = targets[:, :longest]
    else:
        starts = torch.cumsum(sizes, 0) - sizes
        index = torch.clamp(starts.unsqueeze(1) + place, max=max(targets.shape[0] - 1, 0))
        rows = torch.index_select(targets, 0, index.reshape(-1)).view(index.shape) if longest else index
    kept = torch.where(place < sizes.unsqueeze(1), cast(rows, torch.int64), blank)
    blanks = torch.full_like(kept, blank)
    pairs = torch.stack([blanks, kept], 2).flatten(1)
    end = torch.full((pairs.shape[0], 1), blank, dtype=torch.int64, device=targets.device)
    return torch.cat([pairs, end], 1)


def forward_states(logs: Tensor, labels: Tensor, sizes: Tensor, steps: Tensor, blank: int) -> list[Tensor]:
    """log α before the first step and after each, (N, 2 L + 1); a sequence that has ended keeps its last."""
    emitted = emissions(logs, labels)
    place = torch.arange(labels.shape[1], device=logs.device)
    state = torch.where(place == 0, torch.zeros_like(emitted[0]), -math.inf)
    states = [state]
    for t, step in enumerate(emitted):
        if t == 0:
            start = (place == 0) | ((place == 1) & (sizes > 0).unsqueeze(1))
            moved = torch.where(start, step, -math.inf)
        else:
            moved = arrived(state, skips(labels, blank), forward=True) + step
        state = torch.where((t < steps).unsqueeze(1), moved, state)
        states.append(state)
    return states


def backward_states(logs: Tensor, labels: Tensor, sizes: Tensor, steps: Tensor, blank: int) -> list[Tensor]:
    """log β / p of every step, without the label emitted at the step itself: (N, 2 L + 1) each."""
    emitted = emissions(logs, labels)
    place = torch.arange(labels.shape[1], device=logs.device)
    ends = 2 * sizes.unsqueeze(1)
    last = (place == ends) | (place == ends - 1)
    leap = skips(labels, blank)
    states: list[Any] = [None] * len(emitted)
    after = torch.full_like(emitted[0], -math.inf)
    for t in reversed(range(len(emitted))):
        at_end = (t == steps - 1).unsqueeze(1)
        after = torch.where(at_end, torch.where(last, 0.0, -math.inf), after)
        states[t] = after
        if t:
            after = arrived(after + emitted[t], leap, forward=False)
    return states


def emissions(logs: Tensor, labels: Tensor) -> Sequence[Tensor]:
    """log p of each label at each step: T of (N, 2 L + 1)."""
    count = logs.shape[0]
    return torch.gather(logs, 2, labels.unsqueeze(0).expand(count, *labels.shape)).unbind(0)


def skips(labels: Tensor, blank: int) -> Tensor:
    """Whether a place is reached from the last but one: it is no blank, and another label. (N, 2 L + 1)."""
    width = labels.shape[1]
    before = torch.constant_pad_nd(labels, [2, 0], blank)[:, :width]
    return (labels != blank) & (labels != before)


def arrived(state: Tensor, leap: Tensor, forward: bool) -> Tensor:
    """log Σ exp of the states that lead to each place, from it and the one or two before it. The gradient is never NaN:
    logarithms of 0 are masked out."""
    width = state.shape[1]
    if forward:
        one = torch.constant_pad_nd(state, [1, 0], -math.inf)[:, :width]
        two = torch.where(leap, torch.constant_pad_nd(state, [2, 0], -math.inf)[:, :width], -math.inf)
    else:
        one = torch.constant_pad_nd(state, [0, 1], -math.inf)[:, 1:]
        two = torch.constant_pad_nd(torch.where(leap, state, -math.inf), [0, 2], -math.inf)[:, 2:]
    return log_sum(torch.stack([state, one, two], 0))


def log_sum(terms: Tensor) -> Tensor:
    """log Σ exp over the first dimension; −∞, with no gradient, where all are."""
    top = torch.amax(terms, [0]).detach()
    impossible = top == -math.inf
    total = torch.sum(torch.exp(terms - torch.where(impossible, 0.0, top)), [0])
    return torch.where(impossible, -math.inf, torch.log(torch.where(impossible, 1.0, total)) + top)


def final(state: Tensor, sizes: Tensor) -> Tensor:
    """log p(target): the states at the last label and the last blank. (N,)."""
    place = torch.arange(state.shape[1], device=state.device)
    ends = 2 * sizes.unsqueeze(1)
    last = (place == ends) | (place == ends - 1)
    return log_sum(torch.where(last, state, -math.inf).transpose(0, 1))


def running(logs: Tensor, steps: Tensor) -> Tensor:
    """Whether a sequence has not ended at a step: (T, N, 1)."""
    return torch.arange(logs.shape[0], device=logs.device).view(-1, 1, 1) < steps.view(1, -1, 1)
