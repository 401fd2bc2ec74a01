"""Pytrees as JSON: a leaf is its number, a container has a type, items, and names where its items have some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decomp.torch_internals import pytree

_PLAIN = {"tuple": tuple, "list": list}


def tree_of_spec(spec: pytree.TreeSpec) -> Any:
    """The tree of a spec."""
    return _written(pytree.tree_unflatten([*range(spec.num_leaves)], spec), spec)


def tree_of(value: Any) -> Any:
    """The tree of nested containers."""
    return tree_of_spec(pytree.tree_structure(value))


def _written(value: Any, spec: pytree.TreeSpec) -> Any:
    if spec.is_leaf():
        return value
    parts = pytree.tree_flatten_with_path(value, is_leaf=lambda each: each is not value)[0]
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    items = [_written(part, inner) for (_, part), inner in zip(parts, spec.children())]
    keys = [getattr(path[0], "key", getattr(path[0], "name", None)) for path, _ in parts]
    named = name not in _PLAIN and all(isinstance(key, str) for key in keys)
    return {"type": name, **({"names": keys} if named else {}), "items": items}


def value_of(tree: Any) -> Any:
    """Nested containers with the numbers of leaves. A class that is not a list or a tuple is read as a dict, or as a
    tuple if its items have no names: nothing is imported. Raises `ValueError` or `LookupError` for malformed data."""
    if not isinstance(tree, Mapping):
        if type(tree) is not int:
            raise ValueError(f"{tree!r} in a tree")
        return tree
    items = [value_of(each) for each in tree["items"]]
    if "names" in tree:
        return dict(zip(tree["names"], items, strict=True))
    return _PLAIN.get(tree["type"], tuple)(items)
