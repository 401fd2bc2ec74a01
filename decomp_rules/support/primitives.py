"""From ATen to `torch.ops.prims`, for the target of that name. ATen promotes dtypes and broadcasts on its own; here
`convert_element_type` and `broadcast_in_dim` do.

A primitive takes no Python numbers and drops the dimensions that it reduces. Primitives have no gradients (torch 2.13),
so programs lowered to them are for inference. Ops that differ from their primitive in no other respect are listed in
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten, prims
from decomp_rules.support.operands import HALVES, cast, is_scalar, promoted, wrap

RULES = Rules(level="exact")

FLOAT_FUNCTIONS = {
    "acos": "acos",
    "acosh": "acosh",
    "asin": "asin",
    "asinh": "asinh",
    "atan": "atan",
    "atanh": "atanh",
    "cos": "cos",
    "cosh": "cosh",
    "erf": "erf",
    "erfc": "erfc",
    "erfinv": "erf_inv",
    "exp": "exp",
    "exp2": "exp2",
    "expm1": "expm1",
    "log": "log",
    "log10": "log10",
    "log1p": "log1p",
    "log2": "log2",
    "rsqrt": "rsqrt",
    "sin": "sin",
    "sinh": "sinh",
    "sqrt": "sqrt",
    "tan": "tan",
    "tanh": "tanh",
    "reciprocal": "reciprocal",
    "digamma": "digamma",
    "lgamma": "lgamma",
    "special_erfcx": "erfcx",
    "special_ndtri": "ndtri",
    "i0": "bessel_i0",
    "special_i0e": "bessel_i0e",
    "special_i1": "bessel_i1",
    "special_i1e": "bessel_i1e",
    "special_bessel_j0": "bessel_j0",
    "special_bessel_j1": "bessel_j1",
    "special_spherical_bessel_j0": "spherical_bessel_j0",
}
"""Of one tensor; integers are converted to floats first."""

FUNCTIONS = {name: name for name in "neg bitwise_not ceil floor trunc sign isfinite".split()}
"""Of one tensor, in its own dtype."""

BINARY = {
    "maximum": "maximum",
    "minimum": "minimum",
    "fmax": "fmax",
    "fmin": "fmin",
    "fmod": "fmod",
    "remainder": "remainder",
    "bitwise_and": "bitwise_and",
    "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
    "gcd": "gcd",
    "hypot": "hypot",
    "nextafter": "nextafter",
    "eq": "eq",
    "ne": "ne",
    "lt": "lt",
    "le": "le",
    "gt": "gt",
    "ge": "ge",
}
"""Of two tensors of one dtype and shape; the first may be a number, and so may the second."""

FLOAT_BINARY = {"atan2": "atan2", "special_zeta": "zeta", "igamma": "igamma", "igammac": "igammac"}


def register(*names: str, of: str) -> Any:
    """Register for ATen ops, where the target knows the primitive `of`."""
    return RULES.register(*(getattr(aten, name) for name in names), needs=(getattr(prims, of),))


def _unary(name: str, primitive: str, floating: bool) -> None:
    @register(name, of=primitive)
    def rule(x: Tensor) -> Tensor:
        if x.is_complex():
            return decline("only real inputs")
        if not x.is_floating_point() and primitive in ("ceil", "floor", "trunc", "isfinite"):
            return decline("only floats")
        whole = floating and not x.is_floating_point()
        return getattr(prims, primitive)(cast(x, torch.get_default_dtype()) if whole else x)


def _binary(name: str, primitive: str, floating: bool) -> None:
    @register(name, of=primitive)
    def rule(x: Any, other: Any) -> Tensor:
        return getattr(prims, primitive)(*_paired(x, other, floating))


for _name, _primitive in FLOAT_FUNCTIONS.items():
    _unary(_name, _primitive, True)
for _name, _primitive in FUNCTIONS.items():
    _unary(_name, _primitive, False)
for _name, _primitive in BINARY.items():
    _binary(_name, _primitive, False)
for _name, _primitive in FLOAT_BINARY.items():
    _binary(_name, _primitive, True)


def _paired(x: Any, other: Any, floating: bool = False) -> list[Tensor]:
    """Both as tensors of the dtype that they promote to, in the shape that they broadcast to."""
    dtype = promoted(x, other) if not is_scalar(x) else promoted(other, x)
    if floating and not dtype.is_floating_point and not dtype.is_complex:
        dtype = torch.get_default_dtype()
    tensors = [side for side in (x, other) if not is_scalar(side)]
    shape = torch.broadcast_shapes(*(side.shape for side in tensors))
    return [_spread(side, dtype, shape, tensors[0].device) for side in (x, other)]


def _spread(value: Any, dtype: torch.dtype, shape: Sequence[Any], device: torch.device) -> Tensor:
    """A number or tensor in a dtype and a shape."""
    if is_scalar(value):
        return torch.full(shape, value, dtype=dtype, device=device)
    return cast(value, dtype).expand(shape)


@register("abs", of="abs")
def absolute(x: Tensor) -> Tensor:
    """abs; booleans and uint8 are their own."""
    if x.is_complex():
        return decline("only real inputs")
    return x.clone() if x.dtype in (torch.bool, torch.uint8) else prims.abs(x)


@register("round", of="round")
def round_half_even(x: Tensor) -> Tensor:
    """round; integers are round."""
    return prims.round(x) if x.is_floating_point() else x.clone()


@register("add", of="add")
def add(x: Any, other: Any) -> Tensor:
    """add of one dtype and shape; of booleans, or."""
    pair = _paired(x, other)
    return (prims.bitwise_or if pair[0].dtype == torch.bool else prims.add)(*pair)


@register("mul", of="mul")
def mul(x: Any, other: Any) -> Tensor:
    """mul of one dtype and shape; of booleans, and."""
    pair = _paired(x, other)
    return (prims.bitwise_and if pair[0].dtype == torch.bool else prims.mul)(*pair)


@register("sub", of="sub")
def sub(x: Any, other: Any) -> Tensor:
    """sub of one dtype and shape."""
    return prims.sub(*_paired(x, other))


@register("div", of="div")
def div(x: Any, other: Any) -> Tensor:
    """div of floats."""
    return prims.div(*_paired(x, other, floating=True))


@register("div", of="div")
def div_rounded(x: Any, other: Any, rounding_mode: str | None) -> Tensor:
    """div of integers cuts off; one less where a remainder has the other sign and the floor is wanted."""
    if rounding_mode is None or promoted(x, other).is_floating_point:
        return decline("only integers that are rounded")
    first, second = _paired(x, other)
    quotient = prims.div(first, second)
    if rounding_mode == "trunc":
        return quotient
    rest = torch.fmod(first, second)
    return quotient - cast(torch.ne(rest, 0) & torch.ne(rest < 0, second < 0), quotient.dtype)


@register("pow", of="pow")
def power(x: Any, exponent: Any) -> Tensor:
    """pow of one dtype and shape; roots by their own primitive, as that of −0 is −0 in PyTorch. Of complex numbers only
    with an exponent that is a tensor: to a number the kernel multiplies, which the primitive does not."""
    if is_scalar(exponent) and x.is_complex():
        return decline("powers of complex numbers by numbers are products")
    if is_scalar(exponent) and exponent in (0.5, -0.5):
        return torch.sqrt(x) if exponent > 0 else torch.rsqrt(x)
    return prims.pow(*_paired(x, exponent))


@register("where", of="where")
def where(condition: Tensor, x: Any, other: Any) -> Tensor:
    """where of one dtype and shape."""
    scalars = is_scalar(x) and is_scalar(other)
    dtype = torch.result_type(x, other) if scalars else promoted(x, other)
    shape = torch.broadcast_shapes(condition.shape, *(side.shape for side in (x, other) if not is_scalar(side)))
    sides = [_spread(side, dtype, shape, condition.device) for side in (x, other)]
    return prims.where(cast(condition, torch.bool).expand(shape), *sides)


# Shapes


@register("full", of="scalar_tensor")
def full(size: Sequence[Any], fill_value: Any, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """A number, broadcast."""
    if is_scalar(fill_value) and not isinstance(fill_value, (bool, int, float, complex)):
        return decline("the number is a symbol")
    kind = torch.bool if isinstance(fill_value, bool) else torch.int64 if isinstance(fill_value, int) else None
    dtype = dtype or kind or torch.get_default_dtype()
    number = prims.scalar_tensor(fill_value, dtype=dtype, device=torch.device(device or "cpu"))
    return prims.broadcast_in_dim(number, list(size), []) if len(size) else number


@register("expand", of="broadcast_in_dim")
def expand(x: Tensor, size: Sequence[Any]) -> Tensor:
    """broadcast_in_dim; −1 keeps the existing size."""
    fresh = len(size) - x.dim()
    shape = [x.shape[d - fresh] if type(s) is int and s == -1 else s for d, s in enumerate(size)]
    return prims.broadcast_in_dim(x, shape, list(range(fresh, len(size))))


@register("view", "reshape", "_unsafe_view", of="reshape")
def reshape(x: Tensor, size: Sequence[Any]) -> Tensor:
    """reshape, which copies; to no dimensions, squeeze, as reshape fails there (torch 2.13)."""
    return prims.reshape(x, _known(x, size)) if len(size) else prims.squeeze(x, list(range(x.dim())))


@register("view", of="view_of_dtype")
def view_of_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits of x as another dtype of the same width."""
    if x.dtype.itemsize != dtype.itemsize:
        return decline("only dtypes of the same width")
    return prims.view_of_dtype(x, dtype)


