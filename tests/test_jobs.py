"""Jobs in processes of their own, and over executors."""

from concurrent.futures import Executor, Future
from dataclasses import dataclass
import os
import time

import pytest

from decomp.jobs import Failed, answers, can_travel, within


@dataclass(frozen=True)
class Called:
    """A job that calls a function."""

    function: object
    args: tuple = ()

    def run(self):
        return self.function(*self.args)


def test_a_job_that_hangs_crashes_or_fails_loses_only_its_own_answer():
    jobs = [
        Called(os.abort),
        Called(time.sleep, (60,)),
        Called(int, ("x",)),
        Called(os._exit, (3,)),
        Called(max, (1, 2)),
    ]
    found = {job.function: answer for job, answer in answers(jobs, 1, within(5))}
    assert found == {
        os.abort: "crashes: SIGABRT",
        time.sleep: "hangs: no answer in 5 s",
        int: "ValueError: invalid literal for int() with base 10: 'x'",
        os._exit: "crashes: exit code 3",
        max: 2,
    }
    assert {type(answer) for answer in found.values()} == {Failed, int}


class Foreign(Executor):
    """An executor whose futures are its own, as those of Dask; it loses each second job."""

    def __init__(self):
        self.futures = []

    def submit(self, fn, /, *args):
        future = Future()
        future.set_exception(OSError("gone\nfor good")) if len(self.futures) % 2 else future.set_result(fn(*args))
        self.futures.append(
            type("OwnFuture", (), {"result": future.result, "cancel": future.cancel, "done": future.done})()
        )
        return self.futures[-1]


def test_jobs_run_over_any_executor_while_others_run_here():
    here = ((name, name.upper()) for name in "ab")
    found = list(answers([1, 2, 3], Foreign(), str, here))
    assert found == [("a", "A"), ("b", "B"), (1, "1"), (2, "the executor lost it: OSError: gone"), (3, "3")]


def test_an_interrupt_stops_what_runs():
    jobs = [Called(time.sleep, (100,)) for _ in range(3)]

    def interrupted():
        raise KeyboardInterrupt
        yield

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(answers(jobs, 2, here=interrupted()))
    assert time.monotonic() - began < 60


def test_what_cannot_be_pickled_stays_here():
    assert can_travel(Called(max)) and not can_travel(Called(lambda: 0))
