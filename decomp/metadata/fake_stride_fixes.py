"""Corrections of strides that fake tensors get wrong (torch 2.13, CPU kernels): with these, views of the results are
views at run time. Only strides differ, and only for non-contiguous inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from decomp.metadata.strides import is_channels_last, same_strides
from decomp.metadata.symbolic_sizes import is_data, size_hint
from decomp.torch_internals.fakes import FakeTensor
from decomp.torch_internals.pytree import tensors_in

Order = list[int]
"""Dimensions of a dense tensor, from the slowest to the fastest."""
Layout = Callable[[Mapping[str, Any], torch.Tensor], Order | torch.Tensor | None]
"""Maps the arguments of a call by name and its first result to the order of its dimensions, or to the argument that it
returns; None if fake tensors are right."""


def broadcast_order(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> Order:
    """The order of dimensions of an elementwise result with this `shape`, given the strides of the operands, 0 where
    broadcast: the first operand whose strides differ in two dimensions decides
    (`TensorIteratorBase::reorder_dimensions`)."""
    # An insertion sort, as in PyTorch: comparisons may be undecided (0), so the result depends on the algorithm.
    fastest_first = list(range(len(shape)))[::-1]
    for i in range(1, len(shape)):
        at = i
        for before in range(i - 1, -1, -1):
            sign = _compared(fastest_first[before], fastest_first[at], shape, operands)
            if sign < 0:
                break
            if sign > 0:
                fastest_first[before], fastest_first[at] = fastest_first[at], fastest_first[before]
                at = before
    return fastest_first[::-1]


def _compared(a: int, b: int, shape: Sequence[int], operands: Sequence[Sequence[int]]) -> int:
    for strides in operands:
        if strides[a] == 0 or strides[b] == 0:
            continue
        if strides[a] != strides[b]:
            return 1 if strides[a] > strides[b] else -1
        if shape[a] > shape[b]:
            return 1
    return 0


def by_element(arguments: Mapping[str, Any], out: torch.Tensor) -> Order:
    """The order in which `TensorIterator` lays out a result of these operands."""
    tensors = tensors_in(list(arguments.values()))
    return _order(out, [_strides_in(out, tensor.shape, tensor.stride()) for tensor in tensors])


def rounded(arguments: Mapping[str, Any], out: torch.Tensor) -> Order | None:
    """As `by_element` if the quotient is rounded; otherwise fake tensors are right."""
    return by_element(arguments, out) if arguments.get("rounding_mode") else None


def indexed(arguments: Mapping[str, Any], out: torch.Tensor) -> Order | None:
    """The dimensions of the indices replace the indexed ones, or come first if these were not adjacent; they have no
    stride in the tensor itself."""
    tensor = arguments["self"]
    indices = [*arguments["indices"], *[None] * (tensor.dim() - len(arguments["indices"]))]
    places = [d for d, index in enumerate(indices) if index is not None]
    if out.dim() != tensor.dim() - len(places) + max((indices[d].dim() for d in places), default=0):
        return None  # if one of several indices is zero-dimensional, fake tensors drop dimensions of the result
    adjacent = places == list(range(places[0], places[-1] + 1))
    before = places[0] if adjacent else 0
    kept = [tensor.stride(d) for d in range(tensor.dim()) if indices[d] is None]
    own = [*kept[:before], *[0] * (out.dim() - len(kept)), *kept[before:]]
    wide = _numbers(out.shape[before : out.dim() - len(kept) + before])
    shape = [*[1] * before, *wide, *[1] * (len(kept) - before)]
    return _order(out, [own, *[_strides_in(out, shape, _reshaped(indices[d], wide, shape)) for d in places]])


def _reshaped(index: torch.Tensor, wide: list[int], shape: list[int]) -> list[int]:
    """The strides of an index after expansion and reshaping."""
    sizes, strides = _numbers(index.shape), _numbers(index.stride())
    return _numbers(torch.empty_strided(sizes, strides, device="meta").expand(wide).reshape(shape).stride())


def by_format(arguments: Mapping[str, Any], out: torch.Tensor) -> Order:
    """The memory format of the input."""
    given = next(leaf for leaf in arguments.values() if isinstance(leaf, torch.Tensor))
    last = given.dim() in (4, 5) and is_channels_last(given)
    return [0, *range(2, out.dim()), 1] if last else list(range(out.dim()))


def in_order(arguments: Mapping[str, Any], out: torch.Tensor) -> Order:
    """Contiguous."""
    return list(range(out.dim()))


def dropped_out(arguments: Mapping[str, Any], out: torch.Tensor) -> torch.Tensor | None:
    """The input, if nothing is dropped: only for `dropout` do fake tensors return a copy."""
    given: torch.Tensor = arguments["input"]
    return given if arguments.get("train") is False or arguments.get("p") == 0 else None


def _strides_in(out: torch.Tensor, shape: Sequence[Any], strides: Sequence[Any]) -> list[Any]:
    """The strides of an operand, in terms of the dimensions of the result."""
    missing = out.dim() - len(shape)
    wide = zip(shape, strides, list(out.shape)[missing:])
    return [0] * missing + [0 if size_hint(n) == 1 and size_hint(size) != 1 else stride for n, stride, size in wide]


def _order(out: torch.Tensor, operands: Sequence[Sequence[Any]]) -> Order:
    return broadcast_order(_numbers(out.shape), list(map(_numbers, operands)))


def _numbers(sizes: Sequence[Any]) -> list[int]:
    return [size_hint(size) or 0 for size in sizes]


def _permuted(value: torch.Tensor, order: Order) -> torch.Tensor:
    return torch.empty_permuted(value.shape, order, dtype=value.dtype, device=value.device)


def kernel_value(layout: Layout, arguments: Mapping[str, Any], out: Any) -> Any:
    """The fake result of a call, with the strides that its kernel returns according to `layout`. Models on the meta
    device are planned as for the CPU; elsewhere only what returns an argument does so."""
    results = out if isinstance(out, (tuple, list)) else (out,)
    first = results[0]
    # `empty_permuted` would compare data-dependent sizes, which cannot be done before run time.
    if not isinstance(first, FakeTensor) or any(map(is_data, first.shape)):
        return out
    with first.fake_mode:
        true = layout(arguments, first)
        if isinstance(true, list) and first.device.type not in ("cpu", "meta"):
            return out
        if isinstance(true, list):
            # Statistics of a batch norm have one dimension, and no other order.
            laid_out = [_permuted(each, true) if each.dim() == first.dim() else each for each in results]
        else:
            laid_out = [first if true is None else true, *results[1:]]
    if all(map(same_strides, laid_out, results)):
        return out
    return tuple(laid_out) if isinstance(out, (tuple, list)) else laid_out[0]
