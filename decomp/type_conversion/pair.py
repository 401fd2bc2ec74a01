"""`Pair`, the real and imaginary part of a complex tensor, and the ops that are computed on pairs directly. All other
complex ops are derived from these by the same rules as for targets with complex numbers.

Each operation is a function of the arguments of its op, named as in the schema, with pairs in place of complex tensors.
It returns a pair, a real tensor, or a list of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decomp.metadata.symbolic_sizes import SYMBOLIC
from decomp.torch_internals.pytree import tree_map


class NotAsPairs(Exception):
    """A call cannot be computed on pairs; the message says why."""


@dataclass(frozen=True, eq=False)
class Pair:
    """A complex tensor, by its parts."""

    re: Tensor
    # Products and sums with a real tensor then cost what they cost on real numbers.
    im: Tensor | None = None
    """None where it is zero everywhere."""

    @property
    def imag(self) -> Tensor:
        """The imaginary part as a tensor, even if it is zero."""
        return torch.zeros_like(self.re) if self.im is None else self.im


def real_dtype(dtype: Any) -> Any:
    """The dtype of the parts of a complex dtype; any other value unchanged."""
    return dtype.to_real() if isinstance(dtype, torch.dtype) and dtype.is_complex else dtype


def as_pair(value: Any) -> Pair:
    """A pair unchanged, or a pair whose real part is the given real tensor."""
    if isinstance(value, Pair):
        return value
    if isinstance(value, Tensor):
        return Pair(value)
    raise NotAsPairs(f"{value!r} is not a tensor")


def take_real_part(value: Any) -> Any:
    """Arguments with complex tensors and numbers replaced by their real parts."""
    return tree_map(_first, value)


def take_imaginary_part(value: Any) -> Any:
    """Arguments with tensors and numbers, real ones included, replaced by their imaginary parts."""
    return tree_map(_second, value)


def _first(value: Any) -> Any:
    if isinstance(value, Pair):
        return value.re
    return value.real if isinstance(value, complex) else real_dtype(value)


def _second(value: Any) -> Any:
    if isinstance(value, Pair):
        return value.imag
    if isinstance(value, Tensor):
        return torch.zeros_like(value)
    if isinstance(value, (bool, int, float, complex)):
        return complex(value).imag
    return 0.0 if isinstance(value, SYMBOLIC) else real_dtype(value)


# Sums and products.


def negate(x: Tensor | None) -> Tensor | None:
    return None if x is None else -x


def plus(x: Any, y: Any) -> Any:
    """A sum in which None is zero."""
    if x is None or y is None:
        return y if x is None else x
    return x + y


def times(x: Any, y: Any) -> Any:
    """A product in which None is zero."""
    return None if x is None or y is None else x * y


def parts(value: Any) -> tuple[Any, Any]:
    """The parts of a pair, a real tensor or a number, None for a second part that is zero."""
    if isinstance(value, Pair):
        return value.re, value.im
    if isinstance(value, complex):
        return value.real, value.imag or None
    return value, None


def _whole(re: Any, im: Any, like: Any = None) -> Pair:
    """A pair of parts, either of which may be None (zero), a number, or broadcastable to the other."""
    if re is None:
        re = torch.zeros_like(im) if isinstance(im, Tensor) else torch.zeros_like(like)
    if not isinstance(im, Tensor):
        return Pair(re) if im is None else Pair(re, torch.full_like(re, im))
    if not isinstance(re, Tensor):
        re = torch.full_like(im, re)
    if tuple(re.shape) != tuple(im.shape):
        # `complex + real` broadcasts the real operand alone, whose imaginary part has the smaller shape.
        re, im = torch.broadcast_tensors(re, im)
    return Pair(re, im.to(re.dtype) if im.dtype != re.dtype else im)


# The textbook formula and not the one of three products (Gauss,
# Karatsuba), which cancels; PyTorch's kernel computes the former.
def mul(self: Any, other: Any) -> Pair:
    """(a + ib)·(c + id) = (ac − bd) + i(ad + bc)."""
    (a, b), (c, d) = parts(self), parts(other)
    # `1j * z` is a swap and a sign; 0·inf would make it NaN.
    if isinstance(c, float) and c == 0 and d is not None:
        c = None  # a number without a real part
    first, second = times(a, c), times(b, d)
    re = first if second is None else -second if first is None else first - second
    return _whole(re, plus(times(a, d), times(b, c)), self.re if isinstance(self, Pair) else self)


def add(self: Any, other: Any, alpha: Any = 1) -> Pair:
    """Part by part."""
    (a, b), (c, d) = parts(self), parts(_scaled(other, alpha))
    return _whole(a + c, plus(b, d))


def sub(self: Any, other: Any, alpha: Any = 1) -> Pair:
    """Part by part."""
    (a, b), (c, d) = parts(self), parts(_scaled(other, alpha))
    return _whole(a - c, -d if b is None and d is not None else b if d is None else b - d)


def rsub(self: Any, other: Any, alpha: Any = 1) -> Pair:
    """other − alpha·self."""
    return sub(other, self, alpha)


def _scaled(value: Any, alpha: Any) -> Any:
    if not isinstance(alpha, SYMBOLIC) and alpha == 1:  # comparing an open size adds a guard
        return value
    return mul(value, alpha) if isinstance(value, (Pair, Tensor)) else value * alpha


def bilinear(function: Callable[..., Tensor]) -> Callable[..., Pair]:
    """The product of pairs, given a bilinear product of real tensors."""

    def of_pairs(*operands: Any) -> Pair:
        (a, b), (c, d) = map(parts, operands)

        def product(x: Any, y: Any) -> Any:
            if x is None or y is None:
                return None
            # Matrix products take one dtype, unlike elementwise ops.
            dtype = torch.promote_types(x.dtype, y.dtype)
            return function(x.to(dtype), y.to(dtype))

        first, second = product(a, c), product(b, d)
        re = first if second is None else first - second
        return _whole(re, plus(product(a, d), product(b, c)))

    return of_pairs


# Between complex and real.


def view_as_real(self: Pair) -> Tensor:
    """(Re z, Im z) along a new last dimension."""
    return torch.stack([self.re, self.imag], -1)


def view_as_complex(self: Tensor) -> Pair:
    """A real tensor whose last dimension has the two parts."""
    return Pair(self.select(-1, 0), self.select(-1, 1))


def complex_of_parts(real: Tensor, imag: Tensor) -> Pair:
    """re + i·im."""
    return _whole(real, imag)


def conj(self: Any) -> Any:
    """Re z − i·Im z."""
    if isinstance(self, complex):  # of a constant, which backward graphs ask for
        return full((), self.conjugate(), torch.complex128)
    return Pair(self.re, negate(self.im)) if isinstance(self, Pair) else self


def eq(self: Any, other: Any) -> Tensor:
    """Elementwise: whether both parts are equal."""
    (a, b), (c, d) = parts(self), parts(other)
    same = _equal(a, c)
    return same if b is None and d is None else same & _equal(0 if b is None else b, 0 if d is None else d)


def _equal(x: Any, y: Any) -> Tensor:
    return torch.eq(x, y) if isinstance(x, Tensor) else torch.eq(y, x)


def ne(self: Any, other: Any) -> Tensor:
    """Elementwise: whether a part differs."""
    return torch.logical_not(eq(self, other))


def nonzero_parts(x: Pair) -> Tensor:
    """Elementwise: whether a part is not zero."""
    found = torch.ne(x.re, 0)
    return found if x.im is None else found | torch.ne(x.im, 0)


def to_dtype(self: Any, dtype: torch.dtype | None) -> Any:
    """A cast: to a complex dtype part by part, to bool whether a part is not zero, to other dtypes the real part."""
    if dtype is None or isinstance(self, Pair) and dtype.is_complex:
        if not isinstance(self, Pair):
            return self
        to = real_dtype(dtype) if dtype is not None else self.re.dtype
        return Pair(self.re.to(to), None if self.im is None else self.im.to(to))
    if not isinstance(self, Pair):
        return Pair(self.to(real_dtype(dtype)))
    return nonzero_parts(self) if dtype == torch.bool else self.re.to(dtype)


def copied_or_cast(self: Any, dtype: torch.dtype | None = None) -> Any:
    """A cast, or a copy."""
    if isinstance(self, Pair) and (dtype is None or real_dtype(dtype) == self.re.dtype and dtype.is_complex):
        return Pair(self.re.clone(), None if self.im is None else self.im.clone())
    return to_dtype(self, dtype)


def view_of_dtype(self: Any, dtype: torch.dtype) -> Any:
    """The bits of complex numbers read as pairs of real ones, or the reverse."""
    if isinstance(self, Pair):
        if dtype != self.re.dtype or not self.re.dim():
            raise NotAsPairs(f"reads its bits as {dtype}")
        return view_as_real(self).flatten(-2)
    if not dtype.is_complex or dtype.to_real() != self.dtype:
        raise NotAsPairs(f"reads bits of {self.dtype} as {dtype}")
    return view_as_complex(self.unflatten(-1, (-1, 2)))


# Choice.


def where(condition: Tensor, self: Any, other: Any) -> Pair:
    """Part by part."""
    (a, b), (c, d) = parts(self), parts(other)
    if b is None and d is None:
        return Pair(torch.where(condition, a, c))
    first, second = (0.0 if part is None else part for part in (b, d))
    return _whole(torch.where(condition, a, c), torch.where(condition, first, second))


def masked_fill(self: Any, mask: Tensor, value: Any) -> Pair:
    """Part by part."""
    return where(mask, value, self)


def sqrt(self: Any) -> Pair:
    """With t = √((|a| + |z|) / 2): t + i·b / 2t for a ≥ 0, else |b| / 2t ± i·t (W. Kahan, Branch Cuts for Complex
    Elementary Functions, 1987); the parts are scaled by ¼, so that |z| does not overflow."""
    if not isinstance(self, Pair):
        raise NotAsPairs("is the complex root of real numbers")
    a, b = self.re, self.imag
    # Both have a gradient or a quotient that is NaN in the general formula, and are chosen at the end.
    origin, endless = (a == 0) & (b == 0), torch.isinf(b)
    safe = torch.where(origin | endless, 1.0, a)
    # Detached, as the derivative by the sign is zero everywhere (derivatives.yaml of PyTorch, copysign.Tensor).
    right, sign = safe >= 0, torch.copysign(torch.ones_like(b), b.detach())
    half, rest = torch.where(right, safe, -safe) * 0.25, torch.where(endless, 0.0, b) * 0.25
    t = torch.sqrt((half + torch.hypot(half, rest)) * 0.5) * 2
    other = torch.where(endless, 0.0, b) / (2 * t)
    # inf / inf in the quotient above; the limit is a zero of the sign of b (C99, Annex G.6.4.2).
    other = torch.where(torch.isinf(a) & (b == b), torch.copysign(torch.zeros_like(b), b), other)
    first, second = torch.where(right, t, other * sign), torch.where(right, other, t * sign)
    edge = torch.where(endless, torch.abs(b), 0.0)
    return Pair(torch.where(origin | endless, edge, first), torch.where(origin | endless, b, second))


# New tensors.


def full(size: Any, fill_value: Any, dtype: Any = None, device: Any = None) -> Pair:
    """A tensor filled with one number."""
    to = real_dtype(dtype) or torch.get_default_dtype()
    re, im = parts(fill_value)
    return Pair(*(n if n is None else torch.full(size, n, dtype=to, device=device) for n in (re, im)))


def full_like(self: Any, fill_value: Any, dtype: Any = None) -> Pair:
    """A tensor filled with one number, of the shape of another."""
    like = self.re if isinstance(self, Pair) else self
    to = real_dtype(dtype) or like.dtype
    re, im = parts(fill_value)
    return Pair(*(n if n is None else torch.full_like(like, n, dtype=to) for n in (re, im)))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "mul": mul,
    "add": add,
    "sub": sub,
    "rsub": rsub,
    "eq": eq,
    "ne": ne,
    "mm": bilinear(torch.mm),
    "bmm": bilinear(torch.bmm),
    "matmul": bilinear(torch.matmul),
    "mv": bilinear(torch.mv),
    "dot": bilinear(torch.dot),
    "outer": bilinear(torch.outer),
    "view_as_real": view_as_real,
    "view_as_real_copy": view_as_real,
    "view_as_complex": view_as_complex,
    "view_as_complex_copy": view_as_complex,
    "complex": complex_of_parts,
    "real": lambda self: self.re if isinstance(self, Pair) else self,
    "imag": lambda self: self.imag,
    **dict.fromkeys(("conj", "conj_physical", "_conj", "_conj_physical", "_conj_copy"), conj),
    **dict.fromkeys(("resolve_conj", "resolve_neg"), lambda self: self),
    **dict.fromkeys(("_neg_view", "_neg_view_copy"), lambda self: Pair(-self.re, negate(self.im))),
    "where": where,
    "masked_fill": masked_fill,
    "full": full,
    "full_like": full_like,
    "zeros": lambda size, dtype=None, device=None: full(size, 0, dtype, device),
    "ones": lambda size, dtype=None, device=None: full(size, 1, dtype, device),
    # Zeros: uninitialised memory would differ between the parts that are computed together.
    "empty": lambda size, dtype=None, device=None: full(size, 0, dtype, device),
    "zeros_like": lambda self, dtype=None: full_like(self, 0, dtype),
    "ones_like": lambda self, dtype=None: full_like(self, 1, dtype),
    "empty_like": lambda self, dtype=None: full_like(self, 0, dtype),
    "scalar_tensor": lambda s, dtype=None, device=None: full((), s, dtype, device),
    "_to_copy": copied_or_cast,
    "to": to_dtype,
    "clone": copied_or_cast,
    "sqrt": sqrt,
}
"""By short name of an ATen op: the function that computes it on pairs, from its arguments by name. Arguments that a
function does not take choose only device and memory layout."""

LINEAR: dict[str, tuple[int | str, ...]] = {
    **dict.fromkeys(
        (
            "view",
            "_unsafe_view",
            "reshape",
            "permute",
            "transpose",
            "t",
            "expand",
            "unsqueeze",
            "squeeze",
            "select",
            "slice",
            "narrow",
            "flip",
            "contiguous",
            "detach",
            "alias",
            "lift_fresh",
            "lift_fresh_copy",
            "split",
            "split_with_sizes",
            "chunk",
            "unbind",
            "diagonal",
            "tril",
            "triu",
            "unfold",
            "movedim",
            "flatten",
            "unflatten",
            "repeat",
            "broadcast_to",
            "gather",
            "index_select",
            "index",
            "embedding",
            "sum",
            "mean",
            "cumsum",
            "neg",
            "roll",
            "view_copy",
            "permute_copy",
            "expand_copy",
            "slice_copy",
            "select_copy",
            "squeeze_copy",
            "unsqueeze_copy",
            "transpose_copy",
            "take_along_dim",
            "take",
            "masked_select",
            "numpy_T",
            "mT",
            "T",
            "positive",
        ),
        (0,),
    ),
    "cat": (0,),
    "stack": (0,),
    "constant_pad_nd": (0, 2, "value"),
    "index_put": (0, 2, "values"),
    "select_scatter": (0, 1, "src"),
    "slice_scatter": (0, 1, "src"),
    "scatter": (0, 3, "src", "value"),
    "scatter_add": (0, 3, "src"),
    "index_add": (0, 3, "source"),
    "index_copy": (0, 3, "source"),
    "copy": (0, 1, "src"),
}
"""Ops that are computed part by part, and their arguments that have parts, by position or name."""
