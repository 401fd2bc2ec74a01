"""The call that is being computed, for functions that need to know more about it than their arguments."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import contextvars

from torch import fx

# A context variable and no global: threads and coroutines may run programs at once.
_NODE: contextvars.ContextVar[fx.Node | None] = contextvars.ContextVar("decomp_node", default=None)


@contextlib.contextmanager
def set_current_node(node: fx.Node) -> Iterator[None]:
    """Context manager: `node` is being computed."""
    token = _NODE.set(node)
    try:
        yield
    finally:
        _NODE.reset(token)


def is_walking() -> bool:
    """Whether a program is being run node by node in this context."""
    return _NODE.get() is not None


def node_now() -> fx.Node:
    """The node being computed. Raises `LookupError`."""
    node = _NODE.get()
    if node is None:
        raise LookupError("no call is being computed: nodes are known while Loaded.walk runs a program")
    return node
