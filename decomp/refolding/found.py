"""What a search finds: calls that could stand in the place of regions, and places that were nearly one. Of calls that
overlap, the one that stands for most is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
from dataclasses import dataclass, field
import math
from typing import Any

import torch
from torch import fx

from decomp.errors import spelled
from decomp.graphs.tracing import on_metadata
from decomp.ir.binding import BindingError
from decomp.ir.call import bound_call, inherited_meta, metadata
from decomp.refolding.folding import Fold
from decomp.refolding.outcome import Folded, Missed
from decomp.refolding.readings import Spelling
from decomp.refolding.regions import Region, Surroundings
from decomp.refolding.trials import Runner
from decomp.rules.target import Target

Wanted = Callable[[Any, Any, Any, fx.Node], bool]
"""Whether a call of `(target, args, kwargs)` is wanted, which gives the value of a node."""


@dataclass(frozen=True)
class Prepared:
    """An operand that the graph does not have as the op takes it: one more call gives it."""

    node: fx.Node
    target: Any
    args: tuple[Any, ...] = ()

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return self.target(value, *self.args)  # type: ignore[no-any-return]

    def metadata(self) -> Any:
        """What it gives, as metadata. Raises what the op raises."""
        return _run_fake(self.target, (self.node, *self.args), {}, self.node)

    def fold(self, root: fx.Node) -> Fold:
        """The call, as a part of that which gives `root`."""
        meta = {**inherited_meta(root), "val": self.metadata()}
        args = (self.node, *self.args)
        return Fold("call_function", self.target, args, {}, {}, f"{root.name}_operand", meta, origin=root)


def reshaped(node: fx.Node, shape: Sequence[Any]) -> Prepared | None:
    """A value in another shape of as many elements; None where sizes are dynamic or do not agree."""
    sizes = list(metadata(node).shape)
    if not all(type(size) is int for size in (*sizes, *shape)) or math.prod(sizes) != math.prod(shape):
        return None
    found = Prepared(node, torch.ops.aten.view.default, (list(shape),))
    try:
        found.metadata()
    except (RuntimeError, ValueError):  # of strides that no view can show so
        return Prepared(node, torch.ops.aten.reshape.default, (list(shape),))
    return found


@dataclass(frozen=True, eq=False)
class Found:
    """A call that computes what a region does."""

    region: Region
    spelling: Spelling
    name: str
    operands: tuple[Any, ...]
    """Its leading arguments; the rest are those of the spelling."""
    error: float
    gain: int
    """How many nodes it saves."""

    @property
    def args(self) -> tuple[Any, ...]:
        """All positional arguments."""
        return (*self.operands, *self.spelling.args)


class Trier:
    """Tries calls in the place of regions, and keeps those that do."""

    def __init__(self, around: Surroundings, runner: Runner, wanted: Wanted) -> None:
        self.around, self.runner, self.wanted = around, runner, wanted
        self.findings = Findings()

    def stands(
        self, root: fx.Node, name: str, spelling: Spelling, args: tuple[Any, ...], statistics: tuple[fx.Node, ...] = ()
    ) -> Found | None:
        """The call of `spelling` on `args`, if it gives the value of `root`; `statistics` are a mean and a variance
        among them."""
        nodes = [arg.node if isinstance(arg, Prepared) else arg for arg in args]
        inputs = tuple(dict.fromkeys(arg for arg in nodes if isinstance(arg, fx.Node)))
        region = self.around.between(root, inputs)
        if region is None or not region.nodes:
            return None
        region = dataclasses.replace(region, statistics=statistics)
        places = [inputs.index(arg) if isinstance(arg, fx.Node) else None for arg in nodes]

        def call(*operands: torch.Tensor) -> torch.Tensor:
            given = [arg if place is None else _prepared(arg, operands[place]) for arg, place in zip(args, places)]
            return spelling(*given)

        shown = [arg if place is None else f"%{place}{_preparation(arg)}" for arg, place in zip(args, places)]
        verdict = self.runner.compare(region, call, f"{spelling}{shown}")
        if verdict.fault is not None:
            return None
        more = sum(isinstance(arg, Prepared) for arg in args)
        return Found(region, spelling, name, args, verdict.error, len(region) - 1 - more)

    def take(self, found: Found) -> bool:
        """Keep what was found, if nothing looks into it and its call is wanted."""
        if not self.wanted(found.spelling.target, found.args, dict(found.spelling.kwargs), found.region.root):
            return False
        fault = self.around.why_open(found.region)
        if fault is not None:
            self.findings.missed.append(Missed(found.name, found.region.root.name, fault))
            return False
        self.findings.found.append(found)
        return True


def _prepared(arg: Any, value: torch.Tensor) -> torch.Tensor:
    return arg(value) if isinstance(arg, Prepared) else value


def _preparation(arg: Any) -> str:
    return f".{arg.target}{arg.args}" if isinstance(arg, Prepared) else ""


@dataclass
class Findings:
    """What was found in one graph, in one round."""

    found: list[Found] = field(default_factory=list)
    missed: list[Missed] = field(default_factory=list)

    def chosen(self, around: Surroundings) -> Iterator[Found]:
        """Those that do not overlap, those that save most first; of equals the first in the graph."""
        taken: set[fx.Node] = set()
        order = sorted(self.found, key=lambda each: (-each.gain, around.place[each.region.root]))
        for each in order:
            if taken.isdisjoint(each.region.nodes):
                taken.update(each.region.nodes)
                yield each


def fold_of(found: Found, around: Surroundings, counts: Mapping[str, int]) -> tuple[Fold, Folded]:
    """The fold of a call that was found, and the record of it; `counts` says for how many nodes earlier ones stand."""
    root, spelling = found.region.root, found.spelling
    meta = inherited_meta(root)
    name, value = root.name, _result(found)
    parts: dict[Any, tuple[str, Mapping[str, Any]]] = {}
    if spelling.result:
        name = f"{root.name}_{spelling.target._overloadpacket.__name__}"
        parts = {spelling.result: (root.name, {**meta, "val": value[spelling.result[0]]} if value else root.meta)}
    if value is not None:
        meta["val"] = value
    gone = around.watchers(found.region)
    args = tuple(arg.fold(root) if isinstance(arg, Prepared) else arg for arg in found.args)
    fold = Fold("call_function", spelling.target, args, dict(spelling.kwargs), {root: spelling.result}, name,
                meta, (), gone, parts)
    nodes = sum(counts.get(node.name, 1) for node in found.region.nodes)
    return fold, Folded(spelled(spelling.target), name, nodes, found.name, found.error)


def _result(found: Found) -> Any:
    """The metadata of what a call gives, on memory of its own, from that of its operands; strides are its own, too."""
    return _run_fake(found.spelling.target, found.args, dict(found.spelling.kwargs), found.region.root)


def _run_fake(target: Any, args: Any, kwargs: Mapping[str, Any], like: fx.Node) -> Any:
    """The metadata of a call from that of its operands, in the mode of the value of `like`."""
    value = metadata(like)
    mode = getattr(value, "fake_mode", None)
    if mode is None:
        return value
    args = fx.node.map_aggregate(args, _value_of)
    with on_metadata(mode):
        return target(*args, **kwargs)


def _value_of(leaf: Any) -> Any:
    if isinstance(leaf, Prepared):
        return leaf.metadata()
    return metadata(leaf) if isinstance(leaf, fx.Node) else leaf


def wanted_by(to: Target | None) -> Wanted:
    """What tells whether the calls of a target, or any, are wanted."""

    def wanted(target: Any, args: Any, kwargs: Any, like: fx.Node) -> bool:
        if to is None:
            return True
        graph = fx.Graph()
        known: dict[fx.Node, fx.Node] = {}

        def placed(node: Any) -> Any:
            if isinstance(node, Prepared):
                made = graph.placeholder(f"{node.node.name}_operand")
                made.meta["val"] = node.metadata()
                return made
            if not isinstance(node, fx.Node):
                return node
            if node not in known:
                known[node] = graph.placeholder(node.name)
                known[node].meta = dict(node.meta)
            return known[node]

        first = (arg for arg in args if isinstance(arg, Prepared))
        if not all(wanted(arg.target, (arg.node, *arg.args), {}, arg.node) for arg in first):
            return False
        node = graph.call_function(target, *fx.node.map_aggregate((args, kwargs), placed))
        node.meta["val"] = like.meta.get("val")
        try:
            call = bound_call(node)
        except BindingError:
            return False
        return call is not None and to.why_illegal(call) is None

    return wanted


def spelled_as(
    spellings: Iterable[Spelling], operands: tuple[Any, ...], root: fx.Node, wanted: Wanted
) -> Spelling | None:
    """The first way to spell a call that is wanted."""
    for spelling in spellings:
        if wanted(spelling.target, (*operands, *spelling.args), dict(spelling.kwargs), root):
            return spelling
    return None
