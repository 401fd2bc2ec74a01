"""Trials: runs a region of a graph and a call of an op on the same random operands. They count as the same function if
values and gradients agree in float64, and if the region is about as accurate as the op in its own dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from decomp.ir.call import metadata
from decomp.ir.dtypes import name_of
from decomp.metadata.symbolic_sizes import SYMBOLIC
from decomp.refolding.regions import GraphIndex, Region
from decomp.validation.closeness import widened
from decomp.validation.running_programs import call_node

VALUE_TOLERANCE = 4 * torch.finfo(torch.float32).eps
"""The tolerance for values in float64, relative to the largest. Loose enough for approximations that were made for
float32, such as polynomials for erf."""
GRADIENT_TOLERANCE = 64 * VALUE_TOLERANCE
"""The tolerance for gradients."""
TIMES, ULPS = 4.0, 4.0
"""The error of a region in its own dtype may be `TIMES` that of the op, plus `ULPS` ULP of the largest value."""
# At 1 most functions are not saturated, at 4 their tails are reached.
OPERAND_SCALES = (1.0, 4.0)
"""Standard deviations of random operands."""

Tensors = Sequence[torch.Tensor]
Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class RegionVerdict:
    """The result of comparing a region with an op."""

    error: float
    """The difference in float64, relative to the largest value."""
    fault: str | None = None
    """Why they are not the same function; None if they are."""


@dataclass
class TrialCache:
    """Results of trials, by the structure of the region."""

    verdicts: dict[Any, RegionVerdict] = field(default_factory=dict)
    readings: dict[Any, Any] = field(default_factory=dict)
    """The functions found of one value."""


class Runner:
    """Runs parts of a graph on real tensors."""

    def __init__(self, around: GraphIndex, known: TrialCache | None = None) -> None:
        self.around = around
        self.known = known if known is not None else TrialCache()
        self.sizes: dict[Any, int] = {}
        self.constants: dict[tuple[fx.Node, bool], Any] = {}

    def size(self, value: Any) -> Any:
        """A size as a number. Each symbol gets a size of its own, so that confused dimensions do not go unnoticed."""
        if not isinstance(value, SYMBOLIC):
            return value
        expr = value.node.expr
        for symbol in sorted(expr.free_symbols, key=str):
            # The example's size plus a different even number each; 5 where there is no example.
            self.sizes.setdefault(
                symbol, (value.node.shape_env.backed_var_to_val.get(symbol, 5) or 1) + 2 * len(self.sizes) + 2
            )
        found = expr.subs(self.sizes)
        return int(found) if found.is_integer else float(found)

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """The shape of a node's value as numbers."""
        return tuple(self.size(size) for size in metadata(node).shape)

    def random(self, node: fx.Node, scale: float, seed: int) -> torch.Tensor:
        """A random float64 tensor in the shape of a node's value; for a boolean, one that is mostly true."""
        draw = torch.Generator().manual_seed(seed)
        shape = self.shape(node)
        if metadata(node).dtype is torch.bool:
            # A mask of a whole row would give NaN on both sides, and show nothing.
            return torch.rand(shape, generator=draw) > 0.2
        return scale * torch.randn(shape, generator=draw, dtype=torch.float64)

    def values(self, nodes: Sequence[fx.Node], given: Mapping[fx.Node, Any], wide: bool) -> dict[fx.Node, Any]:
        """Run `nodes`, in order, on the values `given`; with `wide`, in float64. Raises what their kernels raise."""
        found = dict(given)
        for node in nodes:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: self._value(each, found, wide))
            if wide:
                args, kwargs = widened(args), widened(kwargs)
            found[node] = call_node(node, self.around.owner, args, kwargs)
        return found

    def _value(self, node: fx.Node, found: Mapping[fx.Node, Any], wide: bool) -> Any:
        if node in found:
            return found[node]
        if node in self.around.given:
            return self.around.given[node]
        value = metadata(node)
        if isinstance(value, (int, float, bool, *SYMBOLIC)):
            return self.size(value)
        if (node, wide) not in self.constants:
            if node not in self.around.constant:
                raise KeyError(node.name)
            self.constants[node, wide] = self.values([node], {}, wide)[node]
        return self.constants[node, wide]

    def function(self, region: Region, wide: bool) -> Function:
        """A region as a function of its inputs."""

        def run(*operands: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.values(region.nodes, dict(zip(region.inputs, operands)), wide)[region.root]
            return found

        return run

    def compare(self, region: Region, call: Function, name: str, epsilons: Sequence[float]) -> RegionVerdict:
        """Whether a region computes the same as a call; `name` identifies the call and its constants in the cache.
        `epsilons`: constants of the call beside which an operand may be small."""
        key = (name, self.around.structures.of(region.inputs, region.nodes))
        verdicts = self.known.verdicts
        if key not in verdicts:
            verdicts[key] = self._compared(region, call, [metadata(node).dtype for node in region.inputs], epsilons)
        return verdicts[key]

    def _compared(
        self, region: Region, call: Function, dtypes: Sequence[torch.dtype], epsilons: Sequence[float]
    ) -> RegionVerdict:
        wide, worst = self.function(region, wide=True), 0.0
        own = self.function(region, wide=False)
        variances, fixed = region.statistics[1:], [node in region.statistics for node in region.inputs]
        try:
            # An epsilon under a root shows where operands are of the order of its root, one beside it where they are
            # as small as itself.
            small = [scale for each in epsilons for scale in (each**0.5, each)]
            for seed, scale in enumerate((*OPERAND_SCALES, *small)):
                # Operands of one trial differ, and no two trials share one.
                operands = [self.random(node, scale, 7 * seed + i) for i, node in enumerate(region.inputs)]
                operands = [t.abs() if node in variances else t for node, t in zip(region.inputs, operands)]
                operands = [~t if node in region.rare else t for node, t in zip(region.inputs, operands)]
                verdict = _wide(wide, call, operands, fixed)
                worst = max(worst, verdict.error)
                if verdict.fault is not None:
                    return verdict
                fault = _narrow(own, call, operands, dtypes) if scale in OPERAND_SCALES else None
                if fault is not None:
                    return RegionVerdict(worst, fault)
        except Exception as error:  # the region or the call does not accept these operands
            return RegionVerdict(
                float("inf"), f"it cannot be run: {str(error).splitlines()[0] if str(error) else error!r}"
            )
        return RegionVerdict(worst)

    def same_where_hidden(self, region: Region, call: Function) -> bool:
        """Whether a region of one input agrees with a call if the input has −∞, also in whole rows (masked softmax)."""
        x = self.random(region.inputs[0], 1.0, 11)
        x[torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) < 0.3] = float("-inf")
        # A whole row without a finite score: libraries differ in giving NaN or zeros there.
        x[..., :1, :] = float("-inf")
        try:
            with torch.no_grad():
                return bool(distance(self.function(region, wide=True)(x), call(x)) <= VALUE_TOLERANCE)
        except Exception:  # it does not accept such inputs
            return False


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest expected value; infinite if shapes or NaNs differ."""
    if found.shape != expected.shape or not found.numel():
        return float("inf")
    found, expected = found.double(), expected.double()
    same = (found == expected) | (found.isnan() & expected.isnan())
    difference = torch.where(same, 0.0, (found - expected).abs())
    finite = expected[expected.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 1.0
    worst = float(difference.max())
    return worst / max(largest, 1e-30) if worst == worst else float("inf")


def _wide(region: Function, call: Function, operands: Tensors, fixed: Sequence[bool]) -> RegionVerdict:
    """Compare values and gradients in float64; `fixed` operands have no gradient."""
    mine, theirs = (_with_slopes(function, operands, fixed) for function in (region, call))
    error = distance(mine[0], theirs[0])
    if error > VALUE_TOLERANCE:
        return RegionVerdict(error, f"it differs by {error:.1g} of the largest value")
    for a, b in zip(mine[1], theirs[1]):
        if (apart := distance(a, b)) > GRADIENT_TOLERANCE:
            return RegionVerdict(error, f"its gradients differ by {apart:.1g} of the largest")
    return RegionVerdict(error)


def _with_slopes(
    function: Function, operands: Tensors, fixed: Sequence[bool]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The result, and the gradient of each operand that has one, which is 0 where the result does not depend on it."""
    differentiable = [t.is_floating_point() and not each for t, each in zip(operands, fixed)]
    leaves = [t.detach().clone().requires_grad_(each) for t, each in zip(operands, differentiable)]
    with torch.enable_grad():
        result = function(*leaves)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        # Zeros, and not nothing: a detached region has other gradients than its op.
        if not result.requires_grad or not wanted:
            return result.detach(), [torch.zeros_like(leaf) for leaf in wanted]
        draw = torch.Generator().manual_seed(1)
        # A random combination of the results: gradients of the sum alone are zero for softmax and normalizations.
        weights = torch.randn(result.shape, generator=draw, dtype=torch.float64)
        slopes = torch.autograd.grad((result * weights).sum(), wanted, materialize_grads=True)
    return result.detach(), [*slopes]


def _narrow(region: Function, call: Function, operands: Tensors, dtypes: Sequence[torch.dtype]) -> str | None:
    """Why a region is too inaccurate in its own dtype, compared with the op; None if it is about as accurate."""
    given = [t.to(dtype) for t, dtype in zip(operands, dtypes)]
    with torch.no_grad():
        # The op in float64 on operands that were rounded first, so that only what is computed counts as error.
        truth = call(*(t.double() if t.is_floating_point() else t for t in given))
        mine, theirs = region(*given), call(*given)
    if mine.dtype != theirs.dtype:
        return f"it returns {mine.dtype}, not {theirs.dtype}"
    own, other = distance(mine, truth), distance(theirs, truth)
    eps = torch.finfo(mine.dtype).eps
    if own > TIMES * other + ULPS * eps:
        return f"it loses {own / eps:.2g} ULP of {name_of(mine.dtype)}, the op {other / eps:.2g}"
    return None
