"""Which function of a backend first gave something else than the program has there. A wrong value may go a long way
before a function fails on it, or a result shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from decomp.errors import gave
from decomp.ir.call import metadata
from decomp.ir.dtypes import name_of
from decomp.runtime.code import Code, GeneratedStep

Read = Callable[[Any, Any], torch.Tensor]
"""A value of the backend as a tensor, given the tensor that the program has there."""


def fits(value: Any, meta: Any) -> bool:
    """Whether a tensor has the dtype and the sizes that are known of one; of other values nothing is known."""
    if not isinstance(value, torch.Tensor) or not isinstance(meta, torch.Tensor):
        return True
    if value.dtype is not meta.dtype or value.dim() != meta.dim():
        return False
    return all(type(known) is not int or known == size for known, size in zip(meta.shape, value.shape))


def described(meta: Any) -> str:
    """Dtype and sizes of a tensor; another value as it is."""
    if not isinstance(meta, torch.Tensor):
        return repr(meta)
    return f"{name_of(meta.dtype)} ({', '.join(map(str, meta.shape))})"


def first_misfit(code: Code, values: Sequence[Any], read: Read) -> str:
    """Run code call by call until a value is no tensor of the dtype and sizes that it has in the program, and say which
    function gave it; empty if none does, if a function fails before, or if values cannot be read on the way."""
    steps = {step.node: step for step in code.steps}
    if not all(_has_form(value, metadata(node), read) for node, value in zip(code.inputs, values)):
        return ""  # the conversion is to blame, or these are no inputs that the program knows

    def visit(node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        step = steps.get(node)
        if step is not None:
            for found, expected in _misfits(result, metadata(node), read):
                raise _Misfit(step, found, expected)

    try:
        code.walk(values, visit)
    except _Misfit as found:
        return str(found)
    except Exception:  # of the function that failed before
        pass
    return ""


class _Misfit(Exception):
    def __init__(self, step: GeneratedStep, found: str, expected: str) -> None:
        super().__init__(gave(step.function, step.node, found, expected))


def _has_form(value: Any, meta: Any, read: Read) -> bool:
    return not isinstance(meta, torch.Tensor) or meta.is_complex() or not any(_misfits(value, meta, read))


def _misfits(value: Any, meta: Any, read: Read) -> Iterator[tuple[str, str]]:
    """What values are, and what they are in the program, where these differ."""
    if isinstance(meta, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(meta):
            yield kind_in_words(value), f"{len(meta)} results"
        else:
            for each, of in zip(value, meta):
                yield from _misfits(each, of, read)
    elif isinstance(meta, torch.Tensor):
        try:
            found = read(value, meta) if not isinstance(value, (list, tuple)) else None
        except Exception:  # whatever a conversion raises for what it does not know
            found = None
        if found is None or not fits(found, meta):
            yield kind_in_words(value) if found is None else described(found), described(meta)


def kind_in_words(value: Any) -> str:
    """What kind of thing a value is, in words."""
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
