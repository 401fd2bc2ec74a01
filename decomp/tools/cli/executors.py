"""Executors of commands: one that the user names, or processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
import contextlib
import multiprocessing
import os

from decomp.jobs import Threads
from decomp.tools.cli.arguments import load_callable
from decomp.tools.cli.terminal import Unusable

EXECUTOR = "module:callable or file.py:callable that returns a concurrent.futures.Executor."


def made_executor(name: str) -> Executor:
    """The executor that `module:callable` returns. Raises `Unusable`."""
    made: Executor = load_callable(name)()
    if not isinstance(made, Executor) and not hasattr(made, "submit"):
        raise Unusable(f"{name} must return a concurrent.futures.Executor, not {type(made).__name__}")
    return made


@contextlib.contextmanager
def chosen_executor(name: str | None, workers: int | None) -> Iterator[Executor | None]:
    """The executor that `module:callable` returns, or threads that each measure in a process of their own."""
    if name is None and workers is None:
        yield None
    elif name is None:
        with Threads(workers) as threads:
            yield threads
    else:
        with made_executor(name) as made:
            yield made


@contextlib.contextmanager
def processes(count: int) -> Iterator[Executor]:
    """Processes with one thread each. They are spawned, as PyTorch's threads do not survive a fork."""
    fresh = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, fresh, _single_threaded)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _single_threaded() -> None:
    import torch

    torch.set_num_threads(1)
