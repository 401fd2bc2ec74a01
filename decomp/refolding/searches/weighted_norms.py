"""Finds normalizations whose weight is multiplied by the reciprocal of the deviation first: (x − mean) · (weight ·
1/√(variance + ε)) + bias, where no value is the normalization without a weight. The search begins at the square root
and goes down to the values that it scales; sizes, groups and ε are found by trying."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from decomp.ir.call import metadata
from decomp.ops import aten
from decomp.refolding.found import Findings, FoundCall
from decomp.refolding.readings import CallReading, find_epsilons, groups_in
from decomp.refolding.regions import VIEWS, op_schema_name
from decomp.refolding.searches.batch_norms import ARITHMETIC, ROOTS, STEPS, ParameterSearch


class WeightedNorms(ParameterSearch):
    """The search in one graph."""

    finds = dict.fromkeys((aten.layer_norm.default, aten.rms_norm.default, aten.group_norm.default), ())

    def search(self) -> Findings:
        """Run the search; returns the findings."""
        for node in self.around.graph.nodes:
            if op_schema_name(node) in ROOTS and (found := self._around(node)) is not None:
                self.take(found)
        return self.findings

    def _around(self, root: fx.Node) -> FoundCall | None:
        """The largest call around the square root of a variance."""
        for end in reversed(list(self._below(root))):
            for x in self.around.above(root, STEPS):
                parameters = self.parameters(end, x) if metadata(x).shape == metadata(end).shape else None
                if not parameters or len(parameters) > 2:
                    continue
                for name, spelling, args in self._readings(x, end, parameters):
                    found = self.agreeing_call(end, name, spelling, args)
                    if found is not None and self.around.why_open(found.region) is None:
                        return found
        return None

    def _below(self, node: fx.Node) -> Iterator[fx.Node]:
        """The arithmetic calls and views that follow a node."""
        current = self.around.only_user(node)
        for _ in range(STEPS):
            if current is None or op_schema_name(current) not in (*ARITHMETIC, *VIEWS, "aten::reciprocal"):
                return
            yield current
            current = self.around.only_user(current)

    def _readings(
        self, x: fx.Node, end: fx.Node, parameters: tuple[fx.Node, ...]
    ) -> Iterator[tuple[str, CallReading, tuple[Any, ...]]]:
        """The calls that may compute `end` from `x` and its parameters."""
        region = self.around.between(end, (x, *parameters))
        nodes = region.nodes if region is not None else ()
        first, *rest = parameters
        roles = [(first, rest[0]), (rest[0], first)] if rest else [(first, None)]
        last = metadata(x).shape[-1]
        for eps in find_epsilons([*nodes, *self.constants(nodes)]):
            for weight, bias in roles:
                if metadata(weight).shape[0] == last:
                    yield "layer_norm", CallReading(aten.layer_norm.default, (eps,)), (x, [last], weight, bias)
                if metadata(weight).shape[0] == last and bias is None:
                    yield "rms_norm", CallReading(aten.rms_norm.default, (eps,)), (x, [last], weight)
                for groups in groups_in(nodes, metadata(x).shape) if metadata(x).dim() > 2 else ():
                    yield "group_norm", CallReading(aten.group_norm.default, (eps,)), (x, groups, weight, bias)
