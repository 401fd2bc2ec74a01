"""Decides which matches of a program to replace: those whose rule reaches the target at a lower cost than the calls
that the match replaces; of overlapping matches, those that save most."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import functools
import math
from typing import Any, Protocol

from torch import fx, nn

from decomp.graphs.rewrite import Rewrite
from decomp.ir.arguments import key
from decomp.ir.call import NUMBER, is_host, kind_of
from decomp.patterns.choosing import PatternCandidate, choose_disjoint
from decomp.patterns.contraction import contract, price_call
from decomp.patterns.found import Match, NearMiss
from decomp.patterns.matching import find_matches


class PatternRewrite(Protocol):
    """The part of a pattern's rule that is used here."""

    @property
    def pattern(self) -> Any:
        """The pattern that it replaces."""

    def why_not(self, match: Match) -> str | None:
        """Why the rule declines a match, or None."""


class FusionPricing(Protocol):
    """The part of the planner that is used here."""

    everywhere: bool

    def price(self, node: fx.Node, frozen: Collection[fx.Node] = ()) -> float | str:
        """The cost of a call on the target, given which operands are `frozen`; or why it does not reach the target."""

    def spec(self, node: fx.Node) -> int:
        """A number for the metadata of a value, equal for equal metadata."""


@dataclass(frozen=True)
class PatternFusion:
    """The outcome of all patterns in one graph."""

    rewrite: Rewrite | None = None
    """To the graph with the chosen matches contracted; None if none was chosen."""
    matches: Mapping[fx.Node, Match] = field(default_factory=dict)
    """The match that each call of a pattern in that graph replaces."""
    rules: Mapping[Match, Any] = field(default_factory=dict)
    """The rule of each chosen match."""
    passed_over: tuple[NearMiss, ...] = ()
    """Matches that were not chosen, and near misses, with the reason."""
    asked: tuple[Any, ...] = ()
    """All rules whose patterns were searched for."""

    searched: tuple[Any, ...] = ()
    """The graph that was searched, and the owner of its attributes."""

    def reasons(self) -> dict[str, list[tuple[str, str]]]:
        """By the name of a node: the rules whose patterns it matches in part, each with the reason why it was not
        replaced."""
        names = {rule.pattern: f"pattern {rule}" for rule in self.asked}
        found: dict[str, list[tuple[str, str]]] = {}
        for miss in self.passed_over:
            for node in miss.nodes:
                found.setdefault(node.name, []).append((names[miss.pattern], miss.reason))
        return found

    def uses(self) -> Iterator[PatternUse]:
        """The outcome of each rule, in order of registration."""
        for rule in self.asked:
            taken = tuple(match for match, own in self.rules.items() if own is rule)
            missed = tuple(miss for miss in self.passed_over if miss.pattern is rule.pattern)
            yield PatternUse(str(rule), taken, missed, functools.partial(_closest, rule.pattern, *self.searched))


@dataclass(frozen=True)
class PatternUse:
    """The outcome of one pattern's rule in one graph."""

    rule: str
    taken: tuple[Match, ...]
    missed: tuple[NearMiss, ...]
    """Matches that were not chosen, and near misses."""
    closest: Callable[[], NearMiss | str] = field(default=lambda: "", repr=False, compare=False)
    """Finds the place that matches most of the pattern, or says which op is missing from the program."""


def choose_matches(
    graph: fx.Graph,
    rules: Sequence[PatternRewrite],
    pricing: FusionPricing,
    owner: nn.Module,
    kept: Collection[fx.Node],
    constants: Callable[[], Collection[fx.Node]] = tuple,
    freeze: bool = False,
) -> PatternFusion:
    """Find the patterns of some rules in a graph, and contract the matches to replace. `owner` has the attributes that
    the graph names; `kept` are values that are observed though no node uses them. `constants` finds the nodes that
    freezing computes once; with `freeze` they cost nothing."""
    by_pattern = {rule.pattern: rule for rule in rules}
    missed: list[NearMiss] = []
    candidates: list[PatternCandidate] = []
    costs = _Savings(pricing, constants, freeze)
    for match in find_matches(graph, by_pattern, owner=owner, kept=kept, missed=missed):
        # The rule's own condition first: pricing plans the rule, which takes longer.
        saving = by_pattern[match.pattern].why_not(match) or costs.saving(match)
        if isinstance(saving, str):
            missed.append(_not_taken(match, saving))
        else:
            candidates.append(PatternCandidate(match, saving))
    chosen = choose_disjoint(candidates)
    if not chosen:
        return PatternFusion(passed_over=tuple(missed), asked=tuple(rules), searched=(graph, owner))
    rewrite, matches = contract(graph, [candidate.match for candidate in chosen])
    taken = dict.fromkeys(matches.values())
    missed += [_overlapped(candidate.match, taken) for candidate in candidates if candidate.match not in taken]
    own = {match: by_pattern[match.pattern] for match in taken}
    return PatternFusion(rewrite, matches, own, tuple(missed), tuple(rules), (graph, owner))


