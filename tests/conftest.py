"""Options of the test run, and the table at its end."""

import random

import pytest


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run every case of PyTorch's own tests, not a sample")
    parser.addoption("--sample-seed", type=int, default=0, help="seed of the sample of cases (default: 0)")


def pytest_report_header(config):
    if config.getoption("--all"):
        return "rules: every case of PyTorch's operator and module tests"
    seed = config.getoption("--sample-seed")
    return f"rules: one case of each of PyTorch's operator and module tests, on one target, seed {seed}; whole: --all"


def pytest_generate_tests(metafunc):
    if "opinfo_job" not in metafunc.fixturenames:
        return
    from tests.opinfo.sweep import TARGETS, cases

    jobs = [(str(case), target, 3) for case in cases() for target in TARGETS]
    if not metafunc.config.getoption("--all"):
        jobs = _sampled(jobs, metafunc.config.getoption("--sample-seed"))
    metafunc.parametrize("opinfo_job", jobs, ids=[f"{target}-{name}" for name, target, _ in jobs])


def _sampled(jobs, seed):
    """One job of each entry, in a dtype, a capture and a target drawn from the seed."""
    chance, by_entry = random.Random(seed), {}
    for job in jobs:
        by_entry.setdefault(job[0].rsplit("-", 2)[0], []).append(job)
    return [chance.choice(group) for group in by_entry.values()]


ROWS = pytest.StashKey()


def pytest_configure(config):
    config.stash[ROWS] = []


@pytest.fixture
def opinfo_rows(request):
    """Where verdicts are noted for the table."""
    return request.config.stash[ROWS]


def pytest_terminal_summary(terminalreporter, config):
    rows = config.stash[ROWS]
    if not rows:
        return
    from tests.opinfo.table import summaries

    terminalreporter.section("rules on PyTorch's own operator and module tests")
    for target, (kind, total, counts) in ((name, line) for name, found in summaries(rows).items() for line in found):
        parts = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        terminalreporter.write_line(f"{target:10} {total:4} {kind:10} {parts}")
