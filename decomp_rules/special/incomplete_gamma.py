"""The regularised incomplete gamma functions P(a, x) and Q(a, x) = 1 − P(a, x).

The smaller one is x^a·e^−x / Γ(a) times an integral without oscillation, P over t = x·e^−s for x < a, Q over t = x·(1 +
s) for x ≥ a, on a scale where both decay like e^−v or e^−v²/2 for any a and x, so that a single Gauss–Legendre rule
works for all, along an extra dimension. Where both are small, the power series in x (DLMF 8.7). Errors are in ULP
against float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.special.gamma import log_gamma_above_one
from decomp_rules.support.floating import float_math, polynomial
from decomp_rules.support.operands import constant

RULES = Rules(level="exact")
register = RULES.register

# How many terms the series in x and in s, and that of the logarithm, have.
_TERMS = {torch.float32: (10, 8, 7), torch.float64: (18, 14, 16)}
# fmt: off
# As many coefficients a line as fit.
# a·(lnΓ(a) − (a − 1/2)·ln a + a − ln √2π) in powers of 1 / (a + 1/2), from a = 1 on.
_STIRLING = {
    torch.float32: (
        0.0833333331, 4.824563999e-8, -0.002779392531, -0.002757234446, -0.001416946589, 0.0006132769013,
        -0.0001380265358, -0.0001436461869,
    ),
    torch.float64: (
        0.083333333333333335, -1.9698940232407421e-15, -0.00277777777740262244, -0.00277777780593083955,
        -0.00128968143677299654, 0.000198386864101550084, 0.000521221869828509073, -0.000326277046106769685,
        -0.000826421037233298407, 0.000335097523377898841, 0.00178198227943493895, 0.00225572894494914562,
        -0.026042647819785681, 0.0735848343867911375, -0.123913622521085257, 0.141497116604667736,
        -0.111830090764503185, 0.0591495158068051554, -0.0189496000157433493, 0.00279004814425742216,
    ),
}
# Abscissas and weights of Gauss and Legendre's rule, laid over [0, 20] (float64: over [0, 36], closer together at 0).
_RULE = {
    torch.float32: (
        (
            0.0481278, 0.25271444, 0.61725448, 1.13584473, 1.79998014, 2.59875808, 3.51906348, 4.54578529,
            5.66206492, 6.8495732, 8.08881133, 9.35943107, 10.6405689, 11.9111887, 13.1504268, 14.3379351,
            15.4542147, 16.4809365, 17.4012419, 18.2000199, 18.8641553, 19.3827455, 19.7472856, 19.9518722,
        ),
        (
            0.123412298, 0.285313886, 0.442774388, 0.592985849, 0.733464814, 0.861901615, 0.976186521,
            1.0744427, 1.15505668, 1.21670473, 1.25837456, 1.27938195, 1.27938195, 1.25837456, 1.21670473,
            1.15505668, 1.0744427, 0.976186521, 0.861901615, 0.733464814, 0.592985849, 0.442774388, 0.285313886,
            0.123412298,
        ),
    ),
    torch.float64: (
        (
            7.38191834949428e-6, 0.00020467084220882461, 0.0012333338626919049, 0.0042373424361063004,
            0.010845617458637251, 0.023146750396973101, 0.043656491608376319, 0.07527842429185029,
            0.12125833495130904, 0.18513287416990107, 0.27067317667484494, 0.38182417643312295,
            0.52264041005893279, 0.69721914941683117, 0.9096317413706237, 1.1638540586872508,
            1.4636969808233245, 1.812737826506257, 2.2142536516217828, 2.6711573060285283, 3.1859371117741106,
            3.7606009831617661, 4.3966257567225254, 5.0949124370250677, 5.8557479931641785, 6.6787742615812917,
            7.562964424559851, 8.5066074413659005, 9.5073007117078162, 10.561951150167524, 11.666784746754836,
            12.817364584034088, 14.008617176661207, 15.234866895942469, 16.489878141460129, 17.766904825149397,
            19.058746641653073, 20.357811513459525, 21.656183521305503, 22.945695560567204, 24.218005903739499,
            25.46467779837156, 26.677261189623602, 27.847375627443573, 28.966793400612317, 30.027521933818584,
            31.021884489628852, 31.942598234753101, 32.782848759435448, 33.536360180518243, 34.197460014627628,
            34.761138086056284, 35.223098871485336, 35.579807093308506, 35.82852880976072, 35.967403758771111,
        ),
        (
            3.7883052460197654e-5, 0.0004637413292982918, 0.001784542724964391, 0.0044953832930795162,
            0.0090698081948604907, 0.015952406061555319, 0.025551768803522861, 0.038233918230654523,
            0.054316286273135823, 0.07406232792637259, 0.097676838027516643, 0.12530203414275489,
            0.15701445824738952, 0.19282273962267759, 0.23266625059925774, 0.27641467558001128,
            0.32386850231405747, 0.37476043281035808, 0.42875769971777006, 0.48546526260178521,
            0.54442984745807353, 0.60514478215699113, 0.6670555704436506, 0.72956613775011606,
            0.79204567352626235, 0.8538359871702333, 0.91425928803324592, 0.97262629446913917,
            1.0282445725653791, 1.0804270020835785, 1.128500265293214, 1.1718132538257568, 1.2097452894156054,
            1.2417140564207369, 1.2671831473056993, 1.2856691267826718, 1.2967480259879276, 1.3000611848518392,
            1.2953203686177102, 1.2823120931828647, 1.2609011034680038, 1.2310329592515449, 1.1927356937102383,
            1.1461205211559572, 1.0913815820192685, 1.0287947248756595, 0.95871533713124611,
            0.88157524782897446, 0.79787873802169689, 0.70819770696296975, 0.61316605874887875,
            0.51347340581391249, 0.40985829296072224, 0.30310173115411956, 0.19402705952725387,
            0.08362091047537556,
        ),
    ),
}
# fmt: on


@register(aten.igamma)
@float_math
def igamma(x: Tensor, other: Tensor) -> Tensor:
    """P(a, x) = ∫₀ˣ t^(a−1)·e^−t dt / Γ(a). Its error is about that of the exponent, 2⁻²³·|ln(x^a·e^−x / Γ(a))|."""
    return _incomplete(x, other, upper=False)


@register(aten.igammac)
@float_math
def igammac(x: Tensor, other: Tensor) -> Tensor:
    """Q(a, x) = 1 − P(a, x), as exact where it is small."""
    return _incomplete(x, other, upper=True)


def _incomplete(a: Tensor, x: Tensor, upper: bool) -> Tensor:
    a, x = torch.broadcast_tensors(a, x)
    regular = torch.logical_and(_positive(a), _positive(x))
    series = torch.logical_and(regular, torch.logical_and(a < 1, x < 1))
    near = _series(*_where_else_half(series, a, x), upper)
    left = x < a
    tail = _tail(left, *_where_else_one(torch.logical_and(regular, torch.logical_not(series)), a, x))
    far = torch.where(left, 1 - tail, tail) if upper else torch.where(left, tail, 1 - tail)
    # Where a·ln x overflows, PyTorch's kernel subtracts infinities.
    overflow = torch.logical_and(x < 0.5 * a, a.detach() * torch.log(torch.where(left, x, 1.0).detach()) == math.inf)
    far = torch.where(overflow, math.nan, far)
    # At the edges P is 0 or 1, or undefined; as in PyTorch's kernel, a NaN operand is ignored there.
    zero = torch.logical_or(x == 0, a == math.inf)
    one = torch.logical_or(x == math.inf, torch.logical_and(a == 0, x > 0))
    low, high = (constant(x, float(upper)), constant(x, float(not upper)))
    edge = torch.where(zero, low, torch.where(one, high, math.nan))
    edge = torch.where(torch.logical_or(torch.logical_or(x < 0, a < 0), a == x), math.nan, edge)
    return torch.where(regular, torch.where(series, near, far), edge)


def _positive(x: Tensor) -> Tensor:
    return torch.logical_and(0 < x, x < math.inf)


def _where_else_half(condition: Tensor, a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(condition, a, 0.5), torch.where(condition, x, 0.5)


def _where_else_one(condition: Tensor, a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(condition, a, 1.0), torch.where(condition, x, 1.0)


def _series(a: Tensor, x: Tensor, upper: bool) -> Tensor:
    """P(a, x) = x^a / Γ(a + 1)·(1 + a·Σ (−x)ᵏ / (k!·(a + k))) over k > 0, for a and x below 1; or 1 less that."""
    orders = range(1, _TERMS[x.dtype][0] + 1)
    signed = torch.tensor([(-1) ** k / math.factorial(k) for k in orders], dtype=x.dtype, device=x.device)
    k = torch.tensor([float(order) for order in orders], dtype=x.dtype, device=x.device)
    logarithm = torch.log(x)
    powers = torch.exp(torch.unsqueeze(logarithm, -1) * k)
    rest = a * torch.sum(signed * powers * torch.reciprocal(torch.unsqueeze(a, -1) + k), [-1])
    if upper:
        exponent = a * logarithm - log_gamma_above_one(a)
        return -torch.expm1(exponent) - torch.exp(exponent) * rest
    return torch.pow(x, a) * (torch.exp(-log_gamma_above_one(a)) * (1 + rest))


def _tail(left: Tensor, a: Tensor, x: Tensor) -> Tensor:
    """P(a, x) where `left`, Q(a, x) elsewhere."""
    abscissas, weights = (torch.tensor(row, dtype=x.dtype, device=x.device) for row in _RULE[x.dtype])
    distance = x - a
    shrink = torch.reciprocal(torch.maximum(torch.abs(distance), torch.sqrt(x)).detach())
    s = torch.unsqueeze(shrink, -1) * abscissas
    left, wide_a, wide_x, wide_distance = (torch.unsqueeze(part, -1) for part in (left, a, x, distance))
    lower = s * wide_distance - (wide_x * s) * _exp_rest(s)
    upper = (wide_a - 1) * s * _log_rest(s, torch.log1p(s)) - s * (wide_distance + 1)
    integral = torch.sum(weights * torch.exp(torch.where(left, lower, upper)), [-1])
    return _scale(a, x, distance) * (integral * shrink)


def _exp_rest(s: Tensor) -> Tensor:
    """(e^−s − 1 + s) / s for s > 0."""
    small = torch.where(s < 0.5, s, 0.5)
    terms = [(-1) ** k / math.factorial(k + 2) for k in range(_TERMS[s.dtype][1])]
    return torch.where(s < 0.5, small * polynomial(small, terms), 1 - (1 - torch.exp(-s)) * torch.reciprocal(s))


def _log_rest(s: Tensor, logarithm: Tensor) -> Tensor:
    """ln(1 + s) / s − 1 for s > −1, given ln(1 + s): below 1/2 from 2·artanh z with z = s / (2 + s)."""
    near = torch.abs(s) < 0.5
    small = torch.where(near, s, 0.5)
    half = torch.reciprocal(small + 2)
    z = small * half
    terms = [1 / (2 * k + 3) for k in range(_TERMS[s.dtype][2])]
    series = z * (2 * z * half * polynomial(z * z, terms) - 1)
    return torch.where(near, series, logarithm * torch.reciprocal(torch.where(near, 1.0, s)) - 1)


def _scale(a: Tensor, x: Tensor, distance: Tensor) -> Tensor:
    """x^a·e^−x / Γ(a), from a = 1 on by Stirling's formula, where the exponent is small next to a."""
    large = a >= 1
    below = torch.where(large, 1.0, a)
    bounded = torch.where(large, 1.0, x)
    direct = below * torch.exp(below * torch.log(bounded) - bounded - log_gamma_above_one(below))
    a = torch.where(large, a, 1.0)
    u = torch.reciprocal(a)
    relative = torch.where(large, distance, 0.0) * u
    logarithm = torch.log(torch.where(large, x, 1.0) * u)
    rest = u * polynomial(torch.reciprocal(a + 0.5), _STIRLING[x.dtype])
    exponent = (a * relative) * _log_rest(relative, logarithm) - rest
    return torch.where(large, torch.sqrt(a * (0.5 / math.pi)) * torch.exp(exponent), direct)
