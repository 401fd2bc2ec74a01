"""Calls of PyTorch's Python functions, in terms of schemas: `F.cross_entropy(x, y, reduction="sum")` is
`cross_entropy_loss` with `reduction=2`. A function is bound through its own signature; then the arguments are converted
as its body would before calling the operator, for individual functions where necessary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
import inspect
from typing import Any

import torch
from torch import fx

from decomp.errors import ShapeUnknown
from decomp.ir import spellings
from decomp.ir.ops import Op, Spelling
from decomp.ir.schema import MISSING, BindingError, Bound, Kind, Parameter, fits, names, overloads

Values = dict[str, Any]


@functools.cache
def python_signature(function: Any) -> inspect.Signature | None:
    """The signature of a plain Python function (not of a builtin, whose schemas say more), or None."""
    if isinstance(function, torch._ops.OpOverloadPacket) or not inspect.isfunction(inspect.unwrap(function)):
        return None
    # `torch.jit`'s `boolean_dispatch` gives `F.max_pool2d` the name and module of the function, and no signature.
    name = getattr(function, "__name__", "")
    if name.startswith(("max_pool", "adaptive_max_pool", "fractional_max_pool")):
        # It has the parameters that both functions behind `boolean_dispatch` share.
        function = getattr(torch.nn.functional, f"{name}_with_indices", function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    # torch's `boolean_dispatch` hides the signatures of two functions behind `fn(*args, **kwargs)`.
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return None if [p.kind for p in signature.parameters.values()] == list(variadic) else signature


def bind_python(
    spelling: Spelling,
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    kind: Callable[[Any], Kind],
) -> Bound:
    """Bind a call of a Python function by its own signature, then translate. Raises `BindingError`."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise BindingError(str(error)) from None
    given = frozenset(bound.arguments)
    bound.apply_defaults()
    values = dict(bound.arguments)
    inplace = spelling.inplace or values.get("inplace") is True
    if spelling.op.packet is None:
        return Bound(spelling.op, None, values, inplace, given)
    op, values = _with_indices(spelling.op, values)
    op, values = _TRANSLATED.get(op.short, _as_is)(op, _listed(signature, values))
    values = _modern_reduction(values)
    # What was converted differs from the op's default, even if the call left it out.
    given |= {name for name, value in values.items() if value is not bound.arguments.get(name, MISSING)}
    values = {name: value for name, value in values.items() if name not in spellings.IGNORED}
    return _by_schema(op, values, inplace, given, kind)


def _as_is(op: Op, values: Values) -> tuple[Op, Values]:
    return op, values


def _with_indices(op: Op, values: Values) -> tuple[Op, Values]:
    """Pools with `return_indices=True` are separate ops; only in this form are adaptive ones in ATen."""
    wanted = values.pop("return_indices", None)
    if wanted is False and op.short.startswith("adaptive_max_pool"):
        return Op(f"torch.nn.functional.{op.short}"), values
    if wanted is True:
        both = Op(f"{op.name}_with_indices")
        op = both if both.packet else op
    return op, values


def _listed(signature: inspect.Signature, values: Values) -> Values:
    """`*tensors` as one list; if a list was passed for them, that list."""
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            several = values[name]
            nested = len(several) == 1 and isinstance(several[0], (list, tuple))
            values = {**values, name: list(several[0] if nested else several)}
        elif parameter.kind is parameter.VAR_KEYWORD:
            values = {**{k: v for k, v in values.items() if k != name}, **values.get(name, {})}
    return values


def _modern_reduction(values: Values) -> Values:
    """Convert `size_average` and `reduce`, the older form of `reduction`, and the name of a reduction, to the number in
    schemas."""
    if "reduction" not in values:
        return values
    average, reduce = values.pop("size_average", None), values.pop("reduce", None)
    if average is not None or reduce is not None:
        each = average is None or average
        values["reduction"] = "none" if reduce is False else "mean" if each else "sum"
    reduction = values["reduction"]
    return {**values, "reduction": spellings.REDUCTIONS.get(reduction, reduction)}


def _by_schema(op: Op, values: Values, inplace: bool, given: frozenset[str], kind: Callable[[Any], Kind]) -> Bound:
    """`values`, by the function's names, converted to the schema's names, with its defaults filled in."""
    renames = {name: _schema_name(op, name, place) for place, name in enumerate(values)}
    arguments = {renames[name]: value for name, value in values.items()}
    overload, params = _best_overload(op, arguments, kind)
    written = frozenset(renames.get(name, name) for name in given)
    bound = {p.name: p.default for p in params if p.default is not MISSING and p.name not in spellings.IGNORED}
    for name, value in arguments.items():
        parameter = next((p for p in params if p.name == name), None)
        # Parameters that only the Python function has may be dropped at their neutral value (`inplace=False`). At
        # others the call is not what the schema says, and a rule must see the argument in order to decline it.
        if parameter is None and (name not in written or value is None or value is False):
            continue
        # In a Python signature None means the default of the schema.
        if parameter is not None and value is None and not parameter.optional and name in bound:
            continue
        bound[name] = value
    return Bound(op, overload, bound, inplace, written)


