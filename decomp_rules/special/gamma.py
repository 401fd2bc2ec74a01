"""The gamma function's logarithm, its derivative, and its multivariate kin.

Where the logarithm or its derivative has a zero on the right, a polynomial around it with the zero taken out as a
factor; further out Stirling's series (DLMF 5.11) as a polynomial in 1/a², with ln a in two parts, so that nothing of
it is lost beside a·ln a; on the left 1/Γ, which is entire, and the reflection formula (DLMF 5.5). The coefficients are
minimax fits made with 45 digits (Remez). Errors are in ULP against float64, over all float32, on a CPU whose exp2, log2
and sin are within 0.85.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decomp import Rules
from decomp.ops import aten
from decomp_rules.special.reciprocal_gamma import LAST, Rows, gathered, reciprocal_gamma, summed
from decomp_rules.support.floating import float_math, polynomial
from decomp_rules.support.operands import ramp

RULES = Rules(level="exact")
register = RULES.register

LOG_SQRT_2_PI = 0.918938533204672742

# ln 2 in two parts, of which the first has so few bits that times an exponent it is exact, and the largest exponent.
_LN_2 = {
    torch.float32: (0.693145751953125, 1.428606820309417232e-6, 126.0),
    torch.float64: (6.93147180369123816490e-01, 1.90821492927058770002e-10, 1022.0),
}
STIRLING_FROM = {torch.float32: 8.0, torch.float64: 4.0}
"""Where Stirling's series begins."""
# Where the polynomial around 2 ends, and the middle of the next one.
_BOUNDS = {torch.float32: (3.0, 5.0), torch.float64: (2.5, 3.0)}
# The zero of the digamma function: the float next to it, and the rest.
_ZERO = {
    torch.float32: (1.46163213253021, 1.24381499389e-8),
    torch.float64: (1.4616321449683622, 9.5499954299657e-17),
}
# fmt: off
# As many coefficients a line as fit.
# lnΓ(1 − t) / t for −1/2 ≤ t ≤ 1/2.
_AROUND_ONE = {
    torch.float32: (
        0.5772156661, 0.8224670267, 0.4006851729, 0.2705812376, 0.2074146612, 0.1695573452, 0.1433690706,
        0.1252379273, 0.1187876589, 0.1046787293, 0.05039662283, 0.05291138984, 0.1778974474, 0.1569724022,
    ),
    torch.float64: (
        0.577215664901532855, 0.822467033424113291, 0.400685634386540832, 0.270580808427756086,
        0.207385551026243449, 0.169557177000397906, 0.144049897015713864, 0.12550966940884392, 0.111334252820442754,
        0.100099458181133842, 0.0909544289853173707, 0.0833539280444332686, 0.0769241299339108124,
        0.0714296471670811638, 0.0667840115791563774, 0.0625614884566416187, 0.0577271151280293836,
        0.0548703446850977015, 0.0599063295056996473, 0.0551166498937474308, 0.0142987483515585612,
        0.0199074722565737364, 0.145487471255425662, 0.125238621300188831, -0.153583811189462799,
        -0.128836740893131353, 0.225153478458775225, 0.205989140358923795,
    ),
}
# lnΓ(a) / (a − 2) in powers of a − 2 for 1.35 ≤ a ≤ 3 (float64: to 2.5).
_AROUND_TWO = {
    torch.float32: (
        0.4227843334, 0.3224670375, -0.06735214418, 0.02058071094, -0.007387851152, 0.002891796104, -0.00118090958,
        0.0005010481723, -0.0002471377736, 0.0001233869853, -3.309263259e-5,
    ),
    torch.float64: (
        0.422784335098467136, 0.322467033424113242, -0.0673523010531962906, 0.0205808084277809761,
        -0.00738555102885334527, 0.00289051033085137884, -0.00119275390478295399, 0.000509669525289637388,
        -0.000223154892931826704, 9.9457440893202749e-5, -4.49247658335181403e-5, 2.05085072278142989e-5,
        -9.44890745425821984e-6, 4.36381538675236809e-6, -2.00456769362369165e-6, 1.00583784351086521e-6,
        -5.14765334985645277e-7, 9.07481175890936045e-8, -6.02915720645074829e-8, 1.70435929679946e-7,
    ),
}
# lnΓ(a) / (a − 2) in powers of a − 5 from there to 8 (float64: a − 3, to 4).
_MIDDLE = {
    torch.float32: (
        1.059351277, 0.1489221463, -0.01275354772, 0.001540581179, -0.0002159411502, 3.298427336e-5,
        -5.301464892e-6, 8.528132013e-7, -1.452784803e-7, 3.249089092e-8, -6.670441555e-9, 6.323013779e-10,
    ),
    torch.float64: (
        0.693147180559945303, 0.22963715453852172, -0.0321701211144068039, 0.00648448672788730565,
        -0.00152867830018445633, 0.000393127271189507277, -0.000106783605496899956, 3.01011257381098836e-5,
        -8.71286754819569554e-6, 2.57198446770526617e-6, -7.70629305786209279e-7, 2.33590857938567838e-7,
        -7.16972186329594528e-8, 2.24259383765950303e-8, -6.90116772508274651e-9, 1.74427305494645934e-9,
        -2.39463030324680321e-10,
    ),
}
# a·(lnΓ(a) − (a − 1/2)·ln a + a − ln √2π) in powers of 1/a² from there on.
_STIRLING = {
    torch.float32: (
        0.08333333327, -0.002777698904, 0.0007800575839,
    ),
    torch.float64: (
        0.0833333333333333139, -0.00277777777772496735, 0.000793650770058910089, -0.000595234014769128425,
        0.000841393144325069906, -0.00189952088454300006, 0.00585486211249832795, -0.018647459597142848,
        0.0373349908659611228,
    ),
}
# ψ(b) / (b − z) in powers of b − 2 for 1 ≤ b ≤ 3, where z is the zero.
_DIGAMMA = {
    torch.float32: (
        0.7853075383, -0.2607389833, 0.1089999613, -0.04954998401, 0.02344629488, -0.01134946181, 0.005560745684,
        -0.002689000064, 0.00132428421, -0.0007921497887, 0.0004074910095, -2.849016809e-5, 4.885730051e-6,
        -0.0001188248333, 6.203930494e-5,
    ),
    torch.float64: (
        0.785307538604105272, -0.260738954683000841, 0.108999917017626806, -0.0495510329177496911,
        0.023447309597688085, -0.0113384325501378648, 0.00555225417229230292, -0.00273957294529266346,
        0.0013581421777320132, -0.000675312686107721361, 0.000336432477687241075, -0.0001678199130323172,
        8.37791370573689942e-5, -4.1824408896649779e-5, 2.08935735866428069e-5, -1.05109182108835186e-5,
        5.26413594611427086e-6, -2.47558170273180291e-6, 1.21991373893258211e-6, -8.61435005198024884e-7,
        4.52110462301361634e-7, 6.12277949252462661e-8, -4.84020555546005685e-8, -2.02752851944467331e-7,
        1.11037056518242847e-7, 6.2429826055458437e-8, -3.43048971330646456e-8, -1.91198542201666941e-8,
        1.00011566723257142e-8,
    ),
}
# (ψ(x) − ln y)·y² in powers of 1/y² from x = 3 on, where y = x − 1/2.
_DIGAMMA_FAR = {
    torch.float32: (
        0.04166666656, -0.007291614071, 0.00384004706, -0.004007755144, 0.005708140649, -0.005899308212,
    ),
    torch.float64: (
        0.0416666666666666661, -0.00729166666666440544, 0.00384424603027136612, -0.00413411420070549746,
        0.00756090844837306651, -0.0210780268452588716, 0.0830679962668563809, -0.432800439698022361,
        2.73139941490570581, -18.5788657194124773, 120.876086127984696, -682.898216717525837, 3112.0200860825217,
        -10719.97247822679, 25868.3480137347912, -38689.6501019696573, 26872.7277284971709,
    ),
}
# (1/r − π·cot πr) / r in powers of r², up to r = 1/2.
_COTANGENT = {
    torch.float32: (
        3.289868131, 2.164647967, 2.034562469, 2.012009685, 1.943660936, 2.47039059, -0.01744197011, 6.085186623,
    ),
    torch.float64: (
        3.2898681336964529, 2.16464646742222431, 2.03468612398433111, 2.00815471059401481, 2.00198926017842932,
        2.00048814606860551, 2.00021844918875166, 1.9984699685790765, 2.01783420962076979, 1.85500346755328543,
        2.84011000782857099, -1.41594649936944296, 11.3902585534253117, -14.0995934394634523, 16.0623363643282936,
    ),
}
# fmt: on


