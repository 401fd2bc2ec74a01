"""Finds patterns in a graph. Patterns are indexed by their last op; one walk over the graph tries each at the nodes
that can be its last one, and compares operands from there backwards, with backtracking. A match that cannot be replaced
without changing the program is refused, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import fx, nn

from decomp.ir.call import call_target, kind_of, metadata
from decomp.ir.op_facts import COMMUTATIVE
from decomp.patterns.found import Match, NearMiss
from decomp.patterns.host import SearchGraph
from decomp.patterns.literals import is_same_literal
from decomp.patterns.pattern import Pattern
from decomp.patterns.terms import PASSES_OPERAND, NodeReading, list_readings, op_name

# A chain of n additions has 2^n orders. Patterns in use need a few comparisons a call.
MAX_COMPARISONS = 64
"""The maximum number of comparisons at one place for each call of a pattern. The search backtracks over the operand
order of commutative ops, which is exponential in the worst case."""
MAX_SOLUTIONS = 16
"""How many solutions are tried at one place if the first one cannot be replaced."""


def find_matches(
    graph: fx.Graph,
    patterns: Iterable[Pattern],
    *,
    owner: nn.Module | None = None,
    kept: Collection[fx.Node] = (),
    missed: list[NearMiss] | None = None,
    everywhere: bool = False,
) -> Iterator[Match]:
    """Iterate over the matches of patterns in `graph`, in the order of the graph and, at one node, of the patterns.
    Matches may overlap. `owner` has the modules that the graph calls; `kept` are nodes whose values are observed though
    no node uses them, because they are written back. Near misses are appended to `missed`: places that match more than
    half of the calls of a pattern, or, with `everywhere`, its last call."""
    by_root: dict[str, list[Pattern]] = {}
    for pattern in dict.fromkeys(patterns):
        for op in pattern.roots:
            by_root.setdefault(op, []).append(pattern)
    if not by_root:
        return
    host = SearchGraph(graph, owner, frozenset(kept))
    ends: dict[Any, list[Pattern]] = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "call_method"):
            continue
        here = ends.get((node.op, node.target))
        # By target: binding arguments at each node would take most of the search.
        if here is None:
            ops = list_readings(op_name(node))
            here = ends[node.op, node.target] = list(dict.fromkeys(p for op in ops for p in by_root.get(op, ())))
            # In order of registration, whichever of its ops led here.
            here.sort(key=list(dict.fromkeys(p for each in by_root.values() for p in each)).index)
        for pattern in here:
            if not everywhere and not _is_likely(pattern, node):
                continue
            found = match_at(host, pattern, node)
            if isinstance(found, Match):
                yield found
            elif missed is not None and (everywhere or 2 * found.found > len(pattern.calls)):
                missed.append(found)


def _is_likely(pattern: Pattern, node: fx.Node) -> bool:
    """Whether a node can match the last call of a pattern, judging only by the ops of its operands: a cheap filter."""
    for ops in pattern.operands:
        for given in node.all_input_nodes:
            if not ops.isdisjoint(list_readings(op_name(given))) or op_name(given) in PASSES_OPERAND:
                break
        else:
            # A root with several readings may have other operands than the call itself.
            return not pattern.root_is_plain
    return True


def match_at(host: SearchGraph, pattern: Pattern, node: fx.Node) -> Match | NearMiss:
    """The match of a pattern that ends in this node of a graph, or why it does not match."""
    search = _PatternSearch(host, pattern)
    refused: NearMiss | None = None
    start = _MatchState(goals=[(pattern.root, node, "", None)])
    for i, state in enumerate(search.solutions(start)):
        found = Match(pattern, node, *search.covered(state), state.bound, state.placed)
        # Only for whole solutions. One that may not be replaced need not be the only one: the other order of operands
        # may leave an inner value unshared.
        reason = host.why_not(found)
        if reason is None:
            return found
        refused = refused or NearMiss(pattern, node, reason, len(pattern.calls), found.nodes)
        if i >= MAX_SOLUTIONS:
            break
    return refused or NearMiss(pattern, node, search.reason, search.reached, search.furthest)


Goal = tuple[Any, Any, str, NodeReading | None]
"""A comparison to make: a value of the pattern, a value of the program, and the argument and call that it comes
from."""


@dataclass
class _MatchState:
    """A partial solution of the search."""

    goals: list[Goal]
    placed: dict[fx.Node, fx.Node] = field(default_factory=dict)
    bound: dict[str, Any] = field(default_factory=dict)
    through: dict[fx.Node, None] = field(default_factory=dict)
    """Nodes of the program that are part of another node's term, or pass a value on unchanged."""
    later: list[tuple[fx.Node, Any]] = field(default_factory=list)
    """Numbers that the pattern computes and the program has as constants, which are compared at the end."""

    def copy(self) -> _MatchState:
        """A copy, for backtracking."""
        return _MatchState(list(self.goals), dict(self.placed), dict(self.bound), dict(self.through), list(self.later))

    def with_call(self, choice: _Choice) -> _MatchState:
        """Match a call, and add the comparisons of its operands; returns the state itself."""
        self.placed[choice.p] = choice.h
        # A stack: the first operand is compared first.
        self.goals += choice.goals[::-1]
        for node in choice.through:
            self.through[node] = None
        return self


