"""Which calls run on the chip and which on the host, as a problem over numbers alone. A call has a price on each side,
and a value that crosses is priced once in each direction, however many calls read it there. Without a limit on the
number of parts this is a minimum cut: source and sink are chip and host, a call on the chip cuts its edge to the host
and pays its price there, and the other way round."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
import functools
import math

import networkx as nx

CHIP, HOST = "chip", "host"


@dataclass(frozen=True, slots=True)
class PricedCall:
    """The prices of one call."""

    chip: float | None
    """Its price on the chip; None if it cannot run there."""
    host: float
    """Its price on the host, which runs every call."""


@dataclass(frozen=True, slots=True)
class CrossingValue:
    """A value that may be transferred. Calls are numbered in the order of the program."""

    producer: int | None
    """The call that computes it; None for an input of the program, which is on the host."""
    users: tuple[int, ...]
    """The calls that read it."""
    price: float
    """The price of its transfer, in either direction."""
    returned: bool = False
    """Whether the program returns it, or writes it to an input or a buffer: the host reads it then."""


@dataclass(frozen=True)
class AssignmentProblem:
    """The calls of a program, in order, and the values between them."""

    calls: tuple[PricedCall, ...]
    values: tuple[CrossingValue, ...]
    together: tuple[tuple[int, int], ...] = ()
    """Pairs of calls that run on the same side, such as a call and the `getitem` of its results."""
    order: tuple[tuple[int, int], ...] = ()
    """Pairs of calls of which the first must run first although the second does not read its value."""

    @functools.cached_property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """For each call, the calls that run before it."""
        found: list[list[int]] = [[] for _ in self.calls]
        for first, second in self.edges():
            found[second].append(first)
        return tuple(tuple(dict.fromkeys(each)) for each in found)

    def edges(self) -> Iterator[tuple[int, int]]:
        """Pairs of calls of which the first runs first."""
        for value in self.values:
            if value.producer is not None:
                yield from ((value.producer, user) for user in value.users)
        yield from self.order

    def price(self, chip: Collection[int]) -> float:
        """The price of an assignment: of the calls, and of the transfers that it causes; infinite if it is not
        allowed."""
        on_chip = frozenset(chip)
        if any((a in on_chip) != (b in on_chip) for a, b in self.together):
            return math.inf
        found = [call.chip if i in on_chip else call.host for i, call in enumerate(self.calls)]
        if None in found:
            return math.inf
        transfers = (value.price for value in self.values if crosses(value, on_chip) is not None)
        # Equal sets of prices give equal sums, in whatever order.
        return math.fsum([*(price for price in found if price is not None), *transfers])


def crosses(value: CrossingValue, chip: Collection[int]) -> str | None:
    """The side to which a value is transferred, or None. It has one producer, so it crosses in one direction."""
    if value.producer is None or value.producer not in chip:
        return CHIP if any(user in chip for user in value.users) else None
    return HOST if value.returned or any(user not in chip for user in value.users) else None


@dataclass(frozen=True)
class Assignment:
    """A solution: which calls run on the chip, in which parts, and at what price."""

    chip: frozenset[int]
    levels: tuple[int, ...] = field(repr=False)
    """For each call, the part of its side that it is in: see `levels_of`."""
    price: float
    at_least: float
    """No assignment is cheaper than this."""

    @classmethod
    def of(cls, problem: AssignmentProblem, chip: Collection[int], at_least: float) -> Assignment:
        """The assignment with these calls on the chip."""
        on_chip = frozenset(chip)
        return cls(on_chip, levels_of(problem, on_chip), problem.price(on_chip), at_least)

    @property
    def exact(self) -> bool:
        """Whether no assignment is cheaper."""
        return is_cheapest(self.price, self.at_least)

    @property
    def parts(self) -> int:
        """The number of parts on the chip."""
        return len({self.levels[i] for i in self.chip})


def is_cheapest(price: float, at_least: float) -> bool:
    """Whether a price is that of the cheapest assignment, given a lower bound."""
    # The bound of an integer program is a float.
    return price <= at_least * (1 + 1e-9)


# Longest paths, counted in entries of the chip: each level is as early as it can be.
def levels_of(problem: AssignmentProblem, chip: Collection[int]) -> tuple[int, ...]:
    """For each call, how often the paths up to it enter the chip, at most. The calls of one side and one level are a
    part: host 0, chip 1, host 1, chip 2, … is an order in which they can run. So parts are convex, and no other split
    of the assignment into convex parts has fewer on the chip."""
    levels: list[int] = []
    for i, before in enumerate(problem.before):
        if i in chip:
            own = max((levels[p] + (p not in chip) for p in before), default=1)
            levels.append(max(own, 1))
        else:
            levels.append(max((levels[p] for p in before), default=0))
    return tuple(levels)


# Stone, "Multiprocessor scheduling with the aid of network flow algorithms", IEEE Transactions on Software Engineering,
# 1977: assigning modules to two processors is a minimum cut.
def cheapest(problem: AssignmentProblem) -> Assignment:
    """The cheapest assignment, exactly; of several, the one with most calls on the chip."""
    chip = _minimum_cut(problem)
    return Assignment.of(problem, chip, problem.price(chip))


def supported_on_chip(problem: AssignmentProblem) -> Assignment:
    """The assignment of `torch.fx`'s `CapabilityBasedPartitioner`: on the chip is what can run there."""
    chip = {i for i, call in enumerate(problem.calls) if call.chip is not None}
    tied = [pair for pair in problem.together if len(chip.intersection(pair)) == 1]
    while tied:
        chip.difference_update(*tied)
        tied = [pair for pair in problem.together if len(chip.intersection(pair)) == 1]
    return Assignment.of(problem, chip, 0.0)


