"""The verdict on a case: lowered wholly, and right in dtype, shape, value, special values and gradient, or what is
wrong. The reference is the op in double precision; the op itself, in its own precision, says how far from it one may
be."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
import signal
from typing import Any
import warnings

import torch
from torch.utils import _pytree as pytree

import decomp
from tests.opinfo.cases import Case, Program

CLEAN, DECLARED, BLOCKED, WRONG, FAILED = "clean", "declared", "blocked", "wrong", "failed"
WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}
SECONDS = 120
"""Of the processor: a machine that does other things too makes no case slow."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a case on a target, and the reason if it is not clean."""

    status: str
    why: str = ""


class Disagreement(AssertionError):
    """The lowered program gives something else than the op."""


class NotCaptured(Exception):
    """PyTorch cannot export the op: there is no graph to lower."""


class TooSlow(Exception):
    """A case took longer than anybody would wait."""


def judge(case: Case, target: decomp.Target, count: int = 3, seed: int | None = None) -> Verdict:
    """The worst verdict over the samples of a case, or on one of them that a seed draws."""
    previous = signal.signal(signal.SIGPROF, _too_slow)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            programs = case.programs(count, seed)
            for program in programs:
                verdict = _judge(case, program, target)
                if verdict.status != CLEAN:
                    return verdict
        return Verdict(CLEAN)
    except TooSlow:
        return Verdict(FAILED, f"took more than {SECONDS} s")
    except Exception as error:  # the samples themselves cannot be made
        return Verdict(FAILED, f"no samples: {type(error).__name__}: {_brief(error)}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def _too_slow(*_: Any) -> None:
    raise TooSlow


def _judge(case: Case, program: Program, target: decomp.Target) -> Verdict:
    graded = case.differentiable and not program.special and not program.random
    expected = _own_outcome(program, graded) or _own_outcome(program, graded := False)
    if expected is None:
        return Verdict(CLEAN)  # the op itself refuses the sample
    try:
        lowered = _lowered(program, target)
        found = evaluate(lowered, program, graded)
        exact = None if program.random else in_double(program, graded, _floats_of_integers(program, expected))
        compare(found, expected, exact, program.random)
    except TooSlow:
        raise
    except decomp.NotLowered as error:
        reasons = [blocker.limitation for blocker in error.blockers]
        blockers = "; ".join(
            f"{b.op}: {b.limitation or b.condition or (b.tried[-1][1] if b.tried else 'no rule')}"
            for b in error.blockers
        )
        return Verdict(DECLARED if all(reasons) else BLOCKED, blockers)
    except (NotCaptured, decomp.errors.MutationError) as error:
        return Verdict(DECLARED, _brief(error))
    except Disagreement as error:
        return Verdict(WRONG, f"{error}{' (special values)' if program.special else ''}")
    except Exception as error:
        return Verdict(FAILED, f"{type(error).__name__}: {_brief(error)}")
    return Verdict(CLEAN)


def _own_outcome(program: Program, graded: bool) -> Outcome | None:
    """The result of the op itself, if it accepts the sample."""
    try:
        return evaluate(program.module, program, graded)
    except TooSlow:
        raise
    except Exception:
        return None


def _lowered(program: Program, target: decomp.Target) -> Any:
    if not program.exported:
        args, kwargs = program.arguments(program.inputs)
        return decomp.lower(program.module, to=target, args=args, kwargs=kwargs, accuracy="exact").result
    try:
        exported = torch.export.export(program.module, program.inputs, strict=False)
    except TooSlow:
        raise
    except Exception as error:
        raise NotCaptured(f"torch.export refuses it: {type(error).__name__}: {_brief(error)}") from error
    return decomp.lower(exported, to=target, accuracy="exact").result.module(check_guards=False)


@dataclass(frozen=True)
class Outcome:
    """Values and gradients of one run."""

    values: list[Any]
    gradients: list[Any]
    terms: list[float]
    """For each gradient, the size of the terms that may cancel in it: of weight times value over input."""


def evaluate(module: Any, program: Program, graded: bool, dtype: Any = None) -> Outcome:
    """Run `module` on fresh copies of the inputs, in another dtype if asked."""
    inputs = [_fresh(x, graded, dtype) for x in program.inputs]
    torch.manual_seed(0)
    args, kwargs = program.arguments(tuple(inputs))
    values = pytree.tree_leaves(program.settle(module(*args, **kwargs)))
    tensors = [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    # What does not depend on an input has a gradient of 0 there, whether autograd has heard of it or not.
    grads: list[Any] = [None] * len(wanted) if graded else []
    weights = [_ramp(v) for v in tensors]
    if grads and tensors:
        grads = list(torch.autograd.grad(tensors, wanted, weights, allow_unused=True))
    grads = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, grads)]
    size = sum((w * v.detach()).abs().mean().item() for w, v in zip(weights, tensors) if v.numel())
    terms = [size / x.detach().abs().max().item() if x.numel() and x.any() else size for x in wanted]
    return Outcome([v.detach() if isinstance(v, torch.Tensor) else v for v in values], grads, terms)


def _fresh(x: torch.Tensor, graded: bool, dtype: Any) -> torch.Tensor:
    if x.layout is not torch.strided:
        return x
    x = x.detach().clone() if dtype is None else x.detach().to(WIDER.get(x.dtype, x.dtype))
    return x.requires_grad_(graded and (x.is_floating_point() or x.is_complex()))


