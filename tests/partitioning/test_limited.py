"""Assignments with at most so many parts on the chip are the cheapest of these, or have a bound."""

from hypothesis import given, settings, strategies as st
import pytest

from decomp.partitioning import limited
from decomp.partitioning.assignment import AssignmentProblem, CrossingValue, PricedCall, cheapest
from decomp.partitioning.limited import cheapest_with, fewer_parts
from tests.partitioning.problems import count_parts, exhaustive, problems

quick = settings(max_examples=40, deadline=None, database=None)


@quick
@given(problems(most=6), st.integers(0, 2))
def test_the_cheapest_assignment_with_few_parts_is_that_of_exhaustive_search(problem, most):
    pytest.importorskip("scipy")
    found = cheapest_with(problem, most)
    assert found.parts == count_parts(problem, found.chip) <= most
    assert found.price == pytest.approx(exhaustive(problem, most), abs=1e-6)
    assert found.at_least == pytest.approx(found.price, abs=1e-6)


@quick
@given(problems(most=6), st.integers(0, 2))
def test_moving_whole_parts_to_the_host_keeps_to_the_limit_and_to_what_is_allowed(problem, most):
    best = cheapest(problem)
    chip = fewer_parts(problem, best, most)
    assert chip <= best.chip and count_parts(problem, chip) <= most
    assert exhaustive(problem, most) <= problem.price(chip) * (1 + 1e-9) < float("inf")


def alternating(count):
    """Calls of which every second one can run on the chip."""
    calls = tuple(PricedCall(1 if i % 2 else None, 10 + i) for i in range(count))
    return AssignmentProblem(calls, tuple(CrossingValue(i, (i + 1,), 1) for i in range(count - 1)))


def test_of_many_parts_those_stay_on_the_chip_that_save_most():
    problem = alternating(9)
    assert cheapest(problem).chip == {1, 3, 5, 7}
    assert cheapest_with(problem, 2).chip == {5, 7} and cheapest_with(problem, 2).exact
    assert cheapest_with(problem, 0).chip == frozenset()


def test_without_scipy_the_assignment_has_a_bound(monkeypatch):
    monkeypatch.setattr(limited.importlib.util, "find_spec", lambda name: None)
    problem = alternating(9)
    found = cheapest_with(problem, 2)
    assert found.chip == {5, 7} and not found.exact
    assert found.at_least == cheapest(problem).price < found.price