def _schema_name(op: Op, name: str, place: int) -> str:
    known = names(op)
    canonical = spellings.RENAMED.get(op.short, {}).get(name, name)
    if canonical not in known:
        canonical = spellings.KEYWORDS.get(name, name)
    # The first parameter goes by many names: `input`, `x`, `tensor`, `a`.
    return known[0] if canonical not in known and place == 0 and known else canonical


def _best_overload(
    op: Op, arguments: Mapping[str, Any], kind: Callable[[Any], Kind]
) -> tuple[str | None, tuple[Parameter, ...]]:
    """The overload that has the most of the argument names, and whose types fit the most values; the first in a tie."""

    def score(params: tuple[Parameter, ...]) -> int:
        known = {p.name: p for p in params}
        written = [(known.get(n), v) for n, v in arguments.items() if v is not None]
        missing = sum(p.required and arguments.get(p.name) is None for p in params)
        fitting = sum(parameter is not None and fits(parameter, v, kind) for parameter, v in written)
        # Weights: a missing required argument outweighs any match, and a known name outweighs a fitting type.
        return 2 * sum(parameter is not None for parameter, _ in written) + fitting - 4 * missing

    return max(overloads(op), key=lambda item: score(item[1]), default=(None, ()))


# Conversions by individual functions before they call the operator.


def _split(op: Op, values: Values) -> tuple[Op, Values]:
    tensor, sizes, dim = values.values()
    if isinstance(sizes, (list, tuple)):
        return Op("aten.split_with_sizes"), {"self": tensor, "split_sizes": sizes, "dim": dim}
    return op, {"self": tensor, "split_size": sizes, "dim": dim}


def _tensordot(op: Op, values: Values) -> tuple[Op, Values]:
    dims = values["dims"]
    if isinstance(dims, int):
        dims = (list(range(-dims, 0)), list(range(dims)))
    if not isinstance(dims, (list, tuple)) or len(dims) != 2:
        raise BindingError("the dims of tensordot must be a number or two lists")
    left, right = ([dim] if isinstance(dim, int) else list(dim) for dim in dims)
    return op, {"self": values["a"], "other": values["b"], "dims_self": left, "dims_other": right}


def _cdist(op: Op, values: Values) -> tuple[Op, Values]:
    mode = values["compute_mode"]
    names_of_modes = ["use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"]
    number = names_of_modes.index(mode) + 1 if mode in names_of_modes else None
    return op, {**values, "compute_mode": number}


def _einsum(op: Op, values: Values) -> tuple[Op, Values]:
    equation, *operands = values["args"]
    if not isinstance(equation, str):
        raise BindingError("einsum is only supported with an equation, not with sublists of subscripts")
    nested = len(operands) == 1 and isinstance(operands[0], (list, tuple))
    return op, {"equation": equation, "tensors": list(operands[0] if nested else operands)}


def _one_or_many(op: Op, values: Values) -> tuple[Op, Values]:
    (tensors,) = values.values()
    return op, {"self": tensors[0]} if len(tensors) == 1 else {"tensors": tensors}


def _norm(op: Op, values: Values) -> tuple[Op, Values]:
    return op, {**values, "p": 2 if values["p"] == "fro" else values["p"]}


def _embedding(op: Op, values: Values) -> tuple[Op, Values]:
    """A negative `padding_idx` counts from the end; in the schema -1 means none."""
    index = values["padding_idx"]
    if index is None:
        index = -1
    elif index < 0:
        # As `torch.nn.functional.embedding` does before it calls the op.
        index += _metadata(values["weight"], "a negative padding_idx").shape[0]
    return op, {**values, "padding_idx": index}


def _softmax(op: Op, values: Values) -> tuple[Op, Values]:
    """Without `dim`, PyTorch's legacy default: 0 for 0, 1 and 3 dimensions, else 1."""
    if values["dim"] is None:
        # `torch.nn.functional._get_softmax_dim`.
        values = {**values, "dim": int(_metadata(values["input"], "softmax without dim").dim() not in (0, 1, 3))}
    return op, values


def _metadata(value: Any, what: str) -> Any:
    found = value.meta.get("val", value.meta.get("example_value")) if isinstance(value, fx.Node) else value
    if found is None:
        raise ShapeUnknown(f"{what} needs the shape of the tensor; pass args=")
    return found


_TRANSLATED: dict[str, Callable[[Op, Values], tuple[Op, Values]]] = {
    "atleast_1d": _one_or_many,
    "atleast_2d": _one_or_many,
    "atleast_3d": _one_or_many,
    "cdist": _cdist,
    "einsum": _einsum,
    "embedding": _embedding,
    "log_softmax": _softmax,
    "norm": _norm,
    "softmax": _softmax,
    "split": _split,
    "tensordot": _tensordot,
}
