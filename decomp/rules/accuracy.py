"""Levels of accuracy: which alternatives for an op are accurate enough, and how the best is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
import functools
import re
from typing import Any, Union

from decomp.costs.model import Cost, aim_of
from decomp.errors import ArgumentError
from decomp.ir.ops import Op, op as op_of

LEVELS = ("exact", "standard", "fast")
"""From the strictest to the loosest. Their guarantees:

- *exact*: at most 2 ULP, or twice the error of PyTorch's own kernel, over all inputs; gradients at kinks, infinities,
  subnormals and signs of zero included.
- *standard*: float32 within 4 ULP (special functions and long sums: within four times the error of PyTorch's own
  kernel) for every normal input with a normal result; NaN, infinities, overflow and underflow right; first and second
  gradients right where the op is smooth.
- *fast*: textbook formulas, within 64 ULP, or 16 ε, in the range of neural networks (|x| ≤ 10); no NaN from a number
  of ordinary size (0, or between 2⁻²⁴ and 10,000); half types are computed without upcasts.
"""
LIMITS = {"float32": 2.0, "bfloat16": 1.0, "float16": 1.0, "float64": 2.0, "complex64": 4.0}
"""The error in ULP that a rule may have even where PyTorch's own kernel is exact."""
AGAINST_OWN = 2.0
"""A rule may have this many times the error of PyTorch's own kernel."""
LIMITS_BY_LEVEL = {
    "exact": LIMITS,
    "standard": {**dict.fromkeys(LIMITS, 4.0), "complex64": 8.0},
    "fast": {"float32": 64.0, "bfloat16": 32.0, "float16": 32.0, "float64": 64.0, "complex64": 128.0},
}
"""ULP by level and dtype. At the level fast half types are computed without upcasts: rounding the product x·2/π for
|x| ≤ 4 to 8 bits changes a cosine by 1%, and later steps round again."""
AGAINST_OWN_BY_LEVEL = {"exact": AGAINST_OWN, "standard": 4.0, "fast": 4.0}
ABSOLUTE = 1 / 4
"""At the level fast, errors of smaller results are counted in ULP of this value, of which 64 are 16 ε. A textbook
formula that cancels near a zero of the function, or in its tail, has the error of the terms that it adds."""
GRADIENTS = {"standard": 16.0, "fast": 64.0}
"""The allowed error of gradients in ε where they pass through 0."""
DEFAULT = "standard"
Spec = Union[str, Mapping[Any, str], "Accuracy"]
"""A level; or levels by op (in any spelling), with `...` for all other ops."""
Limits = float | Mapping[Any, float]
"""ULP; or ULP by op (in any spelling), with `...` for all other ops."""


@dataclass(frozen=True, order=True)
class Within:
    """A limit instead of a level: accepts rules of any level whose certificate is within this many ULP, or within the
    error of PyTorch's own kernel. Rules without a certificate are accepted; the ops they call are checked in turn."""

    ulp: float

    def __str__(self) -> str:
        return f"{self.ulp:g} ULP"


Level = str | Within


def require_level(value: Any, name: str) -> str:
    """`value`, if it is a level. Raises `ArgumentError`."""
    if isinstance(value, str) and value in LEVELS:
        return value
    raise ArgumentError(f"{name} must be one of {', '.join(map(repr, LEVELS))}, not {value!r}")


def is_accurate_enough(level: str | None, wanted: str) -> bool:
    """Whether a rule of this level is accurate enough for the level `wanted`. A rule without a level always is: its
    accuracy is its author's responsibility."""
    return level is None or LEVELS.index(level) <= LEVELS.index(wanted)


@dataclass(frozen=True)
class Accuracy:
    """The requested level of each op. The level of an op of the program applies to all calls it expands to."""

    default: Level = DEFAULT
    by_op: tuple[tuple[Op, Level], ...] = ()

    @classmethod
    def of(cls, spec: Spec) -> Accuracy:
        """Parses `accuracy=`. Raises `ArgumentError`, `UnknownOp`."""
        if isinstance(spec, Accuracy):
            return spec
        if not isinstance(spec, Mapping):
            return cls(require_level(spec, "accuracy="))
        levels = {key: require_level(level, f"accuracy= of {_named(key)}") for key, level in spec.items()}
        default = levels.pop(..., DEFAULT)
        # Sorted, here and below: equal requests are equal values, and planning caches hit.
        return cls(default, tuple(sorted(((op_of(key), level) for key, level in levels.items()), key=str)))

    def within(self, limits: Limits | None) -> Accuracy:
        """The same with limits instead of levels, by op or for all ops without a level of their own. Raises
        `UnknownOp`."""
        if limits is None:
            return self
        by_op = dict(limits) if isinstance(limits, Mapping) else {...: limits}
        default = Within(float(by_op.pop(...))) if ... in by_op else self.default
        return replace(self, default=default).also({op_of(key): Within(float(ulp)) for key, ulp in by_op.items()})

    def level(self, op: Op) -> Level:
        """The level for a call of `op`. The level of an op also applies to its variants, unless they have their own:
        that of softmax applies to the kernel `_softmax`, and to the backward of both."""
        own = next((level for named, level in self.by_op if named == op), None)
        kin = (level for named, level in self.by_op if _stem(named.short) == _stem(op.short))
        return own or next(kin, self.default)

    def names(self, op: Op) -> bool:
        """Whether the user gave a level for this op, or for a variant of it."""
        return any(named == op or _stem(named.short) == _stem(op.short) for named, _ in self.by_op)

    def also(self, levels: Mapping[Op, Level]) -> Accuracy:
        """The same with levels for more ops."""
        # A level that an op has already wins: it is the user's.
        return Accuracy(self.default, tuple(sorted({**levels, **dict(self.by_op)}.items(), key=str)))

    @property
    def uniform(self) -> bool:
        """Whether all ops have the same level."""
        return not self.by_op

    def __str__(self) -> str:
        return ", ".join([*(f"{op.short}: {level}" for op, level in self.by_op), str(self.default)])


@dataclass(frozen=True)
class Policy:
    """How alternatives are chosen: the cheapest of those that are accurate enough."""

    accuracy: Accuracy = Accuracy()
    cost: Cost | None = None
    """The cost of a call of an op of the target. None: each costs 1 at the levels standard and fast; at the level exact
    the first alternative that reaches the target is used."""
    freeze: bool = False
    """Whether weights are constants: calls that depend on them alone then cost nothing when patterns are priced."""

    def aim(self, of_target: Cost | None) -> str:
        """What a plan is best at; `of_target` are the target's own costs."""
        cost = self.cost or of_target
        if cost is not None:
            return aim_of(cost)
        if self.accuracy == Accuracy("exact"):
            return "small errors: the first rule that reaches the target"
        return 'fewest calls (for a compiler that fuses: cost="fused")'


_FORMS = re.compile(
    "^_+|native_|_legit|_no_training|_functional|flash_|efficient_|cudnn_|fused_|_for_cpu|_backward|_data$|_forward$"
)


@functools.cache
def _stem(name: str) -> str:
    """The common stem of the names of an op's variants."""
    return _FORMS.sub("", name)


def _named(key: Any) -> str:
    return "all other ops" if key is ... else repr(key)
