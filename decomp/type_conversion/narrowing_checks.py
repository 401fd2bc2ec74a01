"""Verifies a program in narrow dtypes from the two graphs alone, without trusting the code that built the new one."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from decomp.ir.arguments import substituted
from decomp.ir.call import is_projection, metadata
from decomp.ir.effects import is_discharged_assertion, regions_of
from decomp.ir.module import ProgramGraph
from decomp.ir.narrow_calls import CAST
from decomp.metadata.symbolic_sizes import same_shape
from decomp.proof.correspondence import EffectsChanged, MetadataChanged, NotAsRecorded, OutputsChanged, ValueLost
from decomp.proof.replay import same
from decomp.torch_internals.pytree import tensors_in
from decomp.type_conversion.narrowing import why_not_narrow


def check_narrow(own: ProgramGraph) -> str:
    """Verify a graph in narrow dtypes against its source; returns a sentence that says what was verified. Every call is
    the call of the source on the same values, except that operands may be cast between a wide dtype and its narrow one,
    and dtype arguments may be narrow. Results keep their shapes, in the same dtype or the narrow one, and no scalar
    argument is out of range. Raises a `VerificationError` for the first violation."""
    assert own.before is not None
    replay = _NarrowingReplay(own)
    calls = sum(replay.visit(node) for node in own.before.graph.nodes)
    casts = replay.require_casts()
    # References and order: the walk looks at each node by itself.
    own.graph.lint()
    return f"{calls} calls in narrow dtypes are those of the source, on the same values, {casts} casts between them"


class _NarrowingReplay:
    """One walk over the source that compares each node with its image in the new graph."""

    def __init__(self, own: ProgramGraph) -> None:
        assert own.edges is not None
        self.graph, self.dtypes = own.graph, own.why
        # Names are the link here, as the origin of a cast is the node that it was made for as well.
        self.images = {source: new for new, source in own.edges.origin.items() if new.name == source.name}
        """Maps each source node to the new node of the same name. Other new nodes of the same origin are casts."""
        self.sources = {new: source for source, new in self.images.items()}
        self.regions = regions_of(own.graph)

    def visit(self, node: fx.Node) -> bool:
        """Compare a node with its image; returns whether it is a call."""
        new = self.images.get(node)
        if new is None:
            if node.op == "output" or not is_discharged_assertion(node):
                raise ValueLost(f"{node.name!r} is not in the graph in narrow dtypes", source=node)
            return False
        if not self._is_copy(node, new) and not self._is_narrow_call(node, new):
            wrong = OutputsChanged if node.op == "output" else NotAsRecorded
            raise wrong(f"{new.name!r} is not the call {node.name!r}, in narrow dtypes", new, node)
        self._require_metadata(metadata(node), metadata(new), node, new)
        return node.op.startswith("call") and not is_projection(node)

    def _is_copy(self, node: fx.Node, new: fx.Node) -> bool:
        """Whether a call has the operands of its source, in the same dtypes."""
        given = zip(node.all_input_nodes, new.all_input_nodes)
        return self._makes(new, node, self._sources_of(new)) and all(map(_same_dtypes, given))

    def _is_narrow_call(self, node: fx.Node, new: fx.Node) -> bool:
        """Whether a call has the operands of its source, cast or not, narrow dtype arguments, and scalars in range."""
        if not node.op.startswith("call") or why_not_narrow(node, self.dtypes) is not None:
            return False
        args, kwargs = self._sources_of(new)
        more = {name: value for name, value in kwargs.items() if name not in node.kwargs}
        fewer = {name: value for name, value in kwargs.items() if name in node.kwargs}
        dtype: Any = getattr(metadata(node), "dtype", None)
        narrow = self.dtypes.get(dtype)
        asked = more in ({}, {"out_int32": True}) or narrow is not None and more == {"dtype": narrow}
        # Written dtypes become narrow as well, as in `x.to(torch.int64)`.
        wide = substituted((node.args, dict(node.kwargs)), lambda each: self.dtypes.get(each, each), torch.dtype)
        alike = self._makes(new, node, (args, fewer)) or same((args, fewer), wide)
        return asked and alike and _same_target(node, new)

    def _makes(self, new: fx.Node, node: fx.Node, given: Any) -> bool:
        return _same_target(node, new) and same(given, substituted((node.args, dict(node.kwargs)), lambda n: n))

    def _sources_of(self, new: fx.Node) -> Any:
        """The arguments of a node, with each new node replaced by its source."""
        return substituted((new.args, dict(new.kwargs)), lambda given: self._source(given, new))

    def _source(self, given: fx.Node, user: fx.Node) -> fx.Node:
        """The source node of an argument, looking through a cast."""
        if given not in self.sources and self._is_cast(given):
            # A cast in a no_grad region has no gradient, and one outside of it has.
            if self.regions[given] != self.regions[user]:
                raise EffectsChanged(f"{given.name!r} is cast in another region than its user {user.name!r}", given)
            given = given.all_input_nodes[0]
        if given not in self.sources:
            raise NotAsRecorded(f"{given.name!r}, used by {user.name!r}, comes from no node of the source", given)
        return self.sources[given]

    def _is_cast(self, node: fx.Node) -> bool:
        """Whether a node only casts a wide value of the source to its narrow dtype, or back."""
        if node.target is not CAST or set(node.kwargs) != {"dtype"} or len(node.args) != 1:
            return False
        source = self.sources.get(node.all_input_nodes[0])
        dtype = getattr(metadata(source), "dtype", None) if source is not None else None
        return dtype in self.dtypes and node.kwargs["dtype"] in (dtype, self.dtypes[dtype])

    def _require_metadata(self, expected: Any, found: Any, node: fx.Node, new: fx.Node) -> None:
        """The results have the shapes of the source, and its dtypes or the narrow ones."""
        pairs = list(zip(tensors_in(expected), tensors_in(found)))
        fits = len(pairs) == len(tensors_in(expected)) == len(tensors_in(found)) and all(
            same_shape(one.shape, other.shape) and other.dtype in (one.dtype, self.dtypes.get(one.dtype))
            for one, other in pairs
        )
        if not fits:
            raise MetadataChanged(f"{new.name!r} is {found}, expected {expected}", new, node)

    def require_casts(self) -> int:
        """Check that every node without a source is a cast; returns the number of casts."""
        others = [node for node in self.graph.nodes if node not in self.sources]
        for node in others:
            if not self._is_cast(node):
                raise NotAsRecorded(f"{node.name!r} comes from no node of the source, and is not a cast", node)
        return len(others)


def _same_target(node: fx.Node, new: fx.Node) -> bool:
    return node.op == new.op and bool(node.target == new.target)


def _same_dtypes(given: tuple[fx.Node, fx.Node]) -> bool:
    one, other = ([each.dtype for each in tensors_in(metadata(node))] for node in given)
    return one == other
