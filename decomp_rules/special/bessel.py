"""Bessel functions J and Y of orders 0 and 1, the spherical one of order 0, and Airy's function.

Up to the middle of the second bump polynomials around their middle, with the first zero taken out as a factor; from
there on amplitudes in powers of 1/x² times the sine and the cosine of x itself, which are as exact as the target's sine
(DLMF 10.17 and 9.7). The coefficients are minimax fits made with 45 digits (Remez). Near the further zeros the error is
absolute, about one ULP of the amplitude.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.support.floating import float_math, polynomial
from decomp_rules.support.operands import constant

RULES = Rules(level="exact")
register = RULES.register

TWO_OVER_PI = 2 / math.pi

# Where the waves begin, and the middle of x² below.
_FROM = {torch.float32: 3.0, torch.float64: 5.0}
_MIDDLE = {torch.float32: 1.0, torch.float64: 12.0}
# The first zeros of J0, J1 and Ai: the float next to them, and the rest.
_ZERO_J0 = {
    torch.float32: (2.40482544898987, 1.08705904605e-7),
    torch.float64: (2.404825557695773, -1.17669165153089e-16),
}
_ZERO_J1 = {
    torch.float32: (3.83170604705811, -7.68505931531e-8),
    torch.float64: (3.8317059702075125, -1.52691840900881e-16),
}
_ZERO_AI = {
    torch.float32: (-2.3381073474884, -6.29713637182e-8),
    torch.float64: (-2.338107410459767, -3.91226040981831e-17),
}
# fmt: off
# As many coefficients a line as fit.
# J0(x) / (x² − z²) up to x = 3 in powers of x² − 1 (float64: up to 5, of x² − 12), where z is the first zero of J0.
_J0 = {
    torch.float32: (
        -0.1599765705, 0.01255412666, -0.0003781598692, 6.148609139e-6, -6.291147787e-8, 4.414409265e-10,
        -2.068828427e-12,
    ),
    torch.float64: (
        -0.0603083756420396068, 0.00616193588236462885, -0.000215505655114943321, 3.8602514396484987e-6,
        -4.22865583915589682e-8, 3.13498694831879526e-10, -1.68029527984768668e-12, 6.82150032011699417e-15,
        -2.17163409517314257e-17, 5.56904815376807927e-20, -1.17542286229561743e-22, 2.07949582124270139e-25,
        -3.0632248412507838e-28,
    ),
}
# J1(x) / (x·(x² − z²)), likewise, where z is the first zero of J1.
_J1 = {
    torch.float32: (
        -0.03216280736, 0.001848340171, -4.363980503e-5, 5.814901783e-7, -5.011396814e-9, 2.783460229e-11,
    ),
    torch.float64: (
        -0.0164064183310452276, 0.00107469143249049269, -2.77227889865777998e-5, 3.93785508209461974e-7,
        -3.5758947876620718e-9, 2.2646240038211215e-11, -1.05960106443227372e-13, 3.81732512624271199e-16,
        -1.09237131319468383e-18, 2.54431093758510473e-21, -4.92338434877717772e-24, 7.90430242863736959e-27,
    ),
}
# Y0(x) − 2/π·ln x·J0(x), likewise.
_Y0 = {
    torch.float32: (
        0.08825696422, 0.1470364221, -0.0145141057, 0.0005016432601, -8.98845055e-6, 9.903849664e-8,
        -7.369266882e-10, 3.605871223e-12,
    ),
    torch.float64: (
        0.500253016170971302, -0.0314492847340019757, -0.00331699360701753092, 0.000208201510843690884,
        -4.71398198019743988e-6, 5.92196764794401129e-8, -4.82216286755859109e-10, 2.77240376175664412e-12,
        -1.18969235793891528e-14, 3.96390436761206603e-17, -1.05638708710442345e-19, 2.30484617107569797e-22,
        -4.19934014048071385e-25, 6.39973863703354827e-28,
    ),
}
# (Y1(x) − 2/π·(ln x·J1(x) − 1/x)) / x, likewise.
_Y1 = {
    torch.float32: (
        -0.144593049, 0.0486490796, -0.002746244796, 6.775977661e-5, -9.486146301e-7, 8.542308952e-9,
        -4.856326399e-11,
    ),
    torch.float64: (
        0.135840656908495213, 0.00835664403638919333, -0.0010957559837064375, 3.50838710255596636e-5,
        -5.64044105483795445e-7, 5.58051639358942399e-9, -3.77178390892401362e-11, 1.85925598389752827e-13,
        -6.99467398993882669e-16, 2.07687820020219811e-18, -4.99502571835015375e-21, 9.94540244619917134e-24,
        -1.64973761362508954e-26,
    ),
}
# P and x·Q of order 0, the amplitudes of the cosine and the sine in J0, from there on in powers of 1/x².
_P0 = {
    torch.float32: (
        0.9999999945, -0.07030657415, 0.1110914566, -0.4955663145, 2.90844311, -12.97004594, 27.372674,
    ),
    torch.float64: (
        0.999999999999999988, -0.0703124999997763127, 0.112152098933514613, -0.572500605647326356,
        6.07351605551034263, -109.80612653949192, 2980.13211404238567, -107128.850373238672, 4.39760157920875015e+6,
        -1.79035721177122357e+8, 6.52234911303762546e+9, -1.98954577555546014e+11, 4.85508828156028304e+12,
        -9.11585494830417078e+13, 1.25978704387410448e+15, -1.20155642261785769e+16, 7.04462276529789947e+16,
        -1.90961152112755494e+17,
    ),
}

_Q0 = {
    torch.float32: (
        -0.1249999994, 0.07324094508, -0.2266504141, 1.659136306, -18.62921355, 219.1641234, -2081.80553,
        13600.07506, -52572.84724, 89589.41432,
    ),
    torch.float64: (
        -0.124999999999999998, 0.0732421874999509313, -0.227108001486857073, 1.72772710102111789,
        -24.3801409740500038, 551.101439165093553, -18160.8695380010749, 803486.326482763909,
        -4.31567842662382202e+7, 2.50307326214664147e+9, -1.41292717869813121e+11, 7.21591324659853325e+12,
        -3.18511506768609318e+14, 1.18044178631093837e+16, -3.59758098386016457e+17, 8.85119832759316798e+18,
        -1.72258698400645445e+20, 2.58285701060491115e+21, -2.87175714886783698e+22, 2.22615494700125407e+23,
        -1.07268937704691667e+24, 2.41687609919087023e+24,
    ),
}
# P and x·Q of order 1, the amplitudes of the cosine and the sine in J1, from there on in powers of 1/x².
_P1 = {
    torch.float32: (
        1.000000002, 0.117185373, -0.1436990505, 0.6296956814, -4.405930224, 28.89604261, -125.0253717, 245.4912899,
    ),
    torch.float64: (
        1.00000000000000001, 0.117187499999764091, -0.1441955559277905, 0.676591728487830939, -6.88335958825557435,
        121.375392249304589, -3241.18078444392445, 115306.068544120391, -4.70376422897557944e+6,
        1.90818830206035754e+8, -6.93754692289539316e+9, 2.1136860281767682e+11, -5.15429230512525662e+12,
        9.67318941765811761e+13, -1.33640723480283787e+15, 1.27437884447932793e+16, -7.47055881950686763e+16,
        2.02488516682595806e+17,
    ),
}

_Q1 = {
    torch.float32: (
        0.374999998, -0.1025355544, 0.2765249363, -1.865101328, 18.40998626, -174.6853151, 1216.736888,
        -5104.129157, 9441.882125,
    ),
    torch.float64: (
        0.374999999999999995, -0.102539062499874175, 0.277576446013785256, -1.99353087794527132,
        27.2480723047180461, -603.429030690335338, 19561.9899363734821, -847013.882998801347,
        4.37766409853539675e+7, -2.3863843644887409e+9, 1.23780199146088941e+11, -5.69901998574633077e+12,
        2.23031400612588009e+14, -7.20998244244354724e+15, 1.88254953928118571e+17, -3.88239507955442187e+18,
        6.15372969710757169e+19, -7.21242972566549318e+20, 5.87649058231024808e+21, -2.96770040089110236e+22,
        6.98864248640038813e+22,
    ),
}
# Ai(x) in powers of x + 0.1 for −1.2 ≤ x ≤ 1.
_CENTRE = {
    torch.float32: (
        0.3808486681, -0.2569581241, -0.01904242529, 0.06775760187, -0.02125461583, -0.001291753312, 0.002329994691,
        -0.0005014570584, -2.825440669e-5, 3.1879327e-5, -4.710350867e-6,
    ),
    torch.float64: (
        0.380848668120121512, -0.256958112323646173, -0.0190424334060061285, 0.0677574132254143118,
        -0.0212544890819190376, -0.00129090873642704951, 0.00232942873777194759, -0.000502985671625395606,
        -2.72116358171602361e-5, 3.30517681122058174e-5, -5.55849477588548562e-6, -2.77425512594497296e-7,
        2.54603612345508958e-7, -3.5453671616562124e-8, -1.6647211624825492e-9, 1.22945456826853332e-9,
        -1.46678399707038967e-10, -6.70498963361267642e-12, 3.93522898660953259e-12, -3.72165925150918033e-13,
    ),
}
# Ai(x) / (x − z) in powers of x + 2.6 for −4 ≤ x ≤ −1.2, where z is the first zero.
_BUMP = {
    torch.float32: (
        0.6815864063, 0.152537407, -0.3036196679, 0.01593745424, 0.04866760033, -0.0112579849, -0.002753512797,
        0.001398005513, -5.224230859e-5, -7.250343849e-5, 1.367996272e-5, 1.360750782e-6, -6.058292794e-7,
    ),
    torch.float64: (
        0.681586406281194541, 0.152537417115407643, -0.303619665762635718, 0.0159373230664973332,
        0.0486675662722586338, -0.0112574809695290719, -0.00275336942144006705, 0.00139715226967759546,
        -5.24965903337546336e-5, -7.17783137802675858e-5, 1.38974239543706538e-5, 1.04831504792514397e-6,
        -6.94555317370945028e-7, 6.08709556256773443e-8, 1.37236408990697554e-8, -3.55760534268007057e-9,
        8.99579490339855728e-11, 7.55756575914304476e-11, -1.09752361115960403e-11, -3.31817659981421455e-13,
        2.26832910426517888e-13, -1.46841945421475035e-14,
    ),
}
# Ai(x)·e^ζ·x^1/4 in powers of 1 / (1 + ζ) from x = 1 on, where ζ = 2/3·x^3/2.
_DECAY = {
    torch.float32: (
        0.2820947914, -0.01958975647, -0.009124723801, -0.009114890217, -0.007061783132, 0.01192448611,
        -0.08943887831, 0.2369047376, -0.4134595881, 0.3902388597, -0.1707976003,
    ),
    torch.float64: (
        0.282094791773878138, -0.0195899160953988187, -0.00911475263057984699, -0.00935723291721037226,
        -0.00405484404276211583, -0.00969502576111076491, 0.0067121931608841839, -0.0370870284197978316,
        0.107486860356042357, -0.393044781152623153, 1.33475894615366965, -4.18966998428555368, 11.3410047807563429,
        -25.4595287471444249, 45.2372000567483505, -59.4284698968758375, 48.4040988832107752, -2.80840277589643758,
        -55.2641728857482138, 83.8852871769495471, -66.194016328578465, 29.0897150702141478, -5.68041843188093538,
    ),
}
# The amplitudes f and ζ·g of Ai(−x) = (f·sin(ζ + π/4) − g·cos(ζ + π/4)) / (√π·x^1/4) in powers of 1/ζ², from x = 4
# on.
_F = {
    torch.float32: (
        0.9999999989, -0.03713171122, 0.05719676895, -0.2487667825, 1.110986948,
    ),
    torch.float64: (
        0.999999999999999978, -0.037133487653959709, 0.0576491894431342197, -0.291590362148267292,
        3.07886145291708412, -55.4136150348629544, 1482.70438487690279, -50951.7949775198605,
        1.90235968068125035e+6, -6.66757431405057836e+7, 1.97966217816264007e+9, -4.6374158488465524e+10,
        8.06577875098278788e+11, -9.68836767669283794e+12, 7.13077010089779944e+13, -2.41467266375046462e+14,
    ),
}

_G = {
    torch.float32: (
        0.06944444436, -0.03799280227, 0.1159669091, -0.8511649283, 9.585508763, -101.1039757, 573.9279368,
    ),
    torch.float64: (
        0.0694444444444444437, -0.0379930591277793144, 0.116099063926857683, -0.877666787119025824,
        12.3413928877790156, -278.354011768133876, 9160.46472373619337, -405132.676199575105,
        2.17701560170219443e+7, -1.26248349543527028e+9, 7.10430147066072981e+10, -3.59697380003554493e+12,
        1.56134217797793117e+14, -5.62848748195433551e+15, 1.64442793442671237e+17, -3.80326863020048236e+18,
        6.77097466712856755e+19, -8.92318386062907789e+20, 8.18131967892306622e+21, -4.65208434096044208e+22,
        1.23406415763829025e+23,
    ),
}
# fmt: on


@register(aten.special_bessel_j0)
@float_math
def j0(x: Tensor) -> Tensor:
    """J0(x), up to 3 as (x² − z²) times a polynomial in x², beyond as √(2/πx)·(P·cos(x − π/4) − Q·sin(x − π/4)).
    ≤ 4.4 ULP up to 5."""
    x = torch.abs(x)
    near = x < _FROM[x.dtype]
    sine, cosine, plus, minus = _waves(near, x, _P0[x.dtype], _Q0[x.dtype])
    return torch.where(near, _j0_near(torch.where(near, x, 0.0)), plus * cosine + minus * sine)


@register(aten.special_bessel_j1)
@float_math
def j1(x: Tensor) -> Tensor:
    """J1(x), up to 3 as x·(x² − z²) times a polynomial in x², beyond as waves like J0, with x − 3π/4.
    ≤ 3.9 ULP up to 3."""
    magnitude = torch.abs(x)
    near = magnitude < _FROM[x.dtype]
    sine, cosine, plus, minus = _waves(near, magnitude, _P1[x.dtype], _Q1[x.dtype])
    far = plus * sine - minus * cosine
    return torch.where(near, _j1_near(torch.where(near, x, 0.0)), torch.where(x < 0, -far, far))


@register(aten.special_bessel_y0)
@float_math
def y0(x: Tensor) -> Tensor:
    """Y0(x), up to 3 as 2/π·ln x·J0(x) plus a polynomial in x², beyond as the sine wave to the cosine wave of J0.
    ≤ 5 ULP but next to zeros."""
    near = x < _FROM[x.dtype]
    inside = torch.where(near, x, 1.0)
    smooth = polynomial(inside * inside - _MIDDLE[x.dtype], _Y0[x.dtype])
    value = TWO_OVER_PI * torch.log(inside) * _j0_near(inside) + smooth
    sine, cosine, plus, minus = _waves(near, x, _P0[x.dtype], _Q0[x.dtype])
    return torch.where(near, value, plus * sine - minus * cosine)


@register(aten.special_bessel_y1)
@float_math
def y1(x: Tensor) -> Tensor:
    """Y1(x), up to 3 as 2/π·(ln x·J1(x) − 1/x) plus x times a polynomial in x², beyond like Y0.
    ≤ 5 ULP but next to zeros."""
    near = x < _FROM[x.dtype]
    inside = torch.where(near, x, 1.0)
    smooth = polynomial(inside * inside - _MIDDLE[x.dtype], _Y1[x.dtype])
    rest = TWO_OVER_PI * torch.log(inside) * _j1_near(inside) + inside * smooth
    # At 0 the rest is 0·∞.
    value = torch.where(x == 0, 0.0, rest) - torch.div(constant(x, TWO_OVER_PI), torch.abs(inside))
    sine, cosine, plus, minus = _waves(near, x, _P1[x.dtype], _Q1[x.dtype])
    return torch.where(near, value, -(plus * cosine + minus * sine))


def _j0_near(x: Tensor) -> Tensor:
    high, low = _ZERO_J0[x.dtype]
    return ((x - high) - low) * (x + high) * polynomial(x * x - _MIDDLE[x.dtype], _J0[x.dtype])


def _j1_near(x: Tensor) -> Tensor:
    high, low = _ZERO_J1[x.dtype]
    magnitude = torch.abs(x)
    return x * (((magnitude - high) - low) * (magnitude + high) * polynomial(x * x - _MIDDLE[x.dtype], _J1[x.dtype]))


def _waves(
    near: Tensor, x: Tensor, p: tuple[float, ...], q: tuple[float, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """sin x, cos x, and (P ± Q) / √(πx), for x in the range of the coefficients; elsewhere arbitrary finite numbers."""
    outside = torch.where(near, _FROM[x.dtype], x)
    u = torch.reciprocal(outside)
    w = u * u
    amplitude = torch.rsqrt(outside) * (1 / math.sqrt(math.pi))
    even, odd = polynomial(w, p), u * polynomial(w, q)
    return torch.sin(outside), torch.cos(outside), amplitude * (even + odd), amplitude * (even - odd)


@register(aten.special_spherical_bessel_j0)
@float_math
def spherical_j0(x: Tensor) -> Tensor:
    """sin x / x, 1 at 0 and 0 at infinity. ≤ 2 ULP."""
    apart = torch.logical_and(x != 0, torch.abs(x) != math.inf)
    angle = torch.where(apart, x, 1.0)
    return torch.where(apart, torch.sin(angle) / angle, torch.where(x == 0, 1.0, 0.0))


@register(aten.special_airy_ai)
@float_math
def airy_ai(x: Tensor) -> Tensor:
    """Ai(x): from −4 to 1 two polynomials, one of them times x − z; above, e^−ζ / x^1/4 times one in 1 / (1 + ζ), and
    below waves of ζ, where ζ = 2/3·|x|^3/2. Its rounding costs 3ζ ULP above, and below 2⁻²³·ζ of the amplitude."""
    middle = torch.logical_and(x < 1, -4 < x)
    magnitude = torch.where(middle, 4.0, torch.abs(x))
    root = torch.sqrt(magnitude)
    zeta = magnitude * root * (2 / 3)
    t = torch.reciprocal(1 + zeta)
    amplitude = torch.rsqrt(root)
    above = torch.exp(-zeta) * (amplitude * polynomial(t, _DECAY[x.dtype]))
    u = torch.reciprocal(zeta)
    f, g = polynomial(u * u, _F[x.dtype]), u * polynomial(u * u, _G[x.dtype])
    below = torch.sin(zeta) * (f + g) + torch.cos(zeta) * (f - g)
    below = below * (amplitude * (1 / math.sqrt(2 * math.pi)))
    high, low = _ZERO_AI[x.dtype]
    inside = torch.where(middle, x, 0.0)
    bump = ((inside - high) - low) * polynomial(inside + 2.6, _BUMP[x.dtype])
    around = torch.where(x < -1.2, bump, polynomial(inside + 0.1, _CENTRE[x.dtype]))
    # Where e^−ζ and its factor underflow, PyTorch returns 0, and NaN at infinity.
    above = torch.where(x == math.inf, math.nan, above)
    return torch.where(middle, around, torch.where(x < 0, below, above))
