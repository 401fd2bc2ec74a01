"""Where sinking views pays: connected parts of a program computed between views of one kind. If such a part is computed
on the bases instead, a view that leads into it disappears if it has no other use, a view that leads out and inverts it
disappears, and each value that is used as before needs a new view. A part is chosen if the number of calls
decreases."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence

from decomp.graphs.disjoint_sets import DisjointSets
from decomp.simplification.chains import RESHAPING, RESHAPING_WHERE_POSSIBLE
from decomp.simplification.laws import PERMUTATIONS, order_of
from decomp.simplification.sinking import ShapeChange, ViewOf, as_view, shape_of, sink_view
from decomp.simplification.terms import Term


class Regions:
    """The candidate parts of a program, given its terms in order of computation."""

    def __init__(self, order: Sequence[Term]) -> None:
        self._order = order
        self._views = {term: view for term in order if (view := as_view(term)) is not None}

    def paying(self, barred: Collection[Term]) -> set[Term]:
        """The terms below which views should sink, except `barred` ones."""
        inside = self._inside(barred)
        if not inside:
            return set()
        # Start from the largest possible regions and drop what does not pay: a greedy growth would miss savings that
        # need several steps.
        gains = _Gains(self._order, self._views, inside)
        gains.prune()
        return set(gains.chosen())

    def _inside(self, barred: Collection[Term]) -> dict[Term, ViewOf]:
        """All calls below which views could sink, each as the view that it would become."""
        inside: dict[Term, ViewOf] = {}
        known = dict(self._views)
        for term in self._order:
            # Term by term in order, so that a view reaches as far down as laws let it.
            if term.op == _CALL and not known.keys().isdisjoint(term.operands) and term not in barred:
                found = sink_view(term, known.get)
                if found is not None:
                    inside[term] = known[term] = ViewOf(found[0], term, tuple(term.value.shape))
        return inside


class _Gains:
    """The change in the number of calls if views sink below the calls between them."""

    def __init__(self, order: Sequence[Term], views: Collection[Term], inside: dict[Term, ViewOf]) -> None:
        self.order, self.inside, self._views = order, inside, views
        self._uses: dict[Term, list[Term]] = defaultdict(list)
        self._outside: Counter[Term] = Counter()
        self._needing: Counter[Term] = Counter()
        self._undone: Counter[Term] = Counter()
        for term in order:
            for given in term.operands:
                if given in inside or given in views:
                    self._uses[given].append(term)
                    if term not in inside:
                        self._outside[given] += 1
                        self._note_exit(given, term)

    def _note_exit(self, given: Term, user: Term) -> None:
        if given not in self.inside:
            return
        turn = self.inside[given].turn
        if _undoes(turn, given, user):
            self._undone[given] += 1
        # A user of the same kind merges with the new view, as a reshape of a reshape is one call.
        elif id(user.target) not in (_RESHAPES if turn.leading is not None else _PERMUTES):
            self._needing[given] += 1

    def prune(self) -> None:
        """Drop terms without a saving, from last to first."""
        # From the end: whether a term pays depends on its users, which have been decided by then.
        for term in reversed(self.order):
            # It has a user inside, which would lose its operand.
            if term not in self.inside or self._outside[term] < len(self._uses[term]):
                continue
            given = [each for each in term.operands if each in self.inside or each in self._views]
            newly = sum(self._needing[each] == 0 if each in self.inside else not self._outside[each] for each in given)
            # A tie is dropped: it would change the program for nothing.
            if bool(self._needing[term]) >= self._undone[term] + newly:
                del self.inside[term]
                for each in given:
                    self._outside[each] += 1
                    self._needing[each] += each in self.inside

    def chosen(self) -> Iterator[Term]:
        """The calls of the regions that reduce the number of calls."""
        # Terms that share a view save it only together, so the sum is that of a connected region.
        regions = DisjointSets[Term]()
        for term in self.inside:
            for given in term.operands:
                if given in self.inside or given in self._views:
                    regions.join(given, term)
        gain: Counter[Term] = Counter()
        for term in self.inside:
            gain[regions.of(term)] += self._undone[term] - bool(self._needing[term])
        for view in self._views:
            if self._uses[view] and not self._outside[view]:
                gain[regions.of(view)] += 1
        return (term for term in self.inside if gain[regions.of(term)] > 0)


_CALL = "call_function"
# By id, as hashing an overload calls Python; overloads are never freed.
_RESHAPES = frozenset(map(id, (*RESHAPING, *RESHAPING_WHERE_POSSIBLE)))
_PERMUTES = frozenset(map(id, PERMUTATIONS))


def _undoes(turn: ShapeChange, given: Term, user: Term) -> bool:
    """Whether a view of `given` restores the base of which `given` would be a view."""
    shape, result = shape_of(given), shape_of(user)
    before = turn.before(shape) if shape is not None else None
    if before is None or result is None or user.args[0] is not given:
        return False
    if turn.leading is not None:
        return id(user.target) in _RESHAPES and result == before
    order = order_of(user)
    return order is not None and [turn.given[dim] for dim in order] == sorted(order)
