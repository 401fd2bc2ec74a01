"""PyTorch's ops, as `torch.ops` has them, for rules that serve several versions of PyTorch. Where the installed version
lacks an op, what is registered for it is left out, and a rule that calls it declines. A name that no supported version
has is an `AttributeError`, as in `torch.ops`. What an op means from a version on is one of `changes`, which is true
where the installed one does: `register(op, when=changes.ties_share_gradients)`."""

from decomp.torch_internals.versions import CHANGES, Namespace

aten = Namespace("aten")
prims = Namespace("prims")
changes = CHANGES
