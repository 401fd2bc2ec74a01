"""Random problems of assignment, and their exhaustive solution."""

from itertools import combinations
import math

from hypothesis import strategies as st

from decomp.partitioning.assignment import AssignmentProblem, CrossingValue, PricedCall, levels_of

PRICES = st.integers(0, 9) | st.floats(0, 9)


@st.composite
def problems(draw, most=7, prices=PRICES):
    """A problem of a few calls."""
    count = draw(st.integers(1, most))
    calls = [PricedCall(draw(st.none() | prices), draw(prices)) for _ in range(count)]
    values = [_value(draw, None, count, prices) for _ in range(draw(st.integers(0, 2)))]
    values += [_value(draw, i, count, prices) for i in range(count)]
    together, order = (_pairs(draw, count) if count > 1 else () for _ in range(2))
    return AssignmentProblem(tuple(calls), tuple(values), together, order)


def _value(draw, producer, count, prices):
    later = range(0 if producer is None else producer + 1, count)
    users = draw(st.sets(st.sampled_from(later), max_size=3)) if later else ()
    return CrossingValue(producer, tuple(sorted(users)), draw(prices), draw(st.booleans()))


def _pairs(draw, count):
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=1))
    return tuple((min(pair), max(pair)) for pair in pairs if pair[0] != pair[1])


def assignments(problem):
    """Every set of calls."""
    everything = range(len(problem.calls))
    return (set(chosen) for size in range(len(everything) + 1) for chosen in combinations(everything, size))


def exhaustive(problem, parts=math.inf):
    """The price of the cheapest assignment with at most so many parts on the chip, by trying all."""
    few = (chip for chip in assignments(problem) if count_parts(problem, chip) <= parts)
    return min(map(problem.price, few))


def count_parts(problem, chip):
    levels = levels_of(problem, chip)
    return len({levels[i] for i in chip})
