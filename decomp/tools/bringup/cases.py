"""Test cases of a primitive: the library's sample calls of it in every dtype, each also with small and large numbers,
without dimensions, empty, broadcast, with other strides, with negative dimensions, and with integers that need all
their bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
import math
from typing import Any

import torch

from decomp.ir.dtypes import is_integer, name_of
from decomp.ir.ops import Op
from decomp.rules.library import samples as library_samples
from decomp.samples import Sample
from decomp.tools.measurement.promotion import integer_trials, promotion_trials
from decomp.tools.measurement.trials import FAILURES, Inputs, in_dtype, takes, transposed, trial
from decomp.torch_internals.pytree import tree_leaves

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64)
QUICK = (torch.float32,)
SAMPLES, QUICK_SAMPLES = 8, 2
"""The number of sample calls of an op."""
_DIMENSIONS = ("dim", "dims", "axis")


@dataclass(frozen=True)
class BringUpCase:
    """A call and its inputs, all of one signature."""

    label: str
    sample: Sample
    inputs: tuple[Inputs, ...]


def samples_for(op: Op, overload: str | None) -> tuple[Sample, ...]:
    """The library's sample calls of an op, or of one overload of it; possibly none. Those of an op of another library
    import it."""
    found: tuple[Sample, ...] = library_samples().calls_of(op.packet or str(op))
    found = tuple(_of_values(each) for each in found if isinstance(each.overload, torch._ops.OpOverload))
    if overload is not None:
        found = tuple(each for each in found if each.overload._overloadname == overload)
        return found or _of_scalar_overload(op, overload)
    return found


def _of_values(sample: Sample) -> Sample:
    """The sample, compared only by shapes if the op draws random numbers."""
    return replace(sample, exact="shape") if torch.Tag.nondeterministic_seeded in sample.tags else sample


def _of_scalar_overload(op: Op, overload: str) -> tuple[Sample, ...]:
    """Sample calls of the overload for numbers, derived from those for tensors."""
    wider = overload.replace("Scalar", "Tensor")
    known = op.packet.overloads() if op.packet is not None else []
    if overload == wider or overload not in known or wider not in known:
        return ()
    of_tensors, wanted = samples_for(op, wider), getattr(op.packet, overload)
    made = (replace(each, overload=wanted, args=(each.args[0], 3, *each.args[2:])) for each in of_tensors)
    return tuple(each for each in made if takes(each))


def cases(samples: Sequence[Sample], quick: bool = False) -> Iterator[BringUpCase]:
    """The test cases of a primitive; PyTorch accepts all of them."""
    samples = samples[: QUICK_SAMPLES if quick else SAMPLES]
    for sample in samples:
        for dtype in QUICK if quick else FLOATS:
            yield from _in_dtype(sample, dtype)
            yield from _of_sizes(sample, dtype)
            if not any(t.is_floating_point() or t.is_complex() for t in sample.tensors):
                break
        yield from _of_integers(sample, quick)
        for dtype in (torch.float32,) if quick else (torch.float32, torch.int64):
            yield from _edges(sample, dtype)


def _in_dtype(sample: Sample, dtype: torch.dtype) -> Iterator[BringUpCase]:
    try:
        found = trial(sample, dtype)
    except FAILURES:
        return
    if found is not None:
        yield BringUpCase(name_of(dtype), found.sample, found.inputs)


def _of_sizes(sample: Sample, dtype: torch.dtype) -> Iterator[BringUpCase]:
    """The first tensor with small and large numbers, near the limits of the dtype's range, if results are normal
    numbers: ops that are not pointwise are tested on the whole range only here."""
    tensors = sample.tensors
    if sample.pointwise or dtype.is_complex or not tensors or 0 in sample.fixed or not tensors[0].is_floating_point():
        return
    info = torch.finfo(dtype)
    for label, end in (("small numbers", info.tiny), ("large numbers", info.max)):
        try:
            first, *others = (base := in_dtype(sample, dtype)).tensors
            scaled = first * 2.0 ** round(_REACH * math.log2(end))
            changed = base.with_tensors([scaled, *others]).completed()
            if first.numel() and _gives_normal_numbers(changed):
                yield _case(f"{name_of(dtype)}, {label}", changed)
        except FAILURES:
            continue


_REACH = 0.75
"""How far towards the limits of the range, as a fraction of the exponent, so that sums and products do not overflow."""


def _gives_normal_numbers(sample: Sample) -> bool:
    """Whether the op accepts a call, and its results are neither infinite nor subnormal."""
    floats = [t for t in tree_leaves(sample.run()) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    sizes = [(t.abs(), torch.finfo(t.dtype).tiny) for t in floats]
    return all(bool((size.isfinite() & ((size >= tiny) | (size == 0))).all()) for size, tiny in sizes)


def _of_integers(sample: Sample, quick: bool) -> Iterator[BringUpCase]:
    """Integers, bools and mixed dtypes."""
    for name, found in promotion_trials(sample):
        if not quick or name in ("int64", "bool"):
            yield _case(name, found.sample)
    for found in integer_trials(sample):
        yield _case(name_of(found.dtype), found.sample)
    if sample.tensors and all(is_integer(t) for t in sample.tensors):
        unsigned = sample.with_tensors(t.abs().to(torch.uint8) for t in sample.tensors)
        if takes(unsigned):
            yield _case("uint8", unsigned)
    if sample.pointwise or "_backward" in str(sample.overload):
        return
    for dtype in (torch.int64, torch.int32) if not quick else (torch.int64,):
        large = sample.with_tensors(_large(t, dtype) for t in sample.tensors)
        if takes(large):
            yield _case(f"{name_of(dtype)}, large", large)


def _large(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Integers near the 32-bit limit, so that the sum of two needs more bits."""
    if not t.is_floating_point():
        return t
    random = torch.Generator().manual_seed(0)
    return (torch.randint(2**29, 2**31 - 1, t.shape, generator=random)).to(dtype)


