"""Costs: a cost is a function of one call, in any unit. A `CostModel` is a cost that is a value: equal models return
equal prices, so that plans made with one can be cached."""

from __future__ import annotations

from collections.abc import Callable, Iterable
import math
import numbers
from typing import Any

from torch import fx

from decomp.errors import CostError, DecompError, first_line
from decomp.ir.call import Call, call_if_bound, is_host, is_projection

Cost = Callable[[Call], float]
"""The cost of a call of an op of the target, in any unit; not negative."""


class CostModel:
    """A cost as a frozen, hashable value. The cost of several calls is the sum of their prices, unless `of_graph` is
    overridden."""

    unit: str = ""
    """The unit, for tables."""
    aim: str = "least cost"
    """What a plan with these costs is best at."""
    additive: bool = True
    """Whether what several calls cost together is the sum of their prices."""

    def __call__(self, call: Call) -> float:
        """The cost of one call."""
        raise NotImplementedError

    def of_graph(self, graph: fx.Graph) -> float:
        """The cost of all calls of a graph, without those in bodies of its higher-order ops."""
        return price_of_calls(self, calls_in(graph))


def price_of_graph(cost: Cost, graph: fx.Graph) -> float:
    """The cost of all calls of a graph. Raises `CostError`."""
    if isinstance(cost, CostModel):
        return price_by("cost=", cost.of_graph, graph, lambda graph: "a graph")
    return price_of_calls(cost, calls_in(graph))


def aim_of(cost: Cost) -> str:
    """What a plan with these costs is best at."""
    return cost.aim if isinstance(cost, CostModel) else "least cost by your function"


def unit_of(cost: Cost) -> str:
    """The unit of a cost; empty if it has none."""
    return cost.unit if isinstance(cost, CostModel) else ""


def is_value(cost: Cost | None) -> bool:
    """Whether equal costs always return equal prices; not known of a user's function, which may read other state."""
    return cost is None or isinstance(cost, CostModel)


def is_additive(cost: Cost | None) -> bool:
    """Whether what several calls cost together is the sum of their prices."""
    return not isinstance(cost, CostModel) or cost.additive


def calls_in(graph: fx.Graph) -> Iterable[Call]:
    """The calls of a graph that have a cost: those of tensor ops."""
    calls = (node for node in graph.nodes if node.op in ("call_function", "call_method"))
    bound = (call_if_bound(node) for node in calls if not is_host(node) and not is_projection(node))
    return (call for call in bound if call is not None)


def price_of_calls(cost: Cost, calls: Iterable[Call], option: str = "cost=") -> float:
    """The sum of the costs of calls. `option`: the one that `cost` was given as. Raises `CostError`."""
    return sum(price_by(option, cost, call, lambda call: str(call.op), "a call of ") for call in calls)


def price_by(
    option: str, function: Callable[[Any], Any], value: Any, spell: Callable[[Any], str], kind: str = ""
) -> float:
    """What a function of prices that a user gave as `option` returns for a value. `spell` names the value in an error,
    with its `kind` where the returned price is at fault. Raises `CostError`."""
    try:
        found = function(value)
    except (DecompError, MemoryError):
        raise
    except Exception as error:
        raise CostError(
            f"{option} failed on {spell(value)} with {type(error).__name__}: {first_line(error)}\n"
            "  to do: look at the exception above this one, and correct the function"
        ) from error
    price = _float_of(found)
    if not 0 <= price < math.inf:
        of = f"{kind}{spell(value)}"
        raise CostError(f"{option} returned {found!r} for {of}\n  to do: return a finite number that is not negative")
    return price


def _float_of(found: Any) -> float:
    """A number as a float; NaN for anything else, and for a number that is larger than any float."""
    try:
        # NumPy's floats are Real, and no subclass of float in all dtypes.
        return float(found) if isinstance(found, numbers.Real) else math.nan
    except OverflowError:
        return math.nan
