"""Non-finite complex numbers as arguments of nodes: fx prints them into the code of a graph as Python does, and in
`(nan+infj)` the name `infj` is undefined (torch 2.13)."""

from __future__ import annotations

import cmath
from typing import Any

from torch import fx


# PyTorch's change, after 2.13: https://github.com/pytorch/pytorch/pull/188596. A zero with a sign does not survive
# either: https://github.com/pytorch/pytorch/pull/185550.
class EndlessComplex(complex):
    """A complex number that prints as valid code, and equals the same number, NaN included, as arguments of nodes are
    compared."""

    def __repr__(self) -> str:
        return f"complex('{complex(self)!r}')"

    def __eq__(self, other: object) -> bool:
        # By repr, as NaN must equal itself, and 0.0 differ from -0.0.
        return isinstance(other, complex) and repr(complex(self)) == repr(complex(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(repr(self))


def spelled(number: complex) -> complex:
    """The number, in a form that prints as valid code."""
    return number if cmath.isfinite(number) else EndlessComplex(number)


def spell_numbers(node: fx.Node) -> None:
    """Replace such numbers among the arguments of a node, in place."""
    if any(map(_is_endless, node.args)):
        node.args = fx.node.map_aggregate(node.args, _spelled)
    if node.kwargs and any(map(_is_endless, node.kwargs.values())):
        node.kwargs = fx.node.map_aggregate(node.kwargs, _spelled)


def same_constant(found: Any, expected: Any) -> bool:
    """Whether two constants of a graph are the same, including their types, so that 1, 1.0 and True differ; NaN equals
    itself, and complex numbers are equal in either form."""
    if isinstance(expected, complex):
        return isinstance(found, complex) and spelled(found) == spelled(expected)
    if found is expected:
        return True
    return type(found) is type(expected) and (bool(found == expected) or (found != found and expected != expected))


def _spelled(value: Any) -> Any:
    return spelled(value) if type(value) is complex else value


def _is_endless(value: Any) -> bool:
    """Whether a value is, or contains, such a number."""
    kind = type(value)
    if kind is fx.Node:
        return False
    if kind is complex:
        return not cmath.isfinite(value)
    if isinstance(value, dict):
        return any(map(_is_endless, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_is_endless, value))
