"""Pytrees: the nested containers that models take and return; `fx.node.map_aggregate` does not support registered ones.
A public module has been requested since 2021: https://github.com/pytorch/pytorch/issues/65761."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx._pytree import tree_flatten_spec as tree_flatten_spec  # flattens as a `GraphModule` flattens its inputs
from torch.utils._pytree import (
    TreeSpec as TreeSpec,
    keystr as keystr,
    tree_flatten as tree_flatten,
    tree_flatten_with_path as tree_flatten_with_path,
    tree_leaves as tree_leaves,
    tree_map as tree_map,
    tree_map_only as tree_map_only,
    tree_structure as tree_structure,
    tree_unflatten as tree_unflatten,
)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested containers, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
