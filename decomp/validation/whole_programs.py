"""Runs two programs on the same inputs and compares all that a caller can observe, with the source in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
import functools
import math
from typing import Any

import torch
from torch import nn

from decomp.errors import ArgumentError, count_noun, first_line
from decomp.proof.correspondence import CaptureDiffers, GradientsDiffer, ValuesDiffer, VerificationError
from decomp.validation.closeness import CallReference, compare_with_reference
from decomp.validation.draws import DrawnValues, drawn_values
from decomp.validation.running_programs import (
    AFTERWARDS,
    Flushing,
    Narrow,
    ObservedRun,
    branches,
    callable_of,
    flushed,
    named_as,
    nudged,
    run,
)
from decomp.validation.ties import Ties


def whole_programs(
    source: Any,
    lowered: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    promise: float = 0.0,
    gradients: bool = True,
    narrow: Narrow | None = None,
    subnormals: bool = True,
    drawn: DrawnValues | None = None,
) -> str:
    """Run two programs on the same inputs and compare all that a caller can observe, gradients only if the second must
    have them; `promise` is the allowed error of its rules in ULP, of the `narrow` dtypes if it computes in these.
    `subnormals`: whether the rules promise anything for subnormal numbers. Of values that depend on random numbers only
    dtypes and numbers of dimensions are compared; `drawn` says which these are, where the two programs have no graph
    that does. Raises `ValuesDiffer`, `GradientsDiffer`, and `ArgumentError` if the source does not run on the
    inputs."""
    before, after = callable_of(source), callable_of(lowered)
    drawn = drawn_values(source, lowered) if drawn is None else drawn
    if drawn.every:
        return NOT_COMPARED
    plain = branches(source) or branches(lowered)
    truth = _Truth(before, args, kwargs, plain, gradients, narrow, subnormals, drawn)
    found = named_as(before, _ran(after, args, kwargs, truth.differentiable, drawn), after)
    _require_alike(truth.own, found, drawn)
    if drawn and all(name in drawn for name in truth.own.values):
        return NOT_COMPARED
    worst = []
    for what, kind in (("values", ValuesDiffer), ("gradients", GradientsDiffer)):
        names, ours = [name for name in getattr(truth.own, what) if name not in drawn], getattr(found, what)
        extra = {name for name in ours if name not in drawn} - set(names)
        if extra and what == "values":
            raise kind(f"the lowered program returns {sorted(extra)[0]}, the source does not")
        errors = [_require_close(name, truth, ours.get(name), kind, max(FLOOR, promise)) for name in names]
        if what == "gradients":
            _require_same_tracking(truth.own, found)
        size = max((_size(getattr(truth.own, what)[name]) for name in names), default=0.0) or 1.0
        mine, own = (max((pair[i] for pair in errors), default=0.0) / size for i in range(2))
        worst.append(f"{_counted(names, what)} within {mine:.2g} (the source: {own:.2g})")
    said = f"the whole program run on the example inputs, against {truth.reference}: {', '.join(worst)}"
    allowed = ", which differ where subnormal numbers are flushed to 0: no more is promised there" * truth.flushed
    return said + allowed + _left_out([name for name in truth.own.values if name in drawn])


NOT_COMPARED = "the whole program not compared, as it is random"


def _left_out(names: Sequence[str]) -> str:
    """`; 1 result not compared, as it depends on random numbers`."""
    depends = "it depends" if len(names) == 1 else "they depend"
    return f"; {_counted(names, 'values')} not compared, as {depends} on random numbers" if names else ""


def _require_alike(own: ObservedRun, found: ObservedRun, drawn: DrawnValues) -> None:
    """Raise unless the results that depend on draws have the source's dtypes and numbers of dimensions: sizes may be
    drawn, and what is written may be what was there."""
    for name in (each for each in own.values if each in drawn and not each.endswith(AFTERWARDS)):
        value, expected = found.values.get(name), own.values[name]
        if value is None:
            raise ValuesDiffer(f"the lowered program does not return {name}")
        if (value.dtype, value.dim()) != (expected.dtype, expected.dim()):
            raise ValuesDiffer(f"{name} of the lowered program is {_kind(value)}, and {_kind(expected)} of the source")


def _kind(value: torch.Tensor) -> str:
    return f"a tensor of {str(value.dtype).removeprefix('torch.')} with {count_noun(value.dim(), 'dimension')}"


def require_as_captured(model: Any, captured: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `CaptureDiffers` if a program that was captured from a model does not compute what the model computes: then
    neither rules nor a converter are at fault."""
    try:
        whole_programs(model, captured, args, kwargs, gradients=False)
    except ValuesDiffer as error:
        said = error.problem.replace("the lowered program", "the captured program").replace("source", "model")
        raise CaptureDiffers(f"what was captured is not what the model computes: {said}") from None


def _counted(names: Sequence[str], what: str) -> str:
    """`1 result and 2 changed tensors`, or `4 gradients`."""
    if what == "gradients":
        return count_noun(len(names), "gradient")
    changed = sum(name.endswith(AFTERWARDS) for name in names)
    counts = [count_noun(len(names) - changed, "result")] * (len(names) > changed or not changed)
    return " and ".join([*counts, *[count_noun(changed, "changed tensor")] * bool(changed)])


def _ran(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], gradients: bool, drawn: DrawnValues
) -> ObservedRun:
    try:
        return run(module, args, kwargs, gradients=gradients, drawn=drawn)
    except Exception as error:  # the source ran on these inputs
        raise ValuesDiffer(f"the lowered program fails with {type(error).__name__}: {first_line(error)}") from error


