"""The overloads that torch-mlir has, and what the compilers of MLIR say of a program that they refuse: one line of it,
with the overload at fault."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
import re


def mlir_reason(said: str) -> str:
    """`aten.lgamma.default: failed to legalize operation 'torch.operator'`: the first error on standard error, after
    the overload that the errors name, if they do. Empty, if there is no error."""
    errors = re.findall(r"error: (.*)", said)
    if not errors:
        return ""
    first = re.split(r" that was explicitly marked illegal|: %", errors[0])[0]
    named = re.search(r"torch\.(aten\.\w+(?:\.\w+)?)", " ".join(errors))
    return f"{mlir_overload(named[1])}: {first}" if named else first


def mlir_overload(name: str) -> str:
    """The overload of an op of torch-mlir, in whose names `default` is left out."""
    return name if name.count(".") == 2 else f"{name}.default"


def mlir_overloads(libraries: Iterable[Path]) -> list[str]:
    """The overloads that torch-mlir has ops for, sorted. No function returns them, so they are read from compiled
    libraries, where they are literals."""
    names = {name for path in libraries for name in re.findall(rb"torch\.(aten\.[\w.]+)(?=\0)", path.read_bytes())}
    return sorted(mlir_overload(name.decode()) for name in names)
