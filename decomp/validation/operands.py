"""Concrete operands for a call with known metadata: random numbers, the special values of the dtype, and integers in
the range that the call's own kernel accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import math
from typing import Any

import torch
from torch import fx

from decomp.functionalize.overlap import memory_span, overlaps_itself
from decomp.graphs.tracing import SYMBOLIC
from decomp.ir.arguments import substituted
from decomp.ir.call import bound_call, metadata
from decomp.ir.dtypes import is_integer
from decomp.ir.op_facts import CHECKS_RANGE
from decomp.metadata.symbolic_sizes import size_hint
from decomp.patterns.pattern import Pattern
from decomp.torch_internals import pytree

LARGEST = 1 << 24
"""The most elements of a generated operand, so that measuring is not costlier than running the program."""


class NoOperands(Exception):
    """No operands could be generated that the call accepts; the message says why."""


def concrete_size(size: Any) -> Any:
    """A size as a number: its value in the example inputs. Raises `NoOperands` for sizes that depend on data."""
    if not isinstance(size, SYMBOLIC):
        return size
    found = size_hint(size)
    if found is None:
        raise NoOperands("its sizes depend on data")
    return found


def random_operands(node: fx.Node) -> Iterator[list[Any]]:
    """Operands for the distinct inputs of `node`, in order, widest range of integers first. Raises `NoOperands`."""
    values = [metadata(given) for given in node.all_input_nodes]
    if any(value is None for value in values):
        raise NoOperands("the program has no metadata")
    integers = any(is_integer(leaf) for leaf in pytree.tensors_in(values))
    if integers and not _checks_its_integers(node):
        raise NoOperands("the valid range of its integers is not known")
    sizes = [concrete_size(size) for leaf in pytree.tensors_in(values) for size in leaf.shape]
    sizes = [size for size in sizes if size > 0] or [1]
    # The widest first, as it tests most. An index must be below a size, but of which operand is not known: smaller
    # ranges follow, and at last 0 alone.
    ranges = [(-8, 9), (0, max(sizes)), (0, min(sizes)), (0, 1)] if integers else [(0, 1)]
    for low, high in ranges:
        draw = torch.Generator().manual_seed(0)
        yield [made_alike(value, lambda like: _random(like, draw, low, max(high, low + 1))) for value in values]


def large_operands(node: fx.Node) -> Iterator[list[Any]]:
    """Operands of either sign with magnitudes from 1/2 to 32, which random numbers rarely have. Raises `NoOperands` if
    the call has no float operands."""
    values = _float_operands(node)
    draw = torch.Generator().manual_seed(0)
    yield [made_alike(value, lambda like: _large(like, draw)) for value in values]


def edge_operands(node: fx.Node, numbers: Sequence[float], turn: int) -> Iterator[list[Any]]:
    """Operands where branches of a formula meet: the numbers that it compares with and their neighbours, halves, both
    zeros, small and large numbers, and equal operands; small operands differ in each `turn`. Raises `NoOperands` if the
    call has no float operands."""
    values = _float_operands(node)
    marks = dict.fromkeys(size for n in numbers if abs(n) <= _FAR for size in (n, -n))
    # The summand is for n = 0, whose neighbours would be 0 again.
    near = [each for n in marks for each in (n, n * (1 + 2**-9) + 2**-12, n * (1 - 2**-9) - 2**-12)]
    first = [8.5, -8.5, 1e-3, -1e-3, -0.0, 0.5, -0.5, 30.0, -30.0, 1.5, 2.5, -1.5, -2.5, 1.0, -1.0, 1e-5, -1e-5]
    pool = torch.tensor([*near, *first], dtype=torch.float64)
    draw = torch.Generator().manual_seed(turn)
    places = torch.randperm(len(pool), generator=draw)

    def made(like: torch.Tensor) -> torch.Tensor:
        if not like.is_floating_point():
            return _random(like, draw, 0, 1)
        count = like.numel()
        start = torch.arange(count) + turn * count
        equal = pool[places[start % len(pool)]]
        other = pool[torch.randint(len(pool), (count,), generator=draw)]
        # Two thirds of the positions hold the same number in all
        # operands, so that comparisons of operands see equality.
        return torch.where(torch.arange(count) % 3 < 2, equal, other).reshape(like.shape)

    yield [made_alike(value, made) for value in values]


_FAR = 1e4
"""Constants beyond this are not thresholds for operands of usual magnitude."""


def variants(node: fx.Node, seen: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Operands that are rare in runs of the program, derived from those of one run: equal, large, sorted with ties,
    negative, all masked. Integers are unchanged, unless the kernel checks their range: then they are repeated or
    reversed."""
    leaves = pytree.tensors_in(list(seen))
    floats = sum(leaf.is_floating_point() for leaf in leaves)
    for name, change in _VARIANTS.items() if floats else ():
        yield name, _changed(seen, change, torch.is_floating_point)
    if floats == 1 and not _takes_steps(node):
        yield "all masked", _changed(seen, _masked, torch.is_floating_point)
    if any(map(_is_bool, leaves)):
        yield "all true", _changed(seen, torch.ones_like, _is_bool)
        yield "all false", _changed(seen, torch.zeros_like, _is_bool)
    if any(map(is_integer, leaves)) and _checks_its_integers(node):
        yield "repeated", _changed(seen, _repeated, is_integer)
        yield "in another order", _changed(seen, lambda leaf: leaf.flatten().flip(0).view(leaf.shape), is_integer)


