"""How kernels differ between two snapshots: where, from what to what, and whether that is another meaning, another
choice where the op leaves one, or a last digit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from decomp.errors import count_noun
from decomp.record_changes import RecordChange
from decomp.tools.upgrading.lines import op_name
from decomp.tools.upgrading.numbers import UNKNOWN, Kept, read
from decomp.tools.upgrading.records import Behaviour, CallRecord
from decomp.validation.ulp import Exact, deviation, spacing

Points = Mapping[str, tuple[str, ...]]
_AT = {
    "with ties": "at ties",
    "NaN planted": "beside NaN",
    "infinities planted": "beside infinities",
    "zeros planted": "beside zeros",
}
_INTEGERS = 2.0**31
_ROUNDING = 2.0**-8
"""What a number loses at most in the dtypes of calls, relative: in bfloat16."""


@dataclass(frozen=True, slots=True)
class KernelDifference:
    """One result, or one gradient, that is not what it was."""

    kind: str
    what: str
    """"value" or "gradient"."""
    where: str
    """"at ties"; nothing for ordinary inputs."""
    was: str
    now: str
    at: str
    """The call, and the inputs where these are known."""
    ulp: float = 0.0


def kernel_changes(op: str, pairs: Sequence[tuple[CallRecord, CallRecord]], points: Points) -> Iterator[RecordChange]:
    """One line for what differs alike."""
    found: dict[tuple[str, str, str], list[KernelDifference]] = {}
    for old, new in pairs:
        for label in old.behaviours:
            if label in new.behaviours and old.behaviours[label] != new.behaviours[label]:
                for each in _differences(old, label, old.behaviours[label], new.behaviours[label], points):
                    found.setdefault((each.kind, each.what, each.where), []).append(each)
    if any(kind == "meaning" and what == "value" for kind, what, _ in found):
        found = {key: each for key, each in found.items() if key[0] != "digits"}
    for (kind, what, where), differences in found.items():
        first, text = differences[0], f"{op_name(op)}: {what}{f' {where}' if where else ''}"
        more = f", and {count_noun(len(differences) - 1, 'place')} more" if len(differences) > 1 else ""
        if kind == "digits":
            worst = max(each.ulp for each in differences)
            yield RecordChange(kind, op, f"{text} by at most {worst:.3g} ULP: {first.at}{more}")
        else:
            yield RecordChange(kind, op, f"{text} was {first.was}, is {first.now}: {first.at}{more}")


def _differences(
    call: CallRecord, label: str, old: Behaviour, new: Behaviour, points: Points
) -> Iterator[KernelDifference]:
    at = f"{call.call}, {label}"
    if old.error or new.error:
        kind = "words" if old.error and new.error else "taken"
        yield KernelDifference(kind, "call", "", old.error[:80] or "taken", new.error[:80] or "taken", at)
        return
    inputs = [read(each).numbers for each in points.get(old.at, ())] if old.at == new.at else []
    for what, before, after, open_before, open_after in (
        ("value", old.values, new.values, old.open_values, new.open_values),
        ("gradient", old.gradients, new.gradients, old.open_gradients, new.open_gradients),
    ):
        if len(before) != len(after):
            was, now = (count_noun(len(each), "tensor") if each else "none" for each in (before, after))
            yield KernelDifference("meaning", what, "", was, now, at)
            continue
        is_open = _are_alike(open_before or before, open_after or after, bool(old.at))
        for was_text, now_text in zip(before, after):
            if was_text != now_text:
                yield from _of_texts(call, label, what, was_text, now_text, inputs, is_open)


def _are_alike(before: Sequence[str], after: Sequence[str], pointwise: bool) -> bool:
    """Whether results are the same but for what the op leaves open, and last digits."""
    if len(before) != len(after):
        return False
    for was_text, now_text in zip(before, after):
        was, now = read(was_text), read(now_text)
        if was.form.partition(" strides")[0] != now.form.partition(" strides")[0]:
            return False
        if was.digest != now.digest and bool(_apart(was, now, pointwise)[0].any()):
            return False
    return True


def _of_texts(
    call: CallRecord,
    label: str,
    what: str,
    was_text: str,
    now_text: str,
    inputs: Sequence[torch.Tensor],
    is_open: bool,
) -> Iterator[KernelDifference]:
    was, now, at = read(was_text), read(now_text), f"{call.call}, {label}"
    forms = [each.form.partition(" strides") for each in (was, now)]
    if forms[0][0] != forms[1][0]:
        yield KernelDifference("meaning", what, "", forms[0][0], forms[1][0], at)
        return
    if forms[0] != forms[1]:
        was_laid, now_laid = (f"strides{form[2]}" if form[2] else "contiguous" for form in forms)
        yield KernelDifference("layout", what, "", was_laid, now_laid, at)
    if was.digest == now.digest or UNKNOWN in (was.digest, now.digest):
        return
    apart, ulp = _apart(was, now, bool(inputs))
    if not bool(apart.any()):
        yield KernelDifference("digits", what, "", "", "", at, ulp)
        return
    for i in apart.nonzero().flatten().tolist():
        point = [t[i] if len(t) == len(apart) else t[0] for t in inputs if len(t)]
        where = _where(point, call.numbers, now.dtype) if inputs else _AT.get(label.partition(", ")[2], "")
        shown = f"{at} ({', '.join(_shown(each) for each in point)})" if point else at
        kind = "draws" if call.draws else "open" if is_open else "meaning"
        yield KernelDifference(kind, what, where, _shown(was.numbers[i]), _shown(now.numbers[i]), shown)


def _apart(was: Kept, now: Kept, pointwise: bool) -> tuple[torch.Tensor, float]:
    """Which of the numbers that are kept are others by more than half of their digits, and by how many ULP the others
    are at most."""
    if len(was.numbers) != len(now.numbers):
        return torch.ones(1, dtype=torch.bool), 0.0
    if not was.dtype.is_floating_point:
        return was.numbers != now.numbers, 0.0
    found, exact = now.numbers.to(was.dtype), Exact(was.numbers)
    sizes = was.numbers.abs()
    finite = sizes.isfinite()
    if not pointwise and bool(finite.any()):
        sizes = sizes[finite].max().expand_as(sizes)
    apart = deviation(found, exact, spacing(sizes, was.dtype), signed_zero=False)
    limit = torch.finfo(was.dtype).eps ** -0.5
    far = apart.special | (apart.error.nan_to_num(0.0) > limit)
    near = apart.error[~far & ~apart.error.isnan()]
    return far, float(near.max()) if len(near) else 0.0


def _where(point: Sequence[torch.Tensor], numbers: Sequence[float], dtype: torch.dtype) -> str:
    """What is special about a point."""
    values = [float(each) for each in point]
    if any(value != value for value in values):
        return "at NaN"
    if not dtype.is_floating_point and any(abs(value) >= _INTEGERS for value in values):
        return "beyond the integers"
    if len({*values}) < len(values) or any(_is_rounded(value, number) for value in values for number in numbers):
        return "at ties"
    if any(abs(value) == float("inf") for value in values):
        return "at infinities"
    return "at 0" if 0.0 in values else ""


def _is_rounded(value: float, number: float) -> bool:
    """Whether a point is a number of the call, in the dtype of the call."""
    return value == number or abs(value - number) <= _ROUNDING * abs(number)


def _shown(number: torch.Tensor) -> str:
    return f"{float(number):.6g}" if number.is_floating_point() else str(int(number))
