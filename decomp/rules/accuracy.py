"""Levels of accuracy: which of several ways to compute an op are good enough, and by what they are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
import functools
import re
from typing import Any, Union

from decomp.costs.model import Cost
from decomp.errors import ArgumentError
from decomp.ir.ops import Op, op as op_of

LEVELS = ("exact", "standard", "fast")
"""From the strictest to the loosest. What each promises:

- *exact*: at most 2 ULP, or twice the error of PyTorch's own kernel, over all inputs; gradients at kinks, infinities,
  subnormals and signs of zero included.
- *standard*: float32 within 4 ULP (special functions and long sums: within four times the error of PyTorch's own
  kernel) for every normal input with a normal result; NaN, infinities, overflow and underflow right; first and second
  gradients right where the op is smooth.
- *fast*: textbook forms, within 64 ULP, or 16 ε, where neural networks live (|x| ≤ 10); no NaN from a number
  of ordinary size (0, or between 2⁻²⁴ and 10,000); half types are computed as they are.
"""
DEFAULT = "standard"
Spec = Union[str, Mapping[Any, str], "Accuracy"]
"""A level; or levels by op (in any spelling), with `...` for all other ops."""
Limits = float | Mapping[Any, float]
"""ULP; or ULP by op (in any spelling), with `...` for all other ops."""


@dataclass(frozen=True, order=True)
class Within:
    """In the place of a level: whatever rule, at whatever level, whose certificate keeps within so many ULP, or within
    the error of PyTorch's own kernel. Rules without a certificate do, and so must what they call."""

    ulp: float

    def __str__(self) -> str:
        return f"{self.ulp:g} ULP"


Level = str | Within


def require_level(value: Any, name: str) -> str:
    """`value`, if it is a level. Raises `ArgumentError`."""
    if isinstance(value, str) and value in LEVELS:
        return value
    raise ArgumentError(f"{name} must be one of {', '.join(map(repr, LEVELS))}, not {value!r}")


def reaches(level: str | None, wanted: str) -> bool:
    """Whether a rule of this level is good enough where `wanted` is asked for. One without a level always is: its
    author vouches for it."""
    return level is None or LEVELS.index(level) <= LEVELS.index(wanted)


@dataclass(frozen=True)
class Accuracy:
    """The level that is asked for, op by op. The level of an op of the program holds for all that it is derived to."""

    default: Level = DEFAULT
    by_op: tuple[tuple[Op, Level], ...] = ()

    @classmethod
    def of(cls, spec: Spec) -> Accuracy:
        """What a user means by `accuracy=`. Raises `ArgumentError`, `UnknownOp`."""
        if isinstance(spec, Accuracy):
            return spec
        if not isinstance(spec, Mapping):
            return cls(require_level(spec, "accuracy="))
        levels = {key: require_level(level, f"accuracy= of {_named(key)}") for key, level in spec.items()}
        default = levels.pop(..., DEFAULT)
        return cls(default, tuple(sorted(((op_of(key), level) for key, level in levels.items()), key=str)))

    def within(self, limits: Limits | None) -> Accuracy:
        """The same with limits in the place of levels, by op or for all ops that have no level of their own. Raises
        `UnknownOp`."""
        if limits is None:
            return self
        by_op = dict(limits) if isinstance(limits, Mapping) else {...: limits}
        default = Within(float(by_op.pop(...))) if ... in by_op else self.default
        return replace(self, default=default).also({op_of(key): Within(float(ulp)) for key, ulp in by_op.items()})

    def level(self, op: Op) -> Level:
        """The level for a call of `op`. That of an op holds for its other forms too: that of softmax for the kernel
        `_softmax`, and for the backward of both; unless these are named themselves."""
        own = next((level for named, level in self.by_op if named == op), None)
        kin = (level for named, level in self.by_op if _stem(named.short) == _stem(op.short))
        return own or next(kin, self.default)

    def names(self, op: Op) -> bool:
        """Whether the user gave a level for this op, or for another form of it."""
        return any(named == op or _stem(named.short) == _stem(op.short) for named, _ in self.by_op)

    def also(self, levels: Mapping[Op, Level]) -> Accuracy:
        """The same with levels for more ops."""
        return Accuracy(self.default, tuple(sorted({**levels, **dict(self.by_op)}.items(), key=str)))

    @property
    def uniform(self) -> bool:
        """Whether all ops have the same level."""
        return not self.by_op

    def __str__(self) -> str:
        return ", ".join([*(f"{op.short}: {level}" for op, level in self.by_op), str(self.default)])


@dataclass(frozen=True)
class Policy:
    """How one of several ways is chosen: those that are accurate enough compete by cost."""

    accuracy: Accuracy = Accuracy()
    cost: Cost | None = None
    """What a call of an op that the target knows costs. None: each costs one at the levels standard and fast; at the
    level exact the first way that reaches the target is taken."""
    freeze: bool = False
    """Whether weights are constants, so that what depends on them alone costs nothing where patterns are priced."""


_FORMS = re.compile(
    "^_+|native_|_legit|_no_training|_functional|flash_|efficient_|cudnn_|fused_|_for_cpu|_backward|_data$|_forward$"
)


@functools.cache
def _stem(name: str) -> str:
    """What the names of the forms of one op have in common."""
    return _FORMS.sub("", name)


def _named(key: Any) -> str:
    return "all other ops" if key is ... else repr(key)
