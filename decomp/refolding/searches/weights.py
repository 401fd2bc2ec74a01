"""Finds the weight and bias of a normalization: a call without them, followed by a product and a sum."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from decomp.ir.call import metadata
from decomp.ops import aten
from decomp.refolding.found import Findings, FoundCall, RegionSearch
from decomp.refolding.readings import CallReading
from decomp.refolding.regions import is_float, op_schema_name

STEPS = 6
"""How many calls after the normalization are examined."""

_NORMS: dict[Any, tuple[int, int | None]] = {
    aten.layer_norm.default: (2, 3),
    aten.native_layer_norm.default: (2, 3),
    aten.rms_norm.default: (2, None),
    aten.group_norm.default: (2, 3),
    aten.native_group_norm.default: (1, 2),
}
"""The positions of weight and bias among the arguments."""
_SEVERAL = (aten.native_layer_norm.default, aten.native_group_norm.default)


class Weights(RegionSearch):
    """The search in one graph."""

    finds = {norm: (norm,) for norm in _NORMS}

    def search(self) -> Findings:
        """Run the search; returns the findings."""
        for node in self.around.graph.nodes:
            places = _NORMS.get(node.target)
            if places is not None and not any(_given(node, place) for place in places):
                best = self._with_weights(node, *places)
                if best is not None:
                    self.take(best)
        return self.findings

    def _with_weights(self, norm: fx.Node, weight: int, bias: int | None) -> FoundCall | None:
        several = norm.target in _SEVERAL
        spelling = CallReading(norm.target, (), (), (0,) if several else ())
        args = [*norm.args, *[None] * (max(weight, bias or 0) + 1 - len(norm.args))]
        best: FoundCall | None = None
        current = norm
        if several:
            current = next((user for user in norm.users if user.args[1:] == (0,)), norm)
        for _ in range(STEPS):
            user = self.around.only_user(current)
            if user is None or not is_float(user):
                break
            place = {"aten::mul": weight, "aten::add": bias}.get(op_schema_name(user))
            for other in self._others(norm, user, current) if place is not None else ():
                trial = [*args[:place], other, *args[(place or 0) + 1 :]]
                found = self.agreeing_call(user, best.name if best else _name(norm), spelling, tuple(trial))
                if found is not None and self._is_whole(found):
                    best, args = found, trial
                    break
            else:
                # A cast or view in between continues the call.
                again = best is not None and self.agreeing_call(user, best.name, spelling, tuple(args))
                best = again or best
            current = user
        return best

    def _is_whole(self, found: FoundCall) -> bool:
        return self.around.why_open(found.region) is None

    def _others(self, norm: fx.Node, user: fx.Node, current: fx.Node) -> Iterator[fx.Node]:
        """The operands that can be a weight: those of its shape, farthest up first."""
        others = [given for given in self.around.data_inputs(user) if given is not current]
        if len(others) != 1:
            return
        shape = _weight_shape(norm)
        # The parameter itself rather than a view of it, which would be computed for nothing.
        for node in reversed(self.around.views_above(others[0])):
            value = metadata(node)
            if is_float(node) and list(value.shape) == shape:
                yield node


def _weight_shape(norm: fx.Node) -> list[Any]:
    if norm.target in (aten.group_norm.default, aten.native_group_norm.default):
        return [metadata(norm.args[0]).shape[1]]
    return list(norm.args[1])


def _given(norm: fx.Node, place: int | None) -> bool:
    return place is not None and place < len(norm.args) and norm.args[place] is not None


def _name(norm: fx.Node) -> str:
    return op_schema_name(norm).removeprefix("aten::").removeprefix("native_")
