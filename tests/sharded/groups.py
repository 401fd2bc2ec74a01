"""A group of processes of which only this one exists: its collectives have shapes and no values, so that the program of
any rank can be lowered here."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib

import torch.distributed as dist


@contextlib.contextmanager
def process_group(rank: int = 0, size: int = 4) -> Iterator[str]:
    """The name of such a group, which is there inside this context."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # which registers the backend

    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield dist.group.WORLD.group_name
    finally:
        dist.destroy_process_group()
