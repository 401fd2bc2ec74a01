"""Second pass for wanted calls that were found by way of intermediate matches, which are calls that are not wanted
themselves. The search starts again on the original graph, without the intermediate matches: each wanted call is tried
in place of all nodes that it covers there. So intermediate matches that led to nothing do not appear in the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import math
from typing import Any

import torch
from torch import fx

from decomp.graphs.rewrite import Rewrite
from decomp.ir.call import metadata
from decomp.ops import aten
from decomp.refolding.found import Findings, FoundCall, RegionSearch, WantedCalls
from decomp.refolding.prepared import Operand, PreparedOperand, can_be_made, reshape_operand
from decomp.refolding.regions import GraphIndex
from decomp.refolding.trials import Runner


@dataclass(frozen=True)
class IntermediateMatch:
    """The findings that one search folded, and how its graph was derived from the original one."""

    rewrite: Rewrite | None
    found: Sequence[FoundCall]


class IntermediateMatches(RegionSearch):
    """The search in one graph, given the `steps` of the first pass."""

    # A region of the original graph has all nodes that the intermediate matches replaced.
    limit = math.inf

    def __init__(
        self, around: GraphIndex, runner: Runner, wanted: WantedCalls, steps: Sequence[IntermediateMatch]
    ) -> None:
        super().__init__(around, runner, wanted)
        self.steps = steps

    def search(self) -> Findings:
        """Run the search; returns the findings."""
        for step in self.steps:
            sources = _Sources(step.rewrite)
            for found in step.found:
                root = sources.node(found.region.root)
                operands = list(sources.operands(found.operands))
                if root is not None and len(operands) == len(found.operands):
                    self._take(found, root, tuple(operands), sources)
        return self.findings

    def _take(self, found: FoundCall, root: fx.Node, operands: tuple[Any, ...], sources: _Sources) -> None:
        spelling = found.spelling
        if self.wanted(spelling.target, (*operands, *spelling.args), dict(spelling.kwargs), root):
            statistics, rare = (tuple(sources.nodes(each)) for each in (found.region.statistics, found.region.rare))
            whole = self.agreeing_call(root, found.name, spelling, operands, statistics, rare)
            if whole is not None:
                self.take(whole)


class _Sources:
    """Maps the nodes of a folded graph back to the original graph."""

    def __init__(self, rewrite: Rewrite | None) -> None:
        self._known: dict[fx.Node, fx.Node] | None = None
        if rewrite is not None:
            self._known = {new: old for old, new in rewrite.values.items() if isinstance(new, fx.Node)}

    def node(self, node: fx.Node) -> fx.Node | None:
        """The original node of a value; None if only an intermediate match has it."""
        return node if self._known is None else self._known.get(node)

    def nodes(self, nodes: Sequence[fx.Node]) -> Iterator[fx.Node]:
        """The original nodes of `nodes`, if they have one."""
        return (found for node in nodes if (found := self.node(node)) is not None)

    def operands(self, given: Sequence[Any]) -> Iterator[Any]:
        """The operands in the original graph; stops before one that cannot be computed there."""
        for arg in given:
            found = self._operand(arg) if isinstance(arg, (fx.Node, PreparedOperand)) else arg
            if found is None and arg is not None:
                return
            yield found

    def _operand(self, arg: Operand) -> Operand | None:
        source = self.node(arg) if isinstance(arg, fx.Node) else None
        if source is not None:
            return source
        if isinstance(arg, fx.Node) and (arg.kwargs or not _is_plain_call(arg)):
            return None
        args = list(self.operands(arg.args))
        if len(args) < len(arg.args):
            return None
        if arg.target is aten.view.default and isinstance(args[0], fx.Node):
            return reshape_operand(*args)
        found = PreparedOperand(arg.target, tuple(args))
        return found if can_be_made(found) else None


def _is_plain_call(node: fx.Node) -> bool:
    """Whether a node is a call of an op that returns one tensor."""
    return isinstance(node.target, torch._ops.OpOverload) and isinstance(metadata(node), torch.Tensor)
