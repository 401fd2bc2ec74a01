"""A process that forks while another of its threads lowers: the child lowers, too, and finds nothing half done."""

import contextlib
import gc
import os
import signal
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import decomp
from decomp.costs.measuring import _Times
from decomp.forks import ForkSafeLock
from decomp_rules import RULES, targets

X = torch.ones(2, 3)
SECONDS = 60


class Stop:
    """Where a thread stops until the process has forked."""

    def __init__(self):
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __call__(self):
        if threading.current_thread() is not threading.main_thread():
            self.reached.set()
            assert self.go_on.wait(SECONDS)


@contextlib.contextmanager
def stopped(function, stop):
    """Within, a thread has called `function` and stands where it calls `stop`."""
    failed = []

    def run():
        try:
            function()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert stop.reached.wait(SECONDS)
    try:
        yield
    finally:
        stop.go_on.set()
        thread.join(SECONDS)
    assert not failed


def in_child(check):
    """Whether `check()` ends, and is true, in a forked process."""
    pid = os.fork()
    if not pid:
        signal.alarm(SECONDS)
        os._exit(0 if check() else 3)
    return os.waitpid(pid, 0)[1] == 0


class Stops(nn.Module):
    """A model in whose forward a thread stops, while it is captured."""

    def __init__(self, stop):
        super().__init__()
        self.stop, self.inner = stop, nn.Linear(3, 3)

    def forward(self, x):
        self.stop()
        return F.relu(self.inner(x))


def state():
    flags = torch.compiler.is_compiling(), torch.compiler.is_exporting(), torch.are_deterministic_algorithms_enabled()
    return (*flags, nn.Module.__call__, nn.Module.__getattr__, torch.is_grad_enabled(), gc.isenabled())


def check_of(rules, before, model):
    def check():
        known = state()
        low = decomp.lower(model, to=targets.tinygrad, args=(X,), rules=rules)
        torch.testing.assert_close(low.result(X), model(X))
        return known == before == state()

    return check


def test_a_child_lowers_while_a_rule_is_run_in_another_thread():
    stop = Stop()

    def rule(x):
        stop()
        return x * 1.0

    rules, before = decomp.Rules({F.relu: rule}) | RULES, state()
    model = nn.Sequential(nn.Mish(), nn.ReLU())
    with stopped(lambda: decomp.lower(model, to=targets.tinygrad, args=(X,), rules=rules), stop):
        assert in_child(check_of(rules, before, nn.Mish()))
        assert in_child(check_of(RULES, before, nn.Sequential(nn.Linear(3, 2), nn.GELU())))


@pytest.mark.parametrize("tracer", [{"args": (X,)}, {}], ids=["export", "trace"])
def test_a_child_lowers_while_a_model_is_captured_in_another_thread(tracer):
    torch.use_deterministic_algorithms(True)
    try:
        stop, before = Stop(), state()
        with stopped(lambda: decomp.plan(Stops(stop), to=targets.tinygrad, **tracer), stop):
            assert in_child(check_of(RULES, before, nn.Sequential(nn.Linear(3, 2), nn.GELU())))
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_lock_of_another_thread_is_free_in_a_child_and_ones_own_is_not():
    stop, theirs, mine = Stop(), ForkSafeLock(), ForkSafeLock()

    def hold():
        with theirs, theirs:
            stop()

    def check():
        with theirs, mine:
            return mine._owner == threading.get_ident()

    with mine, stopped(hold, stop):
        assert in_child(check)
    with theirs, mine:
        pass


def test_every_lock_that_the_project_holds_is_made_again():
    stop = Stop()
    times = _Times(None, "", torch.device("cpu"))
    properties = [each for each in vars(decomp.Target).values() if hasattr(each, "attrname") and hasattr(each, "lock")]

    def hold():
        with contextlib.ExitStack() as stack:
            for lock in (times.lock, *(each.lock for each in properties)):
                stack.enter_context(lock)
            stop()

    def check():
        with times.lock:
            return decomp.Target("chip", ["mul"]).knows("mul")

    with stopped(hold, stop):
        assert in_child(check)
