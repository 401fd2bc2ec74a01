"""A process that forks while one of its threads lowers: in the child that thread does not exist, and what it held, or
had changed for the time being, would stay so. All locks of this project are made here, and made again in the child,
where what the thread would have put back is put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import functools
import gc
import os
import sys
import threading
from types import TracebackType
import weakref

_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()
_UNDOING: dict[int, list[Callable[[], None]]] = {}
"""By thread, what puts back what it has changed, in order."""


class Lock:
    """A reentrant lock, which is free in a forked process where another thread of the parent held it."""

    def __init__(self) -> None:
        self._lock, self._owner, self._depth = threading.RLock(), 0, 0
        _LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._owner, self._depth = threading.get_ident(), self._depth + 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._depth -= 1
        self._owner = self._owner if self._depth else 0
        self._lock.release()

    def renew(self) -> None:
        """Let it be free, unless this thread holds it."""
        if self._owner != threading.get_ident():
            self._lock, self._owner, self._depth = threading.RLock(), 0, 0


@contextlib.contextmanager
def undone_in_child(undo: Callable[[], None]) -> Iterator[None]:
    """Within, this thread has changed something of the process for the time being. Where another thread forks, the
    child calls `undo`."""
    mine = _UNDOING.setdefault(threading.get_ident(), [])
    mine.append(undo)
    try:
        yield
    finally:
        mine.pop()
        if not mine:
            _UNDOING.pop(threading.get_ident(), None)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Half the cost of building 10⁵ nodes is the collector walking what was just built."""
    if not gc.isenabled():
        yield
        return
    with undone_in_child(gc.enable):
        try:
            gc.disable()
            yield
        finally:
            gc.enable()


def _in_child() -> None:
    for lock in list(_LOCKS):
        lock.renew()
    for thread in [thread for thread in _UNDOING if thread != threading.get_ident()]:
        for undo in reversed(_UNDOING.pop(thread)):
            undo()
    # The lock that `torch.compile` holds is taken to lower, and PyTorch does not make it again.
    theirs = getattr(sys.modules.get("torch._dynamo.convert_frame"), "compile_lock", None)
    if theirs is not None and not theirs._is_owned():
        theirs._at_fork_reinit()
    if sys.version_info < (3, 12):
        _renew_cached_properties()


def _renew_cached_properties() -> None:
    """A `functools.cached_property` holds one lock for all objects while it computes (Python 3.11)."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in _OURS]
    for cls in {each for module in modules for each in list(vars(module).values()) if isinstance(each, type)}:
        for each in vars(cls).values():
            if isinstance(each, functools.cached_property):
                each.lock = threading.RLock()  # type: ignore[attr-defined]


_OURS = ("decomp", "decomp_rules")

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
