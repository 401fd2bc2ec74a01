"""The ranges of arguments in which a level of accuracy makes promises, by level and short name of an op. Outside them
"standard" promises nothing, and "fast" only that no ordinary number becomes NaN."""

from __future__ import annotations

from collections.abc import Mapping
import math

Range = tuple[float, float]
EVERYWHERE: Range = (-math.inf, math.inf)
OF_NETWORKS: Range = (-10.0, 10.0)
"""The range of nearly all arguments in neural networks, after normalization."""
PERIODIC: Range = (-(2.0**13), 2.0**13)
"""Beyond this, reducing an angle takes more digits of π than three float32 products have."""

_TRIGONOMETRIC = dict.fromkeys(("sin", "cos", "tan", "sinc", "polar"), PERIODIC)
_AT_FAST = {"tan": (-1.5, 1.5), "pow": (2.0**-4, 4.0)}
RANGES: Mapping[str, Mapping[str, Range]] = {"standard": _TRIGONOMETRIC, "fast": _AT_FAST}
"""Where it is not the default of the level."""
DEFAULTS: Mapping[str, Range] = {"standard": EVERYWHERE, "fast": OF_NETWORKS}


def range_of(op: str, level: str) -> Range:
    """The least and the largest argument of an op, by its short name, for which the level promises digits."""
    return RANGES.get(level, {}).get(op, DEFAULTS.get(level, EVERYWHERE))
