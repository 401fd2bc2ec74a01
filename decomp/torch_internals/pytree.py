"""Pytrees: the nested containers that models take and return; `fx.node.map_aggregate` does not support registered ones.
A public module has been requested since 2021: https://github.com/pytorch/pytorch/issues/65761."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx._pytree import tree_flatten_spec as tree_flatten_spec  # flattens as a `GraphModule` flattens its inputs
from torch.utils import _pytree
from torch.utils._pytree import (
    MappingKey,
    SequenceKey,
    TreeSpec as TreeSpec,
    keystr as keystr,
    tree_flatten as tree_flatten,
    tree_leaves as tree_leaves,
    tree_map as tree_map,
    tree_map_only as tree_map_only,
    tree_structure as tree_structure,
    tree_unflatten as tree_unflatten,
)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


Path = tuple[Any, ...]


def tree_flatten_with_path(
    value: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[tuple[Path, Any]], TreeSpec]:
    """The leaves of a value with their paths, and its structure. PyTorch refuses containers that were registered
    without paths, such as outputs of `diffusers`; here their parts have the names in the context, or places."""
    try:
        found: tuple[list[tuple[Path, Any]], TreeSpec] = _pytree.tree_flatten_with_path(value, is_leaf)
        return found
    except ValueError:  # "Did not find a flatten_with_keys_fn for type" (torch 2.13)
        return list(_leaves_with_path(value, (), is_leaf)), tree_flatten(value, is_leaf)[1]


def _leaves_with_path(value: Any, path: Path, is_leaf: Callable[[Any], bool] | None) -> Iterator[tuple[Path, Any]]:
    parts, spec = tree_flatten(value, lambda each: each is not value)
    if spec.is_leaf() or is_leaf is not None and is_leaf(value):
        yield path, value
        return
    for key, part in zip(_keys(value, spec), parts):
        yield from _leaves_with_path(part, (*path, key), is_leaf)


def _keys(value: Any, spec: TreeSpec) -> list[Any]:
    """The keys of a container's parts."""
    try:
        return [path[0] for path, _ in _pytree.tree_flatten_with_path(value, lambda each: each is not value)[0]]
    except ValueError:
        names, count = spec.context, spec.num_children
        if isinstance(names, (list, tuple)) and len(names) == count and all(isinstance(each, str) for each in names):
            return [MappingKey(each) for each in names]
        return [SequenceKey(place) for place in range(count)]
