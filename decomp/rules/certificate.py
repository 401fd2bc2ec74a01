"""Certificates: the measured accuracy of a rule, as data. `measuring` has the measurements, `tables` and
`certificate_text` the rendering."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
import math
from typing import Any

from decomp.rules.accuracy import AGAINST_OWN, AGAINST_OWN_BY_LEVEL, LEVELS, LIMITS, LIMITS_BY_LEVEL

AS_WRITTEN = "as written"
PRECISE = 2.0**20
"""An error of this many ULP means that numbers of another precision were used."""
TIMES_WORSE, SHARE_WORSE = 1.5, 0.6
"""Growth by less than this factor plus this share of `LIMITS` is attributed to another processor. Measured on 172
rules, AVX2 against scalar kernels, once what PyTorch's own kernel lost is taken off: 1910 ULP for 1200 in float32, 2.55
for 0.21 in complex64; 61 of them are the same with one thread and with two."""
GOOD = ("equal", "traces", "distributions agree")
"""Verdicts without a fault."""
AS_EAGER, NOT_COMPILED = "as eager", "not compiled"
"""Verdicts on a compiled program that are not faults; the second is followed by the reason."""
FINITE = "finite"
"""The verdict if finite results stay finite, and quotients of normal numbers keep their accuracy, both with subnormal
numbers and with these flushed to zero."""
OF_PRIMS = "not defined by torch.ops.prims"
"""The verdict on gradients through primitives that have no gradient in PyTorch."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One input whose result is wrong beyond rounding."""

    input: str
    found: str
    expected: str

    def __str__(self) -> str:
        return f"{self.found} instead of {self.expected} at {self.input}"


@dataclass(frozen=True, slots=True)
class Figures:
    """Errors over a set of points, in ULP of the exact result: those of the rule, and those of PyTorch's own kernel on
    the same points. (For ops that are not pointwise, in ULP of the largest element of each result.)"""

    points: int
    max: float
    mean: float
    worst: str = ""
    """The input with the largest error."""
    own_max: float | None = None
    """None if the op's own result is the reference."""
    own_mean: float | None = None
    mismatches: int = 0
    """How many results are wrong beyond rounding: NaN, infinity, the sign of zero; gradients off by more than 1%."""
    examples: tuple[Mismatch, ...] = ()

    def allowed(self, limit: float, times: float = AGAINST_OWN) -> float:
        """The allowed error in ULP: `limit`, or a multiple of PyTorch's own error. If the op's own result is the
        reference, enough to distinguish a wrong precision from rounding."""
        return PRECISE if self.own_max is None else max(limit, times * self.own_max)


