"""Higher-order ops on the backend `stablehlo`: `case` and `while`, whose regions are the lowered bodies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from decomp_rules.backends.xla_operands import Array, CallTable

CALLS = CallTable()
Body = Callable[..., Sequence[Array]]


@CALLS.implements("cond")
def cond(pred: Any, true: Body, false: Body, operands: Sequence[Array]) -> Sequence[Array]:
    if isinstance(pred, bool):
        return (true if pred else false)(*operands)
    found: Sequence[Array] = lax.cond(
        pred.reshape(()), lambda xs: tuple(true(*xs)), lambda xs: tuple(false(*xs)), tuple(operands)
    )
    return found


@CALLS.implements("while_loop")
def while_loop(goes_on: Callable[..., Array], body: Body, carried: Any, more: Any = ()) -> Sequence[Array]:
    found: Sequence[Array] = lax.while_loop(
        lambda xs: _one(goes_on(*xs, *more)).reshape(()), lambda xs: tuple(body(*xs, *more)), tuple(carried)
    )
    return found


@CALLS.implements("wrap")
def composite(made: Any, body: Body, *operands: Any) -> Sequence[Array]:
    """`stablehlo.composite`, whose decomposition is the body. Numbers among the operands, sizes that are known by now,
    are part of the decomposition."""
    arrays = [place for place, each in enumerate(operands) if not isinstance(each, (bool, int, float))]

    def decomposition(*given: Array, **attributes: Any) -> tuple[Array, ...]:
        filled = list(operands)
        for place, array in zip(arrays, given):
            filled[place] = array
        return tuple(body(*filled))

    attributes = {name: value for name, value in made.attributes.items() if value is not None}
    call = lax.composite(decomposition, name=made.name, version=made.version)
    found: Sequence[Array] = call(*(operands[place] for place in arrays), **attributes)
    return found


def _one(result: Any) -> Array:
    """The result of a body that returns one array."""
    return result[0] if isinstance(result, (list, tuple)) else result


@CALLS.implements("scan")
def scan(step: Body, carried: Any, rows: Sequence[Array], more: Any = ()) -> Sequence[Array]:
    """A `while` over the first dimension of the rows."""
    count = len(carried)

    def stepped(state: Any, row: Any) -> tuple[Any, Any]:
        results = tuple(step(*state, *row, *more))
        return results[:count], results[count:]

    last, found = lax.scan(stepped, tuple(carried), tuple(rows))
    return [*last, *found]


@CALLS.implements("map_impl")
def map_rows(function: Body, rows: Sequence[Array], more: Any = ()) -> Sequence[Array]:
    found: Sequence[Array] = scan(function, (), rows, more)
    return found
