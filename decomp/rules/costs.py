"""What calls cost by the user's own measure, checked: the cheapest of several ways is not found by numbers that are
none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
import math
import numbers

from decomp.errors import CostError, DecompError, first_line
from decomp.ir.call import Call

Cost = Callable[[Call], float]
"""What a call of an op that the target knows costs, in any unit; it is not negative."""


def price(cost: Cost, calls: Iterable[Call]) -> float:
    """What `calls` cost together. Raises `CostError`."""
    return sum(_price_of(cost, call) for call in calls)


def _price_of(cost: Cost, call: Call) -> float:
    try:
        found = cost(call)
    except DecompError:
        raise
    except Exception as error:
        raise CostError(f"cost= failed on {call.op} with {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(found, numbers.Real) or not math.isfinite(found) or found < 0:
        raise CostError(
            f"cost= gives {found!r} for a call of {call.op}\n  to do: return a finite number that is not negative"
        )
    return float(found)
