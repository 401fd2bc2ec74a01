"""Cutting tensors apart and putting them together: select, slice, split, cat, stack, and the same in reverse.

A part is put back by padding: with zeros where it is a gradient, under a mask, padded alike, where it replaces values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.support.operands import cast, same_size, view_or_copy, wrap

RULES = Rules(level="exact")
register = RULES.register


@register(aten.slice, aten.slice_copy)
def slice_step(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Tensor:
    """Every step-th: cut, pad to whole steps, view the steps as a dimension, and keep the first of each."""
    dim = wrap(dim, x.dim())
    start, end = _bounds(x.shape[dim], start, end)
    if step == 1:
        return aten.slice.Tensor(x, dim, start, end, 1)
    count = (end - start + step - 1) // step
    run = x if _whole(x, dim, start, end) else x.narrow(dim, start, end - start)
    missing = count * step - (end - start)
    if not (type(missing) is int and missing == 0):
        run = _padded(run, dim, 0, missing)
    shape = list(x.shape)
    steps = view_or_copy(run, shape[:dim] + [count, step] + shape[dim + 1 :])
    return steps.narrow(dim + 1, 0, 1).squeeze(dim + 1)


@register(aten.slice, aten.slice_copy)
def slice_step_with_spare(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Tensor:
    """Zeros for a whole step are appended and the excess is cut off. So no pad width is a difference of dynamic sizes,
    which could be negative, and not all targets pad by negative widths."""
    dim = wrap(dim, x.dim())
    start, end = _bounds(x.shape[dim], start, end)
    if step == 1:
        return decline("only for steps of more than one")
    count = (end - start + step - 1) // step
    run = _padded(x.narrow(dim, start, end - start), dim, 0, step - 1).narrow(dim, 0, count * step)
    shape = list(x.shape)
    steps = view_or_copy(run, shape[:dim] + [count, step] + shape[dim + 1 :])
    return steps.narrow(dim + 1, 0, 1).squeeze(dim + 1)


def _bounds(size: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """A slice's start and end counted from the front and clamped to 0 ≤ start ≤ end ≤ size."""
    start = _clamped(0 if start is None else start, 0, size)
    return start, _clamped(size if end is None else end, start, size)


def _clamped(place: Any, low: Any, size: Any) -> Any:
    if type(place) is int and place >= 2**62:  # how exported programs write "to the end"
        return size
    if not all(type(bound) is int for bound in (place, low, size)):
        return place if not (type(place) is int and place < 0) else place + size
    place = place + size if place < 0 else place
    return min(max(place, low), size)


def _whole(x: Tensor, dim: int, start: Any, end: Any) -> bool:
    return type(start) is int and start == 0 and end is x.shape[dim] or (start, end) == (0, x.shape[dim])


def _padded(x: Tensor, dim: int, before: Any, after: Any) -> Tensor:
    """x with zeros around it along `dim`."""
    return torch.constant_pad_nd(x, [0, 0] * (x.dim() - dim - 1) + [before, after])


