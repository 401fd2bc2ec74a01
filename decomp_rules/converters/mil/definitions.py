"""Ops of MIL that coremltools does not fold, in PyTorch, by their documentation in `coremltools.converters.mil.mil.ops`
(9.0): tensors, numbers and texts by the names of MIL's operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def conv(
    x: Tensor,
    weight: Tensor,
    pad_type: str,
    bias: Tensor | None = None,
    strides: Any = None,
    pad: Any = None,
    dilations: Any = None,
    groups: int = 1,
) -> Tensor:
    """A convolution over one to three dimensions."""
    padded = F.pad(x, _for_pad(_padding(pad_type, pad, x.dim() - 2)))
    convolution = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
    made: Tensor = convolution(padded, weight, bias, _numbers(strides, 1), 0, _numbers(dilations, 1), groups)
    return made


def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    pad: Any = None,
    output_shape: Any = None,
    pad_type: str = "valid",
    strides: Any = None,
    dilations: Any = None,
    groups: int = 1,
) -> Tensor:
    """The transposed convolution, without what `pad` cuts off, in the shape `output_shape` if there is one: its further
    elements come at the end of each dimension."""
    cut = _padding(pad_type, pad, x.dim() - 2)
    steps, spread = _numbers(strides, 1, x.dim() - 2), _numbers(dilations, 1, x.dim() - 2)
    sizes = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(x.shape[2:], steps, weight.shape[2:], spread)]
    wanted = _numbers(output_shape, 0)[2:] if output_shape is not None else [n - sum(c) for n, c in zip(sizes, cut)]
    further = [max(0, first + size - n) for n, (first, _), size in zip(sizes, cut, wanted)]
    convolution = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[x.dim() - 3]
    if any(more >= max(s, d) for more, s, d in zip(further, steps, spread)):
        raise NotImplementedError(f"MIL's conv_transpose to {wanted}: beyond what its strides and dilations reach")
    made = convolution(x, weight, bias, steps, 0, further, groups, spread)
    for dim, ((first, _), size) in enumerate(zip(cut, wanted), 2):
        made = made.narrow(dim, first, size)
    return made.contiguous()


def concat(values: Sequence[Tensor], axis: int, interleave: bool = False) -> Tensor:
    """One after the other along a dimension; with `interleave` an element of each in turn."""
    if not interleave:
        return torch.cat([*values], axis)
    axis %= values[0].dim()
    return torch.stack([*values], axis + 1).flatten(axis, axis + 1)


def max_pool(
    x: Tensor, kernel_sizes: Any, pad_type: str, strides: Any = None, pad: Any = None, ceil_mode: bool = False
) -> Tensor:
    """The largest element of each window."""
    padding, pool = _padding(pad_type, pad, x.dim() - 2), (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.dim() - 3]
    steps = _numbers(strides, 1, x.dim() - 2)
    if ceil_mode:
        return pool(x, _numbers(kernel_sizes, 1), steps, _symmetric(padding), ceil_mode=True)
    return pool(F.pad(x, _for_pad(padding), value=-torch.inf), _numbers(kernel_sizes, 1), steps)


def avg_pool(
    x: Tensor,
    kernel_sizes: Any,
    pad_type: str,
    strides: Any = None,
    pad: Any = None,
    exclude_padding_from_average: bool = False,
    ceil_mode: bool = False,
) -> Tensor:
    """The mean of each window."""
    padding, pool = _padding(pad_type, pad, x.dim() - 2), (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[x.dim() - 3]
    kernel, steps = _numbers(kernel_sizes, 1), _numbers(strides, 1, x.dim() - 2)
    if ceil_mode:
        symmetric = _symmetric(padding)
        return pool(x, kernel, steps, symmetric, ceil_mode=True, count_include_pad=not exclude_padding_from_average)
    mean = pool(F.pad(x, _for_pad(padding)), kernel, steps)
    if not exclude_padding_from_average:
        return mean
    return mean / pool(F.pad(torch.ones_like(x), _for_pad(padding)), kernel, steps)


def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    epsilon: float = 1e-5,
) -> Tensor:
    """γ (x − μ) / √(σ² + ε) + β along the second dimension."""
    return F.batch_norm(x, mean, variance, gamma, beta, False, 0.0, epsilon)


def instance_norm(x: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, epsilon: float = 1e-5) -> Tensor:
    """The same by the mean and the variance of each instance and channel."""
    return F.instance_norm(x, None, None, gamma, beta, eps=epsilon)


def one_hot(indices: Any, one_hot_vector_size: int, axis: int = -1, on_value: Any = 1, off_value: Any = 0) -> Tensor:
    """`on_value` at each index along a new dimension, `off_value` elsewhere."""
    indices = torch.as_tensor(indices)
    places = torch.arange(one_hot_vector_size).view(-1, *[1] * (indices.dim() - axis % (indices.dim() + 1)))
    is_on = indices.unsqueeze(axis) == places
    on, off = (torch.tensor(value).to(_dtype_of(value)) for value in (on_value, off_value))
    return torch.where(is_on, on, off)


def silu(x: Tensor) -> Tensor:
    """x σ(x)."""
    return F.silu(torch.as_tensor(x))


def gather_nd(x: Tensor, indices: Tensor, batch_dims: int = 0, validate_indices: bool = False) -> Tensor:
    """The slices of `x` at the vectors of `indices`, whose first `batch_dims` dimensions are those of `x`."""
    return x[_places(indices, x, batch_dims)].contiguous()


def scatter(
    data: Tensor,
    indices: Any,
    updates: Tensor,
    axis: int = 0,
    mode: str = "add",
    validate_indices: bool = False,
) -> Tensor:
    """`data` with the slices of `updates` merged in at the indices of a dimension."""
    axis, indices = axis % data.dim(), torch.as_tensor(indices)
    moved = data.movedim(axis, 0)
    spread = torch.as_tensor(updates).movedim(tuple(range(axis, axis + indices.dim())), tuple(range(indices.dim())))
    return scatter_nd(moved.contiguous(), indices.unsqueeze(-1), spread, mode).movedim(0, axis).contiguous()


def scatter_nd(
    data: Tensor, indices: Tensor, updates: Tensor, mode: str = "add", validate_indices: bool = False
) -> Tensor:
    """`data` with the slices of `updates` merged in at the vectors of `indices`."""
    made, places, reduce = data.clone(), _places(indices, data, 0), _REDUCTIONS.get(mode)
    if mode in ("add", "sub"):
        return made.index_put_(places, updates if mode == "add" else -updates, accumulate=True)
    if mode == "update":
        return made.index_put_(places, updates)
    if reduce is None:
        raise NotImplementedError(f"MIL's scatter_nd with mode {mode!r} is not evaluated outside Core ML")
    flat = torch.arange(data.numel()).view(data.shape)[places].flatten()
    return made.view(-1).scatter_reduce_(0, flat, updates.flatten(), reduce).view(data.shape)


def scatter_along_axis(
    data: Tensor, indices: Tensor, updates: Tensor, axis: int = 0, mode: str = "add", validate_indices: bool = False
) -> Tensor:
    """`data` with each element of `updates` merged in at its index of a dimension. The fold of coremltools (9.0)
    replaces elements, whatever the mode."""
    places = indices.long() % data.shape[axis]
    if mode == "update":
        return data.scatter(axis, places, updates)
    if mode in ("add", "sub"):
        return data.scatter_add(axis, places, updates if mode == "add" else -updates)
    if mode not in _REDUCTIONS:
        raise NotImplementedError(f"MIL's scatter_along_axis with mode {mode!r} is not evaluated outside Core ML")
    return data.scatter_reduce(axis, places, updates, _REDUCTIONS[mode])


_REDUCTIONS = {"mul": "prod", "max": "amax", "min": "amin"}


def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """Channels rearranged into space."""
    return F.pixel_shuffle(x, upscale_factor).contiguous()


def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """Space rearranged into channels."""
    return F.pixel_unshuffle(x, downscale_factor).contiguous()


def _padding(pad_type: str, pad: Any, dimensions: int) -> list[tuple[int, int]]:
    """Before and after, for each dimension."""
    if pad_type not in ("valid", "custom"):
        raise NotImplementedError(f"MIL's pad_type {pad_type!r} is not evaluated outside Core ML")
    flat = _numbers(pad if pad_type == "custom" else None, 0, 2 * dimensions)
    return list(zip(flat[::2], flat[1::2]))


def _for_pad(padding: Sequence[tuple[int, int]]) -> list[int]:
    """As `F.pad` takes it: the last dimension first."""
    return [each for pair in reversed(padding) for each in pair]


def _symmetric(padding: Sequence[tuple[int, int]]) -> list[int]:
    if any(before != after for before, after in padding):
        raise NotImplementedError("MIL's ceil_mode takes the same padding before and after a dimension")
    return [before for before, _ in padding]


def _numbers(value: Any, default: int, count: int = 1) -> list[int]:
    """A list of numbers; without a value, the default `count` times."""
    return [default] * count if value is None else torch.as_tensor(value).reshape(-1).tolist()


def _dtype_of(value: Any) -> torch.dtype:
    """Of a number in MIL, where integers are int32."""
    return torch.bool if isinstance(value, bool) else torch.int32 if isinstance(value, int) else torch.float32


def _places(indices: Tensor, x: Tensor, batch_dims: int) -> tuple[Tensor, ...]:
    """The index of each dimension of `x`, for its elements or slices at the vectors of `indices`."""
    rest = indices.dim() - 1
    batch = [torch.arange(n).view(-1, *[1] * (rest - i - 1)) for i, n in enumerate(x.shape[:batch_dims])]
    return tuple(torch.broadcast_tensors(*batch, *indices.long().unbind(-1)))


DEFINITIONS: Mapping[str, Callable[..., Tensor]] = {
    made.__name__: made
    for made in (
        avg_pool,
        batch_norm,
        concat,
        conv,
        conv_transpose,
        gather_nd,
        instance_norm,
        max_pool,
        one_hot,
        pixel_shuffle,
        pixel_unshuffle,
        scatter,
        scatter_along_axis,
        scatter_nd,
        silu,
    )
}
"""By the name of the op. coremltools folds none of them, but for `concat` and `scatter_along_axis`: the one without its
`interleave`, the other without its `mode`."""
