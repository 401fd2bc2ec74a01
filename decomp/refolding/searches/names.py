"""Finds ops under another name: calls that are equivalent to another op, such as `convolution` to `conv2d`, or a
`native_layer_norm` of which only the first result is used to `layer_norm`."""

from __future__ import annotations

from typing import Any

from torch import fx

from decomp.ir.effects import looks_only
from decomp.ops import aten
from decomp.patterns.terms import NodeReading, Terms
from decomp.refolding.found import Findings, RegionSearch
from decomp.refolding.readings import CallReading

_NAMED: dict[str, Any] = {
    "aten.layer_norm": aten.layer_norm.default,
    "aten.group_norm": aten.group_norm.default,
    "aten.batch_norm": aten.batch_norm.default,
    "aten.softmax": aten.softmax.int,
    "aten.log_softmax": aten.log_softmax.int,
    "aten.conv1d": aten.conv1d.default,
    "aten.conv2d": aten.conv2d.default,
    "aten.conv3d": aten.conv3d.default,
}

_OF: dict[Any, tuple[Any, ...]] = {
    aten.layer_norm.default: (aten.native_layer_norm.default,),
    aten.group_norm.default: (aten.native_group_norm.default,),
    aten.softmax.int: (aten._softmax.default,),
    aten.log_softmax.int: (aten._log_softmax.default,),
}
"""For each op, the calls of its other names that other searches find."""


class Names(RegionSearch):
    """The search in one graph."""

    finds = {overload: _OF.get(overload, ()) for overload in _NAMED.values()}

    def search(self) -> Findings:
        """Run the search; returns the findings."""
        terms = Terms()
        for node in self.around.graph.nodes:
            if node.op == "call_function":
                for term in terms.of(node)[1:] if terms.raw(node) is not None else terms.of(node):
                    overload = _NAMED.get(term.op)
                    if overload is not None and node.target is not overload:
                        self._take(node, term, overload)
        return self.findings

    def _take(self, node: fx.Node, term: NodeReading, overload: Any) -> None:
        args = []
        for argument in overload._schema.arguments:
            default = argument.default_value if argument.has_default_value() else None
            args.append(term.arguments.get(argument.name, default))
        # Statistics that are used elsewhere must stay computed.
        if all(looks_only(user) or user is node for inner in term.through for user in inner.users):
            found = self.agreeing_call(node, term.op.removeprefix("aten."), CallReading(overload), tuple(args))
            if found is not None:
                self.take(found)