@dataclass(frozen=True, slots=True)
class Implementation:
    """One implementation of a rule, measured: as written, on PyTorch's own kernels, or lowered to a target."""

    name: str
    """"as written", or the name of a target."""
    verdict: str
    """"measured"; "legal": the target has the op; "not reached"; "not served": the rule takes no sample; "failed"."""
    reason: str = ""
    rules: tuple[str, ...] = ()
    """The rules of the derivations, as `module:function for op`."""
    hash: str = ""
    """The hash of the code of these rules."""
    values: Mapping[str, Figures] = field(default_factory=dict)
    """By dtype."""
    gradients: Mapping[str, Figures] = field(default_factory=dict)
    second: Mapping[str, Figures] = field(default_factory=dict)
    """Gradients of gradients."""
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Integers, bools, complex and mixed dtypes: "equal", or what differs."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """"strides", "dynamic shapes", "shapes", "random", "gradients": "equal", "traces", or the fault. "arithmetic": the
    arithmetic that the rule relies on and that is undefined in C++; absent without such arithmetic."""
    level: str = "exact"
    """The level of accuracy at which it was lowered, and whose limits apply."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """Calls, operations ("flops") and bytes of the lowered program of the first float32 sample."""
    compiled: Mapping[str, str] = field(default_factory=dict)
    """By dtype, its program compiled by Inductor: "as eager", how many results differ and the first of them, or "not
    compiled" and why. Empty if it was not tried."""
    programs: tuple[str, ...] = ()
    """Fingerprints of the programs that were compiled."""
    flushed: Mapping[str, str] = field(default_factory=dict)
    """By dtype, its results with and without subnormal numbers flushed to zero: "finite", or how many are not finite or
    inaccurate, and the first of them. Empty if it was not tried."""

    @property
    def title(self) -> str:
        """Its name, and its level unless that is exact."""
        return self.name if self.level == LEVELS[0] else f"{self.name}, {self.level}"

    @property
    def is_compiled(self) -> bool:
        """Whether a program of it was compiled."""
        return any(not said.startswith(NOT_COMPILED) for said in self.compiled.values())

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong, a phrase each."""
        if self.verdict in ("legal", "not reached"):
            return ()
        if self.verdict != "measured":
            return (f"{self.title}: {self.verdict}: {self.reason}",)
        miscompiled = (f"compiled, {dtype}: {said}" for dtype, said in self.compiled.items() if not _is_good(said))
        flushed = (f"flushed, {dtype}: {said}" for dtype, said in self.flushed.items() if said != FINITE)
        return tuple(f"{self.title}: {fault}" for fault in (*self._faults(self.level), *miscompiled, *flushed))

    @property
    def reaches(self) -> str | None:
        """The strictest level whose limits the figures meet, from the one that they were measured for; None if they do
        not even meet the loosest."""
        looser = LEVELS[LEVELS.index(self.level) :]
        return next((level for level in looser if next(self._faults(level), None) is None), None)

    def allowed(self, dtype: str, level: str) -> float:
        """The allowed error in ULP in a dtype. In float64, that of PyTorch in float32: its float64 kernels fuse more
        than they need to."""
        own = self.values["float32"].own_max if dtype == "float64" and "float32" in self.values else None
        times = AGAINST_OWN_BY_LEVEL[level]
        return self.values[dtype].allowed(max(LIMITS_BY_LEVEL[level][dtype], times * (own or 0.0)), times)

    def _faults(self, level: str) -> Iterator[str]:
        for dtype, figures in self.values.items():
            if figures.mismatches:
                yield f"{dtype}: {figures.mismatches} wrong, {figures.examples[0]}"
            if figures.max > self.allowed(dtype, level):
                own = "" if figures.own_max is None else f" where PyTorch has {figures.own_max:g}"
                yield f"{dtype}: {figures.max:g} ULP at {figures.worst}{own}"
        for what, measured in (("gradient", self.gradients), ("second gradient", self.second)):
            for dtype, figures in measured.items():
                if figures.mismatches:
                    yield f"{what} in {dtype}: {figures.mismatches} wrong, {figures.examples[0]}"
        for dtype, verdict in self.dtypes.items():
            if not verdict.startswith(("equal", "declines")):
                yield f"{dtype}: {verdict}"
        for what, verdict in self.notes.items():
            if verdict not in GOOD and not _allowed(what, verdict, self.name):
                yield f"{what}: {verdict}"


def _is_good(compiled: str) -> bool:
    """Whether a verdict on a compiled program is not a fault."""
    return compiled.startswith((AS_EAGER, NOT_COMPILED))


def _allowed(what: str, verdict: str, way: str) -> bool:
    """Whether a bad verdict is acceptable: lowering restores strides, a rule may need static sizes for loops, and prims
    have no gradients."""
    if what == "gradients":
        return verdict == OF_PRIMS
    if what == "strides":
        return way == AS_WRITTEN
    return what == "dynamic shapes" and verdict.startswith("declines") and "guard" not in verdict


@dataclass(frozen=True, slots=True)
class Regression:
    """One measurement of an implementation that is worse than it was."""

    way: Implementation
    what: str
    """The quantity and its dtype, "gradients in float32"; or the name of the verdict that was good."""
    text: str
    of_rounding: bool = False
    """Whether only rounding errors grew."""

    def __str__(self) -> str:
        return f"{self.way.title}: {self.what}: {self.text}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The measurements of one rule. `print(certificate)` is readable; `to_json` is the committed form."""

    rule: str
    """`decomp_rules.pointwise.activation:relu for aten.relu`."""
    hash: str = ""
    """The hash of the code of the rule, and of what it uses in its package."""
    torch: str = ""
    machine: str = field(default="", kw_only=True)
    """The processor, `x86_64 AVX2, 1 thread`: PyTorch's kernels round differently on others. Empty if not recorded."""
    seed: int = 0
    domain: str = ""
    """The inputs that it was measured on."""
    reference: Mapping[str, str] = field(default_factory=dict)
    """The reference, by dtype."""
    ways: tuple[Implementation, ...] = ()
    error: str = ""
    """Why it could not be measured: a hang, a crash, no samples."""
    level: str = field(default=LEVELS[0], kw_only=True)
    """The accuracy that the rule is registered for."""

    @property
    def ok(self) -> bool:
        """Whether the rule has no fault."""
        return not self.faults

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong, a phrase each."""
        return (self.error,) if self.error else tuple(fault for way in self.ways for fault in way.faults)

    def way(self, name: str, level: str | None = None) -> Implementation | None:
        """The measurement "as written", or on a target: at the rule's own level, or at `level`. (A looser level has a
        measurement of its own only if it is lowered differently.)"""
        wanted = LEVELS.index(level or self.level)
        found = [way for way in self.ways if way.name == name and LEVELS.index(way.level) <= wanted]
        return max(found, key=lambda way: LEVELS.index(way.level), default=None)

    def reaches(self, target: str) -> str | None:
        """The level that the rule reaches on a target, or "as written"; None if it does not even reach the loosest, or
        was not measured there."""
        way = None if self.error else self.way(target)
        if way is None or way.verdict != "measured":
            return None
        return way.reaches

    def error_on(self, target: str, level: str, dtype: str) -> float | None:
        """The largest error in ULP at a level, on a target, or on the worst of those that were measured; 0 if it is not
        larger than that of PyTorch's own kernel. None if the rule is lowered as at stricter levels, or not at all."""
        lowered = [way for way in self.ways if way.name != AS_WRITTEN]
        known = [way for way in lowered if way.name == target] or lowered
        ways = [way for way in known if way.level == level and way.verdict == "measured"]
        return max((_error(way, dtype) for way in ways), default=None)

    def worse_than(self, other: Certificate) -> tuple[str, ...]:
        """How this certificate is worse than another of the same rule; empty if it is as good. Differences that another
        processor explains are ignored: `TIMES_WORSE`, `SHARE_WORSE`, and a larger error of PyTorch's own kernel on the
        same inputs."""
        if self.error:
            return () if other.error else (self.error,)
        return tuple(map(str, self.regressions_from(other)))

    def regressions_from(self, other: Certificate) -> tuple[Regression, ...]:
        """The same, as data; without what has no measurement in both."""
        same = {(way.name, way.level): way for way in other.ways}
        return tuple(worse for way in self.ways for worse in _worse(way, same.get((way.name, way.level))))

    def merged_into(self, other: Certificate | None, levels: Iterable[str]) -> Certificate:
        """This certificate of these levels, with the measurements of other levels from an older one of the same
        code."""
        if other is None or other.hash != self.hash or other.level != self.level or other.error or self.error:
            return self
        kept = [way for way in other.ways if way.level not in levels]
        newer = self if self.level in levels else other
        return replace(newer, ways=tuple(sorted([*self.ways, *kept], key=_order)))

    def with_compiled_of(self, other: Certificate | None) -> Certificate:
        """This certificate with the column "compiled" of another one, where the code is the same."""
        same = {(way.name, way.level, way.hash): way for way in other.ways} if other is not None else {}

        def completed(way: Implementation) -> Implementation:
            older = same.get((way.name, way.level, way.hash))
            # Compiling takes longer than all else, so that it is done on request and kept while the code is the same.
            if older is None or way.compiled or way.verdict != older.verdict:
                return way
            return replace(way, compiled=older.compiled, programs=older.programs)

        return replace(self, ways=tuple(map(completed, self.ways)))

    def with_flushed(self, found: Mapping[tuple[str, str], Mapping[str, str]]) -> Certificate:
        """This certificate with new columns "flushed", by name and level."""
        ways = (replace(way, flushed=found.get((way.name, way.level), way.flushed)) for way in self.ways)
        return replace(self, ways=tuple(ways))

    def __str__(self) -> str:
        from decomp.rules.certificate_text import text

        return text(self)

    def _repr_html_(self) -> str:
        from decomp.rules.certificate_text import markup

        return markup(self)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers, without empty values."""
        data: dict[str, Any] = _plain(self)
        for one in (data, *data.get("ways", ())):
            # Most have the default, and there are thousands of them in committed files.
            if one["level"] == (LEVELS[0] if one is data else self.level):
                del one["level"]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Certificate:
        """The certificate from the result of `to_json`. Raises `KeyError` or `TypeError` for malformed data."""
        own = data.get("level", LEVELS[0])
        ways = tuple(_way({"level": own, **way}) for way in data.get("ways", ()))
        return cls(**{**data, "ways": ways})


def _error(way: Implementation, dtype: str) -> float:
    measured = [way.values[dtype]] if dtype in way.values else list(way.values.values())
    if any(figures.mismatches for figures in measured):
        return math.inf
    # Where PyTorch's own error was not measured, nothing can be compared with it: the op itself is the reference.
    return max((f.max for f in measured if f.own_max is not None and f.max > f.own_max), default=0.0)


def _order(way: Implementation) -> tuple[bool, int]:
    return way.name != AS_WRITTEN, LEVELS.index(way.level)


def _worse(way: Implementation, other: Implementation | None) -> Iterator[Regression]:
    if other is None or other.verdict not in ("measured", "legal"):
        return
    if way.verdict not in (other.verdict, "legal", "measured"):
        yield Regression(way, way.verdict, way.reason)
    for what in ("values", "gradients", "second"):
        now, then = getattr(way, what), getattr(other, what)
        for dtype in then.keys() & now.keys():
            yield from _worse_figures(way, f"{what} in {dtype}", now[dtype], then[dtype], LIMITS[dtype])
    for what in ("dtypes", "notes"):
        now, then = getattr(way, what), getattr(other, what)
        good = [name for name, verdict in then.items() if verdict in GOOD]
        yield from (Regression(way, name, now[name]) for name in good if now.get(name, "equal") not in GOOD)
    for dtype, said in way.compiled.items():
        if not _is_good(said) and _is_good(other.compiled.get(dtype, AS_EAGER)):
            yield Regression(way, f"compiled, {dtype}", said)
    for dtype, said in way.flushed.items():
        if said != FINITE and other.flushed.get(dtype) == FINITE:
            yield Regression(way, f"flushed, {dtype}", said)
    for name in ("failures", "shapes", "arithmetic"):  # which are recorded only for faults
        if way.notes.get(name, "equal") not in GOOD and name not in other.notes:
            yield Regression(way, name, way.notes[name])


def _worse_figures(way: Implementation, what: str, now: Figures, then: Figures, limit: float) -> Iterator[Regression]:
    # On another processor a few more points fall on the wrong side of an overflow; a first one is always a regression.
    if now.mismatches > then.mismatches * 1.1 + 2 or now.mismatches and not then.mismatches:
        example = f", {now.examples[0]}" if now.examples else ""
        yield Regression(way, what, f"{now.mismatches} wrong, where there were {then.mismatches}{example}")
    lost = max(0.0, (now.own_max or 0.0) - (then.own_max or 0.0))
    if is_larger(now.max, then.max, limit, lost):
        yield Regression(way, what, f"{now.max:g} ULP at {now.worst}, where there were {then.max:g}", of_rounding=True)


def is_larger(now: float, then: float, limit: float, lost: float = 0.0) -> bool:
    """Whether an error in ULP is larger than another by more than another processor explains, in a dtype of this limit
    (`LIMITS`). `lost`: how much larger the error of PyTorch's own kernel is."""
    return now > then * TIMES_WORSE + SHARE_WORSE * limit + lost


