"""Modified Bessel functions I and K of orders 0 and 1, plain and scaled by e^∓x.

Near 0 a polynomial in x² (with ln x for K), far from it e^±x / √x times a polynomial in 1/x or 1/(1 + x). The
coefficients are minimax fits made with 45 digits (Remez), the definitions those of DLMF 10.25 to 10.40. Errors are in
ULP against float64, over all float32, on a CPU whose exp2, log2 and sin are within 0.85.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.support.floating import float_math, polynomial

RULES = Rules(level="exact")
register = RULES.register

# fmt: off
# As many coefficients a line as fit.
# (I0(x) − 1) / w in powers of w = x²/4, up to x = 8.
_I0 = {
    torch.float32: (
        0.9999999997, 0.2500000117, 0.02777774998, 0.001736135999, 6.943324752e-5, 1.931872808e-6, 3.892887844e-8,
        6.560293033e-10, 5.349427735e-12, 1.404532393e-13,
    ),
    torch.float64: (
        1.0, 0.249999999999999893, 0.0277777777777782983, 0.0017361111111101249, 6.94444444454340505e-5,
        1.92901234507653943e-6, 3.93675991315379422e-8, 6.15118667055027398e-10, 7.59407107158400428e-12,
        7.593884203093948e-14, 6.27780267433550263e-16, 4.34632346019067998e-18, 2.63728006429193908e-20,
        1.13216992162447344e-22, 9.15447284495347922e-25,
    ),
}
# (2·I1(x) / x − 1) / w in powers of w = x²/4, up to x = 8.
_I1 = {
    torch.float32: (
        0.5000000026, 0.08333328829, 0.006944521587, 0.0003471714036, 1.159092052e-5, 2.724433207e-7,
        5.259248598e-9, 4.7477414e-11, 1.418699959e-12,
    ),
    torch.float64: (
        0.499999999999999989, 0.0833333333333340284, 0.00694444444444177422, 0.000347222222226295379,
        1.15740740707560844e-5, 2.75573193885502047e-7, 4.92094932733254783e-9, 6.83466441634337215e-11,
        7.59387536980973495e-13, 6.90568417935607761e-15, 5.21486067239141445e-17, 3.43169592089004495e-19,
        1.57690417113512264e-21, 1.38205306000592159e-23,
    ),
}
# e^−x·√x·I0(x) in powers of 1/x, from x = 8 on.
_I0_FAR = {
    torch.float32: (
        0.3989422809, 0.04986742008, 0.02809476502, 0.0272518755, 0.08511744783, -0.3055968194, 1.827636683,
    ),
    torch.float64: (
        0.398942280401432685, 0.0498677850501122909, 0.0280506291897938506, 0.0292193469329054267,
        0.0447604311476406497, 0.0871214873081606622, 0.672689305126890135, -39.3759438445206621,
        2657.0166356207568, -132843.555170815281, 5.12235348199605036e+6, -1.542764313271657e+8,
        3.66331656006519364e+9, -6.89412508120830097e+10, 1.03005735191533255e+12, -1.21971579826901827e+13,
        1.13841158205204509e+14, -8.29302182419361693e+14, 4.64228876706337814e+15, -1.9495418266983719e+16,
        5.9147259677448986e+16, -1.21734874479702555e+17, 1.50987622172577177e+17, -8.42644138001458534e+16,
    ),
}
# The same of I1.
_I1_FAR = {
    torch.float32: (
        0.3989422798, -0.1496029322, -0.04680181883, -0.03865798674, -0.103438366, 0.3379353781, -2.077047506,
    ),
    torch.float64: (
        0.39894228040143267, -0.149603355150466225, -0.0467510485895567512, -0.0409071057409687399,
        -0.0575448986296475415, -0.107078886851245373, -0.735496007386357079, 41.0789710306705273,
        -2770.05727402211325, 138128.714471491433, -5.31244023663949062e+6, 1.59580603844452111e+8,
        -3.77896175702942159e+9, 7.09146768232536829e+10, -1.05631805749280694e+12, 1.24668186681670249e+13,
        -1.15933511231378742e+14, 8.41072926022743255e+14, -4.68590486457890924e+15, 1.9568791458184247e+16,
        -5.89676459917374567e+16, 1.20329656812464169e+17, -1.47563294870999886e+17, 8.10476282172096257e+16,
    ),
}
# K0(x) + ln x·I0(x) in powers of x², up to 1.
_K0 = {
    torch.float32: (
        0.1159315158, 0.2789828686, 0.0252490286, 0.0008457241762, 1.530050431e-5,
    ),
    torch.float64: (
        0.115931515658412449, 0.278982878914603112, 0.0252489299321626964, 0.000846035090708202007,
        1.49147192993775781e-5, 1.62710560686275673e-7, 1.20842681425901354e-9, 6.50802508446230556e-12,
        2.69708182427709214e-14,
    ),
}
# (K1(x) − ln x·I1(x) − 1/x) / x in powers of x², up to 1.
_K1 = {
    torch.float32: (
        -0.3079657582, -0.08537071498, -0.004642205067, -0.0001124907395, -1.600853188e-6,
    ),
    torch.float64: (
        -0.307965757829207156, -0.0853707197286250635, -0.00464218276670287119, -0.000112536069395423343,
        -1.55929093113375483e-6, -1.40275347927939977e-8, -9.03689695829796695e-11,
    ),
}
# (I0(x) − 1) / x² in powers of x², up to 1.
_I0_NEAR = {
    torch.float32: (
        0.2499999952, 0.01562504665, 0.0004338869772, 6.94876792e-6,
    ),
    torch.float64: (
        0.250000000000000025, 0.0156249999999993589, 0.000434027777783335309, 6.78168400497778699e-6,
        6.78168902449787334e-8, 4.70890164878693824e-10, 2.4402285364856403e-12,
    ),
}
# I1(x) / x in powers of x², up to 1.
_I1_NEAR = {
    torch.float32: (
        0.5, 0.06249999946, 0.002604171041, 5.424111688e-5, 6.923513826e-7,
    ),
    torch.float64: (
        0.5, 0.062500000000000002, 0.00260416666666662493, 5.42534722225590329e-5, 6.78168401445340303e-7,
        5.65140621461076995e-9, 3.36359141724562227e-11, 1.52267149755378831e-13,
    ),
}
# e^x·√x·K0(x) in powers of t = 1 / (1 + x), from x = 1 on.
_K0_FAR = {
    torch.float32: (
        1.253314131, -0.1566623945, -0.06863496461, -0.07038474151, -0.04481375807, 0.01894123957, -0.2476621453,
        0.3457720876, -0.3035371513,
    ),
    torch.float64: (
        1.25331413731550022, -0.156664267164385752, -0.0685406169009163922, -0.0722124335558168166,
        -0.0271180528888685502, -0.0773269852036901271, 0.0657855422695698152, -0.319999140016971092,
        0.959961553328263311, -3.53760744257666053, 12.3599695941445513, -40.2446135767984385, 114.623294152001649,
        -275.967515562867832, 544.699135047861173, -857.887711064731174, 1045.17118100271854, -945.234813801648256,
        595.200490540504234, -232.161073300604198, 42.0417944269763191,
    ),
}
# The same of K1.
_K1_FAR = {
    torch.float32: (
        1.253314139, 0.4699921779, 0.3231683627, 0.3033093519, 0.2564082895, 0.0820030904, 1.177479283, -3.18387776,
        7.350811108, -8.417591676, 4.865860254,
    ),
    torch.float64: (
        1.25331413731550026, 0.469992801493300952, 0.323120051030900743, 0.304760956600602132, 0.23419323826146524,
        0.278582611906556015, 0.105086094873933212, 0.529255794074047419, -0.923465609899828824,
        4.30226501760874559, -15.4170852997903241, 56.5427657616920882, -184.497284204783525, 525.966103732443956,
        -1262.68549340132943, 2494.98833087573705, -3956.38874674574247, 4894.58995375675326, -4541.15334751056617,
        2972.16643185366953, -1224.99194632483716, 240.432553512445092,
    ),
}
# fmt: on


@register(aten.i0, aten.special_modified_bessel_i0)
@float_math
def i0(x: Tensor) -> Tensor:
    """I0(x) = Σ (x²/4)ᵏ / k!², from 8 on e^x / √x times a polynomial in 1/x. ≤ 5 ULP."""
    # Where e^x is infinite, so would be the slope of its factor, of the other sign.
    far, growth = _far(x, _I0_FAR[x.dtype]), torch.exp(_outside(x))
    far = torch.where(growth == math.inf, far.detach(), far)
    return torch.where(torch.abs(x) >= 8, growth * far, _i0_near(x))


@register(aten.special_i0e)
@float_math
def i0e(x: Tensor) -> Tensor:
    """e^−|x|·I0(x). ≤ 3.8 ULP."""
    near = _i0_near(x) * torch.exp(-torch.abs(_inside(x)))
    return torch.where(torch.abs(x) >= 8, _far(x, _I0_FAR[x.dtype]), near)


@register(aten.special_i1, aten.special_modified_bessel_i1)
@float_math
def i1(x: Tensor) -> Tensor:
    """I1(x) = x/2·Σ (x²/4)ᵏ / (k!·(k + 1)!), from 8 on ±e^|x| / √|x| times a polynomial in 1/|x|. ≤ 4.3 ULP."""
    near, far = _i1_parts(x)
    return torch.where(torch.abs(x) >= 8, torch.exp(_outside(x)) * far, near)


@register(aten.special_i1e)
@float_math
def i1e(x: Tensor) -> Tensor:
    """e^−|x|·I1(x). ≤ 3.4 ULP."""
    near, far = _i1_parts(x)
    return torch.where(torch.abs(x) >= 8, far, near * torch.exp(-torch.abs(torch.where(torch.abs(x) < 8, x, 0.0))))


def _i0_near(x: Tensor) -> Tensor:
    """I0(x) where not |x| ≥ 8, elsewhere no more than a number."""
    inside = _inside(x)
    w = inside * inside * 0.25
    return 1 + w * polynomial(w, _I0[x.dtype])


def _i1_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """I1(x) where not |x| ≥ 8, and e^−|x|·I1(x) beyond; elsewhere no more than numbers."""
    # At NaN the op's slope is 1/2, and at −0 its value is 0.
    inside = torch.where(torch.abs(x) < 8, x, 0.0)
    w = inside * inside * 0.25
    half = _inside(x) * 0.5
    far = _far(x, _I1_FAR[x.dtype])
    return half + half * (w * polynomial(w, _I1[x.dtype])) + 0.0, torch.where(x < 0, -far, far)


def _inside(x: Tensor) -> Tensor:
    return torch.where(torch.abs(x) >= 8, 0.0, x)


def _outside(x: Tensor) -> Tensor:
    magnitude = torch.abs(x)
    return torch.where(magnitude >= 8, magnitude, 8.0)


def _far(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    # The reciprocal of the largest floats is subnormal; the square of that of the root is just as good.
    root = torch.rsqrt(_outside(x))
    return root * polynomial(root * root, coefficients)


@register(aten.special_modified_bessel_k0)
@float_math
def k0(x: Tensor) -> Tensor:
    """K0(x), up to 1 as a polynomial in x² minus ln x·I0(x), beyond as e^−x / √x times one in
    1 / (1 + x). ≤ 3.9 ULP."""
    near, far = _k0_parts(x)
    return torch.where(x < 1, near, far * torch.exp(-x))


@register(aten.special_scaled_modified_bessel_k0)
@float_math
def scaled_k0(x: Tensor) -> Tensor:
    """e^x·K0(x). ≤ 3.8 ULP."""
    near, far = _k0_parts(x)
    return torch.where(x < 1, near * torch.exp(torch.where(x < 1, x, 0.0)), far)


@register(aten.special_modified_bessel_k1)
@float_math
def k1(x: Tensor) -> Tensor:
    """K1(x), up to 1 as 1/x + ln x·I1(x) + x·p(x²), beyond as e^−x / √x times one in
    1 / (1 + x). ≤ 3.6 ULP."""
    near, far = _k1_parts(x)
    return torch.where(x < 1, near, far * torch.exp(-x))


@register(aten.special_scaled_modified_bessel_k1)
@float_math
def scaled_k1(x: Tensor) -> Tensor:
    """e^x·K1(x). ≤ 3.8 ULP."""
    near, far = _k1_parts(x)
    return torch.where(x < 1, near * torch.exp(torch.where(x < 1, x, 0.0)), far)


def _k0_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """K0(x) where x < 1, and e^x·K0(x) beyond; elsewhere no more than numbers."""
    inside = torch.where(x < 1, x, 1.0)
    w = inside * inside
    i0 = 1 + w * polynomial(w, _I0_NEAR[x.dtype])
    return polynomial(w, _K0[x.dtype]) - torch.log(inside) * i0, _k_far(x, _K0_FAR[x.dtype])


def _k1_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """K1(x) where x < 1, and e^x·K1(x) beyond; elsewhere no more than numbers."""
    inside = torch.where(x < 1, x, 1.0)
    w = inside * inside
    i1 = polynomial(w, _I1_NEAR[x.dtype])
    rest = inside * (torch.log(inside) * i1 + polynomial(w, _K1[x.dtype]))
    # At 0 the rest is 0·∞, and below 0 it is no number.
    near = torch.reciprocal(torch.abs(inside)) + torch.where(x == 0, 0.0, rest)
    return near, _k_far(x, _K1_FAR[x.dtype])


def _k_far(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    outside = torch.where(x < 1, 1.0, x)
    return torch.rsqrt(outside) * polynomial(torch.reciprocal(1 + outside), coefficients)
