"""Integer arithmetic that is undefined in C++: signed overflow, a cast of a float that does not fit the integer dtype,
a shift by an invalid count, division by zero. PyTorch's kernels wrap; generated code need not. The operands of each
call of a rule are checked before it runs; inputs for which the op itself is undefined are excused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from decomp.ir.dtypes import name_of
from decomp.ops import aten
from decomp.tools.certification.results import flat
from decomp.tools.measurement.trials import Function, Trial
from decomp.torch_internals.modes import TorchDispatchMode

OVERFLOWS = (torch.int32, torch.int64)
"""The dtypes whose overflow is undefined: narrower integers are computed in `int` and truncated, unsigned ones wrap."""
SHIFTED_OUT = "a left shift that overflows"
_FATAL = ("division by zero", "a quotient that overflows")
"""Calls that crash the process (on x86)."""


@dataclass(frozen=True)
class Undefined:
    """One call with operands for which its result is undefined in C++."""

    what: str
    """ "overflow", "a cast out of range"."""
    call: str
    operands: tuple[Any, ...]
    where: torch.Tensor
    """Bool, in the shape to which the operands are broadcast."""

    def at(self, points: torch.Tensor) -> str:
        """The operands at the first of these places."""
        place = tuple(points.nonzero()[0].tolist())
        values = [t.expand(points.shape)[place].item() if isinstance(t, torch.Tensor) else t for t in self.operands]
        return f"{self.what}: {self.call} of {' and '.join(map(_shown, values))}"


class OperandWatch(TorchDispatchMode):
    """A mode that checks the operands of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Undefined] = []
        self.looked_at = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._overloadpacket.__name__
        check = _CHECKS.get(name if name.endswith("__") else name.removesuffix("_"))
        if check is not None:
            names = [argument.name for argument in func._schema.arguments]
            self._look(func, check, tuple(args), {**dict(zip(names, args)), **kwargs})
        return func(*args, **kwargs)

    def _look(self, func: Any, check: Check, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        found = check(args, named)
        self.looked_at += found is not None
        for what, where, operands in found or ():
            if bool(where.any()):
                dtype = next(name_of(t.dtype) for t in operands if isinstance(t, torch.Tensor))
                call = f"{func._overloadpacket.__name__} of {dtype}"
                self.found.append(Undefined(what, call, tuple(operands), where))
                if what in _FATAL:
                    raise ZeroDivisionError(f"{what}: {call}")


def undefined(function: Function, what: Trial, tensors: Sequence[torch.Tensor]) -> str | None:
    """Undefined arithmetic of a rule on inputs for which the op is defined; empty without any, and None if
    the rule does no integer arithmetic."""
    watch = watched(function, tensors)
    return fault(watch, what, tensors) if watch.looked_at else None


def watched(function: Function, tensors: Sequence[torch.Tensor]) -> OperandWatch:
    """The undefined calls in a run of `function`, whose results are ignored."""
    watch = OperandWatch()
    with watch, contextlib.suppress(Exception):  # exceptions are noted where its results are measured
        function([t.detach().clone() for t in tensors])
    return watch


def fatal(watch: OperandWatch) -> bool:
    """Whether a call would have crashed the process."""
    return any(each.what in _FATAL for each in watch.found)


def fault(watch: OperandWatch, what: Trial, tensors: Sequence[torch.Tensor]) -> str:
    """The first finding that is not excused, or an empty text."""
    if not watch.found:
        return ""
    count = max((t.numel() for t in tensors), default=1) if what.pointwise else 0
    excused = undefined_of_the_op(what, tensors, count)
    for each in watch.found:
        points = _points(each.where, count)
        left = each.where & ~(_spread(excused, each.where) if points is not None else excused.any())
        if bool(left.any()):
            return f"counts on {each.at(left)}{_input(points, excused, tensors)}"
    return ""


def undefined_of_the_op(what: Trial, tensors: Sequence[torch.Tensor], count: int) -> torch.Tensor:
    """The points at which the op's own kernel is undefined; for an op that is not pointwise, whether it is."""
    excused = torch.zeros(max(count, 1), dtype=torch.bool)
    # PyTorch documents that its left shifts lose bits.
    found = [each.where for each in watched(what.own, tensors).found if each.what != SHIFTED_OUT]
    for where in (*found, *_beyond(what, tensors)):
        points = _points(where, count)
        excused |= points if points is not None else bool(where.any())
    return excused


def _beyond(what: Trial, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Where an integer op has results in float64 that do not fit its own integer dtype."""
    if any(t.is_floating_point() or t.is_complex() for t in tensors):
        return []
    try:
        own, wide = flat(what.own(tensors)), flat(what.own([t.double() for t in tensors]))
    except Exception:  # an op that accepts only integers
        return []
    return [
        ~(theirs.abs() < 2.0 ** (torch.iinfo(mine.dtype).bits - 1))
        for mine, theirs in zip(own, wide)
        if mine.dtype in OVERFLOWS and theirs.is_floating_point() and mine.shape == theirs.shape
    ]


def _points(where: torch.Tensor, count: int) -> torch.Tensor | None:
    """A mask reduced to the points; None if its shape is not that of the points."""
    if count and where.numel() == count:
        return where.flatten()
    if count and where.dim() and where.shape[0] == count:
        return where.flatten(1).any(1)
    return None


def _spread(excused: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if like.numel() == excused.numel():
        return excused.view(like.shape)
    return excused.view([-1] + [1] * (like.dim() - 1)).expand(like.shape)


def _input(points: torch.Tensor | None, excused: torch.Tensor, tensors: Sequence[torch.Tensor]) -> str:
    if points is None:
        return ""
    at = int((points & ~excused).nonzero()[0])
    values = [_shown(t.flatten()[at if t.numel() > 1 else 0].item()) for t in tensors]
    return f", at {', '.join(values)}"


def _shown(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


# The checks map the arguments of a call to possible faults, with their positions and the operands; None if it is not
# integer arithmetic.

Found = Sequence[tuple[str, torch.Tensor, Sequence[Any]]]
Check = Callable[[Sequence[Any], Mapping[str, Any]], "Found | None"]


def _whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype is not torch.bool


def _pair(args: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Both operands as integers of the result's dtype, broadcast; None if that is not an integer dtype."""
    x, y = args[:2]
    dtype = torch.result_type(x, y)
    if not _whole(dtype):
        return None
    both = [v.to(dtype) if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=dtype) for v in (x, y)]
    one, other = torch.broadcast_tensors(*both)
    return one, other


def _sum(args: Sequence[Any], named: Mapping[str, Any]) -> Found | None:
    pair, factor = _pair(args), named.get("alpha", 1)
    if pair is None or pair[0].dtype not in OVERFLOWS:
        return None
    x, y = pair
    scaled = y * factor
    times = _product_overflows(y, torch.full_like(y, factor)) if factor not in (1, -1) else torch.zeros_like(y).bool()
    return [("overflow", times | _sum_overflows(x, scaled), pair)]


def _difference(args: Sequence[Any], named: Mapping[str, Any]) -> Found | None:
    pair = _pair(args)
    if pair is None or pair[0].dtype not in OVERFLOWS:
        return None
    x, y = pair
    left = x - y * named.get("alpha", 1)
    wrong = ((x ^ y) & (x ^ left)) < 0
    return [("overflow", wrong, pair)]


def _reversed(args: Sequence[Any], named: Mapping[str, Any]) -> Found | None:
    return _difference((args[1], args[0]), named)


def _product(args: Sequence[Any], named: Mapping[str, Any]) -> Found | None:
    pair = _pair(args)
    if pair is None or pair[0].dtype not in OVERFLOWS:
        return None
    return [("overflow", _product_overflows(*pair), pair)]


def _sum_overflows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = x + y
    return ((x ^ total) & (y ^ total)) < 0


def _product_overflows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Where the product overflows: dividing the wrapped product does not return the factor."""
    least = torch.iinfo(x.dtype).min
    plain = (y != 0) & (y != -1)
    quotient = torch.div(x * y, torch.where(plain, y, 1), rounding_mode="trunc")
    return torch.where(plain, quotient != x, (y == -1) & (x == least))


def _negation(args: Sequence[Any], named: Mapping[str, Any]) -> Found | None:
    x = args[0]
    return [("overflow", x == torch.iinfo(x.dtype).min, [x])] if x.dtype in OVERFLOWS else None


def _divisor(args: Sequence[Any], named: Mapping[str, Any]) -> Found | None:
    """The check of the greatest common divisor, whose kernel takes absolute values."""
    pair = _pair(args)
    if pair is None or pair[0].dtype not in OVERFLOWS:
        return None
    least = torch.iinfo(pair[0].dtype).min
    return [("overflow", (pair[0] == least) | (pair[1] == least), pair)]


def _multiple(args: Sequence[Any], named: Mapping[str, Any]) -> Found | None:
    """Of the least common multiple, |x| / gcd(x, y) · |y|."""
    pair = _pair(args)
    if pair is None or pair[0].dtype not in OVERFLOWS:
        return None
    size = torch.div(pair[0].double().abs(), torch.gcd(*pair).double().abs()) * pair[1].double().abs()
    return [("overflow", size >= 2.0 ** (torch.iinfo(pair[0].dtype).bits - 1), pair)]


def _cast(args: Sequence[Any], named: Mapping[str, Any]) -> Found | None:
    x, dtype = args[0], named.get("dtype")
    if not isinstance(dtype, torch.dtype) or not x.is_floating_point() or not _whole(dtype):
        return None
    info, cut = torch.iinfo(dtype), x.double().trunc()
    held = (cut >= info.min) & (cut < 2.0 ** (info.bits - (info.min < 0)))
    return [(f"a cast to {name_of(dtype)} out of range", ~held, [x])]


def _left_shift(args: Sequence[Any], named: Mapping[str, Any]) -> Found | None:
    pair = _pair(args)
    if pair is None:
        return None
    x, count = pair
    info = torch.iinfo(x.dtype)
    outside = (count < 0) | (count >= info.bits)
    room = torch.bitwise_right_shift(torch.full_like(x, info.max), torch.where(outside, 0, count))
    lost = (x > room) if x.dtype in OVERFLOWS else torch.zeros_like(outside)
    found = [("a shift out of range", outside, pair)]
    return found if info.min == 0 else [*found, (SHIFTED_OUT, ~outside & ((x < 0) | lost), pair)]


def _right_shift(args: Sequence[Any], named: Mapping[str, Any]) -> Found | None:
    pair = _pair(args)
    if pair is None:
        return None
    x, count = pair
    return [("a shift out of range", (count < 0) | (count >= torch.iinfo(x.dtype).bits), pair)]


def _quotient(args: Sequence[Any], named: Mapping[str, Any]) -> Found | None:
    pair = _pair(args)
    if pair is None or "rounding_mode" in named and named["rounding_mode"] is None:
        return None
    x, y = pair
    found = [("division by zero", y == 0, pair)]
    least = torch.iinfo(x.dtype).min
    return [*found, ("a quotient that overflows", (x == least) & (y == -1), pair)] if x.dtype in OVERFLOWS else found


def _sizes(name: str, *places: int) -> Check:
    """The check of sums and products: where the sum (or product) of absolute values exceeds the dtype."""

    def check(args: Sequence[Any], named: Mapping[str, Any]) -> Found | None:
        values = [args[i] for i in places if i < len(args) and isinstance(args[i], torch.Tensor)]
        if any(not _whole(t.dtype) and t.dtype is not torch.bool for t in values):
            return None
        dtype = named.get("dtype") or (values[0].dtype if name not in _WIDENING else torch.int64)
        if dtype not in OVERFLOWS:
            return None
        sizes = [a.double().abs() if i in places and isinstance(a, torch.Tensor) else a for i, a in enumerate(args)]
        total = getattr(aten, name)(*sizes)
        return [("overflow", total > 2.0 ** (torch.iinfo(dtype).bits - 1), [values[0].flatten()[:1].view([])])]

    return check


_WIDENING = ("sum", "prod", "cumsum", "cumprod", "nansum", "trace")
_CHECKS: dict[str, Check] = {
    **dict.fromkeys(("add", "bitwise_add"), _sum),
    **dict.fromkeys(("sub", "subtract"), _difference),
    "rsub": _reversed,
    **dict.fromkeys(("mul", "multiply"), _product),
    **dict.fromkeys(("neg", "abs"), _negation),
    "gcd": _divisor,
    "lcm": _multiple,
    **dict.fromkeys(("_to_copy", "convert_element_type"), _cast),
    **dict.fromkeys(("bitwise_left_shift", "__lshift__", "shift_left"), _left_shift),
    **dict.fromkeys(("bitwise_right_shift", "__rshift__", "shift_right_arithmetic"), _right_shift),
    **dict.fromkeys(("fmod", "remainder", "floor_divide", "div"), _quotient),
    **{name: _sizes(name, 0) for name in (*_WIDENING, "pow")},
    **{name: _sizes(name, 0, 1) for name in ("mm", "bmm", "dot", "mv", "convolution")},
    **{name: _sizes(name, 0, 1, 2) for name in ("addmm", "baddbmm", "addcmul")},
    **{name: _sizes(name, 0, 3) for name in ("scatter_add", "index_add")},
}
