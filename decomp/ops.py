"""PyTorch's ops, as in `torch.ops`, for rules that support several versions of PyTorch. If the installed version lacks
an op, registrations for it are skipped, and a rule that calls it declines. A name that no supported version has raises
`AttributeError`, as in `torch.ops`. Where the meaning of an op has changed between versions, `changes` says which
meaning the installed one has: `register(op, when=changes.ties_share_gradients)`."""

from decomp.torch_internals.process_groups import (
    CollectiveOps,
    GroupPlace as GroupPlace,
    has_collectives as has_collectives,
    place_in_group as place_in_group,
)
from decomp.torch_internals.versions import CHANGES, Namespace

aten = Namespace("aten")
prims = Namespace("prims")
collectives = CollectiveOps("_c10d_functional")
"""Ops that communicate with other processes. A rule learns the rank and size of their group from `place_in_group`."""
collectives_with_gradient = CollectiveOps("_c10d_functional_autograd")
"""Those of them that have a gradient of their own."""
dtensor = CollectiveOps("_dtensor")
"""Those that DTensors make."""
changes = CHANGES
