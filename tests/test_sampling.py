"""Samples of sweeps: few cases, each value of each parameter, the same by the same seed."""

import subprocess
import sys

import pytest

from tests import sampling
from tests.sampling import LONG, covering, one_of_each, shortened, thinned

pytest_plugins = ["pytester"]
CASES = [{"model": model, "target": target} for model in range(5) for target in range(3)]


@pytest.mark.parametrize("seed", range(5))
def test_each_value_of_each_parameter_is_drawn(seed):
    chosen = [CASES[place] for place in covering(CASES, seed)]
    assert len(chosen) == 5
    assert {case["model"] for case in chosen} == set(range(5)) and {case["target"] for case in chosen} == {0, 1, 2}


def test_a_seed_draws_the_same_again_and_another_seed_others():
    assert covering(CASES, 3) == covering(CASES, 3)
    assert len({tuple(covering(CASES, seed)) for seed in range(10)}) > 1


def test_a_product_with_holes_is_covered_too():
    cases = [case for case in CASES if case["model"] <= case["target"]]
    assert {case["target"] for case in (cases[place] for place in covering(cases, 0))} == {0, 1, 2}


def test_one_case_of_each_kind_is_drawn():
    names = ["add-int", "add-float", "mul-int", "mul-float"]
    add, mul = one_of_each(names, lambda name: name[:3], 0)
    assert add.startswith("add-") and mul.startswith("mul-")


def test_of_a_long_table_an_eighth_of_the_rows_is_drawn_and_of_others_all():
    cases = [{"function": row, "target": target} for row in range(20) for target in range(3)]
    drawn = [[cases[place] for place in shortened(cases, seed)] for seed in range(10)]
    rows = [{case["function"] for case in kept} for kept in drawn]
    assert all(len(kept) == 3 for kept in rows) and len(set(map(frozenset, rows))) > 1
    assert all(len(kept) == 3 * len(own) for kept, own in zip(drawn, rows))
    assert shortened(cases[: 3 * LONG], 0) == list(range(3 * LONG))
    assert shortened(cases, 3) == shortened(cases, 3)


def test_of_what_is_rare_few_are_drawn_and_all_of_the_rest():
    kept = [thinned(list(range(90)), lambda case: 3 if case >= 30 else 1, lambda case: 0, seed) for seed in range(5)]
    assert all(len(cases) == 30 + 20 and cases == sorted(cases) and cases[:30] == list(range(30)) for cases in kept)
    assert len(set(map(tuple, kept))) == 5


def test_of_each_kind_one_is_drawn_however_rare_it_is():
    for seed in range(5):
        kept = thinned(list(range(90)), lambda case: 30, lambda case: case // 9, seed)
        assert {case // 9 for case in kept} == set(range(10)) and len(kept) <= 13


def test_of_a_kind_of_which_none_is_drawn_the_rarest_is_not_taken():
    for seed in range(5):
        kept = thinned(list(range(9)), lambda case: 100 if case else 50, lambda case: 0, seed)
        assert kept == [0]


MARKERS = """
[pytest]
markers =
    sampled(at_most): a sweep
    each_row: no long table
"""
SWEEP = """
import pytest

@pytest.mark.sampled
@pytest.mark.parametrize("model", "abcde")
@pytest.mark.parametrize("target", "xyz")
def test_product(model, target): ...

@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", range(9))
def test_table(number): ...

@pytest.mark.parametrize("model", "abc")
@pytest.mark.parametrize("target", "xy")
def test_product_without_a_mark(model, target): ...

@pytest.mark.parametrize("number", range(4))
def test_error(number): ...

@pytest.mark.parametrize("number", range(7))
def test_long_table(number): ...

@pytest.mark.each_row
@pytest.mark.parametrize("number", range(7))
def test_long_table_of_which_each_row_counts(number): ...
"""
RULES = """
import pytest

@pytest.fixture(params="xyz")
def target(request): ...

@pytest.mark.parametrize("dtype, shape", [(1, 2), (1, 3), (2, 2), (2, 3)])
@pytest.mark.parametrize("op", "ab")
def test_product(op, dtype, shape, target): ...

def test_fact(): ...
"""


@pytest.mark.parametrize(
    "options, cases, summary",
    [
        ([], 3 + 2 + 3 + 4 + 3 + 7, "22 of 48 cases; --whole runs all"),
        (["--whole"], 15 + 9 + 6 + 4 + 7 + 7, "all 48 cases"),
        (["test_sweep.py::test_product"], 15, "all 15 cases"),
    ],
)
def test_products_and_marked_tests_are_sampled_unless_requested(pytester, request, options, cases, summary):
    conftest = (request.config.rootpath / "tests" / "conftest.py").read_text(encoding="utf-8")
    pytester.makeconftest(conftest)
    pytester.makeini(MARKERS)
    pytester.makepyfile(test_sweep=SWEEP)
    done = pytester.runpytest(*options, "-p", "no:cacheprovider", "-p", "no:xdist")
    done.assert_outcomes(passed=cases)
    done.stdout.fnmatch_lines([summary])


def test_the_summary_of_a_run_in_workers_says_what_they_ran(pytester, request, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(request.config.rootpath))
    pytester.makeconftest((request.config.rootpath / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makeini(MARKERS)
    pytester.makepyfile(test_sweep=SWEEP)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "1")
    done.stdout.fnmatch_lines(["22 of 48 cases; --whole runs all"])


@pytest.mark.parametrize("options, cases", [([], 4 + 1), (["--whole"], 24 + 1)])
def test_what_tests_rules_is_sampled_by_each_row_of_each_table(pytester, request, monkeypatch, options, cases):
    monkeypatch.setattr(sampling, "SWEEPS", pytester.path)
    pytester.makeconftest((request.config.rootpath / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(test_rules=RULES)
    pytester.runpytest(*options, "-p", "no:cacheprovider", "-p", "no:xdist").assert_outcomes(passed=cases)


def test_the_process_that_hands_out_cases_does_without_pytorch(request):
    code = "import sys, tests.conftest; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=request.config.rootpath, check=True)
