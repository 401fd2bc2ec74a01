"""Laws. Each is a small function that maps a call on terms to an equal term or a simpler call, or returns None.
Conditions common to all laws (metadata, legality, memory, gradients) are checked where they are applied, so a law only
states its identity."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from decomp.ir.dtypes import number_in
from decomp.metadata.symbolic_sizes import expression
from decomp.ops import aten
from decomp.simplification.terms import Term, TermCall, ViewSinking

PERMUTATIONS = (aten.permute.default, aten.transpose.int, aten.t.default)
"""Views of all elements with dimensions in another order."""

Rewrite = Callable[[TermCall], Term | TermCall | ViewSinking | None]
"""Returns an equal term, a simpler call, a view sunk below a call, or None if the law does not apply."""


@dataclass(frozen=True)
class Law:
    """An identity of calls."""

    name: str
    """Its name in reports and verification errors."""
    family: str
    """The pass to which it belongs."""
    targets: frozenset[Any]
    """The overloads of the calls to which it may apply."""
    rewrite: Rewrite
    copies: bool = False
    """Whether exactly one of the call and its replacement has memory of its own."""
    gradients: bool = True
    """Whether gradients are bitwise the same."""
    exact: bool = True
    """Whether results are bitwise the same, including NaN and signs of zero."""

    def __str__(self) -> str:
        return self.name


def law(
    family: str, *targets: Any, copies: bool = False, gradients: bool = True, exact: bool = True
) -> Callable[[Rewrite], Law]:
    """A decorator that turns a function into a law, named after it."""

    def made(rewrite: Rewrite) -> Law:
        name = getattr(rewrite, "__name__", "").replace("_", " ")
        return Law(name, family, frozenset(targets), rewrite, copies, gradients, exact)

    return made


class Laws:
    """Laws by the overloads to which they apply."""

    def __init__(self, laws: Iterable[Law]) -> None:
        self.by_name = {each.name: each for each in laws}
        # Keyed by id: hashing an overload costs more than the rest of a lookup.
        self._by_target: dict[int, list[Law]] = {}
        for each in self.by_name.values():
            for target in each.targets:
                self._by_target.setdefault(id(target), []).append(each)

    def of(self, target: Any) -> list[Law]:
        """The laws for calls of `target`."""
        return self._by_target.get(id(target), _NO_LAWS)


_NO_LAWS: list[Law] = []


def is_bool(value: Any) -> bool:
    """Whether a value is a tensor of booleans."""
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool


def dim_of(call: TermCall | Term) -> int | None:
    """The non-negative value of the second argument, a dimension of the first; None if it is not a number."""
    dim = call.args[1] if len(call.args) > 1 else 0
    base = call.args[0]
    if type(dim) is not int or type(base) is not Term or not isinstance(base.value, torch.Tensor):
        return None
    return dim % base.value.dim() if base.value.dim() else 0


def order_of(call: TermCall | Term) -> list[int] | None:
    """The order in which a call permutes its operand's dimensions; None if it is not a permutation."""
    given = call.args[0] if call.args else None
    if call.target not in PERMUTATIONS or type(given) is not Term or not isinstance(given.value, torch.Tensor):
        return None
    rank, numbers = given.value.dim(), call.args[1:]
    if call.target is aten.permute.default:
        dims = call.args[1]
        return [dim % rank for dim in dims] if all(type(dim) is int for dim in dims) else None
    order = list(range(rank))
    if call.target is aten.t.default:
        return order[::-1]
    if rank and len(numbers) == 2 and all(type(dim) is int for dim in numbers):
        one, other = (dim % rank for dim in numbers)
        order[one], order[other] = other, one
        return order
    return None


def same_sizes(one: Any, other: Any) -> bool:
    """Whether two values are tensors of the same shape, comparing symbolic sizes as expressions."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    shape, wanted = one.shape, other.shape
    return len(shape) == len(wanted) and list(map(expression, shape)) == list(map(expression, wanted))


def constant_of(value: Any) -> Any:
    """The value of a number, or of all elements of a constant-filled tensor; None otherwise."""
    if type(value) is not Term:
        return value if isinstance(value, (bool, int, float, complex)) else None
    # A size may be the fill value: then it is a term, and no number.
    if value.target is _FULL and not isinstance(value.args[1], Term):
        # `full` rounds to its dtype: 0.1 in float32 is not Python's 0.1.
        return number_in(value.args[1], value.value.dtype)
    return None


_FULL = aten.full.default


def is_number(value: Any, number: float) -> bool:
    """Whether an argument equals this number in every element, including the sign of zero."""
    found = constant_of(value)
    if found is None or isinstance(found, complex) or found != number:
        return False
    return number != 0 or _is_negative_zero(found) == _is_negative_zero(number)


def _is_negative_zero(number: Any) -> bool:
    # An integer 0 is +0.0 next to floats.
    return isinstance(number, float) and str(number) == "-0.0"
