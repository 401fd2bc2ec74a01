"""How a rule measured with the installed PyTorch differs from its committed certificate, and what changed: the rule's
results, or PyTorch's own kernel.

A certificate has the error of the kernel beside that of the rule, on the same inputs and against the same exact
results, so for rounding errors the side that changed is known. It does not have the kernel's special values (NaN,
infinities, signs of zero) nor its gradients, which are themselves the reference. There the programs of one rule are
witnesses for each other: as written, and lowered to targets by other rules. If all of them contradict the kernel now,
and none did before, it is the kernel that changed; if some still agree with it, one of them changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from decomp.rules.accuracy import LIMITS
from decomp.rules.certificate import AS_WRITTEN, GOOD, Certificate, Figures, Implementation, Regression, is_larger

RULE, KERNEL, PROCESSOR = "rule", "kernel", "processor"
"""What changed: the rule's results got worse, PyTorch's kernel computes something else, or neither, but the processor
is another one than that of the certificate."""
KINDS = ("values", "gradients", "second")

Pairs = list[tuple[Implementation, Implementation]]
"""Each implementation as measured now, and in the committed certificate."""


@dataclass(frozen=True, slots=True)
class VersionDifference:
    """One difference between a rule measured here and its certificate."""

    rule: str
    """Its identity."""
    cause: str
    """`RULE`, `KERNEL` or `PROCESSOR`."""
    quantity: str
    """The quantity and its dtype, "gradients in float32", or the name of a verdict."""
    what: str
    """What differs, with the figures of both."""
    why: str
    """What the cause was concluded from."""

    def __str__(self) -> str:
        return f"{self.cause}: {self.what} ({self.why})"

    def to_json(self) -> dict[str, Any]:
        """Plain strings by name."""
        return asdict(self)


def version_differences(now: Certificate, then: Certificate, stale: str = "") -> tuple[VersionDifference, ...]:
    """What differs by more than repeated measurements do, once each; empty if nothing does. `stale`: why the
    certificate is not of this code; then whatever is worse is the rule's."""
    if now.error and not then.error:
        return (VersionDifference(now.rule, RULE, "error", now.error, "it could not be measured here"),)
    before = {(way.name, way.level): way for way in then.ways}
    pairs = [(way, before[way.name, way.level]) for way in now.ways if (way.name, way.level) in before]
    kernel = _of_kernel(pairs)
    found = {what: VersionDifference(now.rule, KERNEL, what, *texts) for what, texts in kernel.items()}
    for regression in now.regressions_from(then):
        key = f"{regression.what}, rounding" if regression.of_rounding else regression.what
        if key not in found or found[key].cause == KERNEL and regression.of_rounding:
            cause, why = (RULE, stale) if stale else _cause(regression, now.regressions_from(then), pairs, kernel)
            found[key] = VersionDifference(now.rule, cause, regression.what, str(regression), why)
    return tuple(found.values())


def of_processor(difference: VersionDifference, why: str) -> VersionDifference:
    """The same difference, attributed to the processor."""
    return replace(difference, cause=PROCESSOR, why=why)


def recurs(difference: VersionDifference, others: Iterable[VersionDifference]) -> bool:
    """Whether another measurement of the same rule differs in the same quantity, for the same cause."""
    same = (difference.cause, difference.quantity)
    return any((each.cause, each.quantity) == same for each in others)


def _of_kernel(pairs: Pairs) -> dict[str, tuple[str, str]]:
    """By quantity and dtype, how the kernel differs, and what says so."""
    found: dict[str, tuple[str, str]] = {}
    for kind in KINDS:
        for way, other in pairs:
            now, then = getattr(way, kind), getattr(other, kind)
            for dtype in now.keys() & then.keys():
                text = _own_error(now[dtype], then[dtype], LIMITS[dtype])
                if text:
                    found.setdefault(f"{kind} in {dtype}", (f"{kind} in {dtype}: {text}", "its own error changed"))
            if way.name == AS_WRITTEN and {way.verdict, other.verdict} == {"measured"} and "failures" not in way.notes:
                for dtype in now.keys() ^ then.keys():
                    had = "none here" if dtype in then else "here, while there were none"
                    found[f"{kind} in {dtype}"] = f"{kind} in {dtype}: {had}", "the rule is the same"
    return found


def _own_error(now: Figures, then: Figures, limit: float) -> str:
    """How the kernel's own error differs; empty if it does not."""
    mine, theirs = now.own_max, then.own_max
    if mine is None or theirs is None or not (is_larger(mine, theirs, limit) or is_larger(theirs, mine, limit)):
        return ""
    return f"{mine:g} ULP, where there were {theirs:g}"


def _cause(
    regression: Regression, regressions: Iterable[Regression], pairs: Pairs, kernel: Mapping[str, Any]
) -> tuple[str, str]:
    """What changed where an implementation is worse, and why that is so."""
    what = regression.what
    if regression.of_rounding:
        return RULE, "the kernel's own error does not explain it"
    witnesses = {way.title: way.hash for way in _able_to_contradict(what, regression.way.level, pairs)}
    if not witnesses:
        return RULE, "this is a property of the rule alone"
    if what in kernel:
        return KERNEL, "its own error changed too"
    against = {each.way.title for each in regressions if each.what == what and not each.of_rounding}
    agreeing = [title for title in witnesses if title not in against]
    if agreeing:
        return RULE, f"{' and '.join(agreeing)}: agrees with the kernel as before"
    if len(set(witnesses.values())) < 2:
        return RULE, "no other program of it tells the kernel's part"
    return KERNEL, f"{len(witnesses)} programs of the rule agree with each other, and none with the kernel"


def _able_to_contradict(what: str, level: str, pairs: Pairs) -> Iterator[Implementation]:
    """The implementations at a level that agreed with the kernel in this quantity, and were compared with it now."""
    for now, then in pairs:
        if now.level == level and {now.verdict, then.verdict} == {"measured"} and _agreed(what, then):
            if _measured(what, now):
                yield now


def _agreed(what: str, way: Implementation) -> bool:
    kind, _, dtype = what.partition(" in ")
    figures = getattr(way, kind).get(dtype) if kind in KINDS else None
    return not figures.mismatches if figures is not None else way.dtypes.get(what) in GOOD


def _measured(what: str, way: Implementation) -> bool:
    kind, _, dtype = what.partition(" in ")
    return dtype in getattr(way, kind) if kind in KINDS else what in way.dtypes
