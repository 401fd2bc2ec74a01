"""Costs as a table in a TOML file: by op, a number or a linear formula.

```toml
[costs]
default = 1                                     # for any other op; without it, such an op is an error
exp2 = 300                                      # per call
add = { per_call = 100, per_element = 0.25 }    # per element of the result
"sum.dim_IntList" = { per_call = 100, per_byte = 0.1 }
mm = { per_call = 500, per_flop = 0.001 }       # bytes and operations as `decomp.costs` counts them
```

A view costs nothing unless the table names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
from dataclasses import dataclass, fields
import functools
import math
from pathlib import Path
import sys
from typing import Any

from decomp.costs.counting import BYTES, FLOPS
from decomp.costs.model import CostModel
from decomp.costs.sizes import numel, results, returns_view
from decomp.errors import CostError, TargetError, UnknownOp, UnknownOpInFile, boundary
from decomp.files import path_of_user
from decomp.ir.call import Call
from decomp.ir.ops import Op, meant_overload, resolve

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Key = tuple[Op, str | None]
"""An op, and an overload, or None for all overloads."""
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Formula:
    """The cost of a call as a linear formula."""

    per_call: float = 0.0
    per_element: float = 0.0
    """Per element of the results."""
    per_flop: float = 0.0
    per_byte: float = 0.0
    """Per byte read or written."""

    def of(self, call: Call) -> float:
        """The cost of this call."""
        found = self.per_call
        if self.per_element:
            found += self.per_element * sum(map(numel, results(call)))
        if self.per_flop:
            found += self.per_flop * FLOPS(call)
        if self.per_byte:
            found += self.per_byte * BYTES(call)
        return found


FREE = Formula()


@dataclass(frozen=True)
class PriceTable(CostModel):
    """Prices by op."""

    name: str
    """The name of the file that it was read from."""
    prices: tuple[tuple[Key, Formula], ...]
    default: Formula | None = None
    """The formula for ops that the table does not have."""

    unit = "by the table"

    @property
    def aim(self) -> str:  # type: ignore[override]  # the base class has an attribute
        """What a plan with these costs is best at."""
        return f"least cost by {self.name}"

    @functools.cached_property
    def _by_key(self) -> dict[Key, Formula]:
        return dict(self.prices)

    def __call__(self, call: Call) -> float:
        found = self._by_key.get((call.op, call.overload)) or self._by_key.get((call.op, None))
        if found is None and returns_view(call):
            found = FREE
        found = found or self.default
        if found is None:
            raise CostError(
                f"{self.name} has no price for {call.op}\n  to do: add it to [costs], or a {DEFAULT!r} for all others"
            )
        return found.of(call)

    def __repr__(self) -> str:
        return f"decomp.costs.table({self.name!r})"


@boundary("table")
def table(source: str | Path | Mapping[str, Any]) -> PriceTable:
    """The costs of the `[costs]` of a TOML file, such as that of a target; or of a dict with the same keys and values.
    Raises `CostError`, of a file `TargetError` and `UnknownOp`, which name the file and the key."""
    if isinstance(source, Mapping):
        return table_of(source, "the table")
    path = path_of_user(source, "costs.table")
    with errors_name(path):
        data = read_toml(path)
        if "costs" not in data:
            raise CostError("has no [costs]")
        return table_of(data["costs"], path.name)


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file holds. Within `errors_name`, errors are of the file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


@contextlib.contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Context manager: errors of a TOML file or its content are raised with the name of the file, as `TargetError` or
    `UnknownOpInFile`."""
    try:
        yield
    except OSError as error:
        raise TargetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except RecursionError as error:
        raise TargetError(f"{path}: not valid TOML for a target: nested too deeply") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TargetError(f"{path}: not valid TOML: {error}") from error
    except (TargetError, CostError) as error:
        raise TargetError(f"{path}: {error}") from error
    except UnknownOp as error:
        raise UnknownOpInFile(f"{path}: {error}") from error


def table_of(entries: Any, name: str) -> PriceTable:
    """The table of `[costs]`. Raises `CostError` and `UnknownOp`, which name the key."""
    if not isinstance(entries, Mapping):
        raise CostError("'costs' must be a table: [costs]")
    prices: dict[Key, Formula] = {}
    for key, value in entries.items():
        formula = _formula(key, value)
        if key != DEFAULT:
            prices[_key(key)] = formula
    default = _formula(DEFAULT, entries[DEFAULT]) if DEFAULT in entries else None
    return PriceTable(name, tuple(prices.items()), default)


def _key(name: Any) -> Key:
    try:
        found = resolve(name)
    except UnknownOp as error:
        error.args = (f"[costs]: {error}",)
        raise
    return found.op, meant_overload(found)


def _formula(key: str, value: Any) -> Formula:
    known = tuple(field.name for field in fields(Formula))
    if not isinstance(value, Mapping):
        return Formula(per_call=_number(key, value, f"a number, or {{ {' = …, '.join(known)} = … }}"))
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise CostError(f"[costs] {key}: unknown key {unknown[0]!r}; known keys are {', '.join(known)}")
    return Formula(**{name: _number(f"{key}.{name}", number, "a number") for name, number in value.items()})


def _number(key: str, value: Any, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CostError(f"[costs] {key}: must be {expected}, not {value!r}")
    if not math.isfinite(value) or value < 0:
        raise CostError(f"[costs] {key}: must be finite and not negative, not {value!r}")
    return float(value)


Table = PriceTable
"""The former name, for one release."""