def _of_source(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ObservedRun:
    try:
        return run(module, args, kwargs, gradients=False)
    except Exception as error:
        raise ArgumentError(
            f"the source does not run on the inputs given: {type(error).__name__}: {first_line(error)}\n"
            "  to do: pass args= and kwargs= on which it runs"
        ) from error


def _size(result: torch.Tensor) -> float:
    """The largest number of a result of finite floats; 0 of others."""
    if not result.is_floating_point() or not result.numel() or result.dtype == torch.float4_e2m1fn_x2:
        return 0.0
    largest = float(result.double().abs().max())  # float8 has no kernel for either
    return largest if math.isfinite(largest) else 0.0


FLOOR = 32.0
"""The allowed error in ULP of the largest element where the source happens to be exact."""


def _require_same_tracking(own: ObservedRun, found: ObservedRun) -> None:
    """Raise unless the same values require a gradient: where it is zero everywhere, gradients alone do not tell."""
    for name in own.values.keys() & found.values.keys():  # what is drawn, and written, may be what was there
        if (name in own.tracked) != (name in found.tracked):
            has, had = ("no", "one") if name in own.tracked else ("a", "none")
            raise GradientsDiffer(f"{name} requires {has} gradient in the lowered program, and {had} in the source")


class _Truth:
    """The reference for a program: its own results, those in float64 if it runs there, and acceptable variations:
    inputs perturbed in their last place, and other choices among equal elements; on request with subnormal numbers
    flushed to zero."""

    def __init__(
        self,
        module: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        plain: bool,
        gradients: bool = True,
        narrow: Narrow | None = None,
        subnormals: bool = True,
        drawn: DrawnValues = DrawnValues(),
    ) -> None:
        wide, self.narrow = module, narrow
        module = callable_of(narrow.source) if narrow is not None else module
        # Tried with gradients first, since results are the same with and without and one run is then enough.
        own = self._tried(module, args, kwargs, gradients=True, drawn=drawn) if gradients else None
        self.differentiable = own is not None
        self.own = own or _of_source(module, args, kwargs)
        how = {"gradients": self.differentiable, "plain": plain, "drawn": drawn}
        self._again = functools.partial(self._tried, module, args, kwargs, **how)
        self._may_flush, self.flushed = not subnormals, False
        self.wide = self._tried(wide, args, kwargs, wide=True, **how)
        self._flushed: list[ObservedRun] = []
        self.reference = "itself in float64" if self.wide is not None else "the source"

    @staticmethod
    def _tried(module: Any, args: Any, kwargs: Any, **how: Any) -> ObservedRun | None:
        try:
            return run(module, args, kwargs, **how)
        except Exception:  # the program has explicit dtypes, or overwrites what its backward pass needs
            return None

    @functools.cached_property
    def moved(self) -> list[ObservedRun]:
        """The results for perturbed inputs, and with other choices: needed only if a result differs."""
        dtypes, ties = self.narrow.narrower if self.narrow is not None else {}, Ties()
        # The first run also learns which ops have ties; only then is it known which other choices exist.
        tried = [self._again(moved=nudged(seed, dtypes), mode=ties) for seed in range(2)]
        tried += [self._again(mode=Ties(other)) for other in range(1, ties.alternatives + 1)]
        return [found for found in tried if found is not None]

    def flush(self) -> bool:
        """Accept results with subnormal numbers flushed to zero from now on; returns whether that is possible."""
        if self._may_flush and not self.flushed and (found := self._again(moved=flushed, mode=Flushing())) is not None:
            self._flushed.append(found)
            self.flushed = True
            return True
        return False

    def of(self, name: str, what: str) -> CallReference:
        own = getattr(self.own, what)[name]
        wide = getattr(self.wide, what).get(name) if self.wide is not None else None
        wides = None if wide is None or wide.shape != own.shape else [wide]
        return CallReference([own], wides, [], perturbed=lambda: self._perturbed(name, what))

    def _perturbed(self, name: str, what: str) -> list[list[torch.Tensor]]:
        runs = (getattr(each, what).get(name) for each in (*self.moved, *self._flushed))
        return [[value] for value in runs if value is not None]


def _require_close(
    name: str, truth: _Truth, found: Any, kind: type[VerificationError], promise: float
) -> tuple[float, float]:
    """Raise unless one result is close; return its error and the source's own."""
    what = "gradients" if kind is GradientsDiffer else "values"
    expected = truth.of(name, what)
    own = expected.own[0]
    if found is None and what == "gradients":
        if bool(own.any()):
            for_inference = "; none is required if the source's parameters have requires_grad_(False)"
            raise kind(f"the lowered program has no gradient of {name}{for_inference * name.startswith('parameter')}")
        return 0.0, 0.0
    if found is None:
        raise kind(f"the lowered program does not return {name}, or does not write to it")
    if truth.narrow is not None and found.dtype == own.dtype:
        own, found = truth.narrow(own), truth.narrow(found)
    # Errors of a whole program are not local to an element, so they are measured against its largest one.
    judged = compare_with_reference([found], replace(expected, own=[own]), promise, pointwise=False)
    # Only after a fault, since it costs a run, and since it accepts more.
    if judged.fault is not None and truth.flush():
        judged = compare_with_reference([found], replace(truth.of(name, what), own=[own]), promise, pointwise=False)
    if judged.fault is not None:
        raise kind(f"{name} of the lowered program differs: it {judged.fault}")
    return judged.error, compare_with_reference(
        [own], replace(expected, own=[own]), float("inf"), pointwise=False
    ).error
