"""A backend for `torch.compile` for each target that ships: `decomp_rules.torch_compile.tinygrad`. They are the entry
points of `setup.cfg`, so that `torch.compile(model, backend="decomp_tinygrad")` finds them by name where the package is
installed. Each is made once, when first asked for, so that its records are those of the process."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import decomp
from decomp_rules import targets

if TYPE_CHECKING:
    from decomp.results import TorchCompileBackend


@functools.cache
def get(name: str) -> TorchCompileBackend:
    """The backend for the target called `name`, with the defaults of `decomp.backend`. Raises `LookupError`."""
    return decomp.backend(targets.get(name))


def __getattr__(name: str) -> TorchCompileBackend:
    if name in targets.names():
        return get(name)
    raise AttributeError(f"no backend for a target {name!r}; there are {', '.join(targets.names())}")


def __dir__() -> list[str]:
    return [*targets.names(), "get"]
