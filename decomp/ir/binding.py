"""Binding: from the arguments as written in a graph to arguments by the names of the op's schema. Python functions are
bound through their own signature and translated; everything else through the first overload that the values fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
import inspect
from typing import Any

import torch
from torch import fx

from decomp.ir import spellings
from decomp.ir.ops import Op, Spelling, of_function, of_method
from decomp.ir.python_signatures import bind_python, python_signature
from decomp.ir.schema import (
    BindingError as BindingError,
    Bound as Bound,
    Kind,
    Parameter,
    fill,
    fits,
    is_shape,
    overloads,
    parameters,
)


def bind_function(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], kind: Callable[[Any], Kind]) -> Bound:
    """Bind a `call_function`. `kind` returns the kind of a graph value. Raises `BindingError`."""
    spelling = of_function(function)
    if isinstance(function, torch._ops.OpOverload):
        arguments, given = fill(parameters(function), args, kwargs)
        names = _names_in_op(function, spelling)
        arguments = {names.get(name, name): value for name, value in arguments.items()}
        given = frozenset(names.get(name, name) for name in given)
        return Bound(spelling.op, spelling.overload, arguments, spelling.inplace, given)
    signature = _signature(function)
    if signature is not None and not spelling.implied:
        return bind_python(spelling, signature, args, kwargs, kind)
    return bind_spelling(spelling, args, kwargs, kind)


def bind_method(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], kind: Callable[[Any], Kind]) -> Bound:
    """Bind a `call_method`, the tensor being the first of `args`. Raises `BindingError`."""
    spelling = of_method(name)
    method = getattr(torch.Tensor, name, None)
    signature = _signature(method) if inspect.isfunction(method) else None
    if signature is not None and not spelling.implied:
        return bind_python(spelling, signature, args, kwargs, kind)
    return bind_spelling(spelling, args, kwargs, kind)


def all_bindings(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], kind: Callable[[Any], Kind]
) -> list[Bound]:
    """The calls that a `call_function`, or a `call_method` by its name, may make if values of the graph may be
    anything: one for each overload that they fit, the bound one first. Raises `BindingError`."""
    is_method = isinstance(target, str)
    spelling = of_method(target) if is_method else of_function(target)
    function = getattr(torch.Tensor, target, None) if is_method else target
    is_python = not spelling.implied and (not is_method or inspect.isfunction(function))
    if isinstance(target, torch._ops.OpOverload) or is_python and _signature(function) is not None:
        return [(bind_method if is_method else bind_function)(target, args, kwargs, kind)]
    return list(bindings(spelling, args, kwargs, kind))


@functools.cache
def _names_in_op(function: torch._ops.OpOverload, spelling: Spelling) -> dict[str, str]:
    """The arguments of an alias by the names of the op itself: `axis0` of `swapaxes` is `dim0` of `transpose`."""
    own = next((params for name, params in overloads(spelling.op) if name == spelling.overload), ())
    aliased = parameters(function)
    return {a.name: o.name for a, o in zip(aliased, own)} if [p.type for p in own] == [p.type for p in aliased] else {}


def _signature(function: Any) -> inspect.Signature | None:
    """The signature of a Python function, except for reflected operators, whose arguments the op swaps."""
    return None if getattr(function, "__name__", "") in spellings.REFLECTED else python_signature(function)


def bind_spelling(
    spelling: Spelling, args: Sequence[Any], kwargs: Mapping[str, Any], kind: Callable[[Any], Kind]
) -> Bound:
    """Bind by the schemas of the op: the first overload that the values fit."""
    return next(bindings(spelling, args, kwargs, kind))


def bindings(
    spelling: Spelling, args: Sequence[Any], kwargs: Mapping[str, Any], kind: Callable[[Any], Kind]
) -> Iterator[Bound]:
    """The calls that arguments may make, by the schemas of the op: one for each overload that the values fit. Raises
    `BindingError` if nothing matches."""
    kwargs = {**dict(spelling.implied), **kwargs}
    # Swap first: overloads are tried with the operands in schema order.
    args = [args[1], args[0], *args[2:]] if spelling.swapped and len(args) > 1 else list(args)
    if not overloads(spelling.op):
        yield _bind_plain(spelling, args, kwargs)
        return
    op, args = _tensor_first(spelling.op, args, kind)
    # As PyTorch's parser does: `as_tuple` is in no schema.
    if op.name == "aten.nonzero" and kwargs.pop("as_tuple", False) is True:
        op = Op("aten.nonzero_numpy")
    fits_none = True
    for overload, params in _in_order(op):
        # The first that fits: `x.view(2, 3)` is packed only where the numbers do not fit one by one.
        for attempt in _attempts(params, args):
            found = _fitting(op, params, attempt, kwargs, kind)
            if found is not None:
                fits_none = False
                yield Bound(op, overload, found[0], spelling.inplace, found[1])
                break
    if fits_none:
        raise BindingError(f"the arguments fit no overload of {op}")


def _fitting(
    op: Op, params: Sequence[Parameter], args: list[Any], kwargs: Mapping[str, Any], kind: Callable[[Any], Kind]
) -> tuple[dict[str, Any], frozenset[str]] | None:
    """The arguments by name, and which of them were passed; None if they do not fit these parameters."""
    try:
        arguments, given = fill(params, args, _known_keywords(params, kwargs))
    except BindingError:
        return None
    for parameter in params:
        if parameter.name in given and not _accepts(op, parameter, arguments[parameter.name], kind):
            return None
    return {name: value for name, value in arguments.items() if name not in spellings.IGNORED}, given


def _accepts(op: Op, parameter: Parameter, value: Any, kind: Callable[[Any], Kind]) -> bool:
    return fits(parameter, value, kind) or (
        op.short in spellings.NUMBER_AS_TENSOR and parameter.type == "Tensor" and _is_number(value, kind)
    )


def _is_number(value: Any, kind: Callable[[Any], Kind]) -> bool:
    if isinstance(value, (fx.Node, fx.Proxy)):
        return kind(value) == "host"
    return isinstance(value, (int, float, complex, torch.SymInt, torch.SymFloat))


def _tensor_first(op: Op, args: list[Any], kind: Callable[[Any], Kind]) -> tuple[Op, list[Any]]:
    """`2 + x` as `x + 2`, `2 < x` as `x > 2`, `2 - x` as `rsub(x, 2)`, as Python and PyTorch evaluate them."""
    if len(args) != 2 or not _is_number(args[0], kind) or _is_number(args[1], kind):
        return op, args
    mirrored = spellings.MIRRORED.get(op.name.removeprefix("aten."))
    return (Op(f"aten.{mirrored}"), args[::-1]) if mirrored else (op, args)


def _in_order(op: Op) -> Sequence[tuple[str, tuple[Parameter, ...]]]:
    """Overloads in the order of PyTorch's parser: those that take a number for a tensor first where it does so, and
    `var(x, unbiased)` last, which requires `unbiased`."""
    found = overloads(op)
    if op.short in spellings.NUMBER_AS_TENSOR:
        return sorted(found, key=lambda item: not item[0].startswith("Tensor"))
    if any(name == "correction" for name, _ in found):
        return sorted(found, key=lambda item: item[0] == "default")
    return found


def _attempts(params: Sequence[Parameter], args: list[Any]) -> list[list[Any]]:
    """The positional arguments as written, and with trailing ones packed into a list: `x.view(2, 3)`."""
    tries = [args]
    # Only the first list can take the rest of the arguments.
    for i, parameter in enumerate(params):
        if parameter.type in ("int[]", "SymInt[]", "Tensor[]") and len(args) > i:
            rest = args[i:]
            if not isinstance(rest[0], (list, tuple)) and not is_shape(rest[0]):
                tries.append([*args[:i], list(rest)])
            break
    return tries


def _known_keywords(params: Sequence[Parameter], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    known = {p.name for p in params}
    renamed = {}
    for name, value in kwargs.items():
        # Functions of torch take `out=None` as no output.
        if name == "out" and value is None:
            continue
        if name not in known and spellings.KEYWORDS.get(name) in known:
            name = spellings.KEYWORDS[name]
        renamed[name] = value
    return renamed


def _bind_plain(spelling: Spelling, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    """Without schema and signature, positional arguments are named by position."""
    arguments = {f"arg{i}": value for i, value in enumerate(args)}
    return Bound(spelling.op, None, {**arguments, **kwargs}, spelling.inplace, frozenset(arguments) | set(kwargs))
