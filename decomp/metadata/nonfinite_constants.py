"""Complex numbers that are not finite, as arguments of nodes: fx writes them into the code of a graph as Python prints
them, and in `(nan+infj)` the name `infj` is nobody's (torch 2.13)."""

from __future__ import annotations

import cmath
from typing import Any

from torch import fx


class EndlessComplex(complex):
    """A complex number that prints as code that makes it, and equals the same number, as arguments of nodes are
    compared: NaN too."""

    def __repr__(self) -> str:
        return f"complex('{complex(self)!r}')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, complex) and repr(complex(self)) == repr(complex(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(repr(self))


def spelled(number: complex) -> complex:
    """The number, such that its code runs."""
    return number if cmath.isfinite(number) else EndlessComplex(number)


def spell_numbers(node: fx.Node) -> None:
    """Do so with those among the arguments of a node, which is changed."""
    if any(map(_is_endless, node.args)):
        node.args = fx.node.map_aggregate(node.args, _spelled)  # type: ignore[assignment]
    if node.kwargs and any(map(_is_endless, node.kwargs.values())):
        node.kwargs = fx.node.map_aggregate(node.kwargs, _spelled)  # type: ignore[assignment]


def same_constant(found: Any, expected: Any) -> bool:
    """Whether two constants of a graph are the same, with their types, so that 1, 1.0 and True differ; NaN is itself,
    and a complex number is so whichever way it is spelled."""
    if isinstance(expected, complex):
        return isinstance(found, complex) and spelled(found) == spelled(expected)
    if found is expected:
        return True
    return type(found) is type(expected) and (bool(found == expected) or (found != found and expected != expected))


def _spelled(value: Any) -> Any:
    return spelled(value) if type(value) is complex else value


def _is_endless(value: Any) -> bool:
    """Whether it is such a number, or holds one."""
    kind = type(value)
    if kind is fx.Node:
        return False
    if kind is complex:
        return not cmath.isfinite(value)
    if isinstance(value, dict):
        return any(map(_is_endless, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_is_endless, value))