@register(aten.lgamma, needs=(("embedding", "take", "gather", "index"),))
def lgamma(x: Tensor) -> Tensor:
    """ln |Γ(x)|: polynomials up to 8, less ln |x| below 1/2, then Stirling's series; on the left from −1/2 to −12.5
    (float64: −22.5) −ln(1/|Γ(x)|), of polynomials, and further out reflection, ln(π / |x·sin πx|) − lnΓ(−x).
    ≤ 3 ULP on the right, ≤ 4.2 on the left, also next to zeros, where the kernel's error is up to 10⁵ ULP, in float64
    10¹⁴."""
    return _lgamma(x, gathered)


@register(aten.lgamma)
def lgamma_by_sums(x: Tensor) -> Tensor:
    """The same for targets that cannot look a polynomial up."""
    return _lgamma(x, summed)


@float_math
def _lgamma(x: Tensor, rows: Rows) -> Tensor:
    magnitude = torch.where(x < 0, -x, x)  # whose gradient is not 0 at 0
    value = _lgamma_or_above(x, magnitude)
    # Beyond 2²³ (float64: 2⁵²) all floats are whole.
    fractional = magnitude < 1 / torch.finfo(x.dtype).eps
    distance = torch.where(fractional, magnitude - torch.trunc(magnitude + 0.5), 0.0)
    inside = magnitude < LAST[x.dtype] + 0.5
    product, repair = reciprocal_gamma(torch.where(inside, magnitude, 1.0), distance, rows)
    product = torch.where(inside, product, magnitude * torch.abs(torch.sin(distance * math.pi)) * (1 / math.pi))
    reflected = x <= -0.5
    left = -torch.log(torch.where(reflected, product, 1.0)) - torch.where(inside, repair, value)
    return torch.where(reflected, torch.where(distance == 0, math.inf, left), value)


