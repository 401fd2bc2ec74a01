"""Upsampling: interpolation along one dimension after the other, the last first.

Along a dimension each output element is a weighted sum of a few elements of the input (`Taps`): one for nearest, two
for linear, four for cubic interpolation. Its position in the input follows `area_pixel_compute_source_index` of ATen,
in the precision of PyTorch's kernels. Enlarging by a whole factor with nearest neighbours repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from decomp import Rules, decline
from decomp.ops import aten
from decomp_rules.spatial import antialiasing, byte_images
from decomp_rules.spatial.windows import every, ntuple, opmath
from decomp_rules.support.floating import nearest_float
from decomp_rules.support.gradients import with_gradient_of
from decomp_rules.support.lines import Line
from decomp_rules.support.operands import cast, same_size, wide
from decomp_rules.support.sizes import surely_at_least

RULES = Rules(level="exact")
register = RULES.register

BINARY = (2, 4, 8)
"""Whole factors by which places and weights are exact in every precision."""
LONGEST = 4
"""The maximum number of slices that make up an index, and of elements besides."""
Taps = list[tuple["Tensor | list[int]", "Tensor | Line | None"]]
"""For each tap: the index of its element in the input for each output element, and its weight (None: one)."""
Interpolation = Callable[[Tensor, Any, Any, bool, Any], Taps]
"""The taps along a dimension, from a tensor (for device and dtype), sizes in and out, align_corners and the elements of
the input for each of the output."""
VECTORIZED = 128
"""Up to this sum of its sizes a plane goes to the vectorized kernel of nearest neighbours."""


def _nearest(like: Tensor, size: Any, wanted: Any, align_corners: bool, ratio: Any) -> Taps:
    """⌊i · ratio⌋, in float32 as the kernels have it."""
    place = _steps(like, size, wanted, ratio, torch.float32) * ratio
    return [(_index(place.floor(), size), None)]


def _nearest_exact(like: Tensor, size: Any, wanted: Any, align_corners: bool, ratio: Any) -> Taps:
    """⌊(i + ½) · ratio⌋, in float32 as the kernels have it."""
    place = (_steps(like, size, wanted, ratio, torch.float32) + 0.5) * ratio
    return [(_index(place.floor(), size), None)]


def _linear(like: Tensor, size: Any, wanted: Any, align_corners: bool, ratio: Any) -> Taps:
    """(1 − λ) · x[⌊s⌋] + λ · x[⌊s⌋ + 1], with s ≥ 0 and λ = s − ⌊s⌋."""
    place = _places(like, size, wanted, align_corners, ratio)
    place = place if align_corners else place.clamp(min=0)
    low = place.floor().clamp(max=size - 1)
    rest = (place - low).clamp(0, 1)
    return [(_index(low, size), 1 - rest), (_index(low + 1, size), rest)]


def _cubic(like: Tensor, size: Any, wanted: Any, align_corners: bool, ratio: Any) -> Taps:
    """Cubic convolution with a = −¾ (Keys, 1981) over the four elements around s; outside, the edge continues."""
    place = _places(like, size, wanted, align_corners, ratio)
    low = place.floor()
    t = place - low
    return [(_index(low + k, size), weight) for k, weight in zip((-1, 0, 1, 2), cubic_weights(t))]


def cubic_weights(t: Any, a: float = -0.75) -> tuple[Any, Any, Any, Any]:
    """The weights of the four elements around a place `t` ∈ [0, 1) after the second."""

    def near(x: Any) -> Any:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _steps(like: Tensor, size: Any, wanted: Any, ratio: Any, dtype: torch.dtype) -> Any:
    """0, 1, … for each output element: numbers where the sizes and the ratio are."""
    if isinstance(size, int) and isinstance(wanted, int) and isinstance(ratio, (int, float)):
        return Line([float(i) for i in range(wanted)], dtype)
    return torch.arange(wanted, dtype=dtype, device=like.device)


BY_SIZE: dict[Interpolation, tuple[int, ...]] = {_nearest: (1, 2), _linear: (1,), _cubic: (1,)}
"""How many times as long the output is where a kernel may go by the sizes, and ignore the scale."""


def _ratio(size: Any, wanted: Any, scale: float | None, multiples: Sequence[int] = (), by_scale: Any = 0) -> Any:
    """Elements of the input for each of the output: by the scale if there is one, but by the sizes where the output is
    one of `multiples` of the input, unless `by_scale` is 1."""
    if scale is None or scale <= 0:
        return size / wanted
    if same_size(by_scale, 1) or not any(_may_be_multiple(size, wanted, scale, times) for times in multiples):
        return 1 / scale
    gap = math.prod(wanted - times * size for times in multiples)
    share = torch.sym_max(by_scale, torch.sym_min(gap * gap, 1))
    if isinstance(share, int):
        return 1 / scale if share else size / wanted
    return share * (1 / scale) + (1 - share) * (size / wanted)


def _may_be_multiple(size: Any, wanted: Any, scale: float, times: int) -> bool:
    """Whether the output can have `times` as many elements and the scale still matter. Of size · scale elements it has
    them from a size of 2 on if the scale is less than ½ above; of size 1 all elements are the same."""
    if isinstance(size, int) and isinstance(wanted, int):
        return wanted == times * size and times != scale
    if not same_size(wanted, _scaled(size, scale)):
        return True
    return times < scale < times + 0.5


def _goes_by_scale(x: Tensor, sizes: Sequence[Any], interpolation: Interpolation) -> Any:
    """1 where a kernel in torch 2.13 goes by the scale at every size: the cubic one, and that of nearest neighbours
    unless it calls `nearest_idx`, as it does where it is vectorized, and in the gradient."""
    if interpolation is not _nearest:
        return int(interpolation is _cubic)
    by_scale = _is_positive(sum(sizes) - VECTORIZED) if len(sizes) == 2 else 1
    if len(sizes) > 1 and _is_channels_last(x):
        by_scale = by_scale * (1 - _is_positive(x.shape[1] - 3))
    return by_scale


def _is_positive(number: Any) -> Any:
    """1 for a whole number above 0, else 0."""
    return torch.sym_max(torch.sym_min(number, 1), 0)


def _is_channels_last(x: Tensor) -> bool:
    if all(isinstance(size, int) for size in x.shape):
        return x.is_contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    stride: Any = 1
    for dim in (1, *range(x.dim() - 1, 1, -1), 0):
        if not same_size(x.stride(dim), stride):
            return False
        stride = stride * x.shape[dim]
    return True


def _places(like: Tensor, size: Any, wanted: Any, align_corners: bool, ratio: Any) -> Any:
    """The position of each output element in the input."""
    steps = _steps(like, size, wanted, ratio, opmath(like.dtype))
    if align_corners:
        return steps * ((size - 1) / (wanted - 1) if wanted > 1 else 0)
    return (steps + 0.5) * ratio - 0.5


def _index(place: Any, size: Any) -> Tensor | list[int]:
    if isinstance(place, Line):
        return [int(i) for i in place.clamp(0, size - 1).values]
    return cast(place, torch.int64).clamp(0, size - 1)


def _taken(x: Tensor, dim: int, index: Tensor | list[int]) -> Tensor:
    """The elements of x along `dim`: slices of it where the index advances steadily, as it does between the edges if
    the sizes have a ratio of small numbers."""
    if isinstance(index, Tensor):
        return x.index_select(dim, index)
    found = _steady(index)
    if found is None:
        return x.index_select(dim, torch.tensor(index, dtype=torch.int64, device=x.device))
    first, count, period, step = found
    phases = [every(x, dim, start, count, step) for start in index[first : first + period]]
    body = phases[0] if period == 1 else torch.stack(phases, dim + 1).flatten(dim, dim + 1)
    edges = {i: x.narrow(dim, i, 1) for i in (*index[:first], *index[first + count * period :])}
    before, after = ([edges[i] for i in part] for part in (index[:first], index[first + count * period :]))
    return torch.cat([*before, body, *after], dim) if edges else body


def _steady(index: list[int]) -> tuple[int, int, int, int] | None:
    """Where the longest part of an index begins that grows by a step with each period, how many periods it has, their
    length and the step; none if more than a few elements are left over, or periods would be long."""
    for period in range(1, min(LONGEST, len(index) - 1) + 1):
        middle = (len(index) - period) // 2
        step = index[middle + period] - index[middle]
        if step <= 0:
            continue
        grows = [b - a == step for a, b in zip(index, index[period:])]
        first = next((i + 1 for i in range(middle, -1, -1) if not grows[i]), 0)
        end = next((i for i in range(middle, len(grows)) if not grows[i]), len(grows))
        count = (end - first) // period + 1
        if len(index) - count * period <= LONGEST:
            return first, count, period, step
    return None


def _weighted(x: Tensor, dim: int, weight: Tensor | Line | None) -> Tensor:
    """x times the weight of each of its elements along `dim`."""
    if weight is None:
        return x
    row = weight.tensor(x) if isinstance(weight, Line) else weight
    return x * row.reshape([-1] + [1] * (x.dim() - 1 - dim))


def _taps_sum(x: Tensor, dim: int, taps: Taps) -> Tensor:
    """Σ over the taps of weight · x[index], along `dim`."""
    total = None
    for index, weight in taps:
        term = _weighted(_taken(x, dim, index), dim, weight)
        total = term if total is None else total + term
    assert total is not None
    return total


def _taps_spread(grad: Tensor, dim: int, size: Any, taps: Taps) -> Tensor:
    """The adjoint of `_taps_sum`."""
    shape = list(grad.shape)
    total = torch.zeros(shape[:dim] + [size] + shape[dim + 1 :], dtype=grad.dtype, device=grad.device)
    for index, weight in taps:
        place = index if isinstance(index, Tensor) else torch.tensor(index, dtype=torch.int64, device=grad.device)
        total = total.index_add(dim, place, _weighted(grad, dim, weight))
    return total


def _between_neighbours(x: Tensor, dim: int, factor: int) -> Tensor:
    """Linear interpolation with `factor` elements for each: those of one phase have the same weights, so that they are
    a sum of two slices. Before the first element it is the first, after the last the last."""
    size = x.shape[dim]
    before, after = x.narrow(dim, 0, size - 1), x.narrow(dim, 1, size - 1)
    first, second, last = (x.narrow(dim, i, 1) for i in (0, 1, size - 1))
    phases = []
    for phase in range(factor):
        place = (phase + 0.5) / factor - 0.5
        low, high = (-place, 1 + place) if place < 0 else (1 - place, place)
        between = before * low + after * high
        # The kernels multiply the element beyond the edge by 0, which is NaN if it is infinite.
        parts = [first + second * 0, between] if place < 0 else [between, last * low + last * high]
        phases.append(torch.cat(parts, dim))
    return torch.stack(phases, dim + 1).flatten(dim, dim + 1)


def _factor(size: Any, wanted: Any, ratio: Any) -> int | None:
    """How many times as long the output is, if that is a whole number and the ratio agrees."""
    if not isinstance(ratio, float) or not 0 < ratio <= 1:
        return None
    factor = round(1 / ratio)
    return factor if ratio == 1 / factor and same_size(wanted, size * factor) else None


def _repeats(interpolation: Interpolation, factor: int | None) -> bool:
    """Whether each element is repeated `factor` times. Where the float32 next to 1 / factor is too small, as for 41,
    the kernels take the first of the repeated ones from the element before."""
    if not factor or interpolation not in (_nearest, _nearest_exact):
        return False
    ratio = nearest_float(1 / factor, torch.float32)
    return interpolation is _nearest_exact or nearest_float(factor * ratio, torch.float32) >= 1


def _resample(
    x: Tensor, sizes: Sequence[Any], scales: Sequence[float | None], align_corners: bool, interpolation: Interpolation
) -> Tensor:
    """(N, C, *S) → (N, C, *sizes)."""
    if x.dtype == torch.uint8 and interpolation in (_linear, _cubic):
        return _resample_bytes(x, sizes, scales, align_corners, interpolation)
    ratios = _ratios(x.shape[2:], sizes, scales, interpolation, _goes_by_scale(x, sizes, interpolation))
    out = _interpolated(x, sizes, ratios, align_corners, interpolation)
    of_gradient = _ratios_of_gradient(x.shape[2:], sizes, scales, interpolation)
    if x.is_floating_point() and not all(map(same_size, ratios, of_gradient)):
        out = with_gradient_of(out, _interpolated(x, sizes, of_gradient, align_corners, interpolation))
    return x.clone() if out is x else cast(out, x.dtype)


def _ratios(
    before: Sequence[Any],
    after: Sequence[Any],
    scales: Sequence[float | None],
    interpolation: Interpolation,
    by_scale: Any = 0,
) -> list[Any]:
    """The ratio along each dimension. `by_scale`: whether the scale counts at every size."""
    multiples = BY_SIZE.get(interpolation, ())
    return [_ratio(*along, multiples, by_scale) for along in zip(before, after, scales)]


def _ratios_of_gradient(
    before: Sequence[Any], after: Sequence[Any], scales: Sequence[float | None], interpolation: Interpolation
) -> list[Any]:
    """The same in the kernels of the gradient, of which the cubic one copies an image whose sizes all stay."""
    by_scale = 0
    if interpolation is _cubic:
        by_scale = _is_positive(sum((wanted - size) ** 2 for size, wanted in zip(before, after)))
    return _ratios(before, after, scales, interpolation, by_scale)


def _interpolated(
    x: Tensor, sizes: Sequence[Any], ratios: Sequence[Any], align_corners: bool, interpolation: Interpolation
) -> Tensor:
    """(N, C, *S) → (N, C, *sizes), in a wider dtype for half types."""
    out = wide(x)
    for i in reversed(range(len(sizes))):
        dim, size, factor = 2 + i, x.shape[2 + i], _factor(x.shape[2 + i], sizes[i], ratios[i])
        if same_size(size, sizes[i]) and interpolation is _linear:
            out = out + out * 0  # the kernels add the same element with weight 0, which is NaN if it is infinite
        elif factor and _repeats(interpolation, factor):
            if factor == 1:
                continue
            lead, rest = list(out.shape[: dim + 1]), list(out.shape[dim + 1 :])
            out = out.unsqueeze(dim + 1).expand([*lead, factor, *rest]).flatten(dim, dim + 1)
        elif factor in BINARY and surely_at_least(size, 2) and interpolation is _linear and not align_corners:
            out = _between_neighbours(out, dim, factor)
        else:
            out = _taps_sum(out, dim, interpolation(x, size, sizes[i], align_corners, ratios[i]))
    return out


def _resample_bytes(
    x: Tensor, sizes: Sequence[Any], scales: Sequence[float | None], align_corners: bool, interpolation: Interpolation
) -> Tensor:
    """The same of images of bytes, in whole numbers."""
    if not all(isinstance(size, int) for size in (*sizes, *x.shape[2:])):
        return decline("the weights of bytes depend on sizes that are not known")
    shares = []
    for size, wanted, scale in zip(x.shape[2:], sizes, scales):
        ratio = (size - 1) / (wanted - 1) if align_corners and wanted > 1 else 0.0
        ratio = ratio if align_corners else _ratio(size, wanted, scale)
        alone = size == wanted
        shares.append(
            None if alone else byte_images.interpolated(size, wanted, ratio, align_corners, interpolation is _cubic)
        )
    return byte_images.resampled(x, shares)


def _resample_backward(
    grad: Tensor,
    input_size: Sequence[Any],
    scales: Sequence[float | None],
    align_corners: bool,
    interpolation: Interpolation,
) -> Tensor:
    """The adjoint of `_resample`: (N, C, *sizes) → `input_size`."""
    out = wide(grad)
    ratios = _ratios_of_gradient(input_size[2:], grad.shape[2:], scales, interpolation)
    for i, ratio in enumerate(ratios):
        dim, size, wanted = 2 + i, input_size[2 + i], grad.shape[2 + i]
        factor = _factor(size, wanted, ratio)
        if factor == 1 or same_size(size, wanted) and interpolation is _linear:
            continue
        if factor and _repeats(interpolation, factor):
            out = out.reshape([*out.shape[:dim], size, factor, *out.shape[dim + 1 :]]).sum(dim + 1)
        else:
            out = _taps_spread(out, dim, size, interpolation(grad, size, wanted, align_corners, ratio))
    return grad.clone() if out is grad else cast(out, grad.dtype)


def _sizes(x: Tensor, output_size: Any, factors: Any) -> list[Any]:
    """The sizes of the output, given or as ⌊size · factor⌋."""
    if output_size is not None:
        return list(output_size)
    return [_scaled(n, f) for n, f in zip(x.shape[2:], factors)]


def _scaled(size: Any, factor: float) -> Any:
    """⌊size · factor⌋."""
    return math.floor(size * factor) if factor != int(factor) else size * int(factor)


def _register(op: Any, dims: int, interpolation: Interpolation, aligned: bool) -> None:
    """The rules of an upsampling op: with one scale for each dimension, and with a list of them (`vec`)."""
    if aligned:

        def listed(x: Tensor, output_size: Any, align_corners: bool, scale_factors: Any) -> Tensor:
            return _listed(x, output_size, align_corners, scale_factors)
    else:

        def listed(x: Tensor, output_size: Any, scale_factors: Any) -> Tensor:
            return _listed(x, output_size, False, scale_factors)

    def _listed(x: Tensor, output_size: Any, align_corners: bool, factors: Any) -> Tensor:
        scales = [None] * dims if factors is None else list(factors)
        return _resample(x, _sizes(x, output_size, factors), scales, align_corners, interpolation)

    def sized(
        x: Tensor,
        output_size: Any,
        *,
        align_corners: bool = False,
        scales: float | None = None,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        return _resample(
            x,
            ntuple(output_size, dims),
            _scales(dims, scales, scales_d, scales_h, scales_w),
            align_corners,
            interpolation,
        )

    for rule in (listed, sized):
        rule.__name__ = op.__name__
        rule.__doc__ = interpolation.__doc__
        register(op)(rule)


def _register_backward(op: Any, dims: int, interpolation: Interpolation) -> None:
    """The rule of an upsampling op's gradient."""

    def rule(
        grad_output: Tensor,
        output_size: Any,
        input_size: Any,
        *,
        align_corners: bool = False,
        scales: float | None = None,
        scales_d: float | None = None,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """Each output's gradient goes to the elements that it was made of, by their weights."""
        return _resample_backward(
            grad_output, input_size, _scales(dims, scales, scales_d, scales_h, scales_w), align_corners, interpolation
        )

    rule.__name__ = op.__name__
    register(op)(rule)


def _scales(dims: int, one: float | None, d: float | None, h: float | None, w: float | None) -> list[float | None]:
    return [one] if dims == 1 else [h, w] if dims == 2 else [d, h, w]


for _name, _dims, _interpolation, _aligned in (
    ("upsample_nearest1d", 1, _nearest, False),
    ("upsample_nearest2d", 2, _nearest, False),
    ("upsample_nearest3d", 3, _nearest, False),
    ("_upsample_nearest_exact1d", 1, _nearest_exact, False),
    ("_upsample_nearest_exact2d", 2, _nearest_exact, False),
    ("_upsample_nearest_exact3d", 3, _nearest_exact, False),
    ("upsample_linear1d", 1, _linear, True),
    ("upsample_bilinear2d", 2, _linear, True),
    ("upsample_trilinear3d", 3, _linear, True),
    ("upsample_bicubic2d", 2, _cubic, True),
):
    _register(getattr(aten, _name), _dims, _interpolation, _aligned)
    _register_backward(getattr(aten, f"{_name}_backward"), _dims, _interpolation)


@register(F.interpolate)
def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """The kernel of the mode and the rank, or adaptive pooling for mode "area"."""
    dims = input.dim() - 2
    sizes = None if size is None else list(ntuple(size, dims))
    factors = None if scale_factor is None else [float(f) for f in ntuple(scale_factor, dims)]
    if factors is not None and recompute_scale_factor:
        sizes, factors = _sizes(input, None, factors), None
    if mode == "area":
        pools = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
        return pools[dims - 1](input, _sizes(input, sizes, factors))
    kernels = {
        ("nearest", 1): aten.upsample_nearest1d,
        ("nearest", 2): aten.upsample_nearest2d,
        ("nearest", 3): aten.upsample_nearest3d,
        ("nearest-exact", 1): aten._upsample_nearest_exact1d,
        ("nearest-exact", 2): aten._upsample_nearest_exact2d,
        ("nearest-exact", 3): aten._upsample_nearest_exact3d,
        ("linear", 1): aten.upsample_linear1d,
        ("bilinear", 2): aten.upsample_bilinear2d,
        ("trilinear", 3): aten.upsample_trilinear3d,
        ("bicubic", 2): aten.upsample_bicubic2d,
    }
    smooth = {
        "bilinear": aten._upsample_bilinear2d_aa,
        "bicubic": aten._upsample_bicubic2d_aa,
        "lanczos": getattr(aten, "_upsample_lanczos2d_aa", None),
    }
    kernel = (smooth[mode] if antialias else kernels[mode, dims]).vec
    if mode.startswith("nearest"):
        return kernel(input, sizes, factors)
    return kernel(input, sizes, bool(align_corners), factors)


RULES = RULES | antialiasing.RULES