def _minimum_cut(problem: AssignmentProblem) -> frozenset[int]:
    graph = nx.DiGraph()
    graph.add_nodes_from([CHIP, HOST, *range(len(problem.calls))])
    scale = _Scale(problem)
    for i, call in enumerate(problem.calls):
        _edge(graph, CHIP, i, scale(call.host))
        _edge(graph, i, HOST, None if call.chip is None else scale(call.chip))
    for number, value in enumerate(problem.values):
        users: list[int | str] = [*value.users, *([HOST] if value.returned else [])]
        _add_value(graph, number, HOST if value.producer is None else value.producer, users, scale(value.price))
    for one, other in problem.together:
        _edge(graph, one, other, None)
        _edge(graph, other, one, None)
    # Of equal cuts the one with most calls on the chip: networkx leaves to the sink only what still reaches it.
    # (Goldberg and Tarjan, "A new approach to the maximum-flow problem", 1988.)
    _, (chip, _) = nx.minimum_cut(graph, CHIP, HOST, flow_func=nx.algorithms.flow.preflow_push)
    return frozenset(node for node in chip if isinstance(node, int))


def _add_value(graph: nx.DiGraph, number: int, producer: int | str, users: Sequence[int | str], price: int) -> None:
    """Edges that are cut, once, if the value crosses. With several users, one more node is on the host if
    some user is, and another on the chip if some user is."""
    if price == 0:
        return
    if len(users) == 1:
        _edge(graph, producer, users[0], price)
        _edge(graph, users[0], producer, price)
        return
    # Edges of one value to several users are a hyperedge, which is paid once: two nodes with infinite edges (Lawler,
    # "Cutsets and partitions of hypergraphs", 1973).
    to_host, to_chip = ("to host", number), ("to chip", number)
    _edge(graph, producer, to_host, price)
    _edge(graph, to_chip, producer, price)
    for user in users:
        _edge(graph, to_host, user, None)
        _edge(graph, user, to_chip, None)


def _edge(graph: nx.DiGraph, start: object, end: object, capacity: int | None) -> None:
    """Add capacity to an edge; None is infinite, which networkx reads from an edge without capacity."""
    if start in (end, HOST) or end == CHIP or capacity == 0:
        return  # edges into the source and out of the sink carry no flow
    if graph.has_edge(start, end):
        before = graph[start][end].get("capacity")
        capacity = None if before is None or capacity is None else before + capacity
        graph.remove_edge(start, end)
    graph.add_edge(start, end, **({} if capacity is None else {"capacity": capacity}))


class _Scale:
    """Prices as integers, exactly: floats are multiples of a power of 2, and flows of floats would be rounded."""

    def __init__(self, problem: AssignmentProblem) -> None:
        prices = [price for call in problem.calls for price in (call.chip, call.host) if price is not None]
        prices += [value.price for value in problem.values]
        # Denominators of floats are powers of two, so that the largest is a multiple of all.
        self.factor = max((float(price).as_integer_ratio()[1] for price in prices), default=1)

    def __call__(self, price: float) -> int:
        over, under = float(price).as_integer_ratio()
        return over * (self.factor // under)
