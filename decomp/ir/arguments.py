"""Nested arguments, as calls of a graph take and return them: tuples, lists, dicts and slices of leaves. Anything else,
also a pytree that is registered with PyTorch, is a leaf, as it is for fx. The containers made here are plain, whereas
those of `fx.map_arg` are immutable."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from torch import fx

_CONTAINERS = (tuple, list, dict, slice)


def leaves(value: Any) -> list[Any]:
    """Every leaf, in order, with repeats."""
    found: list[Any] = []
    fx.node.map_aggregate(value, found.append)  # a loop in C++
    return found


def nodes_in(value: Any) -> Iterator[fx.Node]:
    """Every node, in order, with repeats."""
    found: list[fx.Node] = []
    fx.node.map_arg(value, found.append)
    return iter(found)


def substituted(value: Any, of: Callable[[Any], Any], kind: type = fx.Node) -> Any:
    """The arguments with each node, or each value of another `kind`, replaced; `object` replaces every leaf."""
    if isinstance(value, kind) and (kind is not object or not isinstance(value, _CONTAINERS)):
        return of(value)
    if isinstance(value, (list, tuple)):
        items = [substituted(item, of, kind) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {name: substituted(item, of, kind) for name, item in value.items()}
    if isinstance(value, slice):
        return slice(*[substituted(item, of, kind) for item in parts_of(value)])
    return value


def equal(one: Any, other: Any, same: Callable[[Any, Any], bool], *, strict: bool = False) -> bool:
    """Whether two values are nested alike, and `same(leaf, part)` holds for each leaf of the first and what the other
    has in its place. A list is like a tuple unless `strict`, as ops return either."""
    if isinstance(one, (list, tuple)):
        kinds = (list if isinstance(one, list) else tuple) if strict else (list, tuple)
        alike = isinstance(other, kinds) and len(one) == len(other)
        return alike and all([equal(a, b, same, strict=strict) for a, b in zip(one, other)])
    if isinstance(one, dict):
        alike = isinstance(other, dict) and one.keys() == other.keys()
        return alike and all([equal(item, other[name], same, strict=strict) for name, item in one.items()])
    if isinstance(one, slice):
        return isinstance(other, slice) and equal(parts_of(one), parts_of(other), same, strict=strict)
    return same(one, other)


def zipped(one: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """Each leaf of the first value, with what the other, nested like it, has in its place."""
    if isinstance(one, (list, tuple)):
        for a, b in zip(one, other):
            yield from zipped(a, b)
    elif isinstance(one, dict):
        for name, item in one.items():
            yield from zipped(item, other[name])
    elif isinstance(one, slice):
        yield from zipped(parts_of(one), parts_of(other))
    else:
        yield one, other


def key(value: Any, of: Callable[[Any], Hashable]) -> Hashable:
    """A container in a hashable form that tells kinds apart, given that of its items; a leaf with its type. The caller
    recurses, so that it can look at leaves first, where every microsecond counts."""
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple, *[of(item) for item in value])
    if isinstance(value, slice):
        return (slice, *[of(item) for item in parts_of(value)])
    if isinstance(value, dict):
        return (dict, *[(name, of(item)) for name, item in value.items()])
    return (type(value), value)


def text(value: Any, of: Callable[[Any], str]) -> str:
    """The arguments as Python source, given that of leaves."""
    if isinstance(value, (list, tuple)):
        items = ", ".join([text(item, of) for item in value])
        return f"[{items}]" if isinstance(value, list) else f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, dict):
        return "{" + ", ".join([f"{name!r}: {text(item, of)}" for name, item in value.items()]) + "}"
    if isinstance(value, slice):
        return f"slice({', '.join([text(item, of) for item in parts_of(value)])})"
    return of(value)


def parts_of(value: slice) -> tuple[Any, Any, Any]:
    """Start, stop and step."""
    return value.start, value.stop, value.step
