"""`StageClock`: the time that each stage of a verb takes, for its report and the debug log."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import logging
import time

_LOG = logging.getLogger(__name__)


class StageClock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time spent inside this context to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            self.times[name] = self.times.get(name, 0.0) + seconds
            _LOG.debug("%s: %.0f ms", name, 1000 * seconds)