class _Choice(NamedTuple):
    """One way to match a call of the program with a call of the pattern."""

    goals: list[Goal]
    """The comparisons of its operands."""
    through: tuple[fx.Node, ...]
    p: fx.Node
    h: fx.Node


class _PatternSearch:
    """The search for one pattern at one place."""

    def __init__(self, host: SearchGraph, pattern: Pattern) -> None:
        self.host, self.pattern = host, pattern
        self.steps = MAX_COMPARISONS * (len(pattern.calls) + 4)
        self.reached, self.reason = 0, ""
        self.furthest: tuple[fx.Node, ...] = ()

    def covered(self, state: _MatchState) -> tuple[tuple[fx.Node, ...], tuple[fx.Node, ...]]:
        """The nodes that a match replaces, in order, and its outputs."""
        outputs = tuple(state.placed[node] for node in self.pattern.outputs)
        nodes = self.host.with_inner({*state.placed.values()}, state.through, outputs)
        return tuple(sorted(nodes, key=self.host.place.__getitem__)), outputs

    def solutions(self, state: _MatchState) -> Iterator[_MatchState]:
        """All solutions that extend a state; the first one keeps operands in the order given."""
        while state.goals:
            # Counted over all branches, so that the bound holds for the place.
            self.steps -= 1
            if self.steps < 0:
                self._miss(state, "its operands can be ordered in too many ways")
                return
            goal = state.goals.pop()
            choices = self._step(state, *goal)
            if choices is None:
                continue
            if len(choices) == 1:
                # No copy where there is no choice, which is nearly always.
                state.with_call(choices[0])
                continue
            for choice in choices:
                yield from self.solutions(state.copy().with_call(choice))
            return
        # An output that the root does not depend on is not reached from it.
        if not all(node in state.placed for node in self.pattern.outputs):
            for choice in self._beside(state):
                yield from self.solutions(state.copy().with_call(choice))
        elif self._numbers_agree(state):
            yield state

    def _miss(self, state: _MatchState, reason: str) -> list[_Choice]:
        """Record why the search fails here, if it got further than before."""
        if len(state.placed) >= self.reached and (len(state.placed) > self.reached or not self.reason):
            self.reached, self.reason, self.furthest = len(state.placed), reason, tuple(state.placed.values())
        return []

    def _step(self, state: _MatchState, p: Any, h: Any, name: str, term: NodeReading | None) -> list[_Choice] | None:
        """Process one goal. Returns the choices to branch on, empty if the goal fails; None if it succeeds without a
        choice."""
        if isinstance(p, fx.Node):
            if p.op == "placeholder":
                return self._variable(state, str(p.target), h)
            return self._call(state, p, h)
        if isinstance(p, (list, tuple)) and isinstance(h, (list, tuple)):
            if len(p) != len(h):
                return self._miss(state, f"{name} is {_shown(h)}, not {_shown(p)}")
            state.goals += [(a, b, name, term) for a, b in reversed(list(zip(p, h)))]
            return None
        if isinstance(p, slice) and isinstance(h, slice):
            parts = zip((p.start, p.stop, p.step), (h.start, h.stop, h.step))
            state.goals += [(a, b, name, term) for a, b in parts]
            return None
        if not isinstance(h, fx.Node) and term is not None and is_same_literal(p, h, name, term):
            return None
        return self._miss(state, f"{name} of {_op(term)} is {_shown(h)}, not {_shown(p)}")

    def _variable(self, state: _MatchState, name: str, h: Any) -> list[_Choice] | None:
        if name in state.bound:
            # A variable that occurs twice must have one value.
            if self.host.same_value(state.bound[name], h):
                return None
            return self._miss(state, f"{name} would be both {_shown(state.bound[name])} and {_shown(h)}")
        if h is None and name not in self.pattern.optional:
            return self._miss(state, f"there is no {name}: a variable that may be absent has the default None")
        state.bound[name] = h
        return None

    def _call(self, state: _MatchState, p: fx.Node, h: Any) -> list[_Choice] | None:
        if not isinstance(h, fx.Node):
            if isinstance(h, (int, float)) and kind_of(p) == "host":
                # Shapes may be bound only later, so the number is compared at the end.
                state.later.append((p, h))
                return None
            return self._miss(state, f"the program has {_shown(h)} where the pattern calls {op_name(p)}")
        if p in state.placed:
            same = state.placed[p] is h
            return None if same else self._miss(state, f"{h.name} is not the same value as {state.placed[p].name}")
        choices = list(self._readings(state, p, h))
        if choices:
            return choices
        # Only if the call itself does not match: a pattern may contain dropout.
        below = self.host.terms.passed_on(h)
        if below is not None:
            state.through[h] = None
            state.goals.append((p, below, "", None))
            return None
        reason = next(self._other_arguments(p, h), None)
        if reason is None:
            return self._miss(state, self._unlike(p, h))
        # The op is that of the pattern, which is further than any other came.
        return self._miss(_MatchState([], {**state.placed, p: h}), reason)

    def _unlike(self, p: fx.Node, h: fx.Node) -> str:
        wanted, found = self.pattern.terms.raw(p), self.host.terms.raw(h)
        wanted_op, found_op = wanted.op if wanted else op_name(p), found.op if found else op_name(h) or h.op
        if wanted_op == found_op:
            return f"{h.name} has other arguments than the {wanted_op} of the pattern"
        return f"{h.name} is {found_op}, not {wanted_op}"

    def _readings(self, state: _MatchState, p: fx.Node, h: fx.Node) -> Iterator[_Choice]:
        """The ways to match the call `h` with the call `p`."""
        # Python functions such as `operator.getitem` or `math.sqrt`, which no schema describes.
        if p.op == h.op == "call_function" and self.pattern.terms.raw(p) is None and p.target is h.target:
            pairs = zip((*p.args, *p.kwargs.values()), (*h.args, *h.kwargs.values()))
            goals: list[Goal] = [(a, b, "", None) for a, b in pairs]
            if len(p.args) == len(h.args) and p.kwargs.keys() == h.kwargs.keys():
                yield _Choice(goals, (), p, h)
        for own, other in self._same_op(p, h):
            if _other_argument(own, other) is None:
                yield from self._arguments(p, h, own, other)

    def _same_op(self, p: fx.Node, h: fx.Node) -> Iterator[tuple[NodeReading, NodeReading]]:
        """The readings of two calls as one op."""
        for own in self.pattern.terms.of(p):
            for other in self.host.terms.of(h):
                # An in-place call also writes, which the replacement would not.
                if own.op == other.op and not other.inplace:
                    yield own, other

    def _other_arguments(self, p: fx.Node, h: fx.Node) -> Iterator[str]:
        """Why readings of two calls as one op have other arguments."""
        for own, other in self._same_op(p, h):
            name = _other_argument(own, other)
            if name is not None:
                yield f"{name} of {h.name} is {_shown(other.arguments.get(name))}"

    def _arguments(self, p: fx.Node, h: fx.Node, own: NodeReading, other: NodeReading) -> Iterator[_Choice]:
        ours, theirs = own.arguments, other.arguments
        goals: list[Goal] = [(ours[name], theirs[name], name, other) for name in ours if name in theirs]
        orders = [goals]
        if own.op.removeprefix("aten.") in COMMUTATIVE and len(goals) > 1 and own.arguments.get("alpha", 1) == 1:
            (a, b, *_), (c, d, *_) = goals[:2]
            # Twice the same operand has one order.
            if b is not d:
                orders.append([(a, d, "self", other), (c, b, "other", other), *goals[2:]])
                # Keep one, to have a reason to report.
                orders = [order for order in orders if all(self._may_be(p, h) for p, h, *_ in order[:2])] or orders[:1]
        for order in orders:
            yield _Choice(order, other.through, p, h)

    def _may_be(self, p: Any, h: Any) -> bool:
        """Whether an operand can match that of the pattern, judging only by their ops."""
        if not isinstance(p, fx.Node) or p.op == "placeholder":
            return isinstance(p, fx.Node) or not isinstance(h, fx.Node)
        if not isinstance(h, fx.Node):
            return isinstance(h, (int, float)) and kind_of(p) == "host"
        wanted = list_readings(op_name(p))
        return not wanted.isdisjoint(list_readings(op_name(h))) or self.host.terms.passed_on(h) is not None

    def _beside(self, state: _MatchState) -> Iterator[_Choice]:
        """Candidates for an output that the root does not depend on, found among the users of matched values."""
        for p in self.pattern.calls:
            known = [self._value(state, given) for given in p.all_input_nodes] if p not in state.placed else []
            anchor = next((value for value in known if isinstance(value, fx.Node)), None)
            if anchor is None:
                continue
            taken = {*state.placed.values()}
            self._miss(state, f"{anchor.name} has no other user that matches the {op_name(p)} of the pattern")
            # A weight may have thousands of users.
            for user in [*anchor.users][:MAX_COMPARISONS]:
                if user not in taken and user in self.host.place:
                    yield from self._readings(state, p, user)
            return
        self._miss(state, "its outputs have nothing in common")

    def _value(self, state: _MatchState, p: fx.Node) -> Any:
        return state.bound.get(str(p.target)) if p.op == "placeholder" else state.placed.get(p)

    def _numbers_agree(self, state: _MatchState) -> bool:
        """Whether the numbers that the pattern computes from shapes equal the constants of the program."""
        for p, number in state.later:
            found = compute_number(p, state.bound, state.placed)
            # A symbolic size equals no number without a guard.
            if type(found) not in (int, float) or found != number:
                self._miss(state, f"{_computed(p, found)}, the program has {number}: a free variable takes any number")
                return False
        return True


