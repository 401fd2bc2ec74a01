"""What tests need beyond PyTorch: backends and converters of the library, and a compiler. A test that needs one is
skipped where its package is not installed, and fails where the backend itself does not load."""

import shutil

import pytest

from decomp.errors import ConversionError
from decomp_rules import backends, converters

NEEDS_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs g++")
PACKAGES = {"stablehlo": ("jax",), "onnx": ("onnx", "onnxruntime"), "tinygrad": ("tinygrad",)}


def backend(name):
    """The backend of this name."""
    for package in PACKAGES.get(name, ()):
        pytest.importorskip(package, reason=f"the backend {name}: pip install decomp[{name}]")
    return backends.get(name)


def converter(name):
    """The converter of this name, likewise."""
    found = converters.get(name)
    try:
        found.require()
    except ConversionError:
        pytest.skip(f"the converter {name}: pip install {found.requirement}")
    return found
