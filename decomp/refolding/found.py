"""The results of a search: calls that could replace regions, and near misses. Of overlapping calls, the one that
replaces most nodes is chosen."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch import fx

from decomp.errors import spell_target
from decomp.graphs.graph_builder import own_memory
from decomp.ir.aliases import view_arguments
from decomp.ir.binding import BindingError
from decomp.ir.call import bound_call, inherited_meta, metadata
from decomp.ir.ops import of_function
from decomp.ir.signature import described, is_symbolic
from decomp.refolding.folding import Fold
from decomp.refolding.outcome import MissedCall, RestoredCall
from decomp.refolding.prepared import PreparedOperand, nodes_in, run_fake, spell_operand, value_of
from decomp.refolding.readings import CallReading
from decomp.refolding.regions import MAX_REGION_NODES, GraphIndex, Region
from decomp.refolding.trials import Runner
from decomp.rules.target import Target


@dataclass(frozen=True)
class WantedCalls:
    """Which calls to find: those of a target, or any; and which calls may prepare operands."""

    to: Target | None = None
    prepared: Target | None = None
    intermediate: Container[Any] = ()
    """Overloads that may be found as intermediate matches, on which a later search builds a wanted call."""

    def may(self, overloads: Iterable[Any]) -> bool:
        """Whether a call of any of these overloads could be wanted."""
        return self.to is None or any(map(self.to.knows, overloads))

    def __call__(self, target: Any, args: Any, kwargs: Any, like: fx.Node) -> bool:
        """Whether a call with the value of the node `like` is wanted, at least as an intermediate match."""
        return target in self.intermediate or self.stays(target, args, kwargs, like)

    def stays(self, target: Any, args: Any, kwargs: Any, like: fx.Node) -> bool:
        """Whether a call is wanted in the result."""
        return (self.to is None or _is_wanted(self.to, target, args, kwargs, like.meta.get("val"))) and (
            self.prepared is None or all(_is_prepared(self.prepared, arg) for arg in args)
        )


@dataclass(frozen=True, eq=False)
class FoundCall:
    """A call that computes the same as a region."""

    region: Region
    spelling: CallReading
    name: str
    operands: tuple[Any, ...]
    """Its leading arguments; the others are fixed by the spelling."""
    error: float
    gain: int
    """How many nodes it saves."""
    is_intermediate: bool = False
    """Whether it is only an intermediate match."""

    @property
    def args(self) -> tuple[Any, ...]:
        """All positional arguments."""
        return (*self.operands, *self.spelling.args)


SearchOverloads: TypeAlias = Mapping[Any, tuple[Any, ...]]
"""Maps each overload that a search finds to the overloads that it builds on, which other searches may find."""


class RegionSearch:
    """Base of the searches: tries calls in place of regions, and collects those that agree."""

    limit: float = MAX_REGION_NODES
    """The maximum number of nodes in a region."""
    finds: ClassVar[SearchOverloads]

    def __init__(self, around: GraphIndex, runner: Runner, wanted: WantedCalls) -> None:
        self.around, self.runner, self.wanted = around, runner, wanted
        self.findings = Findings()

    def agreeing_call(
        self,
        root: fx.Node,
        name: str,
        spelling: CallReading,
        args: tuple[Any, ...],
        statistics: tuple[fx.Node, ...] = (),
        rare: tuple[fx.Node, ...] = (),
    ) -> FoundCall | None:
        """The call of `spelling` on `args`, if it computes the value of `root`; else None. `statistics` are a mean and
        a variance among the inputs, `rare` are boolean inputs that are mostly false."""
        inputs = tuple(dict.fromkeys(node for arg in args for node in nodes_in(arg)))
        region = self.around.between(root, inputs, self.limit)
        if region is None or not region.nodes:
            return None
        region = dataclasses.replace(region, statistics=statistics, rare=rare)
        names = {node: f"%{place}" for place, node in enumerate(inputs)}

        def call(*operands: torch.Tensor) -> torch.Tensor:
            values = dict(zip(inputs, operands))
            return spelling(*(value_of(arg, values) for arg in args))

        shown = [spell_operand(arg, names) for arg in args]
        verdict = self.runner.compare(region, call, f"{spelling}{shown}", spelling.small_numbers)
        if verdict.fault is not None:
            return None
        more = sum(arg.calls for arg in args if isinstance(arg, PreparedOperand))
        # The call itself and those that prepare its operands are new.
        return FoundCall(region, spelling, name, args, verdict.error, len(region) - 1 - more)

    def take(self, found: FoundCall, fault: str | None = None) -> bool:
        """Collect a found call, if it is wanted and no intermediate value of its region is used elsewhere. `fault`: a
        reason against it that is known."""
        call = found.spelling.target, found.args, dict(found.spelling.kwargs), found.region.root
        stays = self.wanted.stays(*call)
        if not stays and found.spelling.target not in self.wanted.intermediate:
            return False
        # After wanting it, as misses of unwanted ops are not reported.
        fault = fault or self.around.why_open(found.region)
        if fault is not None:
            if stays:
                self.findings.missed.append(MissedCall(found.name, found.region.root.name, fault))
            return False
        self.findings.found.append(dataclasses.replace(found, is_intermediate=not stays))
        return True


@dataclass
class Findings:
    """What was found in one graph, in one round."""

    found: list[FoundCall] = field(default_factory=list)
    missed: list[MissedCall] = field(default_factory=list)

    def chosen(self, around: GraphIndex) -> Iterator[FoundCall]:
        """A disjoint choice, made greedily by largest gain, then by graph order."""
        taken: set[fx.Node] = set()
        # Candidates are mostly nested, and the largest contains the others.
        order = sorted(self.found, key=lambda each: (-each.gain, around.place[each.region.root]))
        for each in order:
            if taken.isdisjoint(each.region.nodes):
                taken.update(each.region.nodes)
                yield each


class ResultMetadata:
    """The metadata of calls' results, computed once per signature."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def of(self, found: FoundCall) -> Any:
        """The metadata of a call's result, with its own strides and memory."""
        operands, fixed = list[Any](), found.region.root.meta.get("val")
        named = fx.node.map_aggregate(found.args, lambda leaf: _signed(leaf, operands))
        key = (repr(found.spelling), repr(named), *map(described, operands), getattr(fixed, "device", None))
        if any(map(is_symbolic, operands)):
            return _result(found)
        if key not in self._known:
            self._known[key] = _result(found)
        value = self._known[key]
        # Views that follow keep their metadata then, and need not be computed again.
        return fixed if _is_same(value, fixed, found.region.root) else fx.node.map_aggregate(value, own_memory)


