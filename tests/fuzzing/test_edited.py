"""Rules that are edited between two processes with one disk cache are used as they are then."""

import pytest

from tests import fuzz
from tests.fuzzing.edited import OPS, ROUTES, Stage, edited, fault_in, faults_of_edited


def test_rules_are_drawn_by_every_route_and_some_of_each_set_are_edited():
    drawn = [edited(seed) for seed in range(100)]
    assert {route for one in drawn for route in one.routes.values()} == {*ROUTES}
    assert {op for one in drawn for op in one.routes} == {*OPS}
    assert {one.apart for one in drawn} == {True, False}
    for one in drawn:
        assert one.before.files != one.after.files
        assert any(not one.before.expected(op).equal(one.after.expected(op)) for op in one.routes)
    versions = {"=None" in one.before.files["rules.py"] for one in drawn}
    assert versions == {True, False}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(30001, 30034, 3))
def test_edited_rules_are_those_of_the_second_process_and_stale_ones_are_a_fault(first):
    """All in the same two processes, of which most of the time is the start. Rules are stale where their author
    promises, by the same version, that they record the same, and they do not."""
    sets = {f"rules{seed}": edited(seed) for seed in range(first, first + 3)}
    seed = next(seed for seed in range(first, first + 100) if edited(seed, ("1", "1"), ["a file"]).apart)
    sets["promised"] = edited(seed, ("1", "1"), ["a file"])
    found = faults_of_edited(sets, fuzz.TARGETS[first // 3 % 3])
    assert found.pop("promised").startswith("after the edit, by a file: ")
    assert not any(found.values()), found


def test_a_process_that_fails_and_other_values_are_faults():
    stage = Stage({}, {"relu": "x * 2.0"})
    assert fault_in({"relu": [1.0, 4.0]}, stage, {}, "before") == ""
    assert fault_in({"relu": [1.0, 5.0]}, stage, {"relu": "a helper"}, "after") == (
        "after the edit, by a helper: relu is [1.0, 5.0], not [1.0, 4.0]"
    )
    assert fault_in("KeyError: 1", stage, {}, "after") == "after the edit it raises KeyError: 1"
