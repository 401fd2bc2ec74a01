"""Options of the test run, which cases of the sweeps it has, and the table at its end."""

import gc
import os
import sys

# Before torch is imported, by what is collected and in what tests start: pytest-xdist keeps every core busy already.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Vectors that the processor has are there for Inductor without a program compiled for each kind, which takes seconds.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# What a test says of planning is to be true of planning, and not of what an earlier run has left on disk.
os.environ["DECOMP_CACHE"] = "off"

# What is imported and collected is hardly ever garbage; see `pytest_collection_finish`.
gc.disable()

import pytest

pytest.register_assert_rewrite("tests.forms", "tests.rewriting")
from tests import sampling

RECURSION_LIMIT = sys.getrecursionlimit()


def pytest_addoption(parser):
    parser.addoption("--whole", action="store_true", help="run every case of every sweep, not a sample")
    parser.addoption("--sample-seed", type=int, default=0, help="seed of the samples (default: 0)")


def pytest_report_header(config):
    if config.getoption("--whole"):
        return "sweeps: every case"
    seed = config.getoption("--sample-seed")
    drawn = "each value of each parameter once, of long tables a part, of tests of rules every second"
    return f"sweeps: {drawn}, seed {seed}; every case: --whole"


CASES = pytest.StashKey[dict[str, int]]()
"""How many cases were collected, those included that `pytest_generate_tests` drew from, and how many of them run."""


def pytest_configure(config):
    config.stash[CASES] = {"all": 0, "run": 0}


def pytest_generate_tests(metafunc):
    if "opinfo_job" not in metafunc.fixturenames:
        return
    from tests.opinfo.sweep import TARGETS, cases
    from tests.opinfo.table import one_in

    whole = metafunc.config.getoption("--whole")
    seed = None if whole else metafunc.config.getoption("--sample-seed")
    jobs = [(str(case), target, 3, seed) for case in cases() for target in TARGETS]
    metafunc.config.stash[CASES]["all"] += len(jobs)
    if not whole:
        jobs = sampling.one_of_each(jobs, lambda job: job[0].rsplit("-", 2)[0], seed)
        jobs = sampling.thinned(jobs, lambda job: one_in(job[0]), lambda job: job[0].rpartition(".")[0], seed)
    metafunc.config.stash[CASES]["all"] -= len(jobs)  # these are items
    metafunc.parametrize("opinfo_job", jobs, ids=[f"{target}-{name}" for name, target, *_ in jobs])


def pytest_collection_finish(session):
    # What was imported and collected stays until the end: a million objects, through which no collection need walk.
    gc.freeze()
    gc.enable()
    gc.set_threshold(5000, 10, 10)  # 700 objects are one small graph, and JAX and Hypothesis are called each time
    session.config.pluginmanager.register(_Outlived())


class _Outlived:
    """Objects that outlived a full garbage collection, and the test that left them: modules that were imported, caches
    that were filled. It stays, too, and walking through it again and again took a sixth of a run."""

    def __init__(self) -> None:
        self.collections = 0

    def pytest_runtest_logfinish(self) -> None:
        collections = gc.get_stats()[2]["collections"]
        if collections > self.collections:
            gc.collect(1)
            gc.freeze()
            self.collections = collections


@pytest.fixture(autouse=True)
def _torch_is_left_as_it_was_found():
    from tests import torch_state

    before = torch_state.state()
    yield
    changed = torch_state.changed(before)
    assert not changed, f"the test left PyTorch in another state: {', '.join(changed)}"


@pytest.fixture
def fresh_compiler():
    """torch.compile without what other tests have compiled: Dynamo counts recompilations by function, up to a limit."""
    import torch

    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def seeded():
    import torch

    torch.manual_seed(0)


def pytest_runtest_setup():
    # Inductor raises it and leaves it so (torch 2.13, compile_fx): what is nested too deeply would depend on the order.
    sys.setrecursionlimit(RECURSION_LIMIT)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items, config):
    result = yield
    config.stash[CASES]["all"] += len(items)
    _sample(items, config)
    config.stash[CASES]["run"] = len(items)
    return result


def _sample(items, config):
    if config.getoption("--whole") or sampling.is_named(config):
        return
    kept = sampling.sampled(items, config.getoption("--sample-seed"))
    running = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in running])
    items[:] = kept


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cases"] = session.config.stash[CASES]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    node.config.stash[CASES].update(getattr(node, "workeroutput", {}).get("cases", {}))


def pytest_terminal_summary(terminalreporter, config):
    _summarize_opinfo(terminalreporter)
    cases = config.stash[CASES]
    if cases["run"] < cases["all"]:
        terminalreporter.write_line(f"{cases['run']:,} of {cases['all']:,} cases; --whole runs all")
    else:
        terminalreporter.write_line(f"all {cases['all']:,} cases")


def _summarize_opinfo(terminalreporter):
    reports = (report for found in terminalreporter.stats.values() for report in found)
    verdicts = [
        value for report in reports for name, value in getattr(report, "user_properties", ()) if name == "verdict"
    ]
    if not verdicts:
        return
    from tests.opinfo.table import Row, summaries

    rows = [Row(**verdict) for verdict in verdicts]
    terminalreporter.section("rules on PyTorch's own operator and module tests")
    for target, (kind, total, counts) in ((name, line) for name, found in summaries(rows).items() for line in found):
        parts = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        terminalreporter.write_line(f"{target:10} {total:4} {kind:10} {parts}")
