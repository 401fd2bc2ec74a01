"""The limits that no program on a machine can pass, measured in the same run."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import ctypes
import os

import torch

from decomp.tools.benchmarking.clock import Clock, Effort, interleaved

COPIED = 1 << 26
"""Bytes of the copy: more than caches hold. The buffer is used before, so that no page is touched for the first
time."""
MMAP_MAX, TRIM_THRESHOLD = -4, -1
"""Options of the C library's `mallopt`: how many allocations are mapped on their own, and how much is free before the
heap shrinks."""
DEFAULTS = {MMAP_MAX: 65536, TRIM_THRESHOLD: 128 * 1024}
EDGE = {"cpu": 1024, "cuda": 8192}
"""Of the square matrices of the product, in float32."""


@contextlib.contextmanager
def kept_pages() -> Iterator[str]:
    """ "kept" while the C library keeps memory that is freed, as allocators of accelerators do; "fresh" if it cannot.

    Else each large tensor is mapped anew and each of its pages touched for the first time, at a tenth of the copy's
    rate, and programs are measured by the number of their large buffers.
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
    timing = interleaved(runs, Clock(device), Effort(warm_up=3, seconds=0.3), seed)
    best = {name: min(timing.taken[name]) for name in runs}
    return {"copy": 2 * COPIED / best["copy"], "matmul": 2 * edge**3 / best["matmul"]}
