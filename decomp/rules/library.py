"""The package of rules that ships, and what it registers: rules, samples, targets, backends, the directory of its
certificates and the limits of its ops. It is imported by name, here alone, as it stands on this package."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from decomp.rules.certificate import Certificate
    from decomp.rules.rules import Rules
    from decomp.rules.target import Target


class Library(Protocol):
    """What a package of rules registers, as its names; `samples`, `targets` and `backends` are modules."""

    RULES: Rules
    CERTIFICATES: Path
    samples: Any
    targets: Any
    backends: Any

    def range_of(self, op: str, level: str) -> tuple[float, float]:
        """The smallest and the largest argument of an ATen op, by its short name, for which a level of accuracy
        guarantees its error bound."""

    def has_wrong_gradients(self, op: str) -> bool:
        """Whether PyTorch's own gradients of an ATen op, by its short name, are known to be wrong."""


def shipped() -> Library:
    """The library that ships with the project."""
    # Not by an import statement: the library stands on this package, and contracts on imports (setup.cfg) point
    # downwards.
    return cast(Library, importlib.import_module("decomp_rules"))


def library() -> Rules:
    """The rules that ship with the project."""
    return shipped().RULES


def is_shipped(function: Any) -> bool:
    """Whether a function is a rule of the library, whose certificate covers its whole domain."""
    return function in _shipped_functions()


@functools.cache
def _shipped_functions() -> frozenset[Any]:
    return frozenset(function for rule in library() if (function := getattr(rule, "function", None)) is not None)


def samples() -> Any:
    """The module of sample calls and sample models."""
    return shipped().samples


def shipped_targets() -> tuple[Target, ...]:
    """The targets that ship with the project."""
    targets = shipped().targets
    return tuple(map(targets.get, targets.names()))


def shipped_backend(name: str) -> Any:
    """The shipped backend of a name, or None."""
    backends = shipped().backends
    return backends.get(name) if name in backends.names() else None


def range_of(op: str, level: str) -> tuple[float, float]:
    """As `Library.range_of`."""
    return shipped().range_of(op, level)


def certificate_of(rule: Any) -> Certificate | None:
    """The committed certificate of a rule of the library."""
    from decomp.rules import certificates  # deferred: a lowering by levels reads none

    return certificates.certificate_of(rule)
