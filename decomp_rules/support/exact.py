"""Reference values by mpmath: float64 results are compared with these, and float32's worst ones a second time. Each
function takes mpmath, with its precision set, and the arguments of a call with tensors as mpmath numbers. It returns
None where it has no value: at poles, and where a series would not end because an argument is too large."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

Function = Callable[..., Any]


def function(op: str) -> Function | None:
    """The exact function of an op called `aten.exp`, or None. Raises `ImportError` without mpmath."""
    import mpmath

    name = op.removeprefix("aten.")
    found = _ONE.get(name) or _SEVERAL.get(name)
    return functools.partial(_finite, mpmath, found, name in _ONE) if found is not None else None


def _finite(mpmath: Any, found: Function, alone: bool, *args: Any) -> Any:
    """The value, unless an argument is infinite or NaN, or a function of one number has others that matter."""
    if any(isinstance(a, mpmath.mpf) and not mpmath.isfinite(a) for a in args):
        return None
    if alone and any(a not in (None, 0, False) for a in args[1:]):
        return None
    return found(mpmath, *args[:1]) if alone else found(mpmath, *args)


_ONE: dict[str, Function] = {
    "exp": lambda m, x: m.exp(x),
    "exp2": lambda m, x: m.mpf(2) ** x,
    "special_exp2": lambda m, x: m.mpf(2) ** x,
    "expm1": lambda m, x: m.expm1(x),
    "special_expm1": lambda m, x: m.expm1(x),
    "log": lambda m, x: m.log(x) if x > 0 else None,
    "log2": lambda m, x: m.log(x, 2) if x > 0 else None,
    "log10": lambda m, x: m.log10(x) if x > 0 else None,
    "log1p": lambda m, x: m.log1p(x) if x > -1 else None,
    "special_log1p": lambda m, x: m.log1p(x) if x > -1 else None,
    "sin": lambda m, x: m.sin(x),
    "cos": lambda m, x: m.cos(x),
    "tan": lambda m, x: m.tan(x),
    "asin": lambda m, x: m.asin(x),
    "acos": lambda m, x: m.acos(x),
    "atan": lambda m, x: m.atan(x),
    "sinh": lambda m, x: m.sinh(x) if abs(x) < 1000 else None,
    "cosh": lambda m, x: m.cosh(x) if abs(x) < 1000 else None,
    "tanh": lambda m, x: m.tanh(x),
    "asinh": lambda m, x: m.asinh(x),
    "acosh": lambda m, x: m.acosh(x),
    "atanh": lambda m, x: m.atanh(x) if abs(x) < 1 else None,
    "sinc": lambda m, x: m.sinc(m.pi * x),
    "special_sinc": lambda m, x: m.sinc(m.pi * x),
    "erf": lambda m, x: m.erf(x),
    "special_erf": lambda m, x: m.erf(x),
    "erfc": lambda m, x: m.erfc(x),
    "special_erfc": lambda m, x: m.erfc(x),
    "special_erfcx": lambda m, x: m.exp(x * x) * m.erfc(x) if abs(x) < 25 else None,
    "erfinv": lambda m, x: m.erfinv(x) if abs(x) < 1 else None,
    "special_erfinv": lambda m, x: m.erfinv(x) if abs(x) < 1 else None,
    "sqrt": lambda m, x: m.sqrt(x) if x >= 0 else None,
    "rsqrt": lambda m, x: 1 / m.sqrt(x) if x > 0 else None,
    "reciprocal": lambda m, x: 1 / x if x else None,
    "lgamma": lambda m, x: m.log(abs(m.gamma(x))) if abs(x) < 500 and (x > 0 or x != m.floor(x)) else None,
    "special_gammaln": lambda m, x: m.log(abs(m.gamma(x))) if abs(x) < 500 and (x > 0 or x != m.floor(x)) else None,
    "digamma": lambda m, x: m.digamma(x) if abs(x) < 1e6 and (x > 0 or x != m.floor(x)) else None,
    "special_digamma": lambda m, x: m.digamma(x) if abs(x) < 1e6 and (x > 0 or x != m.floor(x)) else None,
    "special_psi": lambda m, x: m.digamma(x) if abs(x) < 1e6 and (x > 0 or x != m.floor(x)) else None,
    "i0": lambda m, x: m.besseli(0, x) if abs(x) < 700 else None,
    "special_i0": lambda m, x: m.besseli(0, x) if abs(x) < 700 else None,
    "special_modified_bessel_i0": lambda m, x: m.besseli(0, x) if abs(x) < 700 else None,
    "special_i0e": lambda m, x: m.besseli(0, x) * m.exp(-abs(x)) if abs(x) < 700 else None,
    "special_i1": lambda m, x: m.besseli(1, x) if abs(x) < 700 else None,
    "special_modified_bessel_i1": lambda m, x: m.besseli(1, x) if abs(x) < 700 else None,
    "special_i1e": lambda m, x: m.besseli(1, x) * m.exp(-abs(x)) if abs(x) < 700 else None,
    "special_bessel_j0": lambda m, x: m.besselj(0, x),
    "special_bessel_j1": lambda m, x: m.besselj(1, x),
    "special_bessel_y0": lambda m, x: m.bessely(0, x) if x > 0 else None,
    "special_bessel_y1": lambda m, x: m.bessely(1, x) if x > 0 else None,
    "special_modified_bessel_k0": lambda m, x: m.besselk(0, x) if 0 < x < 700 else None,
    "special_modified_bessel_k1": lambda m, x: m.besselk(1, x) if 0 < x < 700 else None,
    "special_scaled_modified_bessel_k0": lambda m, x: m.besselk(0, x) * m.exp(x) if 0 < x < 700 else None,
    "special_scaled_modified_bessel_k1": lambda m, x: m.besselk(1, x) * m.exp(x) if 0 < x < 700 else None,
    "special_spherical_bessel_j0": lambda m, x: m.sinc(x),
    "special_airy_ai": lambda m, x: _airy_wave(m, -x) if x <= -1e40 else m.airyai(x) if x < 1e3 else None,
    "special_ndtr": lambda m, x: m.erfc(-x / m.sqrt(m.mpf(2))) / 2,
    "special_log_ndtr": lambda m, x: m.log(m.erfc(-x / m.sqrt(m.mpf(2))) / 2) if abs(x) < 1000 else None,
    "special_ndtri": lambda m, x: m.sqrt(m.mpf(2)) * m.erfinv(2 * x - 1) if 0.001 < x < 0.999 else None,
    "special_entr": lambda m, x: -x * m.log(x) if x > 0 else None,
    "sigmoid": lambda m, x: 1 / (1 + m.exp(-x)) if abs(x) < 1000 else None,
    "special_expit": lambda m, x: 1 / (1 + m.exp(-x)) if abs(x) < 1000 else None,
    "logit": lambda m, x: m.log(x / (1 - x)) if 0 < x < 1 else None,
    "special_logit": lambda m, x: m.log(x / (1 - x)) if 0 < x < 1 else None,
    "log_sigmoid": lambda m, x: -m.log1p(m.exp(-x)) if abs(x) < 1000 else None,
    "silu": lambda m, x: x / (1 + m.exp(-x)) if abs(x) < 1000 else None,
    "mish": lambda m, x: x * m.tanh(m.log1p(m.exp(x))) if abs(x) < 1000 else None,
    "hardswish": lambda m, x: x * min(max(x + 3, 0), 6) / 6,
    "square": lambda m, x: x * x,
    "deg2rad": lambda m, x: x * m.pi / 180,
    "rad2deg": lambda m, x: x * 180 / m.pi,
}


def _airy_wave(m: Any, z: Any) -> Any:
    """Ai(−z) for z so large that the first term is all; 1,700 bits leave those of the wave."""
    with m.workprec(1700):
        return m.cos(2 * z * m.sqrt(z) / 3 - m.pi / 4) / m.sqrt(m.pi * m.sqrt(z))


def _gelu_slope(m: Any, x: Any) -> Any:
    """The derivative of GELU by tanh, as x·sigmoid(u)."""
    slope = 2 * m.sqrt(2 / m.pi)
    s = 1 / (1 + m.exp(-slope * (x + m.mpf(0.044715) * x**3)))
    return s + x * s * (1 - s) * slope * (1 + 3 * m.mpf(0.044715) * x * x)


_SEVERAL: dict[str, Function] = {
    "pow": lambda m, x, y: x**y if x > 0 and abs(y * m.log(x)) < 2000 else None,
    "atan2": lambda m, x, y: m.atan2(x, y) if x and y else None,
    "arctan2": lambda m, x, y: m.atan2(x, y) if x and y else None,
    "hypot": lambda m, x, y: m.sqrt(x * x + y * y),
    "mul": lambda m, x, y: x * y,
    "add": lambda m, x, y, alpha=1: x + y * alpha,
    "sub": lambda m, x, y, alpha=1: x - y * alpha,
    "xlogy": lambda m, x, y: x * m.log(y) if y > 0 and x else None,
    "special_xlogy": lambda m, x, y: x * m.log(y) if y > 0 and x else None,
    "special_xlog1py": lambda m, x, y: x * m.log1p(y) if y > -1 and x else None,
    "logaddexp": lambda m, x, y: max(x, y) + m.log1p(m.exp(-abs(x - y))),
    "logaddexp2": lambda m, x, y: max(x, y) + m.log1p(m.mpf(2) ** -abs(x - y)) / m.log(m.mpf(2)),
    "gelu": lambda m, x, approximate="none": (
        x * m.erfc(-x / m.sqrt(m.mpf(2))) / 2
        if approximate == "none"
        else x / (1 + m.exp(-2 * m.sqrt(2 / m.pi) * (x + m.mpf(0.044715) * x**3)))
        if abs(x) < 100
        else None
    ),
    "special_zeta": lambda m, x, q: m.zeta(x, q) if 1.01 < x < 60 and 1e-3 < q else None,
    "polygamma": lambda m, n, x: m.polygamma(n, x) if 0 < x and n < 10 else None,
    "special_polygamma": lambda m, n, x: m.polygamma(n, x) if 0 < x and n < 10 else None,
    "special_gammainc": lambda m, a, x: m.gammainc(a, 0, x, regularized=True) if 0 < a < 200 and 0 < x < 300 else None,
    "special_gammaincc": lambda m, a, x: m.gammainc(a, x, regularized=True) if 0 < a < 200 and 0 < x < 300 else None,
    "igamma": lambda m, a, x: m.gammainc(a, 0, x, regularized=True) if 0 < a < 200 and 0 < x < 300 else None,
    "igammac": lambda m, a, x: m.gammainc(a, x, regularized=True) if 0 < a < 200 and 0 < x < 300 else None,
    "softplus": lambda m, x, beta=1, threshold=20: (
        m.log1p(m.exp(x * beta)) / beta if x * beta <= threshold and abs(x) < 1000 else x
    ),
    "elu": lambda m, x, alpha=1, scale=1, input_scale=1: (
        x * scale if x > 0 else alpha * scale * m.expm1(x * input_scale)
    ),
    "tanh_backward": lambda m, g, y: g * (1 - y * y),
    "sigmoid_backward": lambda m, g, y: g * y * (1 - y),
    "softplus_backward": lambda m, g, x, beta, threshold: (
        g if x * beta > threshold else g / (1 + m.exp(-x * beta)) if abs(x) < 1000 else None
    ),
    "hardsigmoid_backward": lambda m, g, x: g / 6 if -3 < x < 3 else m.mpf(0),
    "gelu_backward": lambda m, g, x, approximate="none": (
        (g * (m.ncdf(x) + x * m.npdf(x)) if approximate == "none" else g * _gelu_slope(m, x)) if abs(x) < 100 else None
    ),
    "binary_cross_entropy_with_logits": lambda m, x, t, weight=None, positive=None, reduction=1: (
        (1 if weight is None else weight) * _logistic_loss(m, x, t, 1 if positive is None else positive)
    ),
}


Step = Callable[[Any, int, Any, Any], Any]


def _polynomial(first: Callable[[Any], Any], step: Step, shifted: bool = False) -> Function:
    """The polynomial of a degree up to 300, from that of degree 1 and what follows the k-th, given the last two."""

    def value(m: Any, x: Any, n: Any) -> Any:
        if not -1 < n <= 300:
            return None
        x = 2 * m.mpf(x) - 1 if shifted else m.mpf(x)
        last, this = m.mpf(1), first(x)
        for k in range(1, int(n)):
            last, this = this, step(x, k, this, last)
        return this if n >= 1 else last

    return value


_CHEBYSHEV: dict[str, Callable[[Any], Any]] = {
    "t": lambda x: x,
    "u": lambda x: 2 * x,
    "v": lambda x: 2 * x - 1,
    "w": lambda x: 2 * x + 1,
}
_SEVERAL |= {
    f"special_{prefix}chebyshev_polynomial_{kind}": _polynomial(
        first, lambda x, k, this, last: 2 * x * this - last, bool(prefix)
    )
    for kind, first in _CHEBYSHEV.items()
    for prefix in ("", "shifted_")
} | {
    "special_hermite_polynomial_h": _polynomial(lambda x: 2 * x, lambda x, k, this, last: 2 * (x * this - k * last)),
    "special_hermite_polynomial_he": _polynomial(lambda x: x, lambda x, k, this, last: x * this - k * last),
    "special_laguerre_polynomial_l": _polynomial(
        lambda x: 1 - x, lambda x, k, this, last: ((2 * k + 1 - x) * this - k * last) / (k + 1)
    ),
    "special_legendre_polynomial_p": _polynomial(
        lambda x: x, lambda x, k, this, last: ((2 * k + 1) * x * this - k * last) / (k + 1)
    ),
}


def _logistic_loss(m: Any, x: Any, t: Any, positive: Any) -> Any:
    slope = -positive * t if x < 0 else 1 - t
    return slope * x + (1 - t + positive * t) * m.log1p(m.exp(-abs(x)))
