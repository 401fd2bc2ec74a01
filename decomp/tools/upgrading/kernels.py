"""What PyTorch's own kernels do with a sample call: values and gradients on the inputs that certificates use, and for
what computes element by element on a few points at which its meaning shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
from dataclasses import replace
import hashlib
from typing import Any
import warnings

import torch

from decomp.errors import first_line
from decomp.ir.dtypes import name_of
from decomp.samples import Sample
from decomp.tools.certification.results import flat
from decomp.tools.measurement import points
from decomp.tools.measurement.differentiation import derivative
from decomp.tools.measurement.trials import FAILURES, Trial, in_dtype, over_points, takes, trial
from decomp.tools.upgrading import numbers
from decomp.tools.upgrading.records import Behaviour
from decomp.torch_internals import pytree

LABELS = ("as sampled", "with ties", "NaN planted", "infinities planted", "zeros planted")
"""The kinds of inputs of calls that do not compute element by element; of the others results say more of rounding."""
POINTS = "points"
_SAMPLED = "as sampled"


def numbers_of(sample: Sample) -> tuple[float, ...]:
    """The numbers among the arguments of a call, at which it may have ties."""
    leaves = pytree.tree_leaves((sample.args, dict(sample.kwargs)))
    return tuple(float(leaf) for leaf in leaves if type(leaf) in (int, float))


def behaviours(sample: Sample, seen: dict[str, tuple[str, ...]]) -> dict[str, Behaviour]:
    """What the kernel does, by dtype and kind of inputs. The points that it was tried on are added to `seen`."""
    if sample.documented is not None:
        return {}  # there is no kernel on this device
    found = {}
    for label, call in _calls(sample):
        key = ""
        if label.endswith(POINTS):
            texts = tuple(numbers.written(t, numbers.MOST) for t in call.tensors)
            key = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:8]
            seen[key] = texts
        found[label] = _behaviour(call, key)
    return found


def _calls(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """The call in several dtypes and on several inputs."""
    tensors = sample.tensors
    if not any(t.is_floating_point() or t.is_complex() for t in tensors):
        yield _SAMPLED, sample
        yield from _of_integers(sample) if tensors and sample.pointwise else ()
        return
    yield from _of_floats(sample, torch.float32)
    for dtype in (torch.bfloat16, torch.complex64):
        yield from _of_floats(sample, dtype)
    if sample.pointwise and "_backward" not in str(sample.overload):
        yield from _of_integers(sample)  # smooth_l1_loss_backward of torch 2.13 divides by zero, and crashes


def _of_floats(sample: Sample, dtype: torch.dtype) -> Iterator[tuple[str, Sample]]:
    name = name_of(dtype)
    try:
        call = in_dtype(sample, dtype).completed()
        spread = over_points(call, numbers_of(sample), 0, points.few, points.FEW) if sample.pointwise else None
    except FAILURES:
        return
    if spread is not None and takes(spread):
        yield f"{name}, {POINTS}", spread
    elif dtype is not torch.float32 or call.exact == "shape" or (tried := trial(sample, dtype)) is None:
        yield f"{name}, {_SAMPLED}", call
    else:
        chosen = (each for each in tried.inputs if each.label in LABELS)
        yield from ((f"{name}, {each.label}", tried.sample.with_tensors(each.tensors)) for each in chosen)


def _of_integers(sample: Sample) -> Iterator[tuple[str, Sample]]:
    if sample.domain is not None:
        return  # PyTorch's own kernel takes years for a polynomial of degree 2⁶³
    tensors = sample.tensors
    alike = all(t.dim() for t in tensors) and len({t.dtype for t in tensors}) == 1
    for dtype in (torch.int64, torch.int32) if alike else ():
        spread = sample.with_tensors(points.few_whole_numbers(len(tensors), dtype))
        if takes(spread):
            yield f"{name_of(dtype)}, {POINTS}", spread


def _behaviour(call: Sample, key: str) -> Behaviour:
    most = numbers.MOST if key else numbers.FEW
    raw = Trial(replace(call, leeway=None), torch.float32, bool(key), ())
    formed = None if call.leeway is None else Trial(call, torch.float32, bool(key), ())
    defined = call.exact != "shape"
    try:
        values = _run(lambda: flat(raw.own(call.tensors)))
        if formed is not None and defined:
            values = _without_undefined(values, raw)
    except FAILURES as error:
        return Behaviour(error=f"{type(error).__name__}: {first_line(error)}"[:200], at=key)
    texts = tuple(numbers.written(t, most, defined) for t in values)
    if not defined:
        return Behaviour(texts, at=key)
    gradients = _gradients(raw, most)
    open_values, open_gradients = texts, gradients
    if formed is not None:
        open_values = _texts(lambda: formed.form(call.tensors, values), most)
        open_gradients = _gradients(formed, most) if gradients else ()
    return Behaviour(
        texts,
        gradients,
        open_values if open_values != texts else (),
        open_gradients if open_gradients != gradients else (),
        key,
    )


def _without_undefined(values: Sequence[torch.Tensor], what: Trial) -> list[torch.Tensor]:
    """Results that a kernel leaves as memory happens to be, as `_ctc_loss` beyond the lengths of its inputs, are what
    PyTorch fills empty memory with when it is asked to: NaN, or the largest integer."""
    with _filled_memory():
        filled = _run(lambda: flat(what.own(what.sample.tensors)))
    found = []
    for mine, other in zip(values, filled):
        is_filled = other.isnan() if other.is_floating_point() or other.is_complex() else other == _largest(other.dtype)
        found.append(torch.where(is_filled, other, mine) if mine.shape == other.shape else mine)
    return found


def _largest(dtype: torch.dtype) -> int:
    return 1 if dtype is torch.bool else torch.iinfo(dtype).max


@contextlib.contextmanager
def _filled_memory() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _gradients(what: Trial, most: int) -> tuple[str, ...]:
    """None where a call has none, or they fail."""

    def computed() -> Sequence[torch.Tensor]:
        wanted = derivative(what, 1)
        return () if wanted is None else wanted.of(what.own, what.sample.tensors) or ()

    return _texts(computed, most)


def _texts(compute: Callable[[], Sequence[torch.Tensor]], most: int) -> tuple[str, ...]:
    try:
        return tuple(numbers.written(t, most) for t in _run(compute))
    except FAILURES:
        return ()


def _run(compute: Callable[[], Any]) -> Any:
    """With the same random numbers each time."""
    torch.manual_seed(0)
    return compute()
