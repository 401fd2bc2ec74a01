"""The data of verification: the relation between the nodes of a lowered graph and its source, the result, and an error
class for each invariant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
import functools
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import fx

from decomp.capture.rebuild_exported import with_lifted
from decomp.errors import DecompError, describe, source_line
from decomp.ir.call import CALLS
from decomp.ir.effects import EffectTable

if TYPE_CHECKING:
    from decomp.graphs.template import ExpansionTemplate
    from decomp.ir.module import ProgramGraph

_MEND_THE_RULE = "fix the rule for the source node; verify=False skips verification"


class VerificationError(DecompError):
    """An invariant is broken: the lowering, or a rule, is at fault. `node` and `source` locate it."""

    remedy: ClassVar[str] = "report this with the program: decomp is at fault; verify=False skips verification"

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
    """A node reads one that is not in the graph, or `users` and inputs are inconsistent."""


class PlaceholdersChanged(VerificationError):
    """The inputs of the program are not those of the source."""


class OutputsChanged(VerificationError):
    """The outputs of the program are not those of the source."""


class CodegenChanged(VerificationError):
    """The graph takes or returns its values in containers other than the source's."""


class NameClash(VerificationError):
    """Two nodes have the same name, so that the code generated for the graph would confuse them."""


class ValueLost(VerificationError):
    """A value of the source is used but has no lowered value."""


class IllegalCall(VerificationError):
    """A call is not in the target."""

    remedy = "write a rule for it, add it to the target, or keep it: keep={...}; partial=True lowers what can be"


class WithoutOrigin(VerificationError):
    """A lowered node does not come from any node of the source."""


class InventedDependency(VerificationError):
    """A value depends on another one on which it does not depend in the source."""

    remedy = _MEND_THE_RULE


class LostDependency(VerificationError):
    """A result does not depend on an input that it depends on in the source."""

    remedy = _MEND_THE_RULE


class MetadataChanged(VerificationError):
    """A value has a shape, dtype or device other than that of the value it replaces."""

    remedy = _MEND_THE_RULE


class EffectsChanged(VerificationError):
    """Mutations, random draws, assertions or collectives differ from the source's in number or order."""

    remedy = _MEND_THE_RULE


def out_of_region(node: fx.Node, source: fx.Node) -> EffectsChanged:
    """The error for a call that is in a region other than that of its source node."""
    return EffectsChanged(f"{node.name!r} moved out of its no_grad or autocast region", node, source)


def require_same_region(node: fx.Node, source: fx.Node, regions: Mapping[fx.Node, int]) -> None:
    """A call must be in the region (no_grad, autocast) of its source node. `regions`: of the nodes of both graphs, from
    `regions_of`."""
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
    """Calls of the source that were replaced as a pattern do not match the pattern, or are used elsewhere."""

    remedy = "report this with the program and the pattern: decomp is at fault; lower without the rule for the pattern"


class WritesChanged(VerificationError):
    """The inputs and buffers to which the program writes back, or the values written, are not those of the source."""


class StateChanged(VerificationError):
    """A parameter, buffer or constant of the program is not that of the source."""

    remedy = "keep parameters and buffers of the lowered program those of the source, or lower again"


class HooksChanged(VerificationError):
    """A hook of the lowered program was removed or added."""

    remedy = "lower again, or remove the added hook: only hooks of the source and input checks are allowed"


class StaleCode(VerificationError):
    """A module runs code other than that of its graph."""

    remedy = "call recompile() after changing a graph, and do not assign forward"


class AnotherSource(VerificationError):
    """The program with which the lowering is compared is not the one that was lowered."""

    remedy = "pass the program that was lowered, unchanged"


class ValuesDiffer(VerificationError):
    """A lowered call, or the whole program, computes values other than its source's."""

    remedy = _MEND_THE_RULE


class CaptureDiffers(ValuesDiffer):
    """The program that was captured from a model computes values other than the model: it asks whether it is captured,
    or reads something that is not one of its inputs."""

    remedy = (
        "the model must compute the same where torch.compiler.is_exporting() is True; if what was captured will do, "
        "pass torch.export.export(model, args) in its place"
    )


class GradientsDiffer(VerificationError):
    """A lowered call, or the whole program, has gradients other than its source's."""

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
    """The relation between the nodes of a lowered graph and those of its source."""

    source: fx.Graph
    """The functional source graph."""
    lowered: fx.Graph
    origin: Mapping[fx.Node, fx.Node]
    """For each node of `lowered`, the node of `source` from which it comes."""
    values: Mapping[fx.Node, Any]
    """For each node of `source`, its value: a node of `lowered`, a constant, or a nested tuple of them."""
    expansions: tuple[fx.Graph, ...] = ()
    """Each distinct expansion that was inlined."""
    illegal: Callable[[fx.Node], str | None] = field(default=lambda node: None)
    """Returns why a lowered node is illegal on the target, or None."""
    added: frozenset[str] = frozenset()
    """Names of placeholders that the lowering added, such as those of lifted constants."""
    writes: tuple[fx.Node, ...] = ()
    """New values of mutated inputs and buffers, if the lowered graph already writes them back: as leading outputs of an
    exported program, or by `copy_` calls at its end."""
    templates: Mapping[fx.Node, ExpansionTemplate] | None = None
    """The expansion of each node of `source` that was replaced; None without a record."""
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Constants that rules created, by the names that they may have in `lowered`."""
    signed: tuple[fx.Node, ...] | None = None
    """Those of `writes` that are leading outputs, in order; None if unknown."""
    copied: tuple[tuple[fx.Node, fx.Node], ...] | None = None
    """Inputs or attributes written by `copy_` calls at the end, each with its new value, in order."""
    contraction: ProgramGraph | None = None
    """How `source` was made by contracting matches to calls of patterns; None if no pattern was applied."""
    results: tuple[Any, Any] | None = None
    """What the source and the lowered graph return, if that is not all of their outputs."""

    @functools.cached_property
    def images(self) -> Mapping[fx.Node, Any]:
        """`values`, with inputs that hold constants of rules in place of attributes."""
        return with_lifted(self.values, self.place) if self.added else self.values

    @functools.cached_property
    def place(self) -> dict[fx.Node, int]:
        """The nodes of `lowered`, each with its position."""
        return {node: i for i, node in enumerate(self.lowered.nodes)}

    @functools.cached_property
    def source_place(self) -> dict[fx.Node, int]:
        """The nodes of `source`, each with its position."""
        return {node: i for i, node in enumerate(self.source.nodes)}

    @functools.cached_property
    def attributes(self) -> frozenset[str]:
        """The names of the attributes that the source reads."""
        return frozenset(str(node.target) for node in self.source_place if node.op == "get_attr")

    @functools.cached_property
    def effects(self) -> EffectTable:
        """Effects of the lowered calls."""
        return EffectTable(self.lowered.owning_module or self.source.owning_module)

    @functools.cached_property
    def source_effects(self) -> EffectTable:
        """Effects of the calls of the source."""
        return EffectTable(self.source.owning_module)


@dataclass(frozen=True)
class Proof:
    """The verified facts, and the time taken."""

    checks: tuple[str, ...]
    """One phrase per invariant."""
    nodes: int
    expansions: int
    seconds: float
    program: str = ""
    """What came of running the whole program; empty where that was not asked for."""

    def also(self, checks: Iterable[str]) -> Proof:
        """A copy with further checks."""
        return replace(self, checks=(*self.checks, *checks))

    def __str__(self) -> str:
        return f"verified {self.nodes} nodes in {self.seconds:.3g} s: {'; '.join(self.checks)}"
