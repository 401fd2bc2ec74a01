"""First and second gradients of an implementation of a call, for a weighted sum of the results that are differentiable
in the op itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from decomp.tools.certification.results import flat
from decomp.tools.measurement.trials import Function, Trial


@dataclass(frozen=True)
class Derivative:
    """The results to differentiate, their weights, and the order of the derivative."""

    what: Trial
    order: int
    pointwise: bool
    """Whether results are weighted with ones, or with a ramp."""
    results: tuple[bool, ...]
    """Which results: those that have a gradient in the op itself."""

    def of(self, function: Function, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The gradient of each float tensor; None if the results do not depend on them."""
        inputs = [t.detach().clone().requires_grad_(t.is_floating_point() or t.is_complex()) for t in tensors]
        with torch.enable_grad():
            form = self.what.form(inputs, flat(function(inputs)))
            results = [r for r, wanted in zip(form, self.results) if wanted]
            found = self._gradients(results, inputs, create_graph=self.order > 1)
            if self.order > 1:
                found = self._gradients(found or [], inputs, create_graph=False)
        leeway = self.what.sample.leeway
        if found is None or leeway is None or leeway.gradients is None:
            return None if found is None else [g.detach() for g in found]
        return list(leeway.gradients(self.what.sample.with_tensors(tensors), [g.detach() for g in found]))

    def of_order(self, order: int) -> Derivative:
        """The same derivative of another order."""
        return replace(self, order=order)

    def _gradients(
        self, results: list[torch.Tensor], inputs: list[torch.Tensor], create_graph: bool
    ) -> list[torch.Tensor] | None:
        wanted = [t for t in inputs if t.requires_grad]
        weighted = [(r, self._weights(r)) for r in results if r.requires_grad]
        if not weighted or not wanted:
            return None
        outputs, weights = zip(*weighted)
        found = torch.autograd.grad(outputs, wanted, weights, allow_unused=True, create_graph=create_graph)
        return [torch.zeros_like(t) if g is None else g for g, t in zip(found, wanted)]

    def _weights(self, like: torch.Tensor) -> torch.Tensor:
        """The weights: eighths, which are exact in every dtype."""
        if self.pointwise or like.numel() < 2:
            return torch.ones_like(like)
        steps = torch.arange(like.numel()) % 13 - 5
        return (steps / 8).to(like.dtype).reshape(like.shape)


def derivative(what: Trial, order: int) -> Derivative | None:
    """The derivative to compare of a trial; None if the op has none."""
    inputs = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in what.sample.tensors]
    with torch.enable_grad():
        results = tuple(r.requires_grad for r in what.form(inputs, flat(what.own(inputs))))
    return Derivative(what, order, what.pointwise, results) if any(results) else None
