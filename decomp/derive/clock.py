"""How long each stage of a lowering takes."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import time


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - began
