"""Packages that are extras, looked for before anything is computed that they are needed for at the end."""

from __future__ import annotations

import importlib.util

from decomp.tools.cli.terminal import Unusable

EXTRAS = {"matplotlib": "plot", "onnx": "onnx", "jax": "stablehlo"}
"""The extra that installs a package."""
WRITTEN = {".onnx": "onnx", ".mlir": "jax", ".mlirbc": "jax"}
"""The package that writes a file of this kind."""


def require(package: str, what: str) -> None:
    """Raise `Unusable` if a package is not there that something needs."""
    if importlib.util.find_spec(package) is None:
        remedy = f'pip install "decomp[{EXTRAS[package]}]"'
        raise Unusable(f"{what} needs {package}, which is not installed\n  to do: {remedy}")


def require_plots(plot: object) -> None:
    """Raise `Unusable` if something is to be drawn, and matplotlib is not there."""
    if plot is not None:
        require("matplotlib", f"--plot {plot}")


def require_writer(output: object) -> None:
    """Raise `Unusable` if a file is to be written for which a package is not there."""
    package = WRITTEN.get(str(output)[str(output).rfind(".") :]) if output is not None else None
    if package is not None:
        require(package, f"-o {output}")
