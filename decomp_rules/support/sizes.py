"""What rules may ask of sizes that are symbols, without a guard."""

from __future__ import annotations

from typing import Any


def surely_at_least(size: Any, least: int) -> bool:
    """Whether a size has no value below `least`."""
    if isinstance(size, int):
        return size >= least
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # deferred: it imports sympy

    return bool(statically_known_true(size >= least))
