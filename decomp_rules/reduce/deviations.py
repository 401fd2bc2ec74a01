"""Standard deviations, from moments of numbers times a power of two: neither do their squares overflow, nor do they
vanish, as far as the result does not."""

from collections.abc import Callable
import functools

import torch
from torch import Tensor

from decomp import Rules, decline
from decomp.ops import aten
from decomp.results import Declined
from decomp_rules.reduce.reduction import Dims, degrees, moments, moments_by_sums, reduced_dims, root, squeezed
from decomp_rules.support.operands import cast, wide
from decomp_rules.support.scaling import scaled_for_squares

RULES = Rules(level="exact")
register = RULES.register


@register(aten.std, needs=("var",))
def std(
    x: Tensor, dim: Dims = None, unbiased: bool = True, correction: float | None = None, keepdim: bool = False
) -> Tensor | Declined:
    """√var of x times a power of two, so that no square overflows or vanishes; with no gradient where it is 0."""
    found = _spread(x, dim, degrees(unbiased, correction), keepdim, _by_var)
    return found if isinstance(found, Declined) else found[0]


@register(aten.std)
def std_of_differences(
    x: Tensor, dim: Dims = None, unbiased: bool = True, correction: float | None = None, keepdim: bool = False
) -> Tensor | Declined:
    """The same for targets without var, from Σ(x − mean)²."""
    found = _spread(x, dim, degrees(unbiased, correction), keepdim, functools.partial(_by_differences, careful=False))
    return found if isinstance(found, Declined) else found[0]


@register(aten.std, level="standard")
def std_by_sums(
    x: Tensor, dim: Dims = None, unbiased: bool = True, correction: float | None = None, keepdim: bool = False
) -> Tensor | Declined:
    """The same from Σd² and Σd with d = x − mean. ≤ 4 ULP."""
    found = _spread(x, dim, degrees(unbiased, correction), keepdim, moments_by_sums)
    return found if isinstance(found, Declined) else found[0]


@register(aten.std_mean)
def std_mean(
    x: Tensor, dim: Dims = None, unbiased: bool = True, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor] | Declined:
    """√var, with no gradient where it is 0, and the mean; both of x times a power of two."""
    return _spread(x, dim, degrees(unbiased, correction), keepdim, _by_differences)


Moments = Callable[[Tensor, Dims, float, bool], tuple[Tensor, Tensor] | Declined]


def _spread(
    x: Tensor, dim: Dims, correction: float, keepdim: bool, moments_of: Moments
) -> tuple[Tensor, Tensor] | Declined:
    """√var and the mean of x, from its moments where squares neither overflow nor vanish."""
    if x.is_complex():
        return decline("only real inputs")
    dims = reduced_dims(x, dim)
    scaled, size = scaled_for_squares(x, dims)
    found = moments_of(scaled, dims or None, correction, keepdim)
    if isinstance(found, Declined):
        return found
    spread, average = root(found[0]), found[1]
    if size is not None:
        size = size if keepdim else squeezed(size, dims)
        spread, average = spread * size, average * size
    return cast(spread, x.dtype), cast(average, x.dtype)


def _by_var(x: Tensor, dims: Dims, correction: float, keepdim: bool) -> tuple[Tensor, Tensor]:
    variance = torch.var(wide(x), dims, correction=correction, keepdim=keepdim)
    return variance, variance  # the mean is not used


def _by_differences(
    x: Tensor, dims: Dims, correction: float, keepdim: bool, careful: bool = True
) -> tuple[Tensor, Tensor]:
    return moments(wide(x), dims, True, correction, keepdim, careful)
