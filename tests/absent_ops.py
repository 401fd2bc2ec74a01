"""Run as a process: hides ops of ATen, as a PyTorch would that lacks them, then imports all of the project and lowers a
sample:

    python -m tests.absent_ops aten.qr aten.cholesky ..."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import torch
import torch._dynamo
import torch._inductor.compile_fx
import torch._refs  # PyTorch's own modules name these ops, too, and are imported before they are hidden
import torch.distributed.tensor


def hide(names: set[str]) -> None:
    """Take ops away from `torch.ops` and from the lists of schemas."""
    namespaces = {"aten": torch.ops.aten, "prims": torch.ops.prims}
    kind, find = type(torch.ops.aten), type(torch.ops.aten).__getattr__

    def without(self, op):
        if any(self is namespaces[space] and f"{space}.{op}" in names for space in namespaces):
            raise AttributeError(f"'_OpNamespace' object has no attribute '{op}'")
        return find(self, op)

    for name in names:
        space, _, op = name.partition(".")
        namespaces[space].__dict__.pop(op, None)
    kind.__getattr__ = without
    schemas, of = torch._C._jit_get_all_schemas, torch._C._jit_get_schemas_for_operator
    torch._C._jit_get_all_schemas = lambda: [each for each in schemas() if each.name.replace("::", ".") not in names]
    torch._C._jit_get_schemas_for_operator = lambda name: [] if name.replace("::", ".") in names else of(name)


def import_all() -> None:
    """Every module of the framework, and of the library with its backends."""
    for package in ("decomp", "decomp_rules"):
        for each in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not each.name.endswith("__main__") and not each.name.startswith("decomp_rules.backends."):
                importlib.import_module(each.name)


def main() -> None:
    hide({name for name in sys.argv[1:] if not name.startswith("-")})
    import_all()
    if "--import" in sys.argv:
        return
    import decomp
    from decomp_rules import RULES, targets

    assert len(RULES) > 1000
    for target in (targets.core_aten, targets.tinygrad, targets.luminal, targets.prims):
        decomp.lower(torch.nn.Sigmoid(), to=target, args=(torch.randn(2, 3),), partial=True)


if __name__ == "__main__":
    main()
