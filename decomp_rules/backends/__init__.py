"""Backends that run lowered programs, each a table of functions: `numpy`, `tinygrad`, `stablehlo` and `onnx`. They are
loaded on demand, because each needs another package."""

import importlib
from typing import Any

from decomp import Backend

_MODULES = {"numpy": "numpy_arrays", "onnx": "onnx_models", "stablehlo": "xla", "tinygrad": "tinygrad_uops"}
_made: dict[str, Backend] = {}


def get(name: str) -> Backend:
    """A backend by name. Raises `ImportError`, with the package to install, if it is missing."""
    if name not in _MODULES:
        raise LookupError(f"no backend is called {name!r}; there are {', '.join(names())}")
    if name not in _made:
        try:
            _made[name] = importlib.import_module(f"{__name__}.{_MODULES[name]}").make()
        except ModuleNotFoundError as error:
            raise ImportError(
                f"the backend {name} needs the package {error.name}: pip install decomp[{name}]", name=error.name
            ) from error
    return _made[name]


def names() -> tuple[str, ...]:
    """All backends by name."""
    return tuple(sorted(_MODULES))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return get(name)
    raise AttributeError(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
