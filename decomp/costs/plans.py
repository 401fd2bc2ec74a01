"""What a plan costs, op by op, and what other levels of accuracy would have cost; as values, and as phrases."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Price:
    """One way for some calls of an op: what it comes to on the target, all of them together."""

    level: str
    """The level of accuracy that was asked for."""
    rule: str
    calls: int
    cost: float
    ulp: float | None
    """The largest error, in units of the last place, that the committed certificate of the rule has for this target,
    level and dtype; None where there is none."""
    own: float | None = None
    """That of PyTorch's own kernel on the same operands, where it was measured."""

    @property
    def accuracy(self) -> str:
        """` at 2.9`, in ULP; where that is much and PyTorch's own kernel is no better, as in the tail of GELU, so it is
        said."""
        if self.ulp is None:
            return ""
        no_worse = self.own is not None and _MUCH < self.ulp <= self.own
        return " at PyTorch's own error" if no_worse else f" at {self.ulp:.2g}"


@dataclass(frozen=True, slots=True)
class Priced:
    """The calls of an op that one rule serves."""

    op: str
    """`aten.gelu`"""
    count: int
    """Of the calls of the source."""
    chosen: Price
    others: tuple[Price, ...]
    """What the same calls come to at other levels, where that is something else; the most accurate first."""

    def __str__(self) -> str:
        """`21 calls at 2.9 ULP; fast: 12 at 41; exact: 50 at 2.1`, for each call of the source where they are alike."""
        alike = all(price.calls % self.count == 0 for price in (self.chosen, *self.others))
        by = self.count if alike else 1
        calls = self.chosen.calls // by
        each = " each" if by > 1 else ""
        accuracy = self.chosen.accuracy
        unit = " ULP" if accuracy[-1:].isdigit() else ""
        others = (f"; {price.level}: {price.calls // by}{price.accuracy}" for price in self.others)
        return f"{calls} {'call' if calls == 1 else 'calls'}{each}{accuracy}{unit}{''.join(others)}"


_MUCH = 64
"""ULP beyond what any level allows but by comparison with PyTorch's own kernel."""


@dataclass(frozen=True, slots=True)
class PlanCosts:
    """What a plan costs."""

    target: str
    cost: str
    """What calls cost by: `decomp.costs.calls`."""
    derived: tuple[Priced, ...]
    """The calls that rules serve, the dearest first."""
    legal: float
    """What the calls cost that the target knows as they are."""

    @property
    def total(self) -> float:
        """What the lowered program costs."""
        return self.legal + sum(each.chosen.cost for each in self.derived)

    @property
    def priced(self) -> bool:
        """Whether calls have other prices than one each."""
        return any(price.cost != price.calls for each in self.derived for price in (each.chosen, *each.others))

    def lines(self) -> list[str]:
        """A line an op and rule, the most frequent first."""
        common_first = sorted(self.derived, key=lambda each: -each.count)
        named = (f"{each.count:5d} × {each.op} by {each.chosen.rule}" for each in common_first)
        return [f"{name}: {each}{self._price(each)}" for name, each in zip(named, common_first)]

    def _price(self, each: Priced) -> str:
        """The price, where it is not the number of calls."""
        prices = (each.chosen, *each.others)
        if all(price.cost == price.calls for price in prices):
            return ""
        others = "".join(f"; {price.level}: {price.cost:g}" for price in each.others)
        return f" (costs {each.chosen.cost:g}{others})"
