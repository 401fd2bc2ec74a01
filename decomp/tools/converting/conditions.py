"""Conditions that tell the calls of an op that a converter computes right from those that it does not, in the checks of
a target's file. Conditions are found greedily: the check that loses the fewest right calls for the wrong ones that
it excludes comes first, until no wrong one is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from decomp.tools.converting.asking import AskedCall, DescribedTensor, overload_named

MOST = 3
"""How many conditions an op may have. One that needs more is left out."""
MAX_RANK = 8
_NUMBERS = (bool, int, float)


@dataclass(frozen=True)
class FileCondition:
    """One check of a target's file: `argument = "largest"`, `equals = true`."""

    check: str
    value: Any
    argument: str | None = None

    def holds(self, call: AskedCall) -> bool:
        """Whether a call passes it."""
        value = call.arguments.get(self.argument or "")
        if self.check == "dtype":
            own = [value.dtype] if isinstance(value, DescribedTensor) else []
            return all(dtype in self.value for dtype in (call.dtypes if self.argument is None else own))
        if self.check == "given":
            return bool((value is not None and value != []) == self.value)
        if self.check == "rank":
            return not isinstance(value, DescribedTensor) or value.rank in self.value
        if self.check == "length":
            return isinstance(value, list) and len(value) == self.value
        if self.check == "at_least":
            return _is_number(value) and min(value if isinstance(value, list) else [value]) >= self.value
        return bool(value == self.value) and type(value) is type(self.value)


def conditions_of(calls: Sequence[AskedCall]) -> list[FileCondition] | None:
    """Conditions that every wrong call of an overload fails, and at least a third of the right ones pass; none if no
    call is wrong. None if there are no such conditions."""
    right, wrong = [[c for c in calls if (c.verdict == "right") == which] for which in (True, False)]
    if any(not call.arguments for call in wrong):  # it crashed, and it is not known on what
        return None
    kept = right
    found: list[FileCondition] = []
    while wrong and len(found) < MOST:
        best = max(_candidates(kept, wrong), key=lambda each: _gain(each, kept, wrong), default=None)
        if best is None or _gain(best, kept, wrong) <= 0:
            return None
        found.append(best)
        kept, wrong = ([call for call in some if best.holds(call)] for some in (kept, wrong))
    return None if wrong or 3 * len(kept) < len(right) or not kept else found


def _gain(condition: FileCondition, right: Sequence[AskedCall], wrong: Sequence[AskedCall]) -> float:
    """The part of the wrong calls that it excludes, less twice that of the right ones."""
    excluded = [sum(not condition.holds(call) for call in some) / len(some) for some in (wrong, right)]
    return excluded[0] - 2 * excluded[1] if excluded[1] < 1 else -1.0


def _candidates(right: Sequence[AskedCall], wrong: Sequence[AskedCall]) -> Iterator[FileCondition]:
    """Checks that some right call passes, those that say least first."""
    yield from _of_dtypes(right, wrong)
    for name in right[0].arguments:
        yield from _of_dtype(name, right)
        values = [call.arguments[name] for call in right]
        if any(isinstance(value, DescribedTensor) for value in values):
            yield from _of_ranks(name, right, wrong)
        if any(value is None or value == [] for value in values if not isinstance(value, DescribedTensor)):
            yield FileCondition("given", False, name)
        if all(value is not None and not (isinstance(value, list) and not value) for value in values):
            yield FileCondition("given", True, name)
        if any(_is_number(value) for value in values):
            yield FileCondition("at_least", 0, name)  # dimensions and indices that count from the end
        plain = [value for value in values if type(value) in (*_NUMBERS, str)]
        yield from (FileCondition("equals", value, name) for value in dict.fromkeys(plain))
        lists = [value for value in values if isinstance(value, list) and value]
        yield from (FileCondition("length", size, name) for size in sorted({len(value) for value in lists}))
        if any(_is_number(value) for value in values):
            yield FileCondition("at_least", 1, name)


def _of_ranks(name: str, right: Sequence[AskedCall], wrong: Sequence[AskedCall]) -> Iterator[FileCondition]:
    """All ranks but one of wrong calls. Other results at another rank than 0 have another reason than the rank; for a
    pointwise op all failures have."""
    bad = {
        value.rank
        for call in wrong
        if isinstance(value := call.arguments[name], DescribedTensor) and (value.rank == 0 or call.verdict != "wrong")
    }
    if torch.Tag.pointwise in overload_named(right[0].overload).tags:
        bad &= {0}
    for dropped in ([bad] if len(bad) > 1 else []) + [{rank} for rank in sorted(bad)]:
        yield FileCondition("rank", [rank for rank in range(MAX_RANK + 1) if rank not in dropped], name)


def _of_dtypes(right: Sequence[AskedCall], wrong: Sequence[AskedCall]) -> Iterator[FileCondition]:
    """The dtypes of right calls, without those in which as many calls are wrong as right; float32 is asked about most
    and stays, as what is wrong in it has another reason."""
    good, bad = (Counter(dtype for call in some for dtype in call.dtypes) for some in (right, wrong))
    worse = [dtype for dtype in good if bad[dtype] >= good[dtype] and dtype != "float32"]
    for dropped in ([], worse, *([dtype] for dtype in worse)):
        left = sorted(dtype for dtype in good if dtype not in dropped)
        if left:
            yield FileCondition("dtype", left)


def _of_dtype(name: str, right: Sequence[AskedCall]) -> Iterator[FileCondition]:
    """The dtypes of one of several tensors, as those that `where` chooses from."""
    values = [call.arguments[name] for call in right]
    if values and all(isinstance(value, DescribedTensor) for value in values):
        yield FileCondition("dtype", sorted({value.dtype for value in values}), name)


def _is_number(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(type(each) in (int, float) for each in values)
