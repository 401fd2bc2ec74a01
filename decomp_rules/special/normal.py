"""The normal distribution, its logarithm and its inverse, and their building blocks: the scaled complementary error
function, and the inverse of the error function.

The coefficients are minimax fits made with 45 digits (Remez) to the definitions in DLMF 7.2 and 7.17. Errors are in ULP
against float64, over all float32, on a CPU whose exp2, log2 and sin are within 0.85.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.support.floating import float_math, polynomial, square_error

RULES = Rules(level="exact")
register = RULES.register

# The slope s of t = 1 / (1 + s·x) in the scaled complement.
_SLOPE = {torch.float32: 0.5, torch.float64: 0.375}
# fmt: off
# As many coefficients a line as fit.
# e^x²·erfc(x) / t in powers of t = 1 / (1 + x/2) (float64: 1 / (1 + 3x/8)), for x ≥ 0.
_ERFCX = {
    torch.float32: (
        0.2820947921, 0.2820946991, 0.2468372553, 0.1762368257, 0.08425913545, -0.005203574834, -0.06793479071,
        0.03149005765, -0.292984111, 0.603552525, -0.5221525123, 0.2186531165, -0.03694341915,
    ),
    torch.float64: (
        0.211571093830408604, 0.211571093830414055, 0.196695001294256859, 0.166942816330654894,
        0.125452459518913842, 0.0784999357119044904, 0.0343927843235265425, 0.0013137744268255614,
        -0.0160033779114157695, -0.0137057412364423476, -0.0220659953969623227, 0.0769155244470313858,
        -0.252990922721265638, 0.774551170443656106, -1.79929818962135667, 3.33179458093927728,
        -4.90963465393560577, 5.59772599801952461, -4.83459248942553204, 3.11219186359092168, -1.46158993965415681,
        0.482539215655740941, -0.104619652808997622, 0.0129994839391220123, -0.000655833590443842387,
    ),
}
# erf⁻¹(x) / x in powers of x² − 0.4, up to 0.9.
_ERFINV = {
    torch.float32: (
        1.007440841, 0.4032215167, 0.3577765402, 0.3982059453, 0.4937457971, 0.6485822654, 0.8780524009,
        1.354019631, 2.288287102, 1.032026721, -2.910661906, 23.12337825, 68.13642714, -80.59431195, -251.8090377,
        268.8716663, 618.7338489,
    ),
    torch.float64: (
        1.00744083812065736, 0.403221624110019453, 0.35777864440437345, 0.398175832303626481, 0.493442200521725013,
        0.651027352689932225, 0.894823739034557065, 1.26586657071181773, 1.82943703550065043, 2.68780450074007833,
        4.00082252221934499, 6.01965766932302993, 9.1415104626451866, 13.9483025250821641, 21.2654804780956767,
        33.9747366111724063, 58.5031987564684012, 63.0655439534581752, -21.9354128849410469, 525.383746035844321,
        2759.3271704113721, -4061.72418635197572, -29842.1643020027742, 49451.380241570317, 293871.562671435078,
        -381265.235928420968, -2.09833284469456416e+6, 2.2878102737375418e+6, 1.12973459140836584e+7,
        -9.75493689262441603e+6, -4.37320789303821111e+7, 2.88469932079693666e+7, 1.16430839891352597e+8,
        -5.24371661277298857e+7, -1.90587225000766009e+8, 4.61754632014746837e+7, 1.48196640030777878e+8,
    ),
}
# (erf⁻¹(1 − q) − w)·w + ½·ln w in powers of 1 / (w + 1) − 0.25, where w = √(−ln q), for q ≤ 0.1.
_ERFINV_TAIL = {
    torch.float32: (
        -0.306410853, -0.1069691817, -0.174081128, -0.7408800033, -1.725834228, -0.9817583484,
    ),
    torch.float64: (
        -0.306410861848090423, -0.106968454152649692, -0.174069210740087995, -0.741585732593798286,
        -1.72363070315760296, -0.858120786433259125, -1.34233743593395458, 4.4905190182410709, -6.25725918877936544,
        29.2878315876763819, -91.3650286343800104, 247.406674555566362, -843.160202570642867, 2595.17284233535649,
        -7702.35136314346601, 30007.7858169383773, -144701.984761113692, 477175.372092972361, -666273.191886924608,
    ),
}
# Φ⁻¹(p) / (p − 1/2) in powers of (p − 1/2)² − 0.1, for 0.05 ≤ p ≤ 0.95.
_NDTRI = {
    torch.float32: (
        2.849473, 4.561930701, 16.19111793, 72.08297581, 357.5101453, 1878.494896, 10172.4456, 62746.55604,
        424165.5929, 765201.5788, -8.632501626e+6, 2.743191848e+8, 3.233286927e+9, -1.529781036e+10,
        -1.911860433e+11, 8.16563385e+11, 7.516380034e+12,
    ),
    torch.float64: (
        2.84947299311750285, 4.56193191566796546, 16.1912131598120251, 72.077524768381911, 357.290317939224555,
        1885.57662545912546, 10366.7455400020594, 58661.4594749620788, 339111.400848654504, 1.99288662426037965e+6,
        1.18657226552148789e+7, 7.14129036152191276e+7, 4.33793311409405192e+8, 2.64756268312082911e+9,
        1.61458177974241562e+10, 1.03181253448078972e+11, 7.1069742936198291e+11, 3.06449610219467912e+12,
        -4.26370924679607333e+12, 4.0846706651669437e+14, 8.58124545355242787e+15, -5.05251558942244806e+16,
        -1.48490230189785994e+18, 9.84230903281167069e+18, 2.33961872868789809e+20, -1.21413216618813268e+21,
        -2.6728954067487161e+22, 1.16567974765882211e+23, 2.3025231917597682e+24, -7.9525082881354265e+24,
        -1.42609250500505813e+26, 3.76270982155945416e+26, 6.07484982210198176e+27, -1.09435923277971655e+28,
        -1.59104039024929438e+29, 1.54188722957112376e+29, 1.97945476742421385e+30,
    ),
}
# ln w − (Φ⁻¹(p) + w)·w in powers of 1 / (w + 4) − 0.0625, where w = √(−2·ln p), for p ≤ 0.05.
_NDTRI_TAIL = {
    torch.float32: (
        -0.9428017569, -0.6681264891, -4.830836621, -12.53728915, -170.7260979, 1432.509651, -30404.48528,
        220879.1681, -926322.5665,
    ),
    torch.float64: (
        -0.94280192402491884, -0.668075033801510874, -4.82835875994115444, -13.378386600218133,
        -116.826437614890248, -176.796084810904949, -4912.29624291314083, 14129.126398551613, -349895.347106592308,
        3.00241049829798398e+6, -4.05822203031925647e+7, 4.66113692869973503e+8, -5.91664347603944639e+9,
        7.77468284547332343e+10, -1.08351930893021323e+12, 1.34006801373321803e+13, -1.25877432470216293e+14,
        1.24462548046785283e+15, -2.95862551583392996e+16, 7.40009977854120474e+17, -1.21797634679924709e+19,
        1.31175249073239932e+20, -9.34429372404403365e+20, 4.28047371621325143e+21, -1.14885884175214481e+22,
        1.37881842054908086e+22,
    ),
}
# fmt: on


@register(aten.special_erfcx)
@float_math
def erfcx(x: Tensor) -> Tensor:
    """e^x²·erfc(x), t times a polynomial in t = 1 / (1 + x/2) on the right, and 2·e^x² minus that on the left."""
    negative = x < 0
    tail = _scaled_complement(torch.where(negative, -x, x))
    return torch.where(negative, 2 * _exp_square(torch.where(negative, x, 0.0)) - tail, tail)


def _scaled_complement(x: Tensor) -> Tensor:
    """e^x²·erfc(x) for x ≥ 0."""
    t = torch.reciprocal(1 + _SLOPE[x.dtype] * x)
    return t * polynomial(t, _ERFCX[x.dtype])


def _exp_square(x: Tensor, sign: int = 1) -> Tensor:
    """e^±x², with x² to twice the digits: e^lost ≈ 1 + lost; of an infinite x that is NaN."""
    square = x * x
    lost = square_error(x.detach(), square.detach())
    lost = torch.where(torch.abs(lost) < 1, lost * sign, 0.0)
    result = torch.exp(square * sign)
    return result + torch.where(result < math.inf, result * lost, 0.0)


@register(aten.special_log_ndtr)
@float_math
def log_ndtr(x: Tensor) -> Tensor:
    """ln Φ(x) = log1p(−erfc(x/√2) / 2), below −1 as ln(e^y²·erfc(y) / 2) − x²/2 with y = −x/√2."""
    left = x < -1
    low = torch.where(left, x, -1.0)
    below = torch.log(0.5 * _scaled_complement(low * -math.sqrt(0.5))) - (0.5 * low) * low
    above = torch.log1p(-0.5 * torch.erfc(torch.where(left, 0.0, x) * math.sqrt(0.5)))
    return torch.where(left, below, above)


@register(aten.erfinv)
@float_math
def erfinv(x: Tensor) -> Tensor:
    """y with erf(y) = x: x times a polynomial in x² up to 0.9, beyond from w = √(−ln q), q = 1 − |x|, which it
    approaches."""
    magnitude = torch.abs(x)
    near = magnitude < 0.9
    inside = torch.where(near, x, 0.0)
    q = 1 - magnitude
    inverse = _from_logarithm(-torch.log(_proper(near, q)), (1.0, -0.25), _ERFINV_TAIL[x.dtype], -0.25)
    inverse = torch.where(q == 0, _pole(q), inverse)
    outside = torch.where(x < 0, -inverse, inverse)
    return torch.where(near, inside * polynomial(inside * inside - 0.4, _ERFINV[x.dtype]), outside)


@register(aten.special_ndtri)
@float_math
def ndtri(x: Tensor) -> Tensor:
    """z with Φ(z) = p: a polynomial in p − 1/2 between 0.05 and 0.95, outside from w = √(−2·ln p), or that of 1 − p,
    which −z approaches."""
    distance = x - 0.5
    near = torch.abs(distance) < 0.45
    inside = torch.where(near, distance, 0.0)
    left = x < 0.5
    q = torch.where(left, x, 1 - x)
    inverse = _from_logarithm(-2 * torch.log(_proper(near, q)), (4.0, -0.0625), _NDTRI_TAIL[x.dtype], -0.5)
    inverse = torch.where(q == 0, _pole(q), inverse)
    outside = torch.where(left, -inverse, inverse)
    return torch.where(near, inside * polynomial(inside * inside - 0.1, _NDTRI[x.dtype]), outside)


def _proper(near: Tensor, q: Tensor) -> Tensor:
    """q where neither it nor its logarithm is 0."""
    return torch.where(torch.logical_or(near, q == 0), 0.05, q)


def _pole(q: Tensor) -> Tensor:
    """∞ where q is 0, with an infinite gradient, the same for −0; elsewhere 1."""
    return torch.reciprocal(torch.where(q == 0, q + 0.0, 1.0))


def _from_logarithm(
    logarithm: Tensor, offsets: tuple[float, float], coefficients: tuple[float, ...], share: float
) -> Tensor:
    """w + (share·ln w² + a polynomial in 1 / (w + a) + b) / w, where w² is the logarithm and a, b are the offsets."""
    w = torch.sqrt(logarithm)
    t = torch.reciprocal(w + offsets[0]) + offsets[1]
    rest = share * torch.log(logarithm) + polynomial(t, coefficients)
    # Correcting the rounding of the root gains another half ULP.
    root = w.detach()
    square = root * root
    rest = rest + 0.5 * ((logarithm.detach() - square) - square_error(root, square))
    return w + rest * torch.reciprocal(w)