def _takes_steps(node: fx.Node) -> bool:
    """Whether a tensor operand is the size of the steps of a quantised op, which is finite: with infinite ones all its
    results are infinite or NaN, and products of integers sum other ones of these than products of floats do."""
    if isinstance(node.target, Pattern):
        given = dict(zip(node.target.variables, node.args))
        readings = filter(None, map(node.target.terms.raw, node.target.calls))
        found = [given.get(str(reading.arguments.get(name))) for reading in readings for name in _STEPS]
    else:
        bound = bound_call(node)
        found = [bound.arguments.get(name) for name in _STEPS] if bound is not None else []
    return any(isinstance(each, fx.Node) and isinstance(metadata(each), torch.Tensor) for each in found)


_STEPS = ("scale", "scales")
"""The names of the argument of quantised ops that is the size of their steps."""


def _is_bool(leaf: torch.Tensor) -> bool:
    return leaf.dtype is torch.bool


def _repeated(leaf: torch.Tensor) -> torch.Tensor:
    """The first element in all places."""
    return leaf.flatten()[:1].expand(leaf.shape).clone() if leaf.numel() else leaf


def _in_ties(leaf: torch.Tensor) -> torch.Tensor:
    """Sorted in descending order along the last dimension, with few distinct numbers."""
    return (leaf * 1.5).round().sort(-1, descending=True).values


def _masked(leaf: torch.Tensor) -> torch.Tensor:
    """With −∞ in the last row, like scores of a fully masked row."""
    if leaf.dim() < 2:
        return torch.full_like(leaf, -math.inf)
    found = leaf.clone()
    found[..., -1:, :] = -math.inf
    return found


_VARIANTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "equal": _repeated,
    "large": lambda leaf: leaf * 100,
    "sorted, in ties": lambda leaf: _in_ties(leaf) if leaf.dim() else leaf,
    "negative": lambda leaf: -leaf.abs(),
}


def _changed(seen: Sequence[Any], change: Callable[[torch.Tensor], torch.Tensor], which: Callable[[Any], bool]) -> Any:
    def changed(leaf: Any) -> Any:
        return change(leaf.detach()) if isinstance(leaf, torch.Tensor) and which(leaf) else leaf

    return pytree.tree_map(changed, list(seen))


def numbers_compared(graph: fx.Graph) -> list[float]:
    """The numeric arguments of the calls of an expansion, which include its thresholds."""
    found = (arg for node in graph.nodes if node.op == "call_function" for arg in (*node.args, *node.kwargs.values()))
    return [float(arg) for arg in dict.fromkeys(arg for arg in found if type(arg) in (int, float)) if abs(arg) < _FAR]