def _known(x: Tensor, size: Sequence[Any]) -> list[Any]:
    """A shape whose −1 is worked out."""
    if -1 not in [s for s in size if type(s) is int]:
        return list(size)
    rest = x.numel() // math.prod(s for s in size if not (type(s) is int and s == -1))
    return [rest if type(s) is int and s == -1 else s for s in size]


@register("permute", of="transpose")
def permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    """transpose."""
    return prims.transpose(x, [wrap(d, x.dim()) for d in dims]) if x.dim() else x.clone()


@register("flip", of="rev")
def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    """rev."""
    return prims.rev(x, [wrap(d, x.dim()) for d in dims]) if x.dim() else x.clone()


@register("constant_pad_nd", of="cat")
def constant_pad_nd(x: Tensor, pad: Sequence[Any], value: Any = 0) -> Tensor:
    """cat with what is put before and after; what is negative is sliced off."""
    for k in range(len(pad) // 2):
        dim, before, after = x.dim() - 1 - k, pad[2 * k], pad[2 * k + 1]
        if min(before, after) < 0:
            x = x.narrow(dim, max(-before, 0), x.shape[dim] + min(before, 0) + min(after, 0))
        parts = [_block(x, dim, max(size, 0), value) for size in (before, after)]
        parts = [part for part in (parts[0], x, parts[1]) if part is not None]
        x = prims.cat(parts, dim) if len(parts) > 1 else x
    return x if any(pad) else x.clone()


def _block(x: Tensor, dim: int, size: Any, value: Any) -> Tensor | None:
    shape = [size if d == dim else length for d, length in enumerate(x.shape)]
    return torch.full(shape, value, dtype=x.dtype, device=x.device) if size else None


@register("cat", of="cat")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """cat of one dtype, without the empty lines that ATen skips."""
    parts = [x for x in tensors if not (x.dim() == 1 and type(x.shape[0]) is int and x.shape[0] == 0)] or [tensors[0]]
    dtype = tensors[0].dtype
    for x in tensors:
        dtype = torch.promote_types(dtype, x.dtype)
    parts = [cast(x, dtype) for x in parts]
    return prims.cat(parts, wrap(dim, parts[0].dim())) if len(parts) > 1 else parts[0].clone()


@register("arange", of="iota")
def arange(end: Any, start: Any = 0, step: Any = 1, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
    """iota, of integers."""
    if not all(type(number) is int for number in (start, end, step)) or dtype not in (None, torch.int64):
        return decline("not of integers that are known")
    length = max(-((start - end) // step), 0)
    where = torch.device(device or "cpu")
    return prims.iota(length, start=start, step=step, dtype=torch.int64, device=where, requires_grad=False)


@register("_to_copy", of="convert_element_type")
def to_copy(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """convert_element_type."""
    return x.clone() if dtype in (None, x.dtype) else prims.convert_element_type(x, dtype)


@register("clone", of="clone")
def clone(x: Tensor) -> Tensor:
    """clone."""
    return prims.clone(x, memory_format=torch.contiguous_format)


# Reductions


def _reduction(name: str, primitive: Callable[..., Tensor]) -> None:
    @register(name, of=name)
    def rule(x: Tensor, dim: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
        whole = not (x.is_floating_point() or x.is_complex())
        x = cast(x, dtype or (torch.int64 if whole and name in ("sum", "prod") else x.dtype))
        given = [dim] if isinstance(dim, int) else list(dim or [])
        dims = sorted(wrap(d, x.dim()) for d in given) or list(range(x.dim()))
        if not dims:
            return x.clone()
        widened = cast(x, torch.float32) if name == "prod" and x.dtype in HALVES else x  # rounded once
        reduced = cast(primitive(widened, dims), x.dtype)
        return reduced.reshape([1 if d in dims else size for d, size in enumerate(x.shape)]) if keepdim else reduced


for _name in ("sum", "prod", "amax", "amin"):
    _reduction(_name, getattr(prims, _name))
