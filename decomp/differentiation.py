"""First and second gradients of a way to compute a call, for any weighting of its results."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decomp.results import flat
from decomp.trials import Function


def gradients(function: Function, tensors: Sequence[torch.Tensor], pointwise: bool) -> list[torch.Tensor] | None:
    """The gradient of the weighted sum of all results, by each float tensor; None if no result has one. The weights are
    ones for pointwise ops, else a ramp."""
    inputs = _leaves(tensors)
    found = _gradients(function, inputs, pointwise, create_graph=False)
    return None if found is None else [g.detach() for g in found]


def second_gradients(function: Function, tensors: Sequence[torch.Tensor], pointwise: bool) -> list[torch.Tensor] | None:
    """The gradient of the weighted sum of the first gradients; None if they do not depend on the inputs."""
    inputs = _leaves(tensors)
    first = _gradients(function, inputs, pointwise, create_graph=True)
    first = [g for g in first or [] if g.requires_grad]
    if not first:
        return None
    wanted = [t for t in inputs if t.requires_grad]
    found = torch.autograd.grad(first, wanted, [_weights(g, pointwise) for g in first], allow_unused=True)
    return _filled(found, wanted)


def _gradients(
    function: Function, inputs: list[torch.Tensor], pointwise: bool, create_graph: bool
) -> list[torch.Tensor] | None:
    with torch.enable_grad():
        results = [r for r in flat(function(inputs)) if r.requires_grad]
        wanted = [t for t in inputs if t.requires_grad]
        if not results or not wanted:
            return None
        weights = [_weights(r, pointwise) for r in results]
        found = torch.autograd.grad(results, wanted, weights, allow_unused=True, create_graph=create_graph)
        return _filled(found, wanted)


def _leaves(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [t.detach().clone().requires_grad_(t.is_floating_point() or t.is_complex()) for t in tensors]


def _filled(found: Sequence[torch.Tensor | None], wanted: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, wanted)]


def _weights(like: torch.Tensor, pointwise: bool) -> torch.Tensor:
    """Eighths, so that they are the same in every dtype."""
    if pointwise or like.numel() < 2:
        return torch.ones_like(like)
    steps = torch.arange(like.numel()) % 13 - 5
    return (steps / 8).to(like.dtype).reshape(like.shape)
