"""Groups of processes by the names under which collectives refer to them. PyTorch has no public way to find a group by
its name.

`torch._C._distributed_c10d._resolve_process_group` breaks if PyTorch renames it, or if collectives refer to groups by
something other than names and groups (torch 2.11 to 2.13: by a name, or by the group itself)."""

from typing import Any, NamedTuple

import torch


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
    if not torch.distributed.is_available():
        return None
    try:
        return torch._C._distributed_c10d._resolve_process_group(name)
    except (RuntimeError, TypeError):  # "Could not resolve the process group registered under the name 0"
        return None
