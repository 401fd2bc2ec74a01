"""Safety of forks while another thread lowers. That thread does not exist in the child, so the locks that it held would
stay locked, and the global state that it had changed temporarily would stay changed. All locks of this project are made
here, to be replaced in the child, where temporary changes are undone too."""

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

# Weak: locks of objects, as of a cache, end with them.
_LOCKS: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()
_UNDOING: dict[int, list[Callable[[], None]]] = {}
"""By thread, functions that undo its temporary changes, in the order of the changes."""


class ForkSafeLock:
    """A reentrant lock that is released in a forked child if another thread of the parent held it."""

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
        """Replace the lock by a free one, unless this thread holds it."""
        # The thread that forks goes on inside its own `with` in the child, and releases the lock there.
        if self._owner != threading.get_ident():
            # A new object: an RLock owned by a thread that does not exist cannot be released by any other.
            self._lock, self._owner, self._depth = threading.RLock(), 0, 0


@contextlib.contextmanager
def undone_in_child(undo: Callable[[], None]) -> Iterator[None]:
    """While this thread has temporarily changed global state: if another thread forks, the child calls `undo`."""
    mine = _UNDOING.setdefault(threading.get_ident(), [])
    mine.append(undo)
    try:
        yield
    finally:
        mine.pop()
        # The identity of a thread that has ended is given to a new one.
        if not mine:
            _UNDOING.pop(threading.get_ident(), None)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause garbage collection: half the cost of building 10⁵ nodes is the collector walking the new nodes."""
    # The caller may have disabled it, and then it must stay disabled.
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
    # Lowering takes the lock of `torch.compile`, and PyTorch does not replace it after a fork.
    theirs = getattr(sys.modules.get("torch._dynamo.convert_frame"), "compile_lock", None)
    # Not where this thread owns it: `_at_fork_reinit` clears the owner, and leaving the `with` block would raise.
    # (https://github.com/pytorch/pytorch/pull/198246 discusses this for another lock.)
    if theirs is not None and not theirs._is_owned():
        # In place, as functions of Dynamo refer to this object. That Dynamo is not made for threads is known:
        # https://github.com/pytorch/pytorch/issues/118260.
        theirs._at_fork_reinit()
    # https://github.com/python/cpython/pull/101890
    if sys.version_info < (3, 12):
        _renew_cached_properties()


def _renew_cached_properties() -> None:
    """Up to Python 3.11 a `functools.cached_property` holds one lock for all objects while it computes."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in _OURS]
    for cls in {each for module in modules for each in list(vars(module).values()) if isinstance(each, type)}:
        for each in vars(cls).values():
            if isinstance(each, functools.cached_property):
                vars(each)["lock"] = threading.RLock()


_OURS = ("decomp", "decomp_rules")

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
