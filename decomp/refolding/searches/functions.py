"""Finds functions of one tensor, however they are spelled: activations, softmax, and normalizations without weights.
From each op that occurs in such functions, the search goes up to the values that dominate it. All nodes computed from
one such value are run once, on random numbers, and their values are compared with those of the known functions. Parts
of a graph with the same structure are only searched once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import fx

from decomp.ir.call import metadata
from decomp.ir.dtypes import name_of
from decomp.refolding.found import Findings, FoundCall, RegionSearch, SearchOverloads, choose_spelling
from decomp.refolding.readings import FUNCTIONS, POINTWISE, REDUCTIONS, SEED_OPS, Reading, along_dimensions
from decomp.refolding.regions import VIEWS, Region, is_float, op_schema_name
from decomp.refolding.trials import VALUE_TOLERANCE, distance

STEPS = 32
"""How many nodes the search goes up."""
FEW = 64
"""How many elements are compared first, to reject most functions cheaply."""
NEAR_MISS = 0.05
"""A smaller difference, relative to the largest value, is a near miss."""


class Functions(RegionSearch):
    """The search in one graph."""

    finds: ClassVar[SearchOverloads] = dict.fromkeys(FUNCTIONS, ())

    def search(self) -> Findings:
        """Run the search; returns the findings."""
        # Seeds share what dominates them.
        tried: set[fx.Node] = set()
        for seed in self.around.graph.nodes:
            if op_schema_name(seed) in SEED_OPS:
                for x in self.around.above(seed, STEPS):
                    if x not in tried:
                        tried.add(x)
                        self._from(x)
        return self.findings

    def _from(self, x: fx.Node) -> None:
        """Find all functions of one value."""
        below = self.around.below(x)
        if not any(op_schema_name(node) in SEED_OPS for node in below):
            return
        key, known = self.around.structures.of((x,), below), self.runner.known.readings
        if key not in known:
            known[key] = list(self._readings(x, below))
        for place, reading, error, fault in known[key]:
            self._take(x, below[place], reading, error, fault)

    def _take(self, x: fx.Node, root: fx.Node, reading: Reading, error: float, fault: str | None) -> None:
        spelling = choose_spelling(reading.spellings, (x,), root, self.wanted)
        region = self.around.between(root, (x,)) if spelling is not None else None
        if spelling is None or region is None or any(node.target is spelling.target for node in region.nodes):
            return
        self.take(FoundCall(region, spelling, reading.name, (x,), error, len(region) - 1), fault)

    def _readings(self, x: fx.Node, below: list[fx.Node]) -> Iterator[tuple[int, Reading, float, str | None]]:
        """The nodes, by index, that compute a known function of `x`, and near misses with the reason."""
        given = self.runner.random(x, 1.0, 3)
        values = self._run(below, x, given)
        shape = metadata(x).shape
        reduces = _reducing(below)
        pointwise, along = POINTWISE, list(along_dimensions(x, below))
        expected: dict[int, _Expected] = {}
        for place, node in enumerate(below):
            value = values.get(node)
            if value is None or not is_float(node) or metadata(node).shape != shape:
                continue
            near: tuple[float, Reading] | None = None
            for reading in along if node in reduces else pointwise:
                if id(reading) not in expected:
                    expected[id(reading)] = _Expected.of(reading, given)
                apart = expected[id(reading)].distance(value)
                if apart <= VALUE_TOLERANCE:
                    # An exact match makes near misses of the same node worthless.
                    near = None
                    yield from self._compared(x, node, place, reading)
                    break
                if apart < NEAR_MISS and (near is None or apart < near[0]):
                    near = apart, reading
            if near is not None and not _is_trivial(value, given):
                yield place, near[1], near[0], f"it differs by {near[0]:.1g} of the largest value"

    def _compared(
        self, x: fx.Node, node: fx.Node, place: int, reading: Reading
    ) -> Iterator[tuple[int, Reading, float, str | None]]:
        region = self.around.between(node, (x,))
        if region is not None:
            call = reading.function
            verdict = self.runner.compare(region, call, str(call), call.small_numbers)
            fault = verdict.fault
            if fault is None and "softmax" in reading.name:
                if metadata(x).dim() > 1 and not self.runner.same_where_hidden(region, reading.function):
                    fault = "it returns other values where rows are hidden by −∞"
            yield place, reading, verdict.error, fault or _missing_cast(region)

    def _run(self, nodes: list[fx.Node], x: fx.Node, given: torch.Tensor) -> dict[fx.Node, Any]:
        """The values of nodes in float64; nodes that cannot be run are left out."""
        values: dict[fx.Node, Any] = {x: given}
        with torch.no_grad():
            for node in nodes:
                try:
                    values = self.runner.values([node], values, wide=True)
                except Exception:  # its sizes are fixed, or an operand could not be run
                    continue
        return values


@dataclass(frozen=True)
class _Expected:
    """The values of a known function, to compare others with."""

    values: torch.Tensor | None
    """None if it does not accept the operand."""
    few: torch.Tensor | None = None
    """The first elements."""
    far: float = 0.0
    """A larger difference is not even a near miss."""

    @staticmethod
    def of(reading: Reading, x: torch.Tensor) -> _Expected:
        """The values of `reading` on `x`."""
        values = _called(reading, x)
        if values is None or not values.numel():
            return _Expected(values)
        finite = values[values.isfinite()]
        largest = float(finite.abs().max()) if finite.numel() else 1.0
        return _Expected(values, values.flatten()[:FEW], 2 * NEAR_MISS * largest)

    def distance(self, found: torch.Tensor) -> float:
        """The `distance` of other values; infinite if the first elements are already too far off."""
        if self.values is None:
            return float("inf")
        if self.few is not None and found.shape == self.values.shape:
            if bool(((found.flatten()[:FEW] - self.few).abs() > self.far).any()):
                return float("inf")
        return distance(found, self.values)


def _missing_cast(region: Region) -> str | None:
    """The fault of a region that rounds an intermediate value to half precision, where ops compute in float32."""
    for node in region.nodes:
        if node is not region.root and is_float(node) and op_schema_name(node) not in VIEWS:
            dtype = metadata(node).dtype
            if dtype.itemsize < 4:
                return f"{node.name!r} rounds to {name_of(dtype)}: the op has a cast before it"
    return None


def _is_trivial(value: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether a value is close to a function only because both are close to the operand."""
    return distance(value, given) < NEAR_MISS


def _called(reading: Reading, x: torch.Tensor) -> torch.Tensor | None:
    try:
        with torch.no_grad():
            return reading.function(x)
    except Exception:  # it does not accept this shape
        return None


def _reducing(below: list[fx.Node]) -> set[fx.Node]:
    """The nodes that depend on a reduction."""
    found: set[fx.Node] = set()
    for node in below:
        if op_schema_name(node) in REDUCTIONS or any(given in found for given in node.all_input_nodes):
            found.add(node)
    return found
