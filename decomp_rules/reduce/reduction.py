"""Reductions: sums, products, extrema, moments, norms and counts. Everything becomes a sum, a product or a maximum over
named dimensions; dtypes narrower than 32 bits are widened once before and rounded once after. Errors are the largest
seen on 500 rows of 768 normal numbers, in float32."""

from collections.abc import Sequence
import math

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp.results import Declined
from decomp_rules.pointwise.exponential import minus_within
from decomp_rules.support.floating import LOG2_E
from decomp_rules.support.operands import HALVES, cast, wide

RULES = Rules(level="exact")
register = RULES.register

Dims = int | Sequence[int] | None


@register(aten.sum)
def sum(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """Σx over the named dimensions; integers are summed in int64. Exactly the op."""
    result = dtype or (x.dtype if x.is_floating_point() or x.is_complex() else torch.int64)
    x = cast(x, result)
    dims = reduced_dims(x, dim)
    return cast(torch.sum(x, dims, keepdim), result) if dims else x.clone()


@register(aten.sum)
def sum_of_one_dim(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """Σx where a target sums one dimension at a time: the dimensions are merged into one. Exactly the op."""
    dims = reduced_dims(x, dim)
    if len(dims) < 2:
        return decline("at most one dimension is summed")
    return restored(torch.sum(merged(x, dims), [-1], dtype=dtype), x, dims, keepdim)


@register(aten.mean)
def mean(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """Σx / n. Below 32 bits the sum is taken in float32 and rounded once. As the kernel."""
    result = dtype or x.dtype
    x_wide = wide(cast(x, result))
    dims = reduced_dims(x, dim)
    if not dims:
        return cast(x_wide, result).clone()
    return cast(torch.sum(x_wide, dims, keepdim) / extent(x, dims), result)


@register(aten.prod)
def prod(x: Tensor, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """Πx over one dimension, or over all of them once they are merged; integers in int64. Exactly the op."""
    result = dtype or (x.dtype if x.is_floating_point() or x.is_complex() else torch.int64)
    x = cast(x, result)
    if x.dim() == 0:
        return x.clone()
    if dim is None:
        x, dim = x.flatten(), 0
    return cast(torch.prod(x, dim, keepdim), result)


@register(aten.prod)
def prod_by_halves(
    x: Tensor, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor:
    """Πx as a tree: the first half times the second, log₂ n times. ≤ log₂ n roundings where the op has n."""
    result = dtype or (x.dtype if x.is_floating_point() or x.is_complex() else torch.int64)
    factors = wide(cast(x, result)).flatten() if dim is None else wide(cast(x, result))
    if factors.dim() == 0:
        return cast(factors.clone(), result)
    at = (dim or 0) % factors.dim()
    size = factors.shape[at]
    if not isinstance(size, int):
        return decline("the size of the dimension is not known")
    if size == 0:
        return cast(torch.sum(factors, [at], keepdim and dim is not None) + 1, result)
    while size > 1:
        half = size // 2
        product = factors.narrow(at, 0, half) * factors.narrow(at, half, half)
        factors = torch.cat([product, factors.narrow(at, 2 * half, 1)], at) if size % 2 else product
        size = half + size % 2
    return cast(factors if keepdim and dim is not None else factors.squeeze(at), result)


@register(aten.amax)
def amax(x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """The largest over the named dimensions; ties share the gradient. Exactly the op."""
    dims = reduced_dims(x, dim)
    return torch.amax(x, dims, keepdim) if dims else x.clone()


@register(aten.amax)
def amax_of_one_dim(x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """The largest where a target reduces one dimension at a time: they are merged into one. Exactly the op."""
    dims = reduced_dims(x, dim)
    if len(dims) < 2:
        return decline("at most one dimension is reduced")
    return restored(torch.amax(merged(x, dims), [-1]), x, dims, keepdim)


@register(aten.amin)
def amin(x: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """−max(−x); for integers ~max(~x), which cannot overflow. Exactly the op."""
    dims = reduced_dims(x, dim)
    if not dims:
        return x.clone()
    if x.is_floating_point():
        return -torch.amax(-x, dims, keepdim)
    return ~torch.amax(~x, dims, keepdim)


@register(aten.max)
def max(x: Tensor) -> Tensor:
    """The largest of all; ties share the gradient. Exactly the op."""
    return torch.amax(x, all_dims(x))


@register(aten.min)
def min(x: Tensor) -> Tensor:
    """The smallest of all; ties share the gradient. Exactly the op."""
    return torch.amin(x, all_dims(x))


@register(aten.aminmax)
def aminmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """min(x) and max(x), over one dimension or all of them. Exactly the op."""
    dims = reduced_dims(x, dim)
    return torch.amin(x, dims, keepdim), torch.amax(x, dims, keepdim)


@register(aten._aminmax)
def _aminmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """min(x) and max(x), over one dimension or all of them. Exactly the op."""
    return aminmax(x, dim, keepdim)


@register(aten.any)
def any(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """max(x ≠ 0); uint8 stays uint8. Exactly the op."""
    dims = reduced_dims(x, dim, empty_is_all=False)
    holds = x if x.dtype == torch.bool else x != 0
    if known_empty(x):
        holds = torch.sum(holds, dims, keepdim) != 0 if dims else holds
    elif dims:
        holds = torch.amax(holds, dims, keepdim)
    return cast(holds, torch.uint8) if x.dtype == torch.uint8 else holds.clone() if holds is x else holds


@register(aten.all)
def all(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """¬ any(x = 0); uint8 stays uint8. Exactly the op."""
    fails = ~x if x.dtype == torch.bool else x == 0
    dims = reduced_dims(x, dim, empty_is_all=False)
    holds = ~(fails if not dims else any_over(fails, dims, keepdim))
    return cast(holds, torch.uint8) if x.dtype == torch.uint8 else holds


@register(aten._is_all_true)
def _is_all_true(x: Tensor) -> Tensor:
    """all(x). Exactly the op."""
    return torch.all(x)


@register(aten._is_any_true)
def _is_any_true(x: Tensor) -> Tensor:
    """any(x). Exactly the op."""
    return torch.any(x)


@register(aten.count_nonzero)
def count_nonzero(x: Tensor, dim: Dims = None) -> Tensor:
    """Σ[x ≠ 0], in int64. Exactly the op."""
    return torch.sum((x != 0).to(torch.int64), reduced_dims(x, dim)) if x.dim() else (x != 0).to(torch.int64)


@register(aten.nansum)
def nansum(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """Σx with NaN counted as 0. Exactly the op."""
    if x.is_floating_point():
        x = torch.where(torch.isnan(x), 0, x)
    return torch.sum(x, reduced_dims(x, dim), keepdim, dtype=dtype)


@register(aten.nanmean)
def nanmean(x: Tensor, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Tensor:
    """Σx / n over what is not NaN."""
    dims = reduced_dims(x, dim)
    x_wide = wide(cast(x, dtype or x.dtype))
    count = torch.sum((~torch.isnan(x)).to(x_wide.dtype), dims, keepdim)
    return cast(torch.nansum(x_wide, dims, keepdim) / count, dtype or x.dtype)


@register(aten.var)
def var(
    x: Tensor, dim: Dims = None, unbiased: bool = True, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """Σ(x − mean)² / (n − correction). 0.8 ULP of 768 numbers, 2.4 of 10; the kernel, which sums in float64, 0.5."""
    if x.is_complex():
        return decline("only real inputs")
    return cast(moments(x, dim, unbiased, correction, keepdim, careful=False)[0], x.dtype)


@register(aten.var, level="standard")
def var_by_sums(
    x: Tensor, dim: Dims = None, unbiased: bool = True, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    """Σ(x − mean)² / (n − correction). ≤ 4 ULP, also for values far from 0; 0 of equal numbers of any size."""
    if x.dtype in HALVES:
        return decline("the sum of the largest bfloat16 numbers would overflow")
    found = moments_by_sums(x, dim, degrees(unbiased, correction), keepdim)
    return found if isinstance(found, Declined) else cast(found[0], x.dtype)


def moments_by_sums(x: Tensor, dim: Dims, correction: float, keepdim: bool) -> tuple[Tensor, Tensor] | Declined:
    """The variance and the mean, not yet rounded to the dtype of x. Because the mean is rounded, the deviations have a
    mean of their own, which is subtracted. x is divided by a power of two first, so that no sum overflows, and sums are
    divided by n, not multiplied by 1 / n: equal numbers then deviate by nothing at all."""
    if x.is_complex():
        return decline("only real inputs")
    x, dims = wide(x), reduced_dims(x, dim)
    if not dims:
        x, dims, keepdim = x.reshape(1), (0,), False
    count = extent(x, dims)
    left = freedom(count, correction)
    if isinstance(left, (int, float)) and left == 0:
        return decline("no degree of freedom is left")
    parts = parts_of(count)
    part = x * (1 / parts)
    shift = torch.sum(part, dims, keepdim=True) / -count  # added, as many targets have no subtraction
    deviation = part + shift
    deviation = deviation + torch.sum(deviation.detach(), dims, keepdim=True) / -count
    share = left / parts**2
    squares = (deviation * (1 / share) if isinstance(share, float) else deviation / share) * deviation
    centre = shift * -parts
    return torch.sum(squares, dims, keepdim), centre if keepdim else squeezed(centre, dims)


def parts_of(count: int) -> int:
    """The least power of two that is no less than the count; 2¹⁶ where it is a symbol."""
    return 1 << (count - 1).bit_length() if isinstance(count, int) else 1 << 16


@register(aten.var_mean)
def var_mean(
    x: Tensor, dim: Dims = None, unbiased: bool = True, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Σ(x − mean)² / (n − correction) and the mean, from the sum of the upper digits, which is exact, and that of the
    rest: accurate also for values far from 0, and for a mean that is small next to x. ≤ 1.5 ULP."""
    if x.is_complex():
        return decline("only real inputs")
    variance, average = moments(x, dim, unbiased, correction, keepdim)
    return cast(variance, x.dtype), cast(average, x.dtype)


def moments(
    x: Tensor, dim: Dims, unbiased: bool, correction: float | None, keepdim: bool, careful: bool = True
) -> tuple[Tensor, Tensor]:
    """The variance and the mean, not yet rounded to the dtype of x; the mean is good to the last digit with care.
    The mean that its rounding leaves in the deviations is subtracted too."""
    dims = reduced_dims(x, dim)
    x_wide = wide(x)
    if not dims:
        x_wide, dims, keepdim = x_wide.reshape(1), (0,), False
    count = extent(x_wide, dims)
    if careful:
        centre = careful_average_over(x_wide, dims, count)
    elif x.dtype == x_wide.dtype:
        centre = average_over(x_wide, dims, count)
        centre = centre + average_over(x - centre, dims, count)
    else:
        centre = exact_average_over(x_wide, dims, count, 8 if x.dtype == torch.bfloat16 else 11)
    deviation = x_wide - centre
    if x.dtype == x_wide.dtype:
        deviation = deviation - average_over(deviation, dims, count)
    variance = mean_square(deviation, dims, count, degrees(unbiased, correction), keepdim, x.dtype == x_wide.dtype)
    return variance, centre if keepdim else squeezed(centre, dims)


def mean_square(
    deviation: Tensor, dims: Sequence[int], count: int, correction: float, keepdim: bool, careful: bool
) -> Tensor:
    """Σd² / (n − c). A sum of numbers of one sign drifts with each addition: with care it is that of their differences
    from about their mean m, as m + (Σ(d² − m) + c m) / (n − c)."""
    squares, left = deviation * deviation, freedom(count, correction)
    if not careful:
        return torch.sum(squares, dims, keepdim) / left
    about = average_over(squares.detach(), dims, count)
    excess = torch.sum(squares - about, dims, keepdim)
    about = about if keepdim else squeezed(about, dims)
    whole = about + (excess + about * correction if correction else excess) / left
    return torch.where(about < math.inf, whole, about)


def mean_times(x: Tensor, dims: Sequence[int], count: int, factor: float = 1.0) -> Tensor:
    """The mean times a factor, with the dimensions kept. The terms are divided by a power of two first, which is exact,
    so that the sum does not overflow."""
    if isinstance(count, int) and count == 0:
        return torch.mean(x, dims, keepdim=True)
    parts = parts_of(count)
    total = torch.sum(x * (factor / parts), dims, keepdim=True)
    if not isinstance(count, int):
        return total / count * parts
    return total if parts == count else total * (parts / count)


def average_over(x: Tensor, dims: Sequence[int], count: int) -> Tensor:
    """About the mean, with the dimensions kept: of parts so small that they cannot overflow, each of them rounded."""
    if isinstance(count, int) and count == 0:
        return torch.mean(x, dims, keepdim=True)
    return torch.sum(x * (1 / count) if isinstance(count, int) else x / count, dims, keepdim=True)


def exact_average_over(x: Tensor, dims: Sequence[int], count: int, bits: int) -> Tensor:
    """The mean of numbers of few bits, with the dimensions kept: parts by a power of two are not rounded, and of equal
    numbers it is each of them, since their sum times the first digits of the factor is exact."""
    if not isinstance(count, int) or count == 0:
        return average_over(x, dims, count)
    parts = parts_of(count)
    total = torch.sum(x * (1 / parts), dims, keepdim=True)
    spare = 23 - bits - count.bit_length()
    scale = 2.0**spare if spare > 0 else 1.0
    first = math.floor(parts / count * scale) / scale
    return total if parts == count else total * first + total * (parts / count - first)


def careful_average_over(x: Tensor, dims: Sequence[int], count: int) -> Tensor:
    """The mean, with the dimensions kept, as if summed in twice the digits: above a bound that all have in common,
    those of up to 2¹² numbers (2²⁶ in float64) are added without rounding, the rest after them. S. M. Rump, T. Ogita,
    S. Oishi, *Accurate floating-point summation*, SIAM J. Sci. Comput. 31 (2008)."""
    if not isinstance(count, int) or count == 0 or known_empty(x):
        return average_over(x, dims, count)
    parts = 1 << (count - 1).bit_length()
    x = x * (1 / parts)
    bound = torch.amax(torch.abs(x.detach()), dims, keepdim=True) * (2.0**12 if x.dtype == torch.float32 else 2.0**26)
    bound = torch.where(bound < math.inf, bound, 0.0)
    upper = (x + bound) - bound
    total = torch.sum(upper, dims, keepdim=True) + torch.sum(x - upper, dims, keepdim=True)
    return total if parts == count else total * (parts / count)


@register(aten.logsumexp)
def logsumexp(x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """m + log Σ exp(x − m) with m = max x, or 0 where that is infinite. 1.2 ULP, as the kernel."""
    if x.is_complex():
        return decline("only real inputs")
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    x_wide, dims = wide(x), reduced_dims(x, dim)
    if known_empty(x):
        return cast(torch.log(torch.sum(torch.exp(x_wide), dims, keepdim)), x.dtype)
    largest = torch.amax(x_wide, dims, keepdim=True).detach()
    shift = torch.where(torch.abs(largest) == math.inf, 0, largest)
    total = torch.sum(torch.exp(x_wide - shift), dims, keepdim=True)
    is_zero = total == 0
    summed = torch.where(is_zero, -math.inf, torch.log(torch.where(is_zero, 1, total)) + shift)
    return cast(summed if keepdim else squeezed(summed, dims), x.dtype)


@register(aten.logsumexp, level="standard")
def logsumexp_by_binary(x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """m + ln Σ 2^((x − m)·log₂e), m being max x or the largest number: an entry's error of |x − m| ε counts with its
    share in the sum, which is the less the larger |x − m| is. 1.5 ULP, the kernel 1.2; as in the op, a line of −∞ has
    NaN as its gradient."""
    return _logsumexp_by_binary(x, dim, keepdim)


@register(aten.logsumexp, level="standard")
def logsumexp_of_pairs_by_binary(x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """The same for targets without maximum."""
    return _logsumexp_by_binary(x, dim, keepdim, few_ops=True)


def _logsumexp_by_binary(x: Tensor, dim: Dims, keepdim: bool, few_ops: bool = False) -> Tensor:
    if x.is_complex() or known_empty(x):
        return decline("no numbers that have a largest one")
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    x_wide, dims = wide(x), reduced_dims(x, dim)
    largest = torch.amax(x_wide, dims, keepdim=True).detach()
    shift = minus_within(largest, torch.finfo(x_wide.dtype).max, few_ops)
    total = torch.sum(torch.exp2((x_wide + shift) * LOG2_E), dims, keepdim=True)
    summed = torch.log2(total) * math.log(2) - shift
    return cast(summed if keepdim else squeezed(summed, dims), x.dtype)


@register(aten.trace)
def trace(x: Tensor) -> Tensor:
    """Σ xᵢᵢ. Exactly the op."""
    return torch.sum(torch.diagonal(x), [0])


@register(aten.sum_to_size)
def sum_to_size(x: Tensor, size: Sequence[int]) -> Tensor:
    """Σ over the dimensions along which `size` would have been broadcast to x. Exactly the op."""
    lead = x.dim() - len(size)
    stretched = [lead + i for i, (n, m) in enumerate(zip(size, x.shape[lead:])) if isinstance(n, int) and n == 1]
    dims = [*range(lead), *stretched]
    total = torch.sum(x, dims, keepdim=True) if dims else x
    return total.reshape(size) if lead else total


def any_over(x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """Whether anything holds over `dims`, through the overload that takes several dimensions."""
    return torch.any(x, tuple(dims), keepdim)


def reduced_dims(x: Tensor, dim: Dims, empty_is_all: bool = True) -> tuple[int, ...]:
    """The dimensions that a `dim` argument names, none negative; None, and mostly an empty list, names all of them."""
    if dim is None or (empty_is_all and not isinstance(dim, int) and not len(dim)):
        return all_dims(x)
    named = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(d % x.dim() for d in named) if x.dim() else ()


def all_dims(x: Tensor) -> tuple[int, ...]:
    """Every dimension of x."""
    return tuple(range(x.dim()))


def extent(x: Tensor, dims: Sequence[int]) -> int:
    """How many elements one result is reduced from."""
    return math.prod(x.shape[d] for d in dims)


def known_empty(x: Tensor) -> bool:
    """Whether x is known to have no elements; a symbolic size is not asked, which would guard on it."""
    return 0 in [size for size in x.shape if isinstance(size, int)]


def merged(x: Tensor, dims: Sequence[int]) -> Tensor:
    """x with `dims` moved to the end and merged into one."""
    kept = [d for d in range(x.dim()) if d not in dims]
    return x.permute(*kept, *dims).flatten(len(kept))


def restored(y: Tensor, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """y, reduced from x over `dims`, with those dimensions back in place at size 1 if they are kept."""
    return y.reshape([1 if d in dims else x.shape[d] for d in range(x.dim())]) if keepdim else y


def squeezed(x: Tensor, dims: Sequence[int]) -> Tensor:
    """x without `dims`, each of size 1."""
    return x.squeeze(tuple(dims))


def degrees(unbiased: bool, correction: float | None) -> float:
    """The correction subtracted from n: `correction` if given, else 1 or 0."""
    return int(unbiased) if correction is None else correction


def freedom(n: int, correction: float) -> float:
    """n less the correction, and never negative: PyTorch divides by 0 there."""
    left = n - correction
    return 0 if isinstance(left, (int, float)) and left < 0 else left


def root(x: Tensor) -> Tensor:
    """√x whose gradient at 0 is 0 instead of infinite."""
    zero = x == 0
    return torch.where(zero, 0, torch.sqrt(torch.where(zero, 1, x)))