def _ramp(like: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, like.numel(), dtype=torch.float64).reshape(like.shape).to(like.dtype)


def _floats_of_integers(program: Program, expected: Outcome) -> bool:
    """Whether an op of integers alone gives floats: of these, which may be large, single precision is no reference."""
    floats = [value.is_floating_point() for value in expected.values if isinstance(value, torch.Tensor)]
    return bool(floats) and all(floats) and not any(x.is_floating_point() or x.is_complex() for x in program.inputs)


def in_double(program: Program, graded: bool, promoted: bool = False) -> Outcome | None:
    """The outcome in double precision, integers `promoted` to it if asked; None if the op does not take it."""
    try:
        module = program.module
        if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
            module = copy.deepcopy(module).double()
        if promoted:
            program = replace(program, inputs=tuple(x.double() for x in program.inputs))
        return evaluate(module, program, graded, torch.float64)
    except TooSlow:
        raise
    except Exception:
        return None


def compare(found: Outcome, expected: Outcome, exact: Outcome | None, random: bool) -> None:
    """Raise `Disagreement` where the two outcomes are not alike."""
    if len(found.values) != len(expected.values):
        raise Disagreement(f"{len(found.values)} results, not {len(expected.values)}")
    for i, (mine, theirs) in enumerate(zip(found.values, expected.values)):
        reference = exact.values[i] if exact and len(exact.values) == len(expected.values) else None
        _compare(mine, theirs, reference, random, "value", 16)
    if len(found.gradients) != len(expected.gradients):
        raise Disagreement("the gradient is lost")
    for i, (mine, theirs) in enumerate(zip(found.gradients, expected.gradients)):
        reference = exact.gradients[i] if exact and len(exact.gradients) == len(expected.gradients) else None
        cancelled = exact.terms[i] if exact and _is_rounding(reference, exact.terms[i]) else 0.0
        _compare(mine, theirs, reference, False, "gradient", 64, cancelled)


def _compare(
    mine: Any, theirs: Any, exact: Any, random: bool, what: str, allowed: float, cancelled: float = 0.0
) -> None:
    if not isinstance(theirs, torch.Tensor):
        if type(mine) is not type(theirs) or (mine != theirs and mine == mine):
            raise Disagreement(f"{what} is {mine!r}, not {theirs!r}")
        return
    if mine.dtype != theirs.dtype:
        raise Disagreement(f"{what} has dtype {mine.dtype}, not {theirs.dtype}")
    if mine.shape != theirs.shape:
        raise Disagreement(f"{what} has shape {tuple(mine.shape)}, not {tuple(theirs.shape)}")
    if random or theirs.numel() == 0:
        return
    if not (theirs.is_floating_point() or theirs.is_complex()):
        if not torch.equal(mine, theirs):
            raise Disagreement(f"{what} differs: {_first(mine, theirs, mine != theirs)}")
        return
    for part in (torch.real, torch.imag) if theirs.is_complex() else (lambda x: x,):
        _compare_floats(part(mine), part(theirs), None if exact is None else part(exact), what, allowed, cancelled)


def _compare_floats(
    mine: torch.Tensor, theirs: torch.Tensor, exact: Any, what: str, allowed: float, cancelled: float
) -> None:
    eps = torch.finfo(theirs.dtype).eps
    tiny = torch.finfo(theirs.dtype).smallest_normal
    reference = theirs.double() if exact is None or exact.shape != theirs.shape else exact.double()
    # Where the op's own kernel gives NaN though double precision does not, what that has is right.
    near = allowed * eps * (reference.abs() + _spread(reference)) + tiny
    mended = torch.isnan(theirs) & (((mine.double() - reference).abs() <= near) | (mine.double() == reference))
    for name, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        differs = (test(mine) != test(theirs)) & ~mended
        if differs.any():
            raise Disagreement(f"{what}: {name} differs: {_first(mine, theirs, differs)}")
    finite = torch.isfinite(theirs) & torch.isfinite(reference)
    if not finite.any():
        return
    own = torch.where(finite, (theirs.double() - reference).abs(), 0)
    error = torch.where(finite, (mine.double() - reference).abs(), 0)
    scale = torch.where(finite, reference.abs(), 0)
    limit = 4 * own.max() + allowed * eps * (scale + _spread(reference)) + 4 * eps * cancelled + tiny
    wrong = error > limit
    if wrong.any():
        raise Disagreement(
            f"{what} off by {float((error / (eps * (scale + tiny))).max()):.3g} ULP: {_first(mine, theirs, wrong)}"
        )


def _is_rounding(gradient: Any, terms: float) -> bool:
    """Whether a gradient in double precision is nothing but the rounding of terms of that size, which cancel."""
    if gradient is None or gradient.dtype not in (torch.float64, torch.complex128):
        return False
    return bool(gradient.any()) and bool((gradient.abs() <= 4 * torch.finfo(torch.float64).eps * terms).all())


def _spread(reference: torch.Tensor) -> Any:
    """The size of what is summed where results cancel: of all results, if none is huge."""
    scale = torch.where(torch.isfinite(reference), reference.abs(), 0)
    return 0 if scale.max() > 1e30 else scale.median() + scale.mean()


def _first(mine: torch.Tensor, theirs: torch.Tensor, where: torch.Tensor) -> str:
    i = tuple(where.nonzero()[0].tolist())
    return f"{mine[i].item()} for {theirs[i].item()} at {list(i)}"


def _brief(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300]
