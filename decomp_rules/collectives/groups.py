"""What rules of collectives share: the place of this process in a group, and waiting for results."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from decomp import decline
from decomp.ops import GroupPlace, collectives, place_in_group
from decomp.results import Declined

SUM = "sum"


def place_in(group: Any) -> GroupPlace | Declined:
    """The rank and size of this process in a group, or a refusal if there is no such group."""
    found = place_in_group(group)
    return found if found is not None else decline(f"this process has no process group {group!r}: initialise it first")


def wait(result: Tensor) -> Tensor:
    """The result of a collective, complete."""
    found: Tensor = collectives.wait_tensor(result)
    return found


def gather(x: Tensor, size: int, group: Any) -> Tensor:
    """The tensors of all ranks, complete: `(size, *x.shape)`."""
    rows = collectives.all_gather_into_tensor(x.reshape(1, *x.shape), size, group)
    return wait(rows)


def exchange(rows: Tensor, size: int, group: Any) -> Tensor:
    """Row i goes to rank i, and row i of the result comes from rank i, complete: `(size, ...)`."""
    ones = [1] * size
    return wait(collectives.all_to_all_single(rows, ones, ones, group))
