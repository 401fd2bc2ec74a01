"""Terms: the calls of a graph as immutable values. Two calls of the same op on the same terms are the same term, so
equal terms are found by lookup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
import functools
from typing import Any

import torch
from torch import fx

from decomp.ir.arguments import key, leaves
from decomp.ir.call import metadata


class Term:
    """A value of the program: a call of an op on other terms, or an opaque node (an input, a call with an effect)."""

    # One for each call of the graph in each round of the search.
    __slots__ = ("_operands", "args", "kwargs", "leaves", "op", "owner", "returned", "target", "value")

    def __init__(
        self, owner: fx.Node, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], value: Any
    ) -> None:
        self.owner = owner
        """The first source node that computes it."""
        self.op, self.target, self.args, self.kwargs = op, target, args, kwargs
        self.value = value
        """Its metadata."""
        self.leaves: fx.Node | None = None
        """If it represents a value whose memory is visible outside, a node identifying the set that shares this
        memory."""
        self.returned = False
        """Whether it represents a value that the program returns."""
        self._operands: tuple[Term, ...] | None = None

    def __repr__(self) -> str:
        return str(self.owner.name)

    def as_call(self) -> TermCall:
        """The term as a call."""
        return TermCall(self.op, self.target, self.args, self.kwargs, self.value)

    @property
    def operands(self) -> tuple[Term, ...]:
        """The distinct terms among its arguments, in order."""
        found = self._operands
        if found is None:
            found = self._operands = operands_of(self)
        return found


class TermCall:
    """A call that is being simplified: an op, its arguments, and the metadata required of its result."""

    __slots__ = ("args", "kwargs", "op", "target", "value")

    def __init__(self, op: str, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], value: Any) -> None:
        self.op, self.target, self.args, self.kwargs, self.value = op, target, args, kwargs, value

    @classmethod
    def of(cls, node: fx.Node, terms: Mapping[fx.Node, Term]) -> TermCall:
        """The call of a node on the terms of its operands; arguments are positional where the schema allows it."""
        # In C++, and so several times faster than a walk in Python.
        args: Any = fx.map_arg(node.args, terms.__getitem__)
        if not node.kwargs:
            return cls(node.op, node.target, args, {}, metadata(node))
        kwargs: Any = fx.map_arg(node.kwargs, terms.__getitem__)
        return cls(node.op, node.target, *_by_place(node.target, args, kwargs), metadata(node))

    def made(self, target: Any, *args: Any, **kwargs: Any) -> TermCall:
        """Another call with the same result."""
        return TermCall("call_function", target, args, kwargs, self.value)

    def operand(self, place: int, *targets: Any) -> Term | None:
        """The term at an index of the arguments, if it is a call of one of `targets`; without targets, if it is a
        tensor."""
        term = self.args[place] if place < len(self.args) else None
        if type(term) is not Term or (targets and term.target not in targets):
            return None
        return term if targets or isinstance(term.value, torch.Tensor) else None


def _by_place(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """The arguments of an overload, positional where possible; omitted ones in between get their defaults."""
    if not isinstance(target, torch._ops.OpOverload):
        return args, kwargs
    places = _places(target)[len(args) :]
    last = max((i for i, (name, _) in enumerate(places) if name in kwargs), default=-1)
    # A default that was left out and one that was written make the same call, and must have one key.
    moved = tuple([kwargs.get(name, default) for name, default in places[: last + 1]])
    rest = {name: value for name, value in kwargs.items() if all(name != each for each, _ in places[: last + 1])}
    return (*args, *moved), rest


@functools.cache
def _places(target: torch._ops.OpOverload) -> list[tuple[str, Any]]:
    """The positional arguments of an overload, with their defaults."""
    arguments = [each for each in target._schema.arguments if not each.kwarg_only]
    return [(each.name, each.default_value if each.has_default_value() else None) for each in arguments]


class ViewSinking:
    """A call moved below another one: `target` on `inner`, whose metadata is not known yet, and `args`."""

    __slots__ = ("args", "inner", "target")

    def __init__(self, inner: TermCall, target: Any, args: tuple[Any, ...]) -> None:
        self.inner, self.target, self.args = inner, target, args


def operands_of(call: TermCall | Term) -> tuple[Term, ...]:
    """The distinct terms among the arguments of a call, in order."""
    return terms_in((*call.args, *call.kwargs.values()) if call.kwargs else call.args)


def terms_in(values: Iterable[Any]) -> tuple[Term, ...]:
    """The distinct terms in nested arguments, in order."""
    return tuple(dict.fromkeys([leaf for leaf in leaves(tuple(values)) if type(leaf) is Term]))


# Hash consing (Ershov, "On programming of arithmetic operations", 1958; as value numbering in Aho and others,
# "Compilers", 6.1): a call is looked up by its op and the identity of its operands.
def key_of(call: TermCall | Term, *more: Any, of: Callable[[Term], Any] | None = None) -> Any:
    """A key that is equal if and only if two calls are the same: 1, 1.0 and True differ, as do 0.0 and -0.0; NaN equals
    itself. `more` distinguishes calls that must not be merged; `of` maps a term to what matters of it, if not its
    identity."""
    args = tuple([_pattern(arg, of) for arg in call.args])
    kwargs = tuple([(name, _pattern(call.kwargs[name], of)) for name in sorted(call.kwargs)]) if call.kwargs else ()
    # Keyed by id, unless the target is a name: hashing an overload costs more than the rest of the lookup.
    target = call.target if type(call.target) is str else id(call.target)
    return (call.op, target, args, kwargs, *more)


def _pattern(value: Any, of: Callable[[Term], Any] | None) -> Any:
    kind = type(value)
    if kind is Term:
        return value if of is None else of(value)
    if kind is int or kind is str or value is None:
        return value
    if kind is float or isinstance(value, complex):
        # `0.0 == -0.0` and `nan != nan` in Python: both would be wrong here.
        return (kind, repr(value))
    return key(value, lambda item: _pattern(item, of))
