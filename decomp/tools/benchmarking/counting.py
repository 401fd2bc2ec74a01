"""Counts of one call: allocated memory, kernels, bytes moved.

The allocator reports each allocation to the profiler, on the CPU and on CUDA, in compiled code and in eager. Kernels
are counted where they are launched: on CUDA by the device's own record; on the CPU as the ops that call no other op and
are not views, and in compiled code as the calls in Inductor's generated code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import contextlib
from dataclasses import dataclass
import logging
import math
import os
import re
from typing import Any
from unittest import mock
import warnings

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import flop_registry

from decomp.torch_internals import pytree
from decomp.torch_internals.modes import TorchDispatchMode

Run = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of one call; None if unknown."""

    memory: int | None = None
    """The peak of allocated bytes above that before the call."""
    kernels: int | None = None
    moved: int | None = None
    """Bytes."""
    operations: int = 0
    """Floating-point operations of products, if each op could be observed."""


def count_call(run: Run, device: torch.device, compiled: CompilationCounts | None) -> Counts:
    """Count the work of a warm call; `compiled` is the record of its compilation, None for an eager call."""
    memory, launched = _profiled(run, device)
    if compiled is None:
        traffic = Traffic()
        with traffic:
            run()
        kernels = launched if device.type == "cuda" else traffic.kernels
        return Counts(memory, kernels, traffic.bytes, traffic.operations)
    return Counts(memory, launched if device.type == "cuda" else compiled.kernels, compiled.moved)


def _profiled(run: Run, device: torch.device) -> tuple[int, int]:
    """The peak of the allocator in bytes, and the kernels that ran on the device."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    with _silence(), profile(activities=activities, profile_memory=True) as found:
        kept = run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    del kept
    if device.type == "cuda":
        kernels = sum(event.device_type == torch.autograd.DeviceType.CUDA for event in found.events())
        return torch.cuda.max_memory_allocated(device) - before, kernels
    held = peak = 0
    for size in _allocations(found.profiler.kineto_results.experimental_event_tree()):
        held += size
        peak = max(peak, held)
    return peak, 0


def _allocations(events: Iterable[Any]) -> Iterator[int]:
    """Bytes allocated (negative: freed), in order of time."""
    flat: list[Any] = []
    rest = list(events)
    while rest:
        event = rest.pop()
        rest.extend(event.children)
        if event.name == "[memory]":
            flat.append(event)
    for event in sorted(flat, key=lambda one: one.start_time_ns):
        yield event.extra_fields.alloc_size


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Silences the profiler, which writes to standard error regardless of settings (torch 2.13) and warns that it keeps
    the events of one cycle alone (2.11)."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class Traffic(TorchDispatchMode):
    """Counts the kernels of eager calls, the bytes that each reads and writes, and the floating-point operations of
    matrix products, convolutions and attention. Views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: int = 0
        self.bytes: int = 0
        self.operations: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.namespace != "prim" and not _FREE.match(func._schema.name):
            self.kernels += 1
            self.bytes += sum(map(bytes_of_elements, _tensors((args, kwargs)))) + sum(
                map(bytes_of_elements, _tensors(result))
            )
            if func.overloadpacket in flop_registry:
                self.operations += int(flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=result))
        return result


_FREE = re.compile(r"aten::(detach|alias|lift_fresh|empty|new_empty|_unsafe_view|sym_|_local_scalar_dense)")
"""Ops that compute nothing, although their schema does not mark them as views."""


def _tensors(tree: Any) -> list[torch.Tensor]:
    found = pytree.tensors_in(tree)
    return list({id(one): one for one in found}.values())


def bytes_of_elements(t: torch.Tensor) -> int:
    """The bytes of a tensor's elements, each counted once even if it is expanded."""
    shown = (size if stride or size == 0 else 1 for size, stride in zip(t.shape, t.stride()))
    return int(math.prod(shown) * t.element_size())


@dataclass
class CompilationCounts:
    """Counts of the generated programs of a compilation."""

    kernels: int = 0
    moved: int | None = None

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Context manager: record what is compiled. Both hooks are Inductor's own, for its tests (torch 2.13). Graphs
        from its caches would not be recorded, so these are disabled, except that of compiled kernels."""
        from decomp.torch_internals.compiling import (
            GraphLowering,
            compile_fx,
            functorch_config,
            inductor_config as config,
            metrics,
        )

        def note(code: str) -> None:
            self.kernels += len(_LAUNCHES.findall(code.partition("def call(")[2]))

        before = metrics.num_bytes_accessed
        log = compile_fx.inductor_metrics_log
        level, propagates = log.level, log.propagate
        log.setLevel(logging.INFO)  # Inductor counts bytes only if this logger is enabled
        log.propagate = False
        try:
            with (
                mock.patch.object(GraphLowering, "save_output_code", note),
                config.patch(fx_graph_cache=False),
                functorch_config.patch(enable_autograd_cache=False),
            ):
                yield
        finally:
            log.setLevel(level)
            log.propagate = propagates
        moved = metrics.num_bytes_accessed - before
        self.moved = moved or None


_LAUNCHES = re.compile(r"^\s+(?:\w+ = )?(?:cpp_\w+\(|extern_kernels\.\w+\(|torch\.ops\.\w+\.\w+\S*\(|\w+\.run\()", re.M)
"""A kernel call in Inductor's generated code: its own, a library's, ATen's or Triton's."""