def compute_number(p: Any, bound: Mapping[str, Any], placed: Mapping[fx.Node, fx.Node]) -> Any:
    """The result of a call of a pattern, computed from the metadata of its variables; None if it is not known."""
    if not isinstance(p, fx.Node):
        return p
    if p.op == "placeholder":
        value = bound.get(str(p.target))
        return metadata(value) if isinstance(value, fx.Node) else value
    if p in placed:
        return metadata(placed[p])
    args = fx.node.map_arg(p.args, lambda each: compute_number(each, bound, placed))
    if any(each is None for each in args):
        return None
    try:
        return call_target(p.target, args, p.kwargs)
    except Exception:  # it needs data, of which there is only metadata
        return None


def _other_argument(own: NodeReading, other: NodeReading) -> str | None:
    """The first argument that only one of two readings of an op has, unless it is the default; else None."""
    if own.arguments.keys() == other.arguments.keys():
        return None
    for name in sorted(own.arguments.keys() ^ other.arguments.keys()):
        # An optional argument that only one overload has may be absent if it has its default.
        one = own.arguments.get(name, other.arguments.get(name))
        if one not in (None, False) and not (name == "alpha" and one == 1):
            return name
    return None


def _computed(p: fx.Node, found: Any) -> str:
    """What the pattern computes where the program has a number."""
    if found is None:
        return f"the pattern computes {p.name}, which is not known without metadata"
    return f"the pattern computes {found} for {p.name}"


def _op(term: NodeReading | None) -> str:
    return term.op if term is not None else "the call"


def _shown(value: Any) -> str:
    return value.name if isinstance(value, fx.Node) else repr(value)
