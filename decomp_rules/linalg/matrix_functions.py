"""Functions of a square matrix: the exponential, and powers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.linalg.matrices import identity
from decomp_rules.support.operands import HALVES, cast, constant

RULES = Rules(level="exact")
register = RULES.register

SQUARINGS = 24
"""How often a matrix may be squared. Above a norm of 2²⁴ float32 knows the entries to no better than 1, and the
exponential to no digit."""

NEAR = {torch.float64: 1.0}
"""Up to which norm Taylor's polynomial of degree 18 is exact to rounding; 3 for float32. (θ¹⁹ / 19! e^θ against ε.)"""

INVERSE_FACTORIALS = [1 / math.factorial(k) for k in range(19)]


@register(aten.linalg_matrix_exp, aten.matrix_exp)
def linalg_matrix_exp(x: Tensor) -> Tensor:
    """Taylor's polynomial of degree 18 of x / 2ˢ, squared s times, with the least s that makes the norm small enough;
    squarings that a matrix of the batch does not need are not taken. Half the kernel's error or less on random
    matrices up to norm 50. The polynomial in seven products: Paterson and Stockmeyer, SIAM J. Comput. 2 (1973)."""
    n = x.shape[-1]
    if n == 0:
        return x.clone()
    a = x.to(torch.float32) if x.dtype in HALVES else x
    norm = torch.amax(torch.sum(torch.abs(a.detach()), [-2], keepdim=True), [-1], True)
    near = NEAR.get(norm.dtype, 3.0)
    # 2^⌈log₂ norm⌉ by comparison: it is the number of steps that is needed.
    ratio = norm * (1 / near)
    scale, steps = constant(norm, 1), []
    for k in range(SQUARINGS):
        step = torch.lt(constant(norm, 2.0**k), ratio)
        scale = torch.where(step, constant(norm, 2.0 ** -(k + 1)), scale)
        steps.append(step)
    power = _taylor(a * cast(scale, a.dtype))
    for k in range(SQUARINGS):
        power = torch.where(steps[k], torch.matmul(power, power), power)
    return cast(power, x.dtype)


def _taylor(a: Tensor) -> Tensor:
    """Σ aᵏ / k! up to k = 18, in powers of a⁶ whose coefficients are polynomials of degree 5, small terms first."""
    powers = [identity(a, a.shape[-1]), a]
    for _ in range(5):
        powers.append(torch.matmul(powers[-1], a))
    total = powers[6] * INVERSE_FACTORIALS[18]
    for block in (12, 6, 0):
        for k in (5, 4, 3, 2, 1, 0):
            total = total + powers[k] * INVERSE_FACTORIALS[block + k]
        total = torch.matmul(total, powers[6]) if block else total
    return total
