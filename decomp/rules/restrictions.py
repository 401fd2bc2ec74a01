"""Calls that a rule must not make: those that write to a tensor, read data, or use values of another run. A rule is
traced once and its expansion inserted many times, so each of these would silently go wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import itertools
from typing import Any

import torch
from torch import fx

from decomp.torch_internals.fakes import FakeTensor
from decomp.torch_internals.pytree import tree_leaves

Refusal = tuple[str, str]
"""The forbidden action, and what to do instead."""

LEAKED: Refusal = (
    "uses a value of another run (a tensor that is cached in a rule?)",
    "make it outside the rule as a concrete tensor, or again in each run",
)
SWITCHED: Refusal = (
    "switches inference mode or autocast",
    "use .detach() for values without a gradient, and .to(dtype) for another dtype",
)
_NEW = "return a new tensor instead"
_READS = "a rule is recorded once for all data: compute with tensors"


def refusal_of_call(target: Any, kwargs: dict[str, Any]) -> Refusal | None:
    """Why a rule must not call `target`, or None. Decided by names and schemas, so it needs no metadata."""
    name = _name(target)
    if kwargs.get("out") is not None or kwargs.get("inplace") is True:
        return f"writes to a tensor ({name})", _NEW
    # `F.embedding` with it scales rows of the weight in place before it looks them up.
    if kwargs.get("max_norm") is not None and name.startswith("embedding"):
        return f"writes to a tensor ({name} with max_norm)", "scale the looked-up rows instead"
    # `operator.and_` and its like end so, too.
    if name.endswith("_") and not name.endswith("__") and getattr(target, "__module__", "") != "_operator":
        return f"mutates a tensor ({name})", f"call {name[:-1]} and use its result"
    if name in ("__setitem__", "__delitem__", "setitem", "delitem"):
        return "writes to a tensor (x[...] = ...)", "use torch.where, slice_scatter or index_put"
    if name == "__set__":
        return "assigns to an attribute of a tensor", "compute a new tensor instead"
    if name in AUGMENTED or name.strip("_") in _IN_PLACE_OPERATORS and name.startswith(("i", "__i")):
        sign = AUGMENTED[name if name in AUGMENTED else f"__{name}__"]
        return refuse_augmented_assignment(sign)
    if _is_mutable(target):
        return f"mutates a tensor ({name})", "use the functional op and return its result"
    if name in ("item", "tolist", "numpy"):
        return f"reads data ({name})", _READS
    return None


def refuse_augmented_assignment(sign: str) -> Refusal:
    """The refusal of `x += y`, given `+`."""
    return f"mutates a tensor (x {sign}= y)", f"write `x = x {sign} y`, which creates a new tensor"


AUGMENTED = {
    "__iadd__": "+",
    "__isub__": "-",
    "__imul__": "*",
    "__imatmul__": "@",
    "__itruediv__": "/",
    "__ifloordiv__": "//",
    "__imod__": "%",
    "__ipow__": "**",
    "__ilshift__": "<<",
    "__irshift__": ">>",
    "__iand__": "&",
    "__ixor__": "^",
    "__ior__": "|",
}
"""In-place operators, and how they are written."""
_IN_PLACE_OPERATORS = frozenset(name.strip("_") for name in AUGMENTED)


def _name(target: Any) -> str:
    if isinstance(target, str):
        return target
    packet = getattr(target, "_overloadpacket", target)
    return getattr(packet, "__name__", "")


def _is_mutable(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def watch_writes(args: Any) -> Callable[[], bool]:
    """A function that returns whether any fake tensor in `args` has been written to since, in any way."""
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, FakeTensor)]
    # Every write increases the version, also one through a view or in C++.
    versions = [tensor._version for tensor in tensors]
    return lambda: versions != [tensor._version for tensor in tensors]


def context_state() -> tuple[bool, ...]:
    """The state that a context manager can change without a visible call."""
    devices = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    return torch.is_inference_mode_enabled(), "cpu" in devices, "cuda" in devices


def has_proxies(value: Any) -> bool:
    """Whether a value is a proxy or holds one."""
    return next(proxies_in(value), None) is not None


def has_tensors(value: Any) -> bool:
    """Whether a value is a tensor or a proxy, or holds one."""
    return next(_found_in(value, (torch.Tensor, fx.Proxy)), None) is not None


def proxies_in(value: Any) -> Iterator[fx.Proxy]:
    """Every proxy in nested arguments."""
    return _found_in(value, fx.Proxy)


_NUMBERS = frozenset({int, float, bool, complex})
_FEW = 16


def _found_in(value: Any, kinds: type | tuple[type, ...]) -> Iterator[Any]:
    kind = type(value)
    if issubclass(kind, kinds):
        yield value
    elif kind is slice:
        yield from _found_in((value.start, value.stop, value.step), kinds)
    elif issubclass(kind, dict):
        yield from _found_in(list(value.values()), kinds)
    elif issubclass(kind, (list, tuple)):
        if len(value) > _FEW and _of_numbers(value):
            return
        for item in value:
            yield from _found_in(item, kinds)


def _of_numbers(value: Any) -> bool:
    """Whether a list holds only numbers, or lists of them. Checked without a full walk: tables have ten thousands."""
    kinds = {*map(type, value)}
    while kinds == {list}:
        value = [*itertools.chain.from_iterable(value)]
        kinds = {*map(type, value)}
    return kinds <= _NUMBERS
