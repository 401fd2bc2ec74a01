"""Integer programs in int32 instead of int64: called with numbers near the limits of int32 they give what
int64 gives, or refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import decomp
from tests.fuzzing.outcomes import difference
from tests.fuzzing.programs import SIZES, Program

DTYPES = ("float32", "int32", "bool")
NEAR = (2**31 - 5, 4 - 2**31, 2**31, -(2**31) - 9, 2**32)
"""What is added to about half the elements of int64 inputs, which are from -4 to 4: two are held by int32."""
WIDER = ("float64", ".double()", "complex", "bfloat16", "float16", ".half()", "uint8", "autocast")
LIMITS = torch.iinfo(torch.int32)


def is_narrowed(program: Program) -> bool:
    """Whether a program has integers that are computed in int32, and nothing else that the target lacks."""
    return any("torch.int64" in line for line in program.inputs) and not any(name in program.source for name in WIDER)


def fault_near_limits(loaded: Any, call: Callable[..., Any], state: torch.nn.Module) -> str:
    """What is wrong with the program in int32, called with numbers near its limits; empty if nothing is. What it
    computes may overflow: nothing is asked of it then."""
    for near in NEAR:
        case = dict(seed=3, size=SIZES[0], tracked=False, near=near)
        given = loaded.given(**case)[1]
        try:
            with _Integers() as computed:
                wanted = loaded.run(loaded.module, loaded.module, **case)
        except Exception:  # PyTorch itself does not take such numbers
            continue
        held = all(_is_held(value) for value in given)
        try:
            found = loaded.run(call, state, **case)
        except decomp.errors.OutOfRange as error:
            if held and not computed.beyond:
                return f"refuses numbers that int32 holds, near {near}: {str(error).splitlines()[0]}"
            continue
        if held and computed.beyond:
            continue
        text = difference(wanted, found, lambda: loaded.run(loaded.module, loaded.module, **case), views=False)
        if text:
            return f"{text} in numbers near {near}"
    return ""


def computes_beyond(loaded: Any, case: tuple[int, int, bool]) -> bool:
    """Whether the program computes integers that int32 does not hold, such as casts of floats without a value."""
    with _Integers() as computed:
        loaded.run(loaded.module, loaded.module, *case)
    return computed.beyond


def _is_held(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype != torch.int64 or not value.numel():
        return True
    return LIMITS.min <= int(value.min()) and int(value.max()) <= LIMITS.max


class _Integers(TorchDispatchMode):
    """Whether a program computes numbers beyond int32."""

    beyond = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.beyond |= not all(map(_is_held, tree_leaves((result, args))))
        return result
