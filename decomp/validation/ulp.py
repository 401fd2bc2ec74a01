"""Errors in units in the last place. NaN, infinities and the sign of zero are compared separately. An error is relative
to the unrounded exact value, so a correctly rounded result has an error of at most half a unit."""

from __future__ import annotations

from dataclasses import dataclass

import torch

NEAR_OVERFLOW = 16.0
"""Within this many ULP of the largest number, infinity counts as a rounding error; farther away, as a mismatch."""


@dataclass(frozen=True, slots=True)
class Exact:
    """Exact values as the unevaluated sum of two float64: `low` holds the rounding error of `high`."""

    high: torch.Tensor
    low: torch.Tensor | None = None
    unknown: torch.Tensor | None = None
    """Bool: where the exact value is unknown, so that nothing is compared."""

    def rounded(self, dtype: torch.dtype) -> torch.Tensor:
        """The nearest values of `dtype`."""
        # float64 -> 16 bits goes through float32 (c10::BFloat16 and c10::Half are made of a float, torch 2.13). This
        # rounds twice, and gives another number only where float32 holds a tie: 1 + 2⁻⁸ + 2⁻³⁰ becomes 1 in bfloat16.
        return self.high.to(dtype)


# Goldberg's definition extended to all reals, see Muller, On the definition of ulp(x), INRIA RR-5504, 2005. The
# exponent of `frexp` is exact; that of a logarithm is not next to a power of two.
def spacing(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance between neighbouring numbers of `dtype` at `x` (float64), as float64. Below the smallest normal
    number it is that of the subnormal range; beyond the largest, that of the last binade."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(x.double().abs().clamp(info.tiny, info.max))
    return torch.ldexp(torch.full_like(x, info.eps, dtype=torch.float64), exponent - 1)


def ulp_error(found: torch.Tensor, exact: torch.Tensor | Exact, unit: torch.Tensor | None = None) -> torch.Tensor:
    """|found − exact| in units of the last place of the exact value, float64, shape of `found`; or in given units.

    An infinity counts as the number after the largest. NaN where one of the two is NaN (0 where both are), and where
    they are infinities of different sign.
    """
    exact = exact if isinstance(exact, Exact) else Exact(exact.double())
    largest = torch.finfo(found.dtype).max
    unit = spacing(exact.high, found.dtype) if unit is None else unit
    beyond = exact.rounded(found.dtype).isinf()
    ours, theirs = found.double(), exact.high
    # Infinity is one step after the largest number, so that a
    # formula that overflows a little too early is a small error.
    steps = (found.isinf().double() * ours.sign() - beyond.double() * theirs.sign()).nan_to_num(0.0)
    theirs = torch.where(beyond, theirs.sign() * largest, theirs)
    difference = ours.clamp(-largest, largest) - theirs
    # Subtracted last: `high` alone is exact to 53 bits, and `low` matters only after the leading digits have cancelled
    # (Dekker, A floating-point technique for extending the available precision, 1971).
    if exact.low is not None:
        difference = difference - torch.where(beyond, 0.0, exact.low)
    last = spacing(torch.full_like(theirs, largest), found.dtype)
    error = (difference + steps * last).abs() / unit
    error = torch.where(found.isinf() & beyond & (ours.sign() != theirs.sign()), float("nan"), error)
    return torch.where(found.isnan() & exact.high.isnan(), 0.0, error)


def kinds(x: torch.Tensor) -> torch.Tensor:
    """The kind of each value: 0 a finite number, 1 NaN, 2 and 3 the infinities, 4 and 5 the zeros (the negative one
    last). For complex numbers, that of both parts."""
    if x.is_complex():
        parts = torch.view_as_real(x.resolve_conj())
        return 8 * kinds(parts[..., 0]) + kinds(parts[..., 1])
    if not x.is_floating_point():
        return torch.zeros(x.shape, dtype=torch.int8)
    negative = torch.signbit(x).to(torch.int8)
    kind = x.isnan().to(torch.int8)
    kind = torch.where(x.isinf(), 2 + negative, kind)
    return torch.where(x == 0, 4 + negative, kind)


@dataclass(frozen=True, slots=True)
class Deviation:
    """How a result deviates from the exact one, value by value."""

    error: torch.Tensor
    """In ULP, float64; NaN where one of the values, or both, are not finite."""
    special: torch.Tensor
    """Bool: where the result is of another kind than the exact value: NaN, an infinity, a zero of the other sign."""


def deviation(
    found: torch.Tensor, exact: torch.Tensor | Exact, unit: torch.Tensor | None = None, *, signed_zero: bool = True
) -> Deviation:
    """Compare a float result with the exact values, of the same shape."""
    exact = exact if isinstance(exact, Exact) else Exact(exact.double())
    error = ulp_error(found, exact, unit)
    wanted = exact.rounded(found.dtype)
    ours, theirs = kinds(found), kinds(wanted)
    small = (error <= NEAR_OVERFLOW) & exact.high.isfinite()
    # NaN on one side only is never a rounding error, whatever the ULP say.
    special = (ours != theirs) & ((ours == 1) | (theirs == 1))
    special |= ((ours == 2) | (ours == 3) | (theirs == 2) | (theirs == 3)) & (ours != theirs) & ~small
    # The sign of a zero that is a rounded nonzero value is not compared.
    special |= (ours >= 4) & (exact.high == 0) & (ours != theirs) & (theirs >= 4) & signed_zero
    return Deviation(torch.where(special | found.isnan(), float("nan"), error), special)
