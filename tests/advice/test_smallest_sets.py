"""The search for smallest sets, compared with all subsets of the leaves of random systems of clauses."""

import itertools
import random

import pytest

from decomp.advice.derivability import Derivability
from decomp.advice.smallest_sets import SmallestSets


def system(seed):
    """Leaves 0 to 7, other propositions after them, clauses between them, and two goals."""
    draw = random.Random(seed)
    leaves, size = 8, 20
    clauses = [
        (tuple(draw.sample(range(size), draw.randint(1, 3))), draw.randrange(leaves, size))
        for _ in range(draw.randint(8, 30))
    ]
    if draw.random() < 0.3:
        clauses.append(((), draw.randrange(leaves, size)))
    prices = {leaf: 1 + draw.random() / 100 for leaf in range(leaves)}
    return size, clauses, prices, draw.sample(range(leaves, size), 2)


def closure(clauses, assumed):
    known = set(assumed)
    while True:
        new = {head for body, head in clauses if known.issuperset(body)} - known
        if not new:
            return known
        known |= new


@pytest.mark.parametrize("seed", range(200))
def test_no_set_is_cheaper(seed):
    size, clauses, prices, goals = system(seed)
    found = SmallestSets(Derivability(size, clauses), prices).search(goals)
    enough = [
        subset
        for n in range(len(prices) + 1)
        for subset in itertools.combinations(prices, n)
        if closure(clauses, subset).issuperset(goals)
    ]
    if not enough:
        assert found is None
        return
    cheapest = min(sum(prices[leaf] for leaf in subset) for subset in enough)
    assert closure(clauses, found.leaves).issuperset(goals)
    assert sum(prices[leaf] for leaf in found.leaves) == pytest.approx(cheapest)
    assert found.smallest and found.least == min(map(len, enough))


@pytest.mark.parametrize("seed", range(40))
def test_what_is_assumed_is_taken_back_as_if_it_had_never_been(seed):
    size, clauses, prices, _ = system(seed)
    known, draw = Derivability(size, clauses), random.Random(seed)
    marks, assumed = [], []
    for _ in range(60):
        if assumed and draw.random() < 0.5:
            known.retract(marks.pop())
            assumed.pop()
        else:
            leaf = draw.choice(list(prices))
            marks.append(known.mark())
            assumed.append(leaf)
            known.assume(leaf)
        assert {each for each in range(size) if known.holds(each)} == closure(clauses, assumed)


def test_a_set_that_does_not_do_is_not_tried_again():
    # 3 follows from 0, or from 1 and 2.
    sets = SmallestSets(Derivability(4, [((0,), 3), ((1, 2), 3)]), {0: 1.0, 1: 1.0, 2: 1.0})
    tries = []
    chosen, made = sets.tried([3], lambda leaves: tries.append(leaves) or len(leaves) > 1 or None)
    first, second = tries
    assert first == {0} and len(second) == 2 and 0 in second and chosen.leaves == second and made is True
    assert sets.search([3], without={0}).leaves == {1, 2}
    assert sets.search([3], without={0, 1}) is None


def test_after_several_failed_attempts_the_first_set_is_returned_unproved():
    sets = SmallestSets(Derivability(3, [((0,), 2), ((1,), 2)]), {0: 1.0, 1: 1.5})
    chosen, made = sets.tried([2], lambda leaves: None)
    assert chosen.leaves == {0} and not chosen.smallest and made is None
