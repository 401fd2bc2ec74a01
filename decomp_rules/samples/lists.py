"""Calls of ops on lists of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from decomp_rules.samples.making import Calls, f, p, u

Made = Callable[..., Tensor]


def _two(make: Made) -> list[Tensor]:
    """Tensors of unequal shapes."""
    return [make(3, 4), make(5)]


def _calls_on(make: Made) -> Callable[[], tuple[tuple[Any, ...], ...]]:
    return lambda: ((_two(make),),)


def _calls_with(make: Made, *others: Any) -> Callable[[], tuple[tuple[Any, ...], ...]]:
    """Calls with a list, a number, a list of numbers, and `others`."""
    return lambda: (
        (_two(f), _two(make)),
        (_two(f), 2.5),
        (_two(f), [0.5, 3.0]),
        *((_two(f), *each) for each in others),
    )


_ANY = "abs atan ceil cos cosh erf erfc exp expm1 floor frac neg round sigmoid sign sin sinh tan tanh trunc zero clone"

CALLS: Calls = {
    **{f"_foreach_{name}": _calls_on(f) for name in f"{_ANY} max".split()},
    **{f"_foreach_{name}": _calls_on(u) for name in ("acos", "asin")},
    **{
        f"_foreach_{name}": _calls_on(p)
        for name in ("lgamma", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt")
    },
    **{f"_foreach_{name}": _calls_with(f) for name in ("clamp_max", "clamp_min", "maximum", "minimum")},
    "_foreach_add": _calls_with(f, (p(),), (_two(f), {"alpha": 0.3})),
    "_foreach_sub": _calls_with(f, (_two(f), {"alpha": 0.3})),
    "_foreach_mul": _calls_with(f, (p(),)),
    "_foreach_div": _calls_with(p, (p(),)),
    "_foreach_pow": lambda: (
        *((_two(p), _two(f)), (_two(p), 2.5), (_two(p), [0.5, 3.0])),
        (0.3, _two(f)),
    ),
    "_foreach_lerp": lambda: (
        (_two(f), _two(f), _two(u)),
        (_two(f), _two(f), 0.3),
        (_two(f), _two(f), [0.3, 0.7]),
    ),
    "_foreach_addcmul": lambda: (
        (_two(f), _two(f), _two(f)),
        (_two(f), _two(f), _two(f), 0.3),
        (_two(f), _two(f), _two(f), [0.3, 2.0]),
    ),
    "_foreach_addcdiv": lambda: (
        (_two(f), _two(f), _two(p)),
        (_two(f), _two(f), _two(p), 0.3),
        (_two(f), _two(f), _two(p), [0.3, 2.0]),
    ),
    "_foreach_copy": lambda: ((_two(f), _two(f)),),
    "_foreach_mm": lambda: (([f(3, 4), f(2, 2)], [f(4, 2), f(2, 5)]),),
    "_foreach_norm": lambda: ((_two(f),), (_two(f), 1), (_two(f), float("inf")), (_two(f), 2, torch.float64)),
    "_foreach_powsum": lambda: ((_two(f),), (_two(f), 3), (_two(f), 2, torch.float64)),
}
