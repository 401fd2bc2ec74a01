"""Results of an implementation when subnormal numbers are flushed to zero, as XLA, GPUs and most accelerators do;
PyTorch's own kernels have a switch for it. Finite results must stay finite, and quotients of normal numbers must keep
their accuracy; errors that the op itself has with flushed operands are not the rule's fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib

import torch

from decomp.ir.dtypes import name_of
from decomp.ops import aten
from decomp.rules.certificate import FINITE
from decomp.samples import Sample
from decomp.tools.certification.candidate import MeasuredCandidate
from decomp.tools.certification.results import flat
from decomp.tools.measurement.trials import FAILURES, Function, Inputs, Trial, may_overflow

NEAR = 2.0**-10
"""The relative error above which a result counts as inaccurate."""


@contextlib.contextmanager
def flushing() -> Iterator[None]:
    """Context manager: flush subnormal numbers."""
    before = not bool(torch.tensor([1e-40]).mul(1.0))
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


class Flushed:
    """The results of an op on some inputs, with and without flushing: the reference for implementations."""

    def __init__(self, what: Trial, inputs: Inputs, own: Sequence[torch.Tensor]) -> None:
        self.what, self.inputs, self.own = what, inputs, own
        self.open = may_overflow(what.own, inputs, own)
        tensors = [_flushed(t) for t in inputs.tensors]
        self.others = [flat(what.own(tensors))]
        with flushing():
            self.others.append(flat(what.own(inputs.tensors)))

    def note(self, candidate: MeasuredCandidate, function: Function, found: Sequence[torch.Tensor]) -> None:
        """Record the verdict on an implementation that returns `found` without flushing."""
        try:
            with flushing():
                results = flat(function(self.inputs.tensors))
        except Exception:  # the failure was noted without flushing
            return
        for i, (own, result) in enumerate(zip(self.own, results)):
            if own.is_floating_point() and own.shape == result.shape:
                candidate.note_flushed(name_of(self.what.dtype), self._verdict(i, found[i], result))

    def _verdict(self, index: int, found: torch.Tensor, result: torch.Tensor) -> str:
        own, others = self.own[index], [each[index] for each in self.others]
        finite = torch.stack([t.isfinite() for t in (own, *others)]).all(0) & ~self.open[index]
        finite &= own.abs() <= (1 - NEAR) * torch.finfo(own.dtype).max  # close to overflow, rounding gives infinity
        for operand in self.inputs.tensors:
            finite = finite & (operand.isfinite() if self._is_pointwise(operand, own) else operand.isfinite().all())
        lost = finite & ~(result.isfinite() & found.isfinite())
        if bool(lost.any()):
            return self._described("not finite", lost, own, torch.where(found.isfinite(), result, found))
        if not _is_division(self.what.sample):
            return FINITE
        tiny = 2 * torch.finfo(own.dtype).smallest_normal
        wrong = finite & (own.abs() > tiny) & ~_near(result, own) & _near(found, own)
        wrong &= torch.stack([_near(t, own) for t in others]).all(0)
        return self._described("without their digits", wrong, own, result) if bool(wrong.any()) else FINITE

    def _is_pointwise(self, operand: torch.Tensor, own: torch.Tensor) -> bool:
        return self.what.pointwise and operand.shape == own.shape

    def _described(self, fault: str, places: torch.Tensor, own: torch.Tensor, result: torch.Tensor) -> str:
        first = places.flatten().nonzero()[0]
        same = [t.flatten()[first].item() for t in self.inputs.tensors if t.shape == own.shape]
        where = ", ".join(f"{value:.9g}" for value in same) or self.inputs.label
        number, wanted = (t.flatten()[first].item() for t in (result, own))
        return f"{int(places.sum()):,} {fault}, {number:.9g} instead of {wanted:.9g} at {where}"


def _is_division(sample: Sample) -> bool:
    packet = getattr(sample.overload, "overloadpacket", None)
    return packet is aten.div and sample.kwargs.get("rounding_mode") is None


def _near(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    wide = wanted.double()
    return (found.double() - wide).abs() <= max(NEAR, 8 * torch.finfo(wanted.dtype).eps) * wide.abs()


def _flushed(x: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point():
        return x
    return torch.where(x.abs() < torch.finfo(x.dtype).smallest_normal, x * 0, x)


def flushed_or_none(what: Trial, inputs: Inputs, own: Sequence[torch.Tensor]) -> Flushed | None:
    """The reference; None if the op fails, has no real results in float32, or
    runs on another device: only the CPU has the switch."""
    if what.dtype is not torch.float32 or what.sample.exact == "shape" or what.sample.device is not None:
        return None
    try:
        return Flushed(what, inputs, own)
    except FAILURES:
        return None
