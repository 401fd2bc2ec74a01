"""The costs of a plan, by op, and its costs at other levels of accuracy; as values and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decomp.errors import count_noun


@dataclass(frozen=True, slots=True)
class Totals:
    """What a program costs: as its rules expanded it, and simplified."""

    cost: str
    """The name of the cost model: `decomp.costs.fused`."""
    unit: str
    expanded: float
    simplified: float | None = None
    """None where nothing was simplified."""

    def __str__(self) -> str:
        """`1,234 → 1,100 additions (decomp.costs.fused)`."""
        both = map(spell_price, (self.expanded, *([] if self.simplified is None else [self.simplified])))
        return f"{' → '.join(both)}{f' {self.unit}' if self.unit else ''} ({self.cost})"


def spell_price(price: float) -> str:
    """`1,234`, `12.5`."""
    return f"{price:,.0f}" if price >= 100 or price == int(price) else f"{price:.3g}"


def spell_bytes(nbytes: float) -> str:
    """`16.8 MB`"""
    for unit in ("B", "kB", "MB", "GB"):
        # 999.6 would be shown as 1000.
        if nbytes < 999.5 or unit == "GB":
            break
        nbytes /= 1000
    return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 99.95 else f"{nbytes:.3g} {unit}"


def spell_error(ulp: float, own: float | None) -> str:
    """`2.9`, in ULP; or `PyTorch's own error` if it is large and PyTorch's own kernel is not better, as in the tail of
    GELU."""
    return "PyTorch's own error" if own is not None and _MUCH < ulp <= own else f"{ulp:.2g}"


@dataclass(frozen=True, slots=True)
class Price:
    """One alternative for some calls of an op: its total cost on the target."""

    level: str
    """The requested level of accuracy."""
    rule: str
    calls: int
    cost: float
    ulp: float | None
    """The largest error in ULP in the committed certificate of the rule for this target, level and dtype, or
    None."""
    own: float | None = None
    """The error of PyTorch's own kernel on the same operands, if measured."""

    @property
    def accuracy(self) -> str:
        """` at 2.9`, in ULP, or ` at PyTorch's own error`; empty if it is not known."""
        return f" at {spell_error(self.ulp, self.own)}" if self.ulp is not None else ""


@dataclass(frozen=True, slots=True)
class Priced:
    """The calls of an op that one rule expands."""

    op: str
    """`aten.gelu`"""
    count: int
    """The number of calls of the source."""
    chosen: Price
    others: tuple[Price, ...]
    """The same calls at other levels that expand them differently; the most accurate first."""

    def __str__(self) -> str:
        """`21 calls at 2.9 ULP; fast: 12 at 41; exact: 50 at 2.1`, per call of the source if all are alike."""
        alike = all(price.calls % self.count == 0 for price in (self.chosen, *self.others))
        by = self.count if alike else 1
        calls = self.chosen.calls // by
        each = " each" if by > 1 else ""
        accuracy = self.chosen.accuracy
        unit = " ULP" if accuracy[-1:].isdigit() else ""
        others = (f"; {price.level}: {price.calls // by}{price.accuracy}" for price in self.others)
        return f"{calls} {'call' if calls == 1 else 'calls'}{each}{accuracy}{unit}{''.join(others)}"


_MUCH = 64
"""More ULP than this are allowed only by comparison with PyTorch's own kernel."""


@dataclass(frozen=True, slots=True)
class PlanCosts:
    """The costs of a plan."""

    target: str
    cost: str
    """The name of the cost model: `decomp.costs.calls`."""
    derived: tuple[Priced, ...]
    """The calls that rules expand, the costliest first."""
    legal: float
    """The cost of the calls that are legal."""
    unit: str = ""
    """The unit of the costs."""
    legal_calls: int = 0
    """How many calls are legal."""
    planned_for: str = ""
    """What the plan is best at."""

    @property
    def total(self) -> float:
        """The cost of the lowered program."""
        return self.legal + sum(each.chosen.cost for each in self.derived)

    @property
    def calls(self) -> int:
        """How many calls the lowered program has before it is simplified."""
        return self.legal_calls + sum(each.chosen.calls for each in self.derived)

    @property
    def totals(self) -> Totals | None:
        """What the lowered program costs before it is simplified; None where each call costs 1."""
        return Totals(self.cost, self.unit, self.total) if self.total != self.calls else None

    def __str__(self) -> str:
        return "\n".join([*self.summary(), *self.lines()])

    def __repr__(self) -> str:
        return f"<{'; '.join(self.summary())}; print(costs) shows the ops>"

    def summary(self) -> list[str]:
        """For what it was planned, and what the lowered program comes to before it is simplified."""
        found = [f"planned for {self.planned_for}"] if self.planned_for else []
        found.append(f"comes to {count_noun(self.calls, 'call')} before simplification")
        return found + ([f"costs {self.totals} before simplification"] if self.totals is not None else [])

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return {**asdict(self), "calls": self.calls, "total": self.total}

    @property
    def priced(self) -> bool:
        """Whether some call has a cost other than 1."""
        return any(price.cost != price.calls for each in self.derived for price in (each.chosen, *each.others))

    def lines(self) -> list[str]:
        """One line per op and rule, the most frequent first."""
        common_first = sorted(self.derived, key=lambda each: -each.count)
        named = (f"{each.count:5d} × {each.op} by {each.chosen.rule}" for each in common_first)
        return [f"{name}: {each}{self._price(each)}" for name, each in zip(named, common_first)]

    def _price(self, each: Priced) -> str:
        """The cost, if it is not the number of calls."""
        prices = (each.chosen, *each.others)
        if all(price.cost == price.calls for price in prices):
            return ""
        others = "".join(f"; {price.level}: {spell_price(price.cost)}" for price in each.others)
        return f" (costs {spell_price(each.chosen.cost)}{others})"
