"""The data of verification: how the nodes of a lowered graph relate to its source, what was proved, and an error class
for each invariant that may be broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import fx

from decomp.errors import DecompError, describe, source_line
from decomp.ir.call import CALLS

if TYPE_CHECKING:
    from decomp.graphs.template import ExpansionTemplate
    from decomp.patterns.contraction import Contraction

_MEND_THE_RULE = "mend the rule that serves the source node; verify=False lowers without the proof"


class VerificationError(DecompError):
    """An invariant is broken: the lowering, or a rule, is at fault. `node`, `source` say where."""

    remedy: ClassVar[str] = "report this with the program: decomp is at fault; verify=False lowers without the proof"

    def __init__(
        self,
        problem: str,
        node: fx.Node | None = None,
        source: fx.Node | None = None,
        *,
        expected: object = None,
        found: object = None,
    ) -> None:
        self.problem, self.node, self.source = problem, node, source
        lines = [*_message(problem, node, source, expected, found), f"  to do: {self.remedy}"]
        super().__init__("\n".join(lines))


class OutOfOrder(VerificationError):
    """A node comes before one of its inputs, or the graph has a cycle."""


class Dangling(VerificationError):
    """A node reads one that is not in the graph, or `users` and inputs disagree."""


class PlaceholdersChanged(VerificationError):
    """The inputs of the program are not those of the source."""


class OutputsChanged(VerificationError):
    """The outputs of the program are not those of the source."""


class CodegenChanged(VerificationError):
    """The graph takes or returns its values in another container than the source."""


class NameClash(VerificationError):
    """Two nodes have one name, so that the code made from the graph would confuse them."""


class ValueLost(VerificationError):
    """A value of the source is used, and has no lowered value."""


class IllegalCall(VerificationError):
    """A call is not in the target."""

    remedy = "write a rule for it, add it to the target, or keep it: keep={...}; partial=True lowers what can be"


class WithoutOrigin(VerificationError):
    """A lowered node comes from no node of the source."""


class InventedDependency(VerificationError):
    """A value depends on one that it does not depend on in the source."""

    remedy = _MEND_THE_RULE


class LostDependency(VerificationError):
    """A result does not depend on an input that it depends on in the source."""

    remedy = _MEND_THE_RULE


class MetadataChanged(VerificationError):
    """A value has another shape, dtype or device than the one it replaces."""

    remedy = _MEND_THE_RULE


class EffectsChanged(VerificationError):
    """Mutations, random draws, assertions or collectives differ from the source's in number or order."""

    remedy = _MEND_THE_RULE


def out_of_region(node: fx.Node, source: fx.Node) -> EffectsChanged:
    """The error of a call that is in another region than the node that it comes from."""
    return EffectsChanged(f"{node.name!r} moved out of its no_grad or autocast region", node, source)


def require_same_region(node: fx.Node, source: fx.Node, regions: Mapping[fx.Node, int]) -> None:
    """A call is in the region (of no_grad, of autocast) of the node that it comes from. `regions`: of the nodes of both
    graphs, from `regions_of`."""
    if node.op in CALLS and regions[node] != regions[source]:
        raise out_of_region(node, source)


class DeadCodeAdded(VerificationError):
    """A new node computes a value that is not used."""

    remedy = _MEND_THE_RULE


class MalformedExpansion(VerificationError):
    """The graph that a rule recorded has a cycle, dead code, or nodes of another graph."""

    remedy = _MEND_THE_RULE


class NotAsRecorded(VerificationError):
    """A node is neither the copy of a source node nor part of its expansion, or one of these is missing."""

    remedy = "lower again, or verify before a pass changes the program; two programs are compared by level='values'"


class NotAsThePattern(VerificationError):
    """Calls of the source that were replaced as a pattern are not what the pattern says, or are used elsewhere."""

    remedy = "report this with the program and the pattern: decomp is at fault; lower without the rule for the pattern"


class WritesChanged(VerificationError):
    """The inputs and buffers that the program writes back are not those of the source, or get other values."""


class StateChanged(VerificationError):
    """A parameter, buffer or constant of the program is not the source's."""

    remedy = "keep parameters and buffers of the lowered program those of the source, or lower again"


class HooksChanged(VerificationError):
    """A hook of the lowered program was removed, or one was added."""

    remedy = "lower again, or remove what was added: its hooks are those of the source, or check its inputs"


class StaleCode(VerificationError):
    """A module runs other code than that of its graph."""

    remedy = "call recompile() after changing a graph, and leave forward to the module"


class AnotherSource(VerificationError):
    """The program that the lowering is compared with is not the one that was lowered."""

    remedy = "pass the program that was lowered, as it was then"


class ValuesDiffer(VerificationError):
    """A lowered call, or the whole program, computes other values than its source."""

    remedy = _MEND_THE_RULE


class GradientsDiffer(VerificationError):
    """A lowered call, or the whole program, has other gradients than its source."""

    remedy = _MEND_THE_RULE


def _message(
    problem: str, node: fx.Node | None, source: fx.Node | None, expected: object, found: object
) -> Iterator[str]:
    yield problem
    if node is not None:
        yield f"  lowered {describe(node)}"
    if source is not None:
        yield f"  source {describe(source)}"
        line = source_line(source)
        if line:
            yield f"  {line}"
    if expected is not None:
        yield f"  expected: {expected}"
    if found is not None:
        yield f"  found: {found}"


@dataclass(frozen=True)
class Correspondence:
    """How the nodes of a lowered graph relate to those of its source."""

    source: fx.Graph
    """The functional source graph."""
    lowered: fx.Graph
    origin: Mapping[fx.Node, fx.Node]
    """For each node of `lowered`, the node of `source` that it came from."""
    values: Mapping[fx.Node, Any]
    """For each node of `source`, its value: a node of `lowered`, a constant, or a nested tuple of them."""
    expansions: tuple[fx.Graph, ...] = ()
    """Each distinct expansion that was stamped."""
    illegal: Callable[[fx.Node], str | None] = field(default=lambda node: None)
    """Why a lowered node is not legal in the target, or None."""
    added: frozenset[str] = frozenset()
    """Names of placeholders that the lowering added, such as those of lifted constants."""
    writes: tuple[fx.Node, ...] = ()
    """New values of mutated inputs and buffers, where the lowered graph already writes them back: as leading outputs of
    an exported program, or by `copy_` calls at its end."""
    stamps: Mapping[fx.Node, ExpansionTemplate] | None = None
    """For each node of `source` that was replaced, its expansion; None without a record."""
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Constants that rules created, by the names that they may have in `lowered`."""
    signed: tuple[fx.Node, ...] | None = None
    """Those of `writes` that are leading outputs, in order; None where that is not known."""
    copied: tuple[tuple[fx.Node, fx.Node], ...] | None = None
    """Inputs or attributes that `copy_` calls at the end write, with the new value of each, in order."""
    contraction: Contraction | None = None
    """How `source` came from the graph whose calls it has as calls of patterns; None if no pattern was taken."""


@dataclass(frozen=True)
class Proof:
    """What was checked, and how long it took."""

    checks: tuple[str, ...]
    """One phrase for each invariant that holds."""
    nodes: int
    expansions: int
    seconds: float
    program: str = ""
    """What came of running the whole program; empty where that was not asked for."""

    def also(self, checks: Iterable[str]) -> Proof:
        """The same proof with further checks."""
        return replace(self, checks=(*self.checks, *checks))

    def __str__(self) -> str:
        return f"verified {self.nodes} nodes in {self.seconds:.3g} s: {'; '.join(self.checks)}"
