"""Deferred imports of the packages that build on this one: the rule library, its samples and the tools. They are named
here as strings, and in no other module of the layers below them."""

from __future__ import annotations

from collections.abc import Mapping
import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decomp.rules.rules import Rules
    from decomp.rules.target import Target
    from decomp.tools.certification.certificate import Certificate


def library() -> Rules:
    """The rules that ship with the project."""
    rules: Rules = importlib.import_module("decomp_rules").RULES
    return rules


def is_shipped(function: Any) -> bool:
    """Whether a function is a rule of the library, whose certificate covers its whole domain."""
    return function in _shipped_functions()


@functools.cache
def _shipped_functions() -> frozenset[Any]:
    return frozenset(function for rule in library() if (function := getattr(rule, "function", None)) is not None)


def samples() -> Any:
    """The module of sample calls and sample models."""
    return importlib.import_module("decomp_rules.samples")


def shipped_targets() -> tuple[Target, ...]:
    """The targets that ship with the project."""
    targets = importlib.import_module("decomp_rules.targets")
    return tuple(map(targets.get, targets.names()))


def shipped_backend(name: str) -> Any:
    """The shipped backend of a name, or None."""
    backends = importlib.import_module("decomp_rules.backends")
    return backends.get(name) if name in backends.names() else None


def has_wrong_gradients(op: str) -> bool:
    """Whether PyTorch's own gradients of an ATen op, by its short name, are known to be wrong."""
    return op in importlib.import_module("decomp_rules.samples.derivatives").DIFFERENTIABLE


def range_of(op: str, level: str) -> tuple[float, float]:
    """The smallest and the largest argument of an ATen op, by its short name, for which a level of accuracy guarantees
    its error bound."""
    found: tuple[float, float] = importlib.import_module("decomp_rules.support.ranges").range_of(op, level)
    return found


def limits_of(level: str) -> Mapping[str, float]:
    """The ULP that a level of accuracy allows, by dtype."""
    module = importlib.import_module("decomp.tools.certification.certificate")
    found: Mapping[str, float] = module.LIMITS_BY_LEVEL[level]
    return found


def floors_of(level: str) -> tuple[float, float]:
    """What a level guarantees for small results of pointwise ops: the magnitude below which errors are counted in the
    ULP of that magnitude, and the error of a gradient in ε that is allowed at any magnitude."""
    scope = importlib.import_module("decomp.tools.measurement.scope")
    return scope.ABSOLUTE if level == "fast" else 0.0, scope.GRADIENTS.get(level, 0.0)


def hold_to_lock(lowering: Any, path: str | Path) -> None:
    """Write the lock of a lowering, or compare the lowering with the one that is there."""
    importlib.import_module("decomp.tools.locking.comparing").hold_to_lock(lowering, Path(path))


def write_page(lowering: Any, path: str | Path, title: str | None) -> Path:
    """Write the page of a lowering, and return its path."""
    written: Path = importlib.import_module("decomp.tools.page.writing").write(lowering, path, title)
    return written


def certificate_of(rule: Any) -> Certificate | None:
    """The committed certificate of a rule of the library."""
    name: str = importlib.import_module("decomp.tools.certification.implementations").identity(rule)
    certificates = importlib.import_module("decomp.tools.certification.certificates")
    return _certificates(certificates.family(name)).get(name) if name.startswith("decomp_rules.") else None


@functools.cache
def _certificates(family: str) -> dict[str, Certificate]:
    certificates = importlib.import_module("decomp.tools.certification.certificates")
    path = certificates.directory() / f"{family}{certificates.SUFFIX}"
    return certificates.read(path) if path.is_file() else {}
