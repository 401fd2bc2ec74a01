"""What the page of a difference holds: two lowerings call by call, and what changed, as plain values. It is written
into the page as one JSON object with these names, and `difference.js` reads nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import functools

from decomp.locking.comparing import LockDifference, compare
from decomp.locking.lock import Lock
from decomp.lowering import Lowering
from decomp.page.contents import CALL, HOST, DecisionText, GraphStages, PageContents, RuleOutcome
from decomp.page.gathering import contents_of


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What became of a call of the source in one of the two."""

    how: str
    """`gelu_of_parts (gelu.py:75)`, `kept`, `blocked: no rule`."""
    kind: str
    """`legal`, `derived` or `blocked`."""
    count: int
    """How many calls that the target must support come from it, at the end."""
    cost: float
    """By the cost model of the lowering; -1 if unknown."""
    error: str
    """`0.97 ULP`: measured where it was run, else from the certificate; empty if unknown."""
    lines: tuple[str, ...] = ()
    """These calls, `aten.mul.Tensor(%x, 2): f32[2, 16]`. Empty where both are alike."""


@dataclass(frozen=True, slots=True)
class CallInBoth:
    """A call of the source, in both. None: it is not there."""

    graph: str
    """The attribute that holds the graph; empty for the program's own."""
    module: str
    op: str
    name: str
    type: str
    line: str
    """The user's line."""
    old: CallOutcome | None
    new: CallOutcome | None
    alike: bool
    """Whether both became calls of the same ops on operands of the same types, by the same rule."""


@dataclass(frozen=True, slots=True)
class ComparedProgram:
    """One of the two."""

    name: str
    """What the user calls it."""
    target: str
    headline: str
    cost: str
    """The name of the cost model."""


@dataclass(frozen=True, slots=True)
class DifferenceContents:
    """The whole page."""

    title: str
    old: ComparedProgram
    new: ComparedProgram
    facts: tuple[tuple[str, str, str], ...]
    """Name, and what each says of itself."""
    changes: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    """By kind: what changed, and how."""
    calls: tuple[CallInBoth, ...]


def differences(
    old: Lowering, new: Lowering, names: tuple[str, str] = ("before", "after"), found: LockDifference | None = None
) -> DifferenceContents:
    """Everything that the page of the difference between two lowerings shows. `found`: how their locks differ."""
    both = contents_of(old), contents_of(new)
    found = found or compare(Lock.of(old), Lock.of(new))
    heads = [ComparedProgram(name, each.target, each.headline, each.cost) for name, each in zip(names, both)]
    title = f"{heads[0].name} ({heads[0].target}) → {heads[1].name} ({heads[1].target})"
    facts = [dict(each.facts) for each in both]
    kept = dict.fromkeys(name for each in both for name, _ in each.facts if name not in ("time", "effort"))
    return DifferenceContents(
        title,
        heads[0],
        heads[1],
        tuple((name, facts[0].get(name, "–"), facts[1].get(name, "–")) for name in kept),
        tuple((kind, tuple((each.about, each.text) for each in changes)) for kind, changes in found.by_kind()),
        tuple(_compared(*both)),
    )


def _compared(old: PageContents, new: PageContents) -> Iterator[CallInBoth]:
    """The calls of both sources, in the order of the program. Calls are the same by module, op, and how many calls of
    that op come before it in that module."""
    was, now = ({call.key: call for call in _calls(each)} for each in (old, new))
    for key in _merged(list(was), list(now)):
        calls = [side.get(key) for side in (was, now)]
        alike = key in was and key in now and was[key].essence() == now[key].essence()
        sides = [call.outcome(with_lines=not alike) if call is not None else None for call in calls]
        yield (now.get(key) or was[key]).compared(sides[0], sides[1], alike)


_Key = tuple[str, str, str, int]
"""Graph, module, op, and how many calls of the op are before it in that module."""


