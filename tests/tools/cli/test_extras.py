"""Packages that a command needs at its end are checked for at its beginning."""

import importlib.util
import sys

import pytest
from typer.testing import CliRunner

from decomp.tools.cli.app import app

MISSING = {
    ("advise", "mlp", "--to", "tinygrad", "--plot", "x.png"): ("--plot x.png", "matplotlib", "plot"),
    ("memory", "mlp", "--plot", "x.png"): ("--plot x.png", "matplotlib", "plot"),
    ("certify", "relu", "--plot", "x.png"): ("--plot x.png", "matplotlib", "plot"),
    ("rules", "exp", "--to", "tinygrad", "--plot", "x.png"): ("--plot x.png", "matplotlib", "plot"),
    ("lower", "mlp", "--to", "onnx", "-o", "x.onnx"): ("-o x.onnx", "onnx", "onnx"),
    ("lower", "mlp", "--to", "stablehlo", "-o", "x.mlir"): ("-o x.mlir", "jax", "stablehlo"),
}


class Hidden:
    """An import finder that says of one package that it is not there."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("args", MISSING, ids=" ".join)
def test_a_package_that_is_not_installed_is_named_with_its_extra_before_anything_is_computed(args, monkeypatch):
    what, package, extra = MISSING[args]
    known = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == package else known(name, *_))
    monkeypatch.setattr(sys, "meta_path", [Hidden(package), *sys.meta_path])
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 2
    assert (done.stderr or done.output).strip() == (
        f'error: {what} needs {package}, which is not installed\n  to do: pip install "decomp[{extra}]"'
    )
