"""Calls of a module with other parameters and buffers than its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn


def call_with_state(
    module: nn.Module, state: Mapping[str, torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What a module returns with `state` in the place of its parameters and buffers, by the names that
    `named_parameters` and `named_buffers` give them. Tied ones are replaced together. Afterwards the module has its
    own."""
    names = {id(own): name for name, own in chain(module.named_parameters(), module.named_buffers())}
    # Each module once. Where one is reached by two paths, `functional_call` ties the names itself, replaces twice and
    # restores once: https://github.com/pytorch/pytorch/issues/164759 (seen on torch 2.13 to 2.15).
    places = {
        f"{path}.{name}" if path else name: state[names[id(own)]]
        for path, inner in module.named_modules()
        for name, own in chain(
            inner.named_parameters(recurse=False, remove_duplicate=False),
            inner.named_buffers(recurse=False, remove_duplicate=False),
        )
    }
    return torch.func.functional_call(module, places, tuple(args), dict(kwargs), tie_weights=False)