def _lgamma_or_above(x: Tensor, magnitude: Tensor) -> Tensor:
    """ln |Γ(x)| for x > −1/2, and lnΓ(−x) below."""
    end, centre = _BOUNDS[x.dtype]
    far = STIRLING_FROM[x.dtype]
    whole, rest = _logarithm(magnitude)
    small, near, inner = magnitude < 0.5, magnitude < 1.35, magnitude < far
    t = torch.where(near, torch.where(small, -x, 1 - magnitude), 0.0)
    around_one = t * polynomial(t, _AROUND_ONE[x.dtype])
    around_one = torch.where(small, (around_one - rest) - whole, around_one)
    t = torch.where(inner, magnitude, 2.0) - 2
    around_two = polynomial(torch.where(magnitude < end, t, 0.0), _AROUND_TWO[x.dtype])
    middle = t * torch.where(magnitude < end, around_two, polynomial(t - (centre - 2), _MIDDLE[x.dtype]))
    a = torch.where(inner, far, magnitude)
    series = LOG_SQRT_2_PI - 0.5 + stirling_rest(a)
    a = a - 0.5
    outer = a * (whole - 1) + (a * torch.where(inner, 0.0, rest) + series)
    return torch.where(near, around_one, torch.where(inner, middle, outer))


def stirling_rest(a: Tensor) -> Tensor:
    """lnΓ(a) − (a − 1/2)·ln a + a − ln √2π, from `STIRLING_FROM` on."""
    u = torch.reciprocal(a)
    return u * polynomial(u * u, _STIRLING[a.dtype])


def log_gamma_above_one(t: Tensor) -> Tensor:
    """lnΓ(1 + t) for 0 ≤ t ≤ 1, with all digits also next to 0."""
    small = t < 0.5
    distance = torch.where(small, -t, 1 - t)
    near = distance * polynomial(distance, _AROUND_ONE[t.dtype])
    return torch.where(small, near, near + torch.log(torch.where(small, 1.0, t)))


def _logarithm(x: Tensor) -> tuple[Tensor, Tensor]:
    """ln x in two parts: n·ln 2, exactly but for its last digits, and the rest, where 2ⁿ is the power next to x."""
    high, low, limit = _LN_2[x.dtype]
    n = torch.clamp(torch.log2(x.detach()), -limit, limit)
    n = torch.trunc(n + (limit + 0.5)) - limit
    finite = torch.where(x < math.inf, x, x.detach())  # the derivative of the rest is 0 at ∞, and 0·∞ is NaN
    return n * high, torch.log(finite * torch.exp2(-n)) + n * low


@register(aten.mvlgamma)
@float_math
def mvlgamma(x: Tensor, p: int) -> Tensor:
    """p(p−1)/4·ln π + Σ lnΓ(x − j/2) over 0 ≤ j < p."""
    steps = ramp(x, p, dtype=x.dtype) * -0.5
    return torch.sum(torch.lgamma(torch.unsqueeze(x, -1) + steps), [-1]) + p * (p - 1) / 4 * math.log(math.pi)


@register(aten.digamma)
@float_math
def digamma(x: Tensor) -> Tensor:
    """ψ(x): up to 3 a polynomial times x − z, with ψ(x) = ψ(x + 1) − 1/x below 1, beyond ln y and a series in 1/y² with
    y = x − 1/2; on the left ψ(1 − x) − π·cot πx, with an absolute error near the zeros there. At a pole the gradient is
    ∞; in torch 2.13 it is a rounding artefact."""
    negative = x < 0
    a = torch.where(negative, 1 - x, x)
    near, below = a < 3, a < 1
    b = torch.where(near, torch.where(below, a + 1, a), 2.0)
    high, low = _ZERO[x.dtype]
    inner = ((b - high) - low) * polynomial(b - 2, _DIGAMMA[x.dtype])
    y = torch.where(near, 3.0, a) - 0.5
    v = torch.reciprocal(y)
    v = v * v
    outer = torch.log(y) + v * polynomial(v, _DIGAMMA_FAR[x.dtype])
    # π·cot πr = 1/r − r·polynomial, with r the distance from the nearest pole.
    r = torch.where(negative, x - torch.round(x.detach()), 0.0)
    pole = torch.reciprocal(torch.where(negative, r, torch.where(below, x, math.inf)))
    value = torch.where(near, inner, outer) + r * polynomial(r * r, _COTANGENT[x.dtype]) - pole
    # Added, for its slope is that of 1/r² there.
    return value + torch.where(torch.logical_and(negative, r == 0), math.nan, 0.0)
