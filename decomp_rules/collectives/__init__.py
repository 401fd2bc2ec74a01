"""Collectives by other collectives, for targets that have some of them: an all-reduce of a target without one is a
reduce-scatter and an all-gather. `RULES` is no part of `decomp_rules.RULES`, as a derived collective changes what is
sent over the network: ask for it by `rules=decomp_rules.RULES | decomp_rules.collectives.RULES`. `OPS` are the ops
that PyTorch's own backends have, for `target | decomp_rules.collectives.OPS`.

A rule depends on the rank of this process and on the size of the group, so the program of one rank is not that of
another; on each rank it makes the same collectives in the same order. Every rule waits for a collective before it
reads the result. Results are bit by bit those of the op, except sums, products and averages of floating-point numbers:
these may be reduced in another order, with an error of at most (n - 1) roundings of the sum of the n absolute values,
as the op's own, whose order is unspecified.

A PyTorch without `torch.distributed` has no collectives: there `RULES` and `OPS` raise `DecompError`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import decomp
from decomp.ops import has_collectives
from decomp_rules.collectives import coalesced, gathers, reductions

if TYPE_CHECKING or has_collectives():
    RULES = decomp.Rules([*reductions.RULES.entries, *gathers.RULES.entries, *coalesced.RULES.entries])
    _NAMES = "all_reduce all_gather_into_tensor reduce_scatter_tensor all_to_all_single broadcast wait_tensor"
    OPS = frozenset(f"_c10d_functional.{name}" for name in _NAMES.split())
    """The collectives on one tensor that PyTorch's own backends have, and the call that waits for one."""


def __getattr__(name: str) -> Any:
    if name in ("RULES", "OPS"):
        raise decomp.DecompError(
            f"{__name__}.{name} needs the collectives of torch.distributed, and this PyTorch was built without it\n"
            "  to do: install a PyTorch that was built with USE_DISTRIBUTED=1, as those of pip are"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
