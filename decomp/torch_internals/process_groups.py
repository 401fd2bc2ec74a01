"""Collectives, and groups of processes by the names under which collectives refer to them. PyTorch has no public way to
find a group by its name, and no public module that registers all collectives; it may be built without any.

`torch._C._distributed_c10d._resolve_process_group` breaks if PyTorch renames it, or if collectives refer to groups by
something other than names and groups (torch 2.11 to 2.13: by a name, or by the group itself). `CollectiveOps` breaks if
PyTorch moves `torch.distributed._functional_collectives`, which registers ops when it is imported."""

from typing import Any, NamedTuple

import torch

from decomp.torch_internals import versions as _versions


def has_collectives() -> bool:
    """Whether PyTorch was built with `torch.distributed`."""
    return bool(torch.distributed.is_available())


class CollectiveOps:
    """The collectives of a namespace, as attributes: those of `torch.ops`; an `AbsentOp` for each if PyTorch was built
    without `torch.distributed`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, op: str) -> Any:
        if op.startswith("__"):
            raise AttributeError(op)
        if not has_collectives():
            return _versions.AbsentOp(f"{self._name}.{op}")
        import torch.distributed._functional_collectives  # which registers the ops

        return getattr(getattr(torch.ops, self._name), op)


class GroupPlace(NamedTuple):
    """The place of this process in a group."""

    rank: int
    """The rank within the group, from 0."""
    size: int
    """The number of processes in the group."""


def place_in_group(group: Any) -> GroupPlace | None:
    """The place of this process in a group, given by name or as a `ProcessGroup`; None if there is no such group here,
    or this process is not in it."""
    found = _resolved(group) if isinstance(group, str) else group
    try:
        place = GroupPlace(found.rank(), found.size())
    except (AttributeError, RuntimeError):
        return None
    return place if place.rank >= 0 else None


def _resolved(name: str) -> Any:
    if not has_collectives():
        return None
    try:
        return torch._C._distributed_c10d._resolve_process_group(name)
    except (RuntimeError, TypeError):  # "Could not resolve the process group registered under the name 0"
        return None