def _case(label: str, sample: Sample) -> BringUpCase:
    return BringUpCase(label, sample, (Inputs(label, tuple(sample.tensors)),))


def _edges(sample: Sample, dtype: torch.dtype) -> Iterator[BringUpCase]:
    """The call with other shapes and strides, in one dtype."""
    if dtype is torch.float32:
        base = in_dtype(sample, dtype)
    else:
        base = sample.with_tensors(_rounded(t, dtype) for t in sample.tensors)
    makers: list[tuple[str, Callable[[Sample], Sample | None]]] = [("dimensions from the end", _from_the_end)]
    makers.append(("other strides", transposed))
    makers.append(("empty", _empty))
    if sample.pointwise:
        makers += [("without dimensions", _without_dimensions), ("broadcast", _broadcast)]
        makers += [("one without dimensions", _one_without_dimensions)]
    for label, make in makers:
        try:
            changed = make(base)
            if changed is not None and changed is not base and takes(changed := changed.completed()):
                yield _case(f"{name_of(dtype)}, {label}", changed)
        except FAILURES:
            continue


def _rounded(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (4 * t).round().to(dtype) if t.is_floating_point() else t


def _from_the_end(sample: Sample) -> Sample | None:
    """Every dimension argument as a negative one, or None."""
    tensors = sample.tensors
    rank = max((t.dim() for t in tensors), default=0)
    schema = getattr(sample.overload, "_schema", None)
    if schema is None or not rank:
        return None
    rank += sample.overload._schema.name in ("aten::stack", "aten::unsqueeze")
    names = [argument.name for argument in schema.arguments]
    args = [_turned(each, rank) if name in _DIMENSIONS else each for name, each in zip(names, sample.args)]
    kwargs = {name: _turned(each, rank) if name in _DIMENSIONS else each for name, each in sample.kwargs.items()}
    changed = args != list(sample.args) if not tensors else any(a is not b for a, b in zip(args, sample.args))
    return replace(sample, args=tuple(args), kwargs=kwargs) if changed or kwargs != dict(sample.kwargs) else None


def _turned(dims: Any, rank: int) -> Any:
    """Dimensions as negative ones."""
    if type(dims) is int:
        return dims - rank if dims >= 0 else dims + rank
    if isinstance(dims, (list, tuple)) and dims and all(type(each) is int for each in dims):
        return [_turned(each, rank) for each in dims]
    return dims


def _empty(sample: Sample) -> Sample | None:
    """The first dimension empty: in tensors with the same size there as the first tensor, or else in all."""
    tensors = [t for t in sample.tensors if t.dim()]
    if not tensors:
        return None
    batch = tensors[0].shape[0]
    some = sample.with_tensors(t[:0] if t.dim() and t.shape[0] == batch else t for t in sample.tensors)
    return some if takes(some) else sample.with_tensors(t[:0] if t.dim() else t for t in sample.tensors)


def _without_dimensions(sample: Sample) -> Sample:
    return sample.with_tensors(t.flatten()[0].clone() if t.numel() else t.new_ones(()) for t in sample.tensors)


def _one_without_dimensions(sample: Sample) -> Sample | None:
    first, *others = sample.tensors
    return sample.with_tensors([first, *(t.flatten()[0].clone() for t in others)]) if others else None


def _broadcast(sample: Sample) -> Sample | None:
    """The first tensor as a column, the second as a row, all others as one element."""
    tensors = sample.tensors
    if len(tensors) < 2 or any(t.dim() != 2 for t in tensors[:2]):
        return None
    first, second, *others = tensors
    return sample.with_tensors([first[:, :1], second[0], *(t[:1, :1] for t in others)])
