"""Which cases run. Of a product of parameters each value is drawn at least once, by one seed: five models on three
targets are five cases. A test marked `sampled` may say how many cases are enough, and one marked `each_row` has every
row. Of other long tables a third of the rows is drawn, and an eighth in a test of the rules: the certificate of each
rule, which a change makes stale, holds what was measured of it over its whole domain. Of the tests of a family of rules
every second one is drawn, of ops that models hardly call, as Bessel functions, one in six, and one at least of each
file. `pytest --whole` runs all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
import random
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
SWEEPS = Path(__file__).parent / "decomp_rules"
"""Where each test is a sweep: ops, dtypes, shapes, levels of accuracy and targets."""

RARE = {"special", "complex"}
"""Families of ops that models hardly call."""

LONG = 4
"""Of a table of parameters with more rows than these, a part is drawn."""


def one_of_each(cases: Iterable[T], kind: Callable[[T], Hashable], seed: int) -> list[T]:
    """One case of each kind, drawn from the seed."""
    chance, groups = random.Random(seed), {}
    for case in cases:
        groups.setdefault(kind(case), []).append(case)
    return [chance.choice(group) for group in groups.values()]


def thinned(cases: list[T], one_in: Callable[[T], int], kind: Callable[[T], Hashable], seed: int) -> list[T]:
    """The cases in their order, but one in so many of them as `one_in` says, drawn from the seed; of each kind at least
    one, and if need be one of those that are drawn most often."""
    chance, rates, least = random.Random(seed), {}, {}
    for place, case in enumerate(cases):
        rates.setdefault(one_in(case), []).append(place)
        least[kind(case)] = min(one_in(case), least.get(kind(case), one_in(case)))
    kept = {place for rate, places in rates.items() for place in chance.sample(places, len(places) // rate)}
    often = [place for place, case in enumerate(cases) if one_in(case) == least[kind(case)]]
    missing = one_of_each(often, lambda place: kind(cases[place]), seed)
    served = {kind(cases[place]) for place in kept}
    kept |= {place for place in missing if kind(cases[place]) not in served}
    return [cases[place] for place in sorted(kept)]


def covering(cases: list[Mapping[str, Hashable]], seed: int) -> list[int]:
    """Places of few cases in which each value of each parameter occurs, drawn from the seed."""
    places = random.Random(seed).sample(range(len(cases)), len(cases))
    often = Counter(pair for case in cases for pair in case.items())
    chosen = [place for place, case in enumerate(cases) if any(often[pair] == 1 for pair in case.items())]
    missing = often.keys() - {pair for place in chosen for pair in cases[place].items()}
    while missing:
        best = max(places, key=lambda place: sum(pair in missing for pair in cases[place].items()))
        missing -= cases[best].items()
        chosen.append(best)
    return sorted(chosen)


def shortened(cases: list[Mapping[str, Hashable]], seed: int, one_in: int = 8) -> list[int]:
    """Places of the cases with those rows of long tables that are drawn: one in so many of them, by the seed."""
    chance, places = random.Random(seed), range(len(cases))
    for table in {table: None for case in cases for table in case}:
        rows = list({cases[place][table]: None for place in places if table in cases[place]})
        drawn = set(rows if len(rows) <= LONG else chance.sample(rows, -(-len(rows) // one_in)))
        places = [place for place in places if cases[place].get(table) in drawn or table not in cases[place]]
    return list(places)


def sampled(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Those items that run: of a sweep a few, of other tests all."""
    tests: dict[Any, list[pytest.Item]] = {}
    for item in items:
        if hasattr(item, "callspec"):
            tests.setdefault((item.parent, item.originalname), []).append(item)
    left = set(items)
    for own in tests.values():
        marker = own[0].get_closest_marker("sampled")
        (at_most,) = marker.args if marker is not None and marker.args else (len(own),)
        cases = [_parameters(item) for item in own]
        is_whole = "opinfo_job" in cases[0] or own[0].get_closest_marker("each_row")  # the jobs were drawn before
        one_in = 8 if own[0].path.is_relative_to(SWEEPS) else 3
        kept = range(len(own)) if is_whole else shortened(cases, seed, one_in)
        places = [kept[place] for place in covering([cases[place] for place in kept], seed)]
        if at_most < len(places):
            places = random.Random(seed).sample(places, at_most)
        left -= {item for place, item in enumerate(own) if place not in places}
    return thinned([item for item in items if item in left], _one_in, lambda item: item.path, seed)


def _one_in(item: pytest.Item) -> int:
    family = item.path.parent
    if family.parent != SWEEPS or family.name in ("backends", "targets"):
        return 1
    return 6 if family.name in RARE else 2


def _parameters(item: Any) -> dict[str, Hashable]:
    """Which row each table of parameters gave to an item: the objects of it are the same in every case."""
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    tables = [name.replace(" ", "").split(",") if isinstance(name, str) else list(name) for name in names]
    known = {name for table in tables for name in table}
    tables += [[name] for name in item.callspec.params if name not in known]  # of fixtures, and of hooks
    return {",".join(table): tuple(id(item.callspec.params[name]) for name in table) for table in tables}


def is_named(config: pytest.Config) -> bool:
    """Whether tests are requested by name: these run with all of their cases."""
    return any("::" in str(argument) for argument in config.args)
