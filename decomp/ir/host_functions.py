"""The functions of numbers and sizes that programs call, by name: files that name what they call look them up here."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
import math
import operator
from typing import Any

import torch

_NAMES = {
    operator: "add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ xor not_ lshift rshift",
    math: "ceil floor trunc sqrt",
    torch: "sym_max sym_min sym_float sym_int sym_ite sym_not sym_sum",
    builtins: "abs bool float int max min round",
}
HOST_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module, names in _NAMES.items()
    for name in names.split()
    if hasattr(module, name)
}
"""By the name of module and function, `operator.add`; those that the installed PyTorch has."""
HOST_NAMES: Mapping[Callable[..., Any], str] = {function: name for name, function in HOST_FUNCTIONS.items()}