def _closest(pattern: Any, graph: fx.Graph, owner: nn.Module) -> NearMiss | str:
    """The place that matches most of a pattern; if its last op is not in the graph, a sentence that says so."""
    missed: list[NearMiss] = []
    for _ in find_matches(graph, [pattern], owner=owner, missed=missed, everywhere=True):
        pass
    if missed:
        return max(missed, key=lambda miss: miss.found)
    return f"the program has no {' or '.join(sorted(pattern.roots))}, in which it ends"


def _not_taken(match: Match, reason: str) -> NearMiss:
    return NearMiss(match.pattern, match.root, reason, len(match.pattern.calls), match.nodes)


def _overlapped(match: Match, taken: Collection[Match]) -> NearMiss:
    """The near miss for a match that overlaps with a chosen one."""
    nodes = set(match.nodes)
    other = next((each for each in taken if not nodes.isdisjoint(each.nodes)), None)
    if other is None:
        return _not_taken(match, "it cannot be ordered among the other matches")
    return _not_taken(match, f"overlaps with {other.pattern.name} at {other.root.name}, which saves more")


class _Savings:
    """The savings of matches, at the prices of the lowered program, which is frozen or not."""

    def __init__(self, pricing: FusionPricing, constants: Callable[[], Collection[fx.Node]], freeze: bool) -> None:
        self.everywhere, self.freeze = pricing.everywhere, freeze
        self._as_given = _Costs(pricing, ())
        # Only if a program is frozen, or if a match is not worth it: finding constants walks the graph.
        self._frozen = functools.cache(lambda: _Costs(pricing, constants()))

    def saving(self, match: Match) -> float | str:
        """The saving if a match is replaced, or why it is not."""
        costs = self._frozen() if self.freeze else self._as_given
        own = costs.of_match(match)
        if isinstance(own, str):
            return own
        if self.everywhere:
            # `decompose` has no costs; the match that replaces most calls is taken.
            return float(len(match.nodes))
        whole = costs.of_calls(match)
        # A tie keeps the program as its author wrote it.
        if own >= whole:
            return f"costs {own:g}, the calls that it replaces {whole:g}{self._if_frozen(match, whole)}"
        return min(whole - own, _UNREACHABLE)

    def _if_frozen(self, match: Match, before: float) -> str:
        """The cost of a match in a frozen program, if it would be replaced there; else an empty text."""
        # It was priced as frozen already.
        own = math.inf if self.freeze else self._frozen().of_match(match)
        whole = self._frozen().of_calls(match)
        if isinstance(own, str) or own >= whole:
            return ""
        return f"; with freeze=True {own:g}" if whole == before else f"; with freeze=True {own:g}, they {whole:g}"


class _Costs:
    """The costs of matches and of their parts, given the `frozen` nodes. Calls of patterns are priced in a separate
    graph, before the program is contracted."""

    def __init__(self, pricing: FusionPricing, frozen: Collection[fx.Node]) -> None:
        self.pricing, self.frozen = pricing, frozen
        self.graph, self.inputs = fx.Graph(), dict[fx.Node, fx.Node]()
        self._of_nodes: dict[fx.Node, float | str] = {}
        self._of_matches: dict[Any, float | str] = {}

    def of_match(self, match: Match) -> float | str:
        """The cost of the call of a pattern, or why it does not reach the target."""
        key = self._key(match)
        if key not in self._of_matches:
            # By key, as a model of forty layers has forty equal matches.
            self._of_matches[key] = self._price(match)
        return self._of_matches[key]

    def of_calls(self, match: Match) -> float:
        """The cost of the calls that a match replaces; infinity if one does not reach the target."""
        parts = [self._price_of_node(node) for node in match.nodes if not is_host(node)]
        return math.inf if any(isinstance(part, str) for part in parts) else sum(map(float, parts))

    def _price(self, match: Match) -> float | str:
        call = price_call(self.graph, match, self.inputs)
        for node in match.inputs:
            if kind_of(node) == "host":
                # Programs without metadata have no other sign of an input that is a number.
                self.inputs[node].meta[NUMBER] = True
        return self.pricing.price(call, {self.inputs[node] for node in match.inputs if node in self.frozen})

    def _price_of_node(self, node: fx.Node) -> float | str:
        if node not in self._of_nodes:
            self._of_nodes[node] = 0.0 if node in self.frozen else self.pricing.price(node, self.frozen)
        return self._of_nodes[node]

    def _key(self, match: Match) -> Any:
        """Everything that the price of a match depends on: matches with equal keys have equal prices."""
        places: dict[fx.Node, int] = {}

        def described(value: Any) -> Any:
            if isinstance(value, fx.Node):
                return places.setdefault(value, len(places)), self.pricing.spec(value), value in self.frozen
            return key(value, described) if isinstance(value, (list, tuple)) else (type(value), repr(value))

        given = tuple(described(match.bound.get(name)) for name in match.pattern.variables)
        covered = set(match.nodes)
        read = tuple((self.pricing.spec(node), covered.issuperset(node.users)) for node in match.outputs)
        return match.pattern, given, read


# Finite: sums of infinities could not tell one such match from two.
_UNREACHABLE = 1e18
"""The saving if a call would not reach the target otherwise."""