@register(aten.narrow, aten.narrow_copy)
def narrow(x: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    """x[start : start + length] along `dim`."""
    if not isinstance(start, (int, torch.SymInt)):
        return decline("the start is data")
    if type(start) is int and start < 0:
        start = start + x.shape[dim]
    return aten.slice.Tensor(x, dim, start, start + length, 1)


@register(aten.select, aten.select_copy)
def select(x: Tensor, dim: int, index: Any) -> Tensor:
    """The slice of one element, viewed without its dimension."""
    dim = wrap(dim, x.dim())
    if not isinstance(index, (int, torch.SymInt)):
        return decline("the index is data")
    shape = list(x.shape)
    if type(index) is int:
        index = index + shape[dim] if index < 0 else index
        return aten.slice.Tensor(x, dim, index, index + 1, 1).view(shape[:dim] + shape[dim + 1 :])
    after = index + 1  # 0 behind the last one, counted from the end: the size then, as 0 would be the beginning
    after = after + shape[dim] * (1 - torch.sym_min(torch.sym_max(after, -after), 1))
    one = aten.slice.Tensor(x, dim, index, after, 1).view(shape[:dim] + [1] + shape[dim + 1 :])
    return one.view(shape[:dim] + shape[dim + 1 :])


@register(aten.split, aten.unsafe_split, aten.split_copy)
def split(x: Tensor, split_size: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Slices of one size, the last one with the remainder; or of the sizes given."""
    dim = wrap(dim, x.dim())
    length = x.shape[dim]
    if not isinstance(split_size, (int, torch.SymInt)):
        return _pieces(x, split_size, dim)
    if split_size == 0:
        return (x.narrow(dim, 0, 0),)
    count = max(int((length + split_size - 1) // split_size), 1)
    sizes = [split_size] * (count - 1) + [length - split_size * (count - 1)]
    return _pieces(x, sizes, dim)


@register(aten.split_with_sizes, aten.unsafe_split_with_sizes, aten.split_with_sizes_copy)
def split_with_sizes(x: Tensor, split_sizes: Sequence[Any], dim: int = 0) -> tuple[Tensor, ...]:
    """Slices of the sizes given."""
    return _pieces(x, split_sizes, wrap(dim, x.dim()))


def _pieces(x: Tensor, sizes: Sequence[Any], dim: int) -> tuple[Tensor, ...]:
    pieces, start = [], 0
    for size in sizes:
        pieces.append(aten.slice.Tensor(x, dim, start, start + size, 1))
        start = start + size
    return tuple(pieces)


@register(aten.chunk, aten.unsafe_chunk)
def chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` slices of ⌈n / chunks⌉."""
    dim = wrap(dim, x.dim())
    length = x.shape[dim]
    size = (length + chunks - 1) // chunks
    if type(size) is int and size == 0:
        return _pieces(x, [0] * chunks, dim)
    return split(x, size, dim)


@register(aten.tensor_split)
def tensor_split(x: Tensor, indices: Any = None, sections: Any = None, dim: int = 0) -> tuple[Tensor, ...]:
    """Slices between the indices, or `sections` slices whose lengths differ by one at most."""
    dim = wrap(dim, x.dim())
    length = x.shape[dim]
    if sections is not None:
        small, longer = length // sections, length % sections
        return _pieces(x, [small + (i < longer) for i in range(sections)], dim)
    bounds = [0, *indices, length]
    return tuple(aten.slice.Tensor(x, dim, start, end, 1) for start, end in zip(bounds, bounds[1:]))


@register(aten.unbind, aten.unbind_copy)
def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Each element along `dim`."""
    return tuple(x.select(dim, i) for i in range(int(x.shape[dim])))


@register(aten.unfold)
def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of `size` at every step-th place, in a last dimension: where none overlap they are a view, else the i-th
    elements of all windows are one slice."""
    if x.dim() == 0:
        return x.view(1) if size else torch.full((0,), 0, dtype=x.dtype, device=x.device)
    dim = wrap(dimension, x.dim())
    windows = (x.shape[dim] - size) // step + 1
    if size == step or type(x.shape[dim]) is int and 0 < size < step and windows * step <= x.shape[dim]:
        shape = list(x.shape)
        apart = shape[:dim] + [windows, step] + shape[dim + 1 :]
        return x.narrow(dim, 0, windows * step).view(apart).movedim(dim + 1, -1).narrow(-1, 0, size)
    if size and (not isinstance(windows, int) or size <= windows):
        reach = (windows - 1) * step + 1
        return torch.stack([aten.slice.Tensor(x, dim, i, i + reach, step) for i in range(size)], -1)
    parts = [x.narrow(dim, i * step, size).movedim(dim, -1) for i in range(int(windows))]
    return torch.stack(parts, dim)


@register(aten.unfold_backward)
def unfold_backward(grad_in: Tensor, input_sizes: Sequence[Any], dim: int, size: int, step: int) -> Tensor:
    """Each window's gradient back at its place, summed where windows overlap."""
    if not input_sizes:
        return grad_in.view([]) if size else torch.full((), 0, dtype=grad_in.dtype, device=grad_in.device)
    dim = wrap(dim, len(input_sizes))
    total = torch.full(list(input_sizes), 0, dtype=grad_in.dtype, device=grad_in.device)
    for i in range(size):
        total = total + _spread(grad_in.select(-1, i), dim, i, step, input_sizes[dim])
    return total


@register(aten.cat, needs=("cat",))
def cat_of_proper_parts(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """cat, without the one-dimensional parts that have no elements. Exactly the op."""
    if len({x.dim() for x in tensors}) == 1:
        return decline("all parts have one rank")
    return torch.cat(_proper(tensors), dim)


@register(aten.cat)
def cat_equal(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Parts of one shape: stack, viewed with the two dimensions as one."""
    tensors = _proper(tensors)
    shape = list(tensors[0].shape)
    if not all(same_size(size, first) for x in tensors for size, first in zip(x.shape, shape)):
        return decline("the parts differ in size")
    dim = wrap(dim, len(shape))
    if len(tensors) == 1:
        return tensors[0].clone()
    return view_or_copy(torch.stack(tensors, dim), shape[:dim] + [shape[dim] * len(tensors)] + shape[dim + 1 :])


@register(aten.cat)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Each part padded to the whole: integers are added; floats are chosen by a mask padded alike, which keeps −0."""
    tensors = _proper(tensors)
    dim = wrap(dim, tensors[0].dim())
    total = sum(x.shape[dim] for x in tensors)
    tensors = [x for x in tensors if not (type(x.shape[dim]) is int and x.shape[dim] == 0)] or list(tensors[:1])
    whole, end = tensors[0], tensors[0].shape[dim]
    whole = _padded(whole, dim, 0, total - end)
    for part in tensors[1:]:
        start, end = end, end + part.shape[dim]
        shifted = _padded(part, dim, start, total - end)
        if part.is_floating_point() or part.is_complex():
            whole = torch.where(_mask_between(part, dim, start, end, total), shifted, whole)
        else:
            whole = whole | shifted if part.dtype == torch.bool else whole + shifted
    return whole


@register(aten.cat, level="standard")
def cat_by_sum(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """The sum of the parts, each padded to the whole with zeros. Exact, but that −0 is 0."""
    tensors = _proper(tensors)
    dim = wrap(dim, tensors[0].dim())
    tensors = [x for x in tensors if not (type(x.shape[dim]) is int and x.shape[dim] == 0)]
    if len(tensors) < 2 or tensors[0].is_complex() or tensors[0].dtype == torch.bool:
        return decline("fewer than two parts, or no real numbers")
    total, end, whole = sum(x.shape[dim] for x in tensors), 0, None
    for part in tensors:
        start, end = end, end + part.shape[dim]
        padded = _padded(part, dim, start, total - end)
        whole = padded if whole is None else whole + padded
    assert whole is not None
    return whole


def _proper(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The parts in one dtype, without the empty 1-d tensors that cat skips."""
    real = [x for x in tensors if not (x.dim() == 1 and type(x.shape[0]) is int and x.shape[0] == 0)] or [tensors[0]]
    dtype = real[0].dtype
    for x in tensors:
        dtype = torch.promote_types(dtype, x.dtype)
    return [cast(x, dtype) for x in real]


def _mask_between(like: Tensor, dim: int, start: Any, end: Any, total: Any) -> Tensor:
    """True from start to end of a dimension of `total`, false elsewhere; of the rank of `like`."""
    shape: list[Any] = [1] * like.dim()
    shape[dim] = end - start
    true = torch.full(shape, True, dtype=torch.bool, device=like.device)
    return _padded(true, dim, start, total - end)


@register(aten.stack)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """cat of parts with a fresh dimension of size one."""
    dim = wrap(dim, tensors[0].dim() + 1)
    return torch.cat([x.unsqueeze(dim) for x in tensors], dim)


@register(aten.hstack)
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """cat along the second dimension, along the first of lines."""
    parts = [torch.atleast_1d(x) for x in tensors]
    return torch.cat(parts, 0 if parts[0].dim() == 1 else 1)


@register(aten.vstack, aten.row_stack)
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """cat along the first dimension, of lines as rows."""
    return torch.cat([torch.atleast_2d(x) for x in tensors], 0)


@register(aten.dstack)
def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """cat along the third dimension."""
    return torch.cat([torch.atleast_3d(x) for x in tensors], 2)


@register(aten.column_stack)
def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """cat along the second dimension, of lines as columns."""
    return torch.cat([x if x.dim() > 1 else x.reshape(-1, 1) for x in tensors], 1)


@register(aten.slice_scatter)
def slice_scatter(x: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Tensor:
    """src at the places of x[start:end:step], x elsewhere. Where all of x is replaced, its gradient is zero."""
    dim = wrap(dim, x.dim())
    if not _fits(src.shape, x.shape, dim):
        return decline("other sizes of src are not known to be those of the input")
    start, end = _bounds(x.shape[dim], start, end)
    return _replaced(x, cast(src, x.dtype), dim, start, step)


@register(aten.select_scatter)
def select_scatter(x: Tensor, src: Tensor, dim: int, index: Any) -> Tensor:
    """src at one place along `dim`, x elsewhere."""
    dim = wrap(dim, x.dim())
    if type(index) is int and index < 0:
        index = index + x.shape[dim]
    src = cast(src, x.dtype).unsqueeze(dim)
    if not _fits(src.shape, x.shape, dim):
        return decline("the sizes of src are not known to be those of the input")
    return _replaced(x, src, dim, index, 1)


def _fits(part: Sequence[Any], whole: Sequence[Any], dim: int) -> bool:
    """Whether a part is known to have the sizes of the whole, except along `dim`, without adding guards."""
    return all(same_size(one, other) for d, (one, other) in enumerate(zip(part, whole)) if d != dim)


def _replaced(x: Tensor, src: Tensor, dim: int, start: Any, step: Any) -> Tensor:
    shape: list[Any] = [1] * x.dim()
    shape[dim] = src.shape[dim]
    true = torch.full(shape, True, dtype=torch.bool, device=x.device)
    size = x.shape[dim]
    return torch.where(_spread(true, dim, start, step, size), _spread(src, dim, start, step, size), x)


def _spread(part: Tensor, dim: int, start: Any, step: Any, size: Any) -> Tensor:
    """Zeros of `size` along `dim`, with `part` at start, start + step, …: step − 1 zeros after each, then padded."""
    count = part.shape[dim]
    if type(count) is int and count == 0:
        return _padded(part, dim, 0, size)
    if step != 1:
        part = _apart(part, dim, step).narrow(dim, 0, (count - 1) * step + 1)
    return _padded(part, dim, start, size - start - part.shape[dim])


def _apart(part: Tensor, dim: int, step: Any) -> Tensor:
    """`part` with step − 1 zeros after each of its elements along `dim`."""
    shape = list(part.shape)
    apart = _padded(part.unsqueeze(dim + 1), dim + 1, 0, step - 1)
    return view_or_copy(apart, shape[:dim] + [shape[dim] * step] + shape[dim + 1 :])


@register(aten.slice_backward)
def slice_backward(
    grad_output: Tensor, input_sizes: Sequence[Any], dim: int, start: Any, end: Any, step: Any
) -> Tensor:
    """The gradient at the places of the slice, zero elsewhere."""
    dim = wrap(dim, len(input_sizes))
    start, _ = _bounds(input_sizes[dim], start, end)
    return _spread(grad_output, dim, start, step, input_sizes[dim])


@register(aten.slice_backward)
def slice_backward_with_spare(
    grad_output: Tensor, input_sizes: Sequence[Any], dim: int, start: Any, end: Any, step: Any
) -> Tensor:
    """As many zeros as the whole dimension has are appended and the excess is cut off. So no pad width is a difference
    of dynamic sizes, which could be negative, and not all targets pad by negative widths."""
    dim = wrap(dim, len(input_sizes))
    size = input_sizes[dim]
    start, _ = _bounds(size, start, end)
    part = grad_output if step == 1 else _apart(grad_output, dim, step)
    return _padded(part, dim, start, size).narrow(dim, 0, size)


@register(aten.select_backward)
def select_backward(grad_output: Tensor, input_sizes: Sequence[Any], dim: int, index: Any) -> Tensor:
    """The gradient at one place along `dim`, zero elsewhere."""
    dim = wrap(dim, len(input_sizes))
    if type(index) is int and index < 0:
        index = index + input_sizes[dim]
    return _spread(grad_output.unsqueeze(dim), dim, index, 1, input_sizes[dim])
