"""Finds the function of a backend whose result first differs from the program's metadata. A wrong value may pass
through many calls before a function fails on it, or a result shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from decomp.errors import describe, name_with_place
from decomp.ir.call import metadata
from decomp.ir.dtypes import name_of
from decomp.runtime.code import GeneratedProgram, GeneratedStep

Read = Callable[[Any, Any], torch.Tensor]
"""Converts a value of the backend to a tensor, given its metadata."""


def fits_metadata(value: Any, meta: Any) -> bool:
    """Whether a tensor has the dtype and the known sizes of its metadata; other values always fit."""
    if not isinstance(value, torch.Tensor) or not isinstance(meta, torch.Tensor):
        return True
    if value.dtype is not meta.dtype or value.dim() != meta.dim():
        return False
    return all(type(known) is not int or known == size for known, size in zip(meta.shape, value.shape))


def describe_tensor(meta: Any) -> str:
    """Dtype and sizes of a tensor as text; for another value, its text."""
    if not isinstance(meta, torch.Tensor):
        return repr(meta)
    return f"{name_of(meta.dtype)} ({', '.join(map(str, meta.shape))})"


def first_misfit(code: GeneratedProgram, values: Sequence[Any], read: Read) -> str:
    """Run code call by call until a value does not have its dtype and sizes in the program. Returns a message that
    names the function; empty if every result fits, if a function fails first, or if values cannot be converted."""
    steps = {step.node: step for step in code.steps}
    if not all(_has_form(value, metadata(node), read) for node, value in zip(code.inputs, values)):
        return ""  # the conversion is at fault, or the inputs do not match the metadata

    def visit(node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        step = steps.get(node)
        if step is not None:
            for found, expected in _misfits(result, metadata(node), read):
                raise _Misfit(step, found, expected)

    try:
        code.walk(values, visit)
    except _Misfit as found:
        return str(found)
    except Exception:  # the original failure, raised again
        pass
    return ""


class _Misfit(Exception):
    def __init__(self, step: GeneratedStep, found: str, expected: str) -> None:
        returned = f"earlier, {name_with_place(step.function)} returned {found} at {describe(step.node)}"
        super().__init__(f"{returned}, which is {expected} in the program")


def _has_form(value: Any, meta: Any, read: Read) -> bool:
    return not isinstance(meta, torch.Tensor) or meta.is_complex() or not any(_misfits(value, meta, read))


def _misfits(value: Any, meta: Any, read: Read) -> Iterator[tuple[str, str]]:
    """Descriptions of a value and of its metadata, where these differ."""
    if isinstance(meta, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(meta):
            yield describe_kind(value), f"{len(meta)} results"
        else:
            for each, of in zip(value, meta):
                yield from _misfits(each, of, read)
    elif isinstance(meta, torch.Tensor):
        try:
            found = read(value, meta) if not isinstance(value, (list, tuple)) else None
        except Exception:  # conversions may raise anything for an unknown type
            found = None
        if found is None or not fits_metadata(found, meta):
            yield describe_kind(value) if found is None else describe_tensor(found), describe_tensor(meta)


def describe_kind(value: Any) -> str:
    """A description of a value's type."""
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