def _is_same(value: Any, fixed: Any, root: fx.Node) -> bool:
    """Whether `root` has the same metadata and is not a view, so that the replacement can reuse its fake tensor."""
    if not isinstance(value, torch.Tensor) or not isinstance(fixed, torch.Tensor):
        return False
    if not isinstance(root.target, torch._ops.OpOverload) or view_arguments(root.op, root.target):
        return False
    return described(value) == described(fixed) and bool(value.requires_grad == fixed.requires_grad)


def _signed(leaf: Any, operands: list[Any]) -> Any:
    """An argument with nodes replaced by None; their metadata is appended to `operands`."""
    if isinstance(leaf, PreparedOperand):
        return [leaf.target, *(_signed(arg, operands) for arg in leaf.args)]
    if isinstance(leaf, fx.Node):
        operands.append(metadata(leaf))
        return None
    return leaf


def make_fold(
    found: FoundCall, around: GraphIndex, earlier: Mapping[str, RestoredCall], results: ResultMetadata
) -> tuple[Fold, RestoredCall]:
    """The fold of a found call, and its record for the report. `earlier` has the records of nodes folded before."""
    root, spelling = found.region.root, found.spelling
    meta = inherited_meta(root)
    name, value = root.name, results.of(found)
    parts: dict[Any, tuple[str, Mapping[str, Any]]] = {}
    if spelling.result:
        name = f"{root.name}_{spelling.target._overloadpacket.__name__}"
        parts = {spelling.result: (root.name, {**meta, "val": value[spelling.result[0]]} if value else root.meta)}
    if value is not None:
        meta["val"] = value
    gone = around.watchers(found.region)
    args = tuple(arg.fold(root) if isinstance(arg, PreparedOperand) else arg for arg in found.args)
    fold = Fold(
        "call_function",
        spelling.target,
        args,
        dict(spelling.kwargs),
        {root: spelling.result},
        name,
        meta,
        (),
        gone,
        parts,
    )
    inside = [earlier[node.name] for node in found.region.nodes if node.name in earlier]
    # A call that an earlier search made counts as the nodes that it replaced.
    nodes = len(found.region) + sum(each.nodes - 1 for each in inside)
    error = max(found.error, *(each.error or 0.0 for each in inside)) if inside else found.error
    return fold, RestoredCall(spell_target(spelling.target), name, nodes, found.name, error)


def _result(found: FoundCall) -> Any:
    return run_fake(found.spelling.target, found.args, dict(found.spelling.kwargs), found.region.root)


def _is_prepared(to: Target, operand: Any) -> bool:
    """Whether an operand only needs calls of a target."""
    if not isinstance(operand, PreparedOperand):
        return True
    own = _is_wanted(to, operand.target, operand.args, {}, operand.metadata)
    return own and all(_is_prepared(to, arg) for arg in operand.args)


def _is_wanted(to: Target, target: Any, args: Any, kwargs: Any, value: Any) -> bool:
    """Whether a call that returns `value` is legal on the target."""
    spelling = of_function(target)
    if to.surely_legal(spelling.op, spelling.overload):
        return True
    if not to.knows(target):
        return False
    graph = fx.Graph()
    known: dict[Any, fx.Node] = {}

    def placed(operand: Any) -> Any:
        if not isinstance(operand, (fx.Node, PreparedOperand)):
            return operand
        if id(operand) not in known:
            known[id(operand)] = graph.placeholder(operand.name if isinstance(operand, fx.Node) else "operand")
            meta = dict(operand.meta) if isinstance(operand, fx.Node) else {"val": operand.metadata}
            known[id(operand)].meta = meta
        return known[id(operand)]

    node = graph.call_function(target, *fx.node.map_aggregate((args, kwargs), placed))
    node.meta["val"] = value
    try:
        call = bound_call(node)
    except BindingError:
        return False
    return call is not None and to.why_illegal(call) is None


def choose_spelling(
    spellings: Iterable[CallReading], operands: tuple[Any, ...], root: fx.Node, wanted: WantedCalls
) -> CallReading | None:
    """The first spelling of a call that is wanted; without one, the first that can be an intermediate match."""
    spellings = tuple(spellings)
    for spelling in spellings:
        if wanted.stays(spelling.target, (*operands, *spelling.args), dict(spelling.kwargs), root):
            return spelling
    return next((spelling for spelling in spellings if spelling.target in wanted.intermediate), None)
