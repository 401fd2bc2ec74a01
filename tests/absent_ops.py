"""Run as a process: hides ops of ATen, as a PyTorch would that lacks them, then imports all of the project and lowers a
sample:

    python -m tests.absent_ops aten.qr aten.cholesky ...

or hides `torch.distributed` and its ops, and uses the rules for collectives:

    python -m tests.absent_ops --without-distributed"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import torch
import torch._dynamo
import torch._inductor.compile_fx
import torch._refs  # PyTorch's own modules name these ops, too, and are imported before they are hidden
import torch.distributed.tensor

COLLECTIVES = "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d"


def hide(names: set[str], spaces: tuple[str, ...] = ()) -> None:
    """Take ops, and all ops of some namespaces, away from `torch.ops` and from the lists of schemas."""
    namespaces = {space: getattr(torch.ops, space) for space in {"aten", "prims", *spaces}}
    kind, find = type(torch.ops.aten), type(torch.ops.aten).__getattr__

    def is_hidden(name):
        return name in names or name.partition(".")[0] in spaces

    def without(self, op):
        if any(self is each and is_hidden(f"{space}.{op}") for space, each in namespaces.items()):
            raise AttributeError(f"'_OpNamespace' object has no attribute '{op}'")
        return find(self, op)

    for space, each in namespaces.items():
        for op in [op for op in vars(each) if is_hidden(f"{space}.{op}") and hasattr(vars(each)[op], "overloads")]:
            del vars(each)[op]
    kind.__getattr__ = without
    schemas, of = torch._C._jit_get_all_schemas, torch._C._jit_get_schemas_for_operator
    torch._C._jit_get_all_schemas = lambda: [s for s in schemas() if not is_hidden(s.name.replace("::", "."))]
    torch._C._jit_get_schemas_for_operator = lambda name: [] if is_hidden(name.replace("::", ".")) else of(name)


def hide_distributed() -> None:
    """Be a PyTorch that was built without `torch.distributed`."""
    torch.distributed.is_available = lambda: False
    sys.modules["torch.distributed._functional_collectives"] = None


def import_all() -> None:
    """Every module of the framework, and of the library with its backends."""
    for package in ("decomp", "decomp_rules"):
        for each in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not each.name.endswith("__main__") and not each.name.startswith("decomp_rules.backends."):
                importlib.import_module(each.name)


def main() -> None:
    is_without = "--without-distributed" in sys.argv
    if is_without:
        hide_distributed()
    hide({name for name in sys.argv[1:] if not name.startswith("-")}, COLLECTIVES if is_without else ())
    import_all()
    if "--import" in sys.argv:
        return
    if is_without:
        from decomp_rules import collectives

        print(collectives.RULES)
    import decomp
    from decomp_rules import RULES, targets

    assert len(RULES) > 1000
    for target in (targets.core_aten, targets.tinygrad, targets.luminal, targets.prims):
        decomp.lower(torch.nn.Sigmoid(), to=target, args=(torch.randn(2, 3),), partial=True)


if __name__ == "__main__":
    main()
