"""The limits of the machine, measured in the same run."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import ctypes
import os

import torch

from decomp.tools.benchmarking.clock import Clock, Effort, time_interleaved

COPIED = 1 << 26
"""Bytes of the copy: more than fits in caches. The buffer is touched before, to avoid page faults."""
MMAP_MAX, TRIM_THRESHOLD = -4, -1
"""Options of the C library's `mallopt`: the most separately mapped allocations, and the free memory above which the
heap shrinks."""
DEFAULTS = {MMAP_MAX: 65536, TRIM_THRESHOLD: 128 * 1024}
EDGE = {"cpu": 1024, "cuda": 8192}
"""The size of the square matrices of the product, in float32."""


@contextlib.contextmanager
def kept_pages() -> Iterator[str]:
    """Make the C library keep freed memory, as allocators of accelerators do: "kept"; "fresh" if it cannot.

    Otherwise each large tensor is mapped again and incurs page faults, at a tenth of the copy's rate, which would
    dominate the time of programs with large buffers.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None or not (mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, -1)):
        yield "fresh"
        return
    try:
        yield "kept"
    finally:
        for option, value in DEFAULTS.items():
            mallopt(option, value)


def limits(device: torch.device, seed: int = 0) -> dict[str, float]:
    """`copy`: bytes a second, read and written, of a large copy; `matmul`: operations a second of a large product."""
    source = torch.zeros(COPIED // 4, device=device)
    target = torch.empty_like(source)
    edge = EDGE.get(device.type, 1024)
    left, right = (torch.full((edge, edge), 0.5, device=device) for _ in range(2))
    product = torch.empty_like(left)
    runs = {"copy": lambda: target.copy_(source), "matmul": lambda: torch.mm(left, right, out=product)}
    timing = time_interleaved(runs, Clock(device), Effort(warm_up=3, seconds=0.3), seed)
    best = {name: min(timing.taken[name]) for name in runs}
    return {"copy": 2 * COPIED / best["copy"], "matmul": 2 * edge**3 / best["matmul"]}
