"""Optional packages. A command checks for those that it needs before it computes anything."""

from __future__ import annotations

import importlib.util

from decomp.tools.cli.terminal import Unusable

EXTRAS = {"matplotlib": "plot", "onnx": "onnx", "jax": "stablehlo"}
"""By package: the extra that installs it."""
WRITTEN = {".onnx": "onnx", ".mlir": "jax", ".mlirbc": "jax"}
"""By suffix: the package that writes such files."""


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def require(package: str, what: str) -> None:
    """Raise `Unusable` if a package that `what` needs is not installed."""
    if not is_installed(package):
        remedy = f'pip install "decomp[{EXTRAS[package]}]"'
        raise Unusable(f"{what} needs {package}, which is not installed\n  to do: {remedy}")


def require_writer(output: object) -> None:
    """Raise `Unusable` if the package for an output file is not installed."""
    package = WRITTEN.get(str(output)[str(output).rfind(".") :]) if output is not None else None
    if package is not None:
        require(package, f"-o {output}")