def special_operands(node: fx.Node, exact: bool = False) -> Iterator[list[Any]]:
    """Operands with NaN, infinities, zero, the smallest and largest numbers, in different combinations; if `exact`,
    also subnormal numbers and the negative zero. Raises `NoOperands` if the call has no float operands."""
    values = _float_operands(node)
    turn = iter(range(1, 100))
    yield [made_alike(value, lambda like: _specials(like, next(turn), exact)) for value in values]


def _float_operands(node: fx.Node) -> list[Any]:
    """The metadata of the operands. Raises `NoOperands` if none are floats, or some are integers."""
    values = [metadata(given) for given in node.all_input_nodes]
    leaves = pytree.tensors_in(values)
    if any(map(is_integer, leaves)) or not any(leaf.is_floating_point() for leaf in leaves):
        raise NoOperands("no float operands")
    return values


def unusual_operand(value: Any, turn: int) -> Any:
    """A concrete value with the metadata of `value`: special values, including both zeros, and random ones; different
    in each `turn`. Raises `NoOperands`."""
    draw = torch.Generator().manual_seed(turn)

    def made(like: torch.Tensor) -> torch.Tensor:
        usual = _random(like, draw, -100, 101)
        if not like.is_floating_point():
            return usual
        info = torch.finfo(like.dtype)
        numbers = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 0.1, info.tiny, -info.tiny,
                   info.tiny / 4, info.max, -info.max, info.eps]  # fmt: skip # packed numbers
        places = torch.randint(len(numbers), like.shape, generator=draw)
        special = torch.tensor(numbers, dtype=torch.float64)[places]
        return torch.where(torch.rand(like.shape, generator=draw) < 0.3, usual, special)

    return made_alike(value, made)


def is_pointwise(node: fx.Node) -> bool:
    """Whether a call computes element by element, by PyTorch's own tag."""
    call = bound_call(node)
    packet = call.op.packet if call is not None else None
    if packet is None:
        return False
    return any(torch.Tag.pointwise in getattr(packet, name).tags for name in packet.overloads())


def _checks_its_integers(node: fx.Node) -> bool:
    call = bound_call(node)
    return is_pointwise(node) or (call is not None and call.op.short in CHECKS_RANGE)


