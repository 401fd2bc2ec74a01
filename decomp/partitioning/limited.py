"""Assignments with at most so many parts on the chip. A limit makes the problem hard: it is an integer program, which
`scipy.optimize.milp` solves. Without scipy, or where it runs out of time, the best assignment found has a bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import functools
import importlib.util
from typing import Any

from decomp.partitioning.assignment import Assignment, AssignmentProblem, CrossingValue, cheapest, levels_of

SECONDS = 30.0
"""How long the integer program is solved, at most."""


def cheapest_with(problem: AssignmentProblem, most: int) -> Assignment:
    """The cheapest assignment with at most `most` parts on the chip; `exact` says whether it was proved to be."""
    best = cheapest(problem)
    if best.parts <= most:
        return best
    # A greedy start: it is the answer without scipy, and the one to beat with it.
    found = Assignment.of(problem, fewer_parts(problem, best, most), best.price)
    # All calls are on the host, and there is nothing to choose.
    if most == 0:
        return Assignment.of(problem, found.chip, found.price)
    if importlib.util.find_spec("scipy") is None:
        return found
    chip, at_least = _IntegerProgram(problem, most).solved()
    chosen = chip if chip is not None and problem.price(chip) <= found.price else found.chip
    # The cheapest without a limit is a bound as well, and sometimes the better one.
    return Assignment.of(problem, chosen, min(max(best.price, at_least), problem.price(chosen)))


def fewer_parts(problem: AssignmentProblem, start: Assignment, most: int) -> frozenset[int]:
    """The calls on the chip after whole parts were moved to the host, each time the one that raises the price least."""
    chip, partners = set(start.chip), _partners(problem)
    while len(parts := _parts(problem, chip)) > most:
        without = [chip - _closed(part, partners) for part in parts]
        chip = min(without, key=problem.price)
    return frozenset(chip)


def _parts(problem: AssignmentProblem, chip: set[int]) -> list[set[int]]:
    levels = levels_of(problem, chip)
    return [{i for i in chip if levels[i] == level} for level in sorted({levels[i] for i in chip})]


def _partners(problem: AssignmentProblem) -> Mapping[int, list[int]]:
    found: dict[int, list[int]] = {}
    for one, other in problem.together:
        found.setdefault(one, []).append(other)
        found.setdefault(other, []).append(one)
    return found


def _closed(part: set[int], partners: Mapping[int, list[int]]) -> set[int]:
    """A part with all calls that run on the same side as one of its calls."""
    found, waiting = set(part), list(part)
    while waiting:
        more = [each for each in partners.get(waiting.pop(), ()) if each not in found]
        found.update(more)
        waiting += more
    return found


Terms = dict[int, float]
"""A sum of variables with factors, by number of the variable."""


@dataclass
class _IntegerProgram:
    """Each call has a position among host 0, chip 1, host 1, …, chip k, host k, which does not fall along an edge. Its
    variables say for each position but the first whether the call is there or later: an odd position is on the chip.
    Another variable for each value, which need not be declared whole, says whether it crosses."""

    problem: AssignmentProblem
    most: int
    rows: list[Terms] = field(default_factory=list)
    """Sums that are not negative."""

    def later(self, call: int) -> range:
        """The variables of a call."""
        return range(call * 2 * self.most, (call + 1) * 2 * self.most)

    def on_chip(self, call: int) -> Terms:
        """1 if a call is on the chip, 0 if not."""
        return {variable: -1.0 if i % 2 else 1.0 for i, variable in enumerate(self.later(call))}

    @functools.cached_property
    def crossing(self) -> int:
        """The variable of the first value."""
        return len(self.problem.calls) * 2 * self.most

    def constrain(self) -> None:
        """Make `rows`."""
        # A call that is at a later position is past all earlier ones: the variables of one call do not rise.
        for call in range(len(self.problem.calls)):
            self.rows += [{one: 1.0, next_: -1.0} for one, next_ in zip(self.later(call), self.later(call)[1:])]
        # Nor do positions fall along an edge, which makes parts convex (see `levels_of`).
        for first, second in self.problem.edges():
            self.rows += [{after: 1.0, before: -1.0} for before, after in zip(self.later(first), self.later(second))]
        for one, other in self.problem.together:
            self.rows += [
                _minus(self.on_chip(one), self.on_chip(other)),
                _minus(self.on_chip(other), self.on_chip(one)),
            ]
        for call, priced in enumerate(self.problem.calls):
            if priced.chip is None:
                self.rows.append(_minus({}, self.on_chip(call)))
        # A transfer is at least each difference between producer and user, and its price pushes it down to the largest:
        # so it is whole at the optimum without being declared.
        for number, value in enumerate(self.problem.values):
            self.rows += [_minus({self.crossing + number: 1.0}, each) for each in self._differences(value)]

    def _differences(self, value: CrossingValue) -> Iterator[Terms]:
        """Sums that are 1 if a value crosses to one of its users."""
        producer = {} if value.producer is None else self.on_chip(value.producer)
        users = [*map(self.on_chip, value.users), *([{}] if value.returned else [])]
        for user in users:
            yield _minus(producer, user)
            yield _minus(user, producer)

    def prices(self) -> Sequence[float]:
        """The price of each variable; the price of all calls on the host is left out."""
        found = [0.0] * (self.crossing + len(self.problem.values))
        for call, priced in enumerate(self.problem.calls):
            for variable, factor in self.on_chip(call).items():
                found[variable] += factor * ((priced.chip or 0.0) - priced.host)
        for number, value in enumerate(self.problem.values):
            found[self.crossing + number] += value.price
        return found

    def solved(self) -> tuple[frozenset[int] | None, float]:
        """The calls on the chip in the best solution that was found, and a lower bound of the price."""
        import numpy as np
        from scipy import optimize, sparse

        self.constrain()
        prices = np.array(self.prices())
        # Solvers work with absolute tolerances of about 1e-6, and prices may be billions.
        scale = float(np.abs(prices).max()) or 1.0
        places = [(i, variable, factor) for i, row in enumerate(self.rows) for variable, factor in row.items()]
        at, variables, factors = zip(*places)
        matrix = sparse.csr_array((factors, (at, variables)), shape=(len(self.rows), len(prices)))
        whole = np.concatenate([np.ones(self.crossing), np.zeros(len(self.problem.values))])
        found: Any = optimize.milp(
            prices / scale,
            integrality=whole,
            bounds=optimize.Bounds(0, 1),
            constraints=optimize.LinearConstraint(matrix, lb=0),
            # HiGHS would stop at 0.01 % otherwise.
            options={"time_limit": SECONDS, "mip_rel_gap": 0},
        )
        on_host = sum(call.host for call in self.problem.calls)
        bound = getattr(found, "mip_dual_bound", None)
        at_least = on_host + scale * float(bound) if bound is not None else 0.0
        if found.x is None:
            return None, at_least
        calls = range(len(self.problem.calls))
        # Whole up to the tolerance of the solver.
        chip = frozenset(i for i in calls if sum(f * found.x[v] for v, f in self.on_chip(i).items()) > 0.5)
        # Its own bound is rounded, and at status 0 the price itself is known to be the least.
        return chip, self.problem.price(chip) if found.status == 0 else at_least


def _minus(one: Terms, other: Terms) -> Terms:
    found = dict(one)
    for variable, factor in other.items():
        found[variable] = found.get(variable, 0.0) - factor
    return {variable: factor for variable, factor in found.items() if factor}
