"""Pattern calls compared with the calls they replace: each call of the pattern must map to an equal call of the source,
on corresponding operands, and inner values must have no other uses. The match is taken from the record, not searched
for."""

from __future__ import annotations

from collections.abc import Mapping
import operator
from typing import TYPE_CHECKING, Any, NoReturn

from torch import fx

from decomp.ir.arguments import equal
from decomp.ir.op_facts import COMMUTATIVE
from decomp.patterns.found import Match
from decomp.patterns.host import SearchGraph
from decomp.patterns.literals import is_same_literal
from decomp.patterns.matching import compute_number
from decomp.patterns.terms import NodeReading
from decomp.proof.correspondence import NotAsRecorded, NotAsThePattern
from decomp.proof.replay import same, same_call

if TYPE_CHECKING:
    from decomp.proof.correspondence import Correspondence


def patterns_stand_for_calls(work: Correspondence) -> str:
    """Every pattern call must replace calls that are the pattern; all other calls must be copies. Empty if no pattern
    was applied."""
    contraction = work.contraction
    if contraction is None or contraction.before is None or contraction.edges is None:
        return ""
    source, matches = contraction.before.graph, contraction.why
    host = SearchGraph(source, work.source.owning_module)
    check = _ContractionCheck(contraction.graph, source, contraction.edges.values, matches, host)
    check.copies()
    for call, match in matches.items():
        check.match(call, match)
    calls = sum(len(match.nodes) for match in matches.values())
    found = f"{len(matches)} calls of patterns replace {calls} nodes"
    return f"{found}, which match the patterns and are used nowhere else"


class _ContractionCheck:
    """The check of one contraction."""

    def __init__(
        self,
        graph: fx.Graph,
        source: fx.Graph,
        values: Mapping[fx.Node, Any],
        matches: Mapping[fx.Node, Match],
        host: SearchGraph,
    ) -> None:
        """`matches`: the match that each call of a pattern in `graph` replaces."""
        self.graph, self.source, self.values, self.matches, self.host = graph, source, values, matches, host
        self.owner: dict[fx.Node, Match] = {}
        for match in matches.values():
            for node in match.nodes:
                # Else one call could justify two patterns, of which each removes it.
                if node in self.owner:
                    raise NotAsThePattern(f"{node.name!r} is part of two patterns", None, node)
                self.owner[node] = match

    def copies(self) -> None:
        """Nodes outside of matches must have one copy each, and all other new nodes must be calls of patterns."""
        made = sum(1 if match.pattern.single else 1 + len(match.outputs) for match in self.owned())
        expected = len(self.source.nodes) - len(self.owner) + made
        # Counting finds what was added; the loop below only visits what the source has.
        if len(self.graph.nodes) != expected:
            found = len(self.graph.nodes)
            raise NotAsRecorded(f"there are {found} nodes, but {expected} are accounted for")
        for node in self.source.nodes:
            if node in self.owner:
                continue
            new = self.values.get(node)
            if not isinstance(new, fx.Node) or new.op != node.op:
                raise NotAsRecorded(f"{node.name!r} has no copy", None, node)
            if not same_call(new, node.target, node.args, node.kwargs, self.values):
                raise NotAsRecorded(f"{new.name!r} is not a copy of {node.name!r}", new, node)

    def owned(self) -> list[Match]:
        """The matches, in order."""
        return list(self.matches.values())

    def match(self, call: fx.Node, match: Match) -> None:
        """Check one call of a pattern."""
        pattern = match.pattern
        given = tuple(match.bound.get(name) for name in pattern.variables)
        if call.target is not pattern or not same(call.args, given, self.values):
            problem = f"{call.name!r} is not a call of {pattern} on the matched operands"
            raise NotAsThePattern(problem, call, match.root)
        for i, (wanted, output) in enumerate(zip(pattern.outputs, match.outputs)):
            value = self.values.get(output)
            # Several results are taken from the call by getitem, in the pattern's order.
            item = isinstance(value, fx.Node) and value.target is operator.getitem and value.args == (call, i)
            if match.placed[wanted] is not output or not (value is call if pattern.single else item):
                raise NotAsThePattern(f"the value of {output.name!r} is not a result of {call.name!r}", call, output)
        for wanted, found in match.placed.items():
            if not self._is(wanted, found, match):
                self._differs(wanted, found, match)
        # The same rule by which the matcher decides whether inner values are used outside; asked again of the source.
        reason = self.host.why_not(match)
        if reason is not None:
            raise NotAsThePattern(f"{pattern} may not be replaced: {reason}", call, match.root)

    def _differs(self, wanted: fx.Node, found: fx.Node, match: Match) -> NoReturn:
        problem = f"{found.name!r} is not the {wanted.name!r} of {match.pattern}"
        raise NotAsThePattern(problem, None, found)

    def _is(self, wanted: fx.Node, found: fx.Node, match: Match) -> bool:
        """Whether a call of the source equals a call of the pattern, in some reading of both."""
        own, others = match.pattern.terms.of(wanted), self.host.terms.of(found)
        # An op that the tables of readings do not know: compared as it is written.
        if not own:
            same_target = wanted.target is found.target and len(wanted.args) == len(found.args)
            return same_target and all(self._agrees(a, b, "", None, match) for a, b in zip(wanted.args, found.args))
        # A call has several readings, such as `x * 2` and `x + x`; any pair that agrees will do.
        return any(one.op == other.op and self._same(one, other, match) for one in own for other in others)

    def _same(self, one: NodeReading, other: NodeReading, match: Match) -> bool:
        names = [name for name in one.arguments if name in other.arguments]
        agree = [self._agrees(one.arguments[n], other.arguments[n], n, other, match) for n in names]
        if all(agree):
            return True
        # Only the first two operands of a commutative op may be swapped; an alpha, say, must agree.
        if one.op.removeprefix("aten.") not in COMMUTATIVE or not all(agree[2:]):
            return False
        a, b = names[:2]
        crossed = ((a, b), (b, a))
        return all(self._agrees(one.arguments[m], other.arguments[n], m, other, match) for m, n in crossed)

    def _agrees(self, wanted: Any, found: Any, name: str, term: NodeReading | None, match: Match) -> bool:
        """Whether an operand of the source matches that of the pattern."""
        return equal(wanted, found, lambda one, other: self._leaf_agrees(one, other, name, term, match))

    def _leaf_agrees(self, wanted: Any, found: Any, name: str, term: NodeReading | None, match: Match) -> bool:
        if not isinstance(wanted, fx.Node):
            return not isinstance(found, fx.Node) and (term is None or is_same_literal(wanted, found, name, term))
        if wanted.op == "placeholder":
            return self.host.same_value(match.bound.get(str(wanted.target)), found)
        if not isinstance(found, fx.Node):
            # A number in a pattern may be computed from others, such as `1 / math.sqrt(d)`.
            return bool(compute_number(wanted, match.bound, match.placed) == found)
        placed, below = match.placed.get(wanted), found
        # The matcher looks through calls that pass a value on unchanged, so the operand may be further up.
        while below is not placed:
            further = self.host.terms.passed_on(below)
            if further is None:
                return False
            below = further
        return True
