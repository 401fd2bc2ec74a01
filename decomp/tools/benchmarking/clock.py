"""Timing: contenders take turns in a random order in each round, warm, with the garbage collector paused.

On a small machine other processes take time and share caches: only times of the same round are comparable, so ratios
are taken within rounds. In a fixed order, the contender after one that floods the caches would always be slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass
import gc
import random
import time
from typing import Any

import torch

from decomp.tools.benchmarking.records import Spread

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """The effort spent on a case."""

    warm_up: int = 2
    """The number of warm-up calls."""
    seconds: float = 0.5
    """The time for each contender after which no new round begins."""
    least: int = 5
    """The least number of rounds, unless they take longer than `patience`."""
    most: int = 60
    """The most rounds."""
    sample: float = 5e-4
    """The least time of a measurement in seconds: shorter runs are repeated."""
    collect: bool = False
    """Whether to collect garbage before each measurement and not only the first: for runs that create much garbage."""
    patience: float = 20.0
    """Seconds after which a case ends after two rounds, despite `least`."""


@dataclass(frozen=True)
class Timing:
    """Seconds per call, by contender and round."""

    taken: Mapping[str, Sequence[float]]

    def spread(self, name: str) -> Spread:
        """The spread of the times."""
        return Spread.of(self.taken[name])

    def ratio(self, name: str, to: str) -> Spread:
        """The spread of the ratios within rounds."""
        return Spread.of([mine / theirs for mine, theirs in zip(self.taken[name], self.taken[to])])


class Clock:
    """Times calls on one device: by events on CUDA, otherwise by the processor's clock."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def seconds(self, run: Run, repeats: int = 1) -> float:
        """A call's time, the mean of `repeats`."""
        if self.device.type == "cuda":
            return self._by_events(run, repeats)
        began = time.perf_counter()
        for _ in range(repeats):
            run()
        return (time.perf_counter() - began) / repeats

    def _by_events(self, run: Run, repeats: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self.device)
        start.record()
        for _ in range(repeats):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / repeats


def time_interleaved(runs: Mapping[str, Run], clock: Clock, effort: Effort, seed: int) -> Timing:
    """Time all of `runs` in turns. Those that take seconds run only in the first rounds."""
    order = random.Random(seed)
    repeats = {name: _warmed(run, clock, effort) for name, run in runs.items()}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    spent = dict.fromkeys(runs, 0.0)
    with _without_collector():
        for turn in range(effort.most):
            names = [name for name in runs if turn < 2 or spent[name] < effort.patience / 8]
            if turn >= effort.least and sum(spent.values()) > effort.seconds * len(runs):
                break
            if turn >= 2 and sum(spent.values()) > effort.patience:
                break
            order.shuffle(names)
            _round(names, runs, repeats, clock, taken, spent, effort.collect)
    return Timing(taken)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _warmed(run: Run, clock: Clock, effort: Effort) -> int:
    """How many times a warm call is repeated in a measurement."""
    seconds = clock.seconds(run)
    for _ in range(effort.warm_up):
        if seconds < 1:
            seconds = clock.seconds(run)
    return max(1, round(effort.sample / max(seconds, 1e-7)))


def _round(
    names: Sequence[str],
    runs: Mapping[str, Run],
    repeats: Mapping[str, int],
    clock: Clock,
    taken: Mapping[str, list[float]],
    spent: dict[str, float],
    collect: bool,
) -> None:
    for name in names:
        if collect:
            gc.collect()
        elif spent[name] < 1:
            runs[name]()  # the previous contender may have evicted the caches
        taken[name].append(clock.seconds(runs[name], repeats[name]))
        spent[name] += taken[name][-1] * repeats[name]