class Certificates(Mapping[str, Certificate]):
    """Certificates by rule, in the order of the rules."""

    def __init__(self, found: Mapping[str, Certificate]) -> None:
        self._found = dict(found)

    def __getitem__(self, rule: str) -> Certificate:
        return self._found[rule]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def ok(self) -> bool:
        """Whether none of them has a fault."""
        return all(certificate.ok for certificate in self.values())

    def __str__(self) -> str:
        good = sum(certificate.ok for certificate in self.values())
        lines = [f"{len(self)} certificates, {good} without a fault"]
        lines += [f"  {rule}: {certificate.faults[0]}" for rule, certificate in self.items() if not certificate.ok]
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    if isinstance(value, (Certificate, Implementation, Figures, Mismatch)):
        pairs = ((f.name, getattr(value, f.name)) for f in fields(value))
        return {name: _plain(item) for name, item in pairs if item not in ("", (), {}, None)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _way(data: Mapping[str, Any]) -> Implementation:
    measured = {
        what: {dtype: _figures(figures) for dtype, figures in data[what].items()}
        for what in ("values", "gradients", "second")
        if what in data
    }
    listed = {name: tuple(data.get(name, ())) for name in ("rules", "programs")}
    return Implementation(**{**data, **measured, **listed})


def _figures(data: Mapping[str, Any]) -> Figures:
    examples = tuple(Mismatch(**one) for one in data.get("examples", ()))
    return Figures(**{**data, "examples": examples})
