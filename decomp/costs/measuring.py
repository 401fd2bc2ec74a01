"""The time of calls on this machine: each is timed once, at its shapes, dtypes and strides, on random operands, and
stored in a file for the machine, so that the next process has the same prices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass
import functools
import hashlib
import json
from pathlib import Path
import statistics
import time
from typing import Any

import torch
from torch import fx

from decomp import cache_directory
from decomp.costs.machine import describe_machine
from decomp.costs.model import CostModel
from decomp.costs.sizes import operands, results, size
from decomp.errors import CostError, first_line, spell_target
from decomp.forks import ForkSafeLock, collector_paused
from decomp.ir.arguments import substituted
from decomp.ir.call import Call, metadata
from decomp.ir.dtypes import name_of
from decomp.metadata.ambient_modes import without_ambient_modes

# Warm-up fills caches and starts the thread pool; the median of an odd number is one of the measurements.
WARM_UP, SAMPLES, LEAST = 3, 15, 5
"""Warm-up calls; measurements of a call; the least number of measurements, however long they take."""
# Clocks and calls of Python have an overhead of about a microsecond: half a percent of this.
SAMPLE = 2e-4
"""The least time of a measurement in seconds: shorter calls are repeated."""
PATIENCE = 1.0
"""The time in seconds after which no further measurement of a call begins."""


@dataclass(frozen=True)
class Measured(CostModel):
    """Microseconds that PyTorch takes for a call on this machine, eager and without gradients: the median of several
    warm measurements. It includes the dispatch, also for views. Measured once for each machine, number of threads and
    version of torch, and cached in a file.

    A call is timed on the device that the program is on. Floats are drawn between 1/2 and 3/2; integers are ones, or
    zeros where ones are out of range."""

    directory: str | None = None
    """The directory of the times; by default that of the disk cache, or only memory with `DECOMP_CACHE=off`."""

    unit = "µs"
    aim = "least time call by call, as PyTorch takes on this machine"

    def __call__(self, call: Call) -> float:
        device = next((t.device for t in (*operands(call), *results(call))), torch.device("cpu"))
        device = torch.device("cpu") if device.type == "meta" else device
        place = Path(self.directory) if self.directory is not None else cache_directory.directory()
        return _times(place, device, torch.get_num_threads()).of(call)

    def __repr__(self) -> str:
        return "decomp.costs.measured" if self.directory is None else f"decomp.costs.Measured({self.directory!r})"


MEASURED = Measured()


@functools.cache
def _times(directory: Path | None, device: torch.device, threads: int) -> _Times:
    # Everything that a time depends on, so that another machine or version has another file.
    machine = json.dumps(describe_machine(device), sort_keys=True)
    name = hashlib.sha256(machine.encode()).hexdigest()[:16]
    return _Times(directory / f"measured-{name}.jsonl" if directory is not None else None, machine, device)


class _Times:
    """The times on one machine. The file has one line per call; it is read once, when it is opened."""

    def __init__(self, path: Path | None, machine: str, device: torch.device) -> None:
        self.path, self.machine, self.device = path, machine, device
        self.lock = ForkSafeLock()
        self.known = dict(_read(path)) if path is not None else {}

    def of(self, call: Call) -> float:
        """Microseconds."""
        key = call_as_text(call)
        # Two measurements at once would slow each other.
        with self.lock:
            if key not in self.known:
                self.known[key] = round(1e6 * _seconds(call, self.device), 3)
                self._append({"call": key, "microseconds": self.known[key]})
            return self.known[key]

    def _append(self, entry: dict[str, Any]) -> None:
        """Append to the file. Failures are ignored: the next process measures again."""
        if self.path is None:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # The first line says whose times these are; it is no entry.
            lines = [json.dumps(entry)] if self.path.exists() else [self.machine, json.dumps(entry)]
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))


def _read(path: Path) -> Iterator[tuple[str, float]]:
    """The times in a file, without malformed lines, which two processes may write at once."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            taken = entry.get("microseconds") if isinstance(entry, dict) else None
            if isinstance(taken, (int, float)) and isinstance(entry.get("call"), str):
                yield entry["call"], float(taken)