class _Graph:
    """One graph of one of the two, with what came from each node of its source."""

    def __init__(self, contents: PageContents, graph: GraphStages) -> None:
        self.contents, self.name = contents, graph.name
        self.source, self.functional, self.last = graph.stages[0], graph.stages[1], graph.stages[-1]
        owners = list(range(len(self.source.names)))
        made: list[dict[int, list[int]]] = []
        for stage in graph.stages[1:]:
            owners = [owners[origin] if origin >= 0 else -1 for origin in stage.origins]
            made.append({})
            for node, owner in enumerate(owners):
                made[-1].setdefault(owner, []).append(node)
        self.planned, self.final = made[0], made[-1]
        self.fused = {node: call for call, nodes in self.functional.fused.items() for node in nodes}

    def text(self, index: int) -> str:
        return self.contents.texts[index] if index >= 0 else ""


@dataclass(frozen=True)
class _Call:
    """One call of the source of one of the two."""

    key: _Key
    graph: _Graph
    node: int

    def compared(self, old: CallOutcome | None, new: CallOutcome | None, alike: bool) -> CallInBoth:
        graph, module, op, _ = self.key
        source, text = self.graph.source, self.graph.text
        type_, line = text(source.types[self.node]), text(source.why[self.node])
        return CallInBoth(graph, module, op, source.names[self.node], type_, line, old, new, alike)

    def outcome(self, with_lines: bool) -> CallOutcome:
        kinds = [each.kind for each in self._decisions]
        kind = next((each for each in ("blocked", "derived") if each in kinds), "legal")
        costs = [each.cost for each in self._used]
        cost = sum(costs) if costs and min(costs) >= 0 else -1.0
        lines = tuple(map(self._line, self._called)) if with_lines else ()
        return CallOutcome(self._how, kind, len(self._called), cost, self._error(), lines)

    def essence(self) -> tuple[str, list[tuple[str, str]]]:
        """What has to be the same in two outcomes that are alike: all but the names of nodes."""
        last, text = self.graph.last, self.graph.text
        return self._how, [(text(last.ops[node]), text(last.types[node])) for node in self._called]

    @functools.cached_property
    def _how(self) -> str:
        reasons = [reason for each in self._decisions if each.kind == "blocked" for reason in each.reasons]
        rules = [each.rule for each in self._used]
        if reasons:
            return f"blocked: {'; '.join(dict.fromkeys(reasons))}"
        if rules:
            return ", ".join(dict.fromkeys(rules))
        if self.node in self.graph.fused and not self.graph.final.get(self.node):
            return f"in %{self.graph.functional.names[self.graph.fused[self.node]]}"
        return "kept" if self.graph.final.get(self.node) else "not needed"

    def _error(self) -> str:
        measured = [each.measured.values for each in self._decisions if each.measured is not None]
        known = [ulp for ulp in measured if ulp is not None]
        if known:
            return f"{max(known):.3g} ULP, measured"
        return ", ".join(dict.fromkeys(each.error for each in self._used if each.error))

    @functools.cached_property
    def _decisions(self) -> list[DecisionText]:
        numbers = [self.graph.functional.decisions[node] for node in self.graph.planned.get(self.node, ())]
        return [self.graph.contents.decisions[number] for number in numbers if number >= 0]

    @functools.cached_property
    def _used(self) -> list[RuleOutcome]:
        return [each.used for each in self._decisions if each.used is not None]

    @functools.cached_property
    def _called(self) -> list[int]:
        return [node for node in self.graph.final.get(self.node, ()) if self.graph.last.kinds[node] == CALL]

    def _line(self, node: int) -> str:
        last, text = self.graph.last, self.graph.text
        return f"{text(last.ops[node])}{last.arguments[node]}: {text(last.types[node])}"


def _calls(contents: PageContents) -> Iterator[_Call]:
    seen: Counter[tuple[str, str, str]] = Counter()
    for graph in (_Graph(contents, each) for each in contents.graphs):
        for node, kind in enumerate(graph.source.kinds):
            if kind in (CALL, HOST):
                key = graph.name, graph.text(graph.source.modules[node]), graph.text(graph.source.ops[node])
                yield _Call((*key, seen[key]), graph, node)
                seen[key] += 1


def _merged(old: Sequence[_Key], new: Sequence[_Key]) -> Iterator[_Key]:
    """Both in the order of the new, with what only the old one has behind what it followed there."""
    there = set(new)
    followers: dict[_Key | None, list[_Key]] = {}
    last: _Key | None = None
    for key in old:
        if key in there:
            last = key
        else:
            followers.setdefault(last, []).append(key)
    yield from followers.get(None, ())
    for key in new:
        yield key
        yield from followers.get(key, ())