def made_alike(value: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A concrete value with the metadata of `value`."""
    return substituted(value, lambda leaf: _leaf_alike(leaf, make), object)


def _leaf_alike(value: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if not isinstance(value, torch.Tensor):
        return concrete_size(value)
    if value.layout is not torch.strided or value.device.type not in ("cpu", "cuda", "meta"):
        raise NoOperands(f"it has operands of layout {value.layout} on {value.device}")
    shape, strides = [concrete_size(s) for s in value.shape], [concrete_size(s) for s in value.stride()]
    if torch.Size(shape).numel() > LARGEST:
        raise NoOperands("its operands are too large to be generated")
    # The strides of the program, as kernels take different paths for them, and rules may have conditions on strides.
    made = torch.empty_strided(shape, strides, dtype=value.dtype, device=_device(value))
    # PyTorch converts no number to float4: any bytes are numbers.
    stored = made.view(torch.uint8) if made.dtype == torch.float4_e2m1fn_x2 else made
    with torch.no_grad():
        return _fill(stored, make(stored)).view(made.dtype)


def _fill(made: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    # An expanded tensor holds one element at several positions: `copy_` into it is refused, and values that differ are
    # impossible. Then the strides are given up, unless one element fills it.
    if 0 in made.stride():
        return values.to(made.dtype).expand(made.shape) if values.numel() == 1 else values.to(made.dtype)
    return made.copy_(values)


def laid_out(value: Any, like: Any) -> Any:
    """A value of a run with the strides of its metadata, for which rules were recorded. Those of the run differ where a
    kernel chooses others than its meta kernel does, and where a view of the source is no view any more."""
    if not isinstance(value, torch.Tensor) or not isinstance(like, torch.Tensor) or value.layout is not torch.strided:
        return value
    # A number has itself as a hint; what depends on data has none, and is what the run has made of it.
    shape, strides = ([size_hint(size) for size in sizes] for sizes in (like.shape, like.stride()))
    if list(value.shape) != shape or None in strides or list(value.stride()) == strides or value.numel() > LARGEST:
        return value
    made = torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
    return value if overlaps_itself(made) else made.copy_(value)


def _device(value: torch.Tensor) -> torch.device:
    return torch.device("cpu") if value.device.type == "meta" else value.device


def _random(like: torch.Tensor, draw: torch.Generator, low: int, high: int) -> torch.Tensor:
    if like.dtype is torch.bool:
        return torch.rand(like.shape, generator=draw) < 0.5
    if like.is_complex():
        return torch.complex(*(torch.randn(like.shape, generator=draw, dtype=torch.float64) for _ in range(2)))
    if like.is_floating_point():
        return torch.randn(like.shape, generator=draw, dtype=torch.float64)
    low = max(low, 0) if not like.dtype.is_signed else low
    return torch.randint(low, high, like.shape, generator=draw)


def _large(like: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    if not like.is_floating_point():
        return _random(like, draw, 0, 1)
    sizes, signs = (torch.rand(like.shape, generator=draw, dtype=torch.float64) for _ in range(2))
    # Uniform in the exponent: uniform numbers up to 32 would hardly contain any below 1.
    return torch.exp2(6 * sizes - 1) * torch.where(signs < 0.5, -1.0, 1.0)


def _specials(like: torch.Tensor, turn: int, exact: bool) -> torch.Tensor:
    """The special values of the dtype, repeated; in a different order for each operand, so that all pairs occur if
    there are enough elements. (Not the negative zero unless `exact`: no rule promises the sign of the infinity that a
    division by it gives.)"""
    if not like.is_floating_point():
        return torch.zeros(like.shape, dtype=like.dtype)
    info = torch.finfo(like.dtype)
    numbers = [float("nan"), float("inf"), -float("inf"), 0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 100.0, -100.0,
               info.tiny, -info.tiny, info.max, -info.max, 1e-4, info.eps]  # fmt: skip # packed numbers
    numbers += [-0.0, info.tiny / 4, -info.tiny / 4, info.tiny * info.eps] if exact else []
    # Position i of round r has number k·i + a·r. Two operands meet in all pairs if k·a′ − k′·a and the count of numbers
    # (17 or 21) are coprime. With opposite k, unequal numbers meet in the first round already.
    k, shift = (turn + 1) // 2 * (1 if turn % 2 else -1), turn - 1
    count = torch.arange(like.numel())
    rounds = torch.div(count, len(numbers), rounding_mode="floor")
    places = (k * count + shift * rounds) % len(numbers)
    return torch.tensor(numbers, dtype=torch.float64)[places].reshape(like.shape)


def from_run(values: Sequence[Any]) -> list[Any]:
    """Copies of the operands from a run of the program."""
    return list(pytree.tree_map(_apart, list(values)))


def _apart(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() > LARGEST:
        raise NoOperands("its operands are too large to be copied")
    copy = value.detach().clone()
    # A clone is dense, so that a tensor whose elements share memory, or have gaps between them, gets other strides.
    if value.layout is not torch.strided or copy.stride() == value.stride() or not value.numel():
        return copy
    span = memory_span(zip(value.shape, value.stride()))
    if span > LARGEST or value.is_conj() or value.is_neg():
        return copy
    return value.detach().as_strided((span,), (1,)).clone().as_strided(value.shape, value.stride())


def off_kinks(operands: Sequence[Any]) -> list[Any]:
    """The operands, floats perturbed by about a thousandth of their usual magnitude, so that none are equal, and none
    are 0 (as half the results of `relu`) or close to it, where a rule may flush subnormal numbers to 0."""
    draw = torch.Generator().manual_seed(0)

    def off(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or not leaf.numel():
            return leaf
        usual = leaf.nan_to_num(0.0, 0.0, 0.0).double().square().mean().sqrt()
        noise = torch.randn(leaf.shape, generator=draw).to(leaf.device)
        moved = leaf + (noise * 2.0**-10 * usual).to(leaf.dtype)
        least = torch.finfo(leaf.dtype).smallest_normal
        return torch.where(moved.abs() < least, torch.full_like(moved, 2 * least).copysign(moved), moved)

    return list(pytree.tree_map(off, list(operands)))