def call_as_text(call: Call) -> str:
    """A call with the metadata of its operands: `aten.mul.Tensor(float32[3, 4]:[4, 1], 2.0)`."""
    assert call.place is not None
    node = call.place
    args, kwargs = substituted((node.args, node.kwargs), _node_as_text)
    written = [*map(_as_text, args), *(f"{name}={_as_text(value)}" for name, value in kwargs.items())]
    return f"{spell_target(node.target)}({', '.join(written)})"


class _Text(str):
    """The text of a node."""

    # So that it is written without quotes within a list.
    __repr__ = str.__str__


def _node_as_text(node: fx.Node) -> _Text:
    value = metadata(node)
    leaves = value if isinstance(value, (list, tuple)) else [value]
    return _Text(", ".join(map(_value_as_text, leaves)))


def _value_as_text(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(size(value)) if isinstance(value, torch.SymInt) else repr(value)
    strides = [size(s) for s in value.stride()] if value.layout is torch.strided else value.layout
    return f"{name_of(value.dtype)}{[size(s) for s in value.shape]}:{strides}"


def _as_text(value: Any) -> str:
    return _value_as_text(value) if isinstance(value, torch.Tensor) else repr(value)


def _seconds(call: Call, device: torch.device) -> float:
    """The time of one call. Raises `CostError` if it does not run."""
    with without_ambient_modes(), torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        return _median(_running(call, device), device)


def _running(call: Call, device: torch.device) -> Callable[[], Any]:
    """A function that runs the call, after a first successful run."""
    assert call.place is not None
    node, failed = call.place, CostError("")
    # A one is in range for most indices and divides; where a dimension has one element, only zero is.
    for integer in (1, 0):
        try:
            made = {
                given: substituted(metadata(given), lambda leaf: _make_value(leaf, integer, device), object)
                for given in node.all_input_nodes
            }
            args, kwargs = substituted((node.args, node.kwargs), made.__getitem__)
            function = getattr(args[0], str(node.target)) if node.op == "call_method" else node.target
            run = functools.partial(function, *(args[1:] if node.op == "call_method" else args), **kwargs)
            run()
            return run
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # kernels may reject random operands in any way
            failed = CostError(
                f"{call_as_text(call)} cannot be timed here: {type(error).__name__}: {first_line(error)}\n"
                "  to do: price it in a table, decomp.costs.table"
            )
    raise failed


def _make_value(value: Any, integer: int, device: torch.device) -> Any:
    """A concrete value with this metadata."""
    if not isinstance(value, torch.Tensor):
        return size(value) if isinstance(value, torch.SymInt) else value
    if value.layout is not torch.strided:
        raise ValueError(f"operands of layout {value.layout} are not supported")
    made = torch.empty_strided(
        [size(s) for s in value.shape], [size(s) for s in value.stride()], dtype=value.dtype, device=device
    )
    if made.is_floating_point() or made.is_complex():
        # Away from 0, where divisions and logarithms make infinities, and from subnormal numbers, which are slow.
        drawn = torch.rand(made.numel() or 1, generator=torch.Generator().manual_seed(0)) + 0.5
    else:
        drawn = torch.full((made.numel() or 1,), integer)
    return _fill(made, drawn.to(device))


def _fill(made: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """`made` filled with these numbers; elements that share memory get the same."""
    # `copy_` refuses a tensor whose elements share memory.
    if 0 in made.stride():
        index = tuple(slice(None) if stride else slice(1) for stride in made.stride())
        shown = made[index]
        shown.copy_(drawn[: shown.numel()].reshape(shown.shape))
    elif made.numel():
        made.copy_(drawn.reshape(made.shape))
    return made


def _median(run: Callable[[], Any], device: torch.device) -> float:
    began = _time_call(run, 1, device)
    for _ in range(WARM_UP if began < PATIENCE else 0):
        began = _time_call(run, 1, device)
    repeats = max(1, min(round(SAMPLE / max(began, 1e-7)), 10_000))
    taken: list[float] = []
    spent = 0.0
    with collector_paused():
        while len(taken) < SAMPLES and (len(taken) < LEAST or spent < PATIENCE):
            taken.append(_time_call(run, repeats, device))
            spent += taken[-1] * repeats
            if spent > 5 * PATIENCE:
                break
    return statistics.median(taken)


def _time_call(run: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Seconds per call, the mean of `repeats`."""
    # Kernels on a GPU run after the call returns.
    _wait(device)
    began = time.perf_counter()
    for _ in range(repeats):
        run()
    _wait(device)
    return (time.perf_counter() - began) / repeats


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
