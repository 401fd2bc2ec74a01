"""Trials: a sample call in one dtype, with its inputs. A pointwise op runs on points that cover its domain; any other
op on its sample, unchanged, ill-conditioned, with ties, and with special values planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
from dataclasses import dataclass, replace
import functools
import logging
from typing import Any

import torch

from decomp.metadata.fakes import new_mode
from decomp.samples import Sample
from decomp.tools.certification.results import flat
from decomp.tools.measurement import points
from decomp.torch_internals import pytree

Function = Callable[[Sequence[torch.Tensor]], Any]
"""An implementation of a sample's op, as a function of tensors of the same shapes."""

HUGE = "huge"
"""Inputs close to overflow, of either sign: terms that cancel may overflow on the way, with the order of additions."""
FAILURES = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, ZeroDivisionError, AssertionError)
"""The exceptions of PyTorch for a dtype or a value that an op does not accept."""


@dataclass(frozen=True)
class Inputs:
    """Tensors to run a call on."""

    label: str
    """"points", "as sampled", "shifted by 1,000", "NaN planted"."""
    tensors: tuple[torch.Tensor, ...]
    measured: bool = True
    """Whether errors count; otherwise only which results are NaN, infinite or zero."""
    trained: bool = False
    """Whether gradients are measured on these too."""

    @property
    def ill_conditioned(self) -> bool:
        """Whether float64 may also be inaccurate on these."""
        return self.label in ("shifted by 1,000", "cancelling", "over a wide range")


@dataclass(frozen=True)
class Trial:
    """A sample in one dtype."""

    sample: Sample
    dtype: torch.dtype
    pointwise: bool
    inputs: tuple[Inputs, ...]

    @property
    def own(self) -> Function:
        """The op itself."""
        return functools.partial(_run, self.sample)

    @property
    def wide(self) -> Function:
        """The op itself in float64 (complex128), on the same values."""
        wide = torch.complex128 if self.dtype.is_complex else torch.float64
        return functools.partial(_run, in_dtype(self.sample, wide))

    @property
    def is_gradient(self) -> bool:
        """Whether the op is a backward op."""
        return "_backward" in str(self.sample.overload)

    @property
    def slope(self) -> Trial:
        """The trial of the differentiable form of the call."""
        smooth = self.sample.differentiable
        return self if smooth is None else replace(self, sample=replace(self.sample, documented=smooth))

    def predicted(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """PyTorch's prediction of the results' metadata, or None. Its kernels may disagree (batch norm in
        16 bits in torch 2.13)."""
        mode = new_mode()
        try:
            with mode:
                return flat(
                    _run(replace(self.sample, documented=None), [mode.from_tensor(t.detach()) for t in tensors])
                )
        except Exception:  # an op may raise anything on fake tensors: no prediction
            return []

    def form(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The values to compare: the results of the call with these tensors, in normal form if some are unspecified."""
        leeway = self.sample.leeway
        return list(results if leeway is None else leeway.results(self.sample.with_tensors(tensors), results))


def _run(sample: Sample, tensors: Sequence[torch.Tensor]) -> Any:
    # Some ops write to their inputs, such as the running statistics of a batch norm.
    return sample.with_tensors(_copied(t) if not t.requires_grad else t for t in tensors).run()


def _copied(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, including gaps, for which PyTorch uses the same kernels."""
    copy = t.clone()
    if copy.stride() == t.stride() or 0 in t.stride() or t.layout is not torch.strided:
        return copy
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(copy)


def trial(sample: Sample, dtype: torch.dtype, numbers: Sequence[float] = (), seed: int = 0) -> Trial | None:
    """The sample in `dtype` with inputs; None if the op does not accept that dtype."""
    if sample.documented is not None and dtype.is_complex:
        return None  # a documented formula may accept dtypes that no kernel does
    converted = in_dtype(sample, dtype)
    turned = _turned(converted) if dtype.is_complex and not sample.pointwise else converted
    try:
        converted = (turned if takes(turned) else converted).completed()
    except FAILURES:
        return None  # the op that saves this one's arguments does not accept it
    if sample.pointwise:
        spread = over_points(converted, numbers, seed)
        if spread is not None and takes(spread):
            return Trial(spread, dtype, True, (Inputs("points", tuple(spread.tensors), trained=True),))
    if not takes(converted):
        return None
    return Trial(converted, dtype, False, tuple(_variants(converted, seed)))


def _turned(sample: Sample) -> Sample:
    """The sample with imaginary parts added to complex tensors that have none, each up to half of the real one: zeros
    and diagonals of square matrices are unchanged, and a symmetric matrix becomes Hermitian."""
    generator = torch.Generator().manual_seed(0)

    def turned(place: int, t: torch.Tensor) -> torch.Tensor:
        if not t.is_complex() or place in sample.fixed or bool(t.imag.any()):
            return t
        turn = torch.rand(t.shape, generator=generator) - 0.5
        if t.dim() > 1 and t.shape[-1] == t.shape[-2]:
            turn = (turn - turn.mT) / 2 if torch.equal(t, t.mT) else turn.tril(-1) + turn.triu(1)
        return t * (1 + 1j * turn).to(t.dtype)

    return sample.with_tensors(turned(place, t) for place, t in enumerate(sample.tensors))


def takes(sample: Sample) -> bool:
    """Whether the op runs on these arguments."""
    try:
        _run(sample, sample.tensors)
    except FAILURES:
        return False
    return True


def in_dtype(sample: Sample, dtype: torch.dtype) -> Sample:
    """The sample with its float tensors and float dtype arguments in another dtype; complex tensors in that dtype if it
    is complex, otherwise in the complex dtype of the same precision, or the nearest. Floats of 8 bits and less are the
    format of what they hold, and are kept."""
    wide = dtype in (torch.float64, torch.complex128)
    complex_dtype = torch.complex128 if wide else torch.complex64

    def cast(leaf: Any) -> Any:
        of_dtype = leaf if isinstance(leaf, torch.dtype) else leaf.dtype if isinstance(leaf, torch.Tensor) else None
        if of_dtype is None or isinstance(leaf, torch.dtype) and sample.exact == "own" or is_shell_float(of_dtype):
            return leaf
        new = complex_dtype if of_dtype.is_complex else dtype if of_dtype.is_floating_point else of_dtype
        return new if isinstance(leaf, torch.dtype) else leaf.to(new)

    return sample.replaced(cast)


def is_shell_float(dtype: torch.dtype) -> bool:
    """Whether it is a float dtype of 8 bits or less: a shell dtype to PyTorch, which computes nothing in it."""
    return bool(dtype.is_floating_point) and dtype.itemsize == 1


def widened(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The same values in float64 or complex128."""
    wide = {True: torch.float64, False: torch.complex128}
    wider = (t.is_complex() or t.is_floating_point() and not is_shell_float(t.dtype) for t in tensors)
    return tuple(t.to(wide[t.is_floating_point()]) if wanted else t for t, wanted in zip(tensors, wider))


def transposed(sample: Sample) -> Sample:
    """The same call on tensors with transposed strides in the last two dimensions."""
    return sample.with_tensors(t.mT.contiguous().mT if t.dim() > 1 else t for t in sample.tensors)


Grid = Callable[[int, torch.dtype, Sequence[float], int], Sequence[torch.Tensor]]
"""Makes points for a number of arguments of a dtype, given thresholds and a seed."""


def over_points(
    sample: Sample, numbers: Sequence[float], seed: int, grid: Grid = points.grid, count: int = points.COUNT
) -> Sample | None:
    """A pointwise call with its float tensors replaced by the `count` points of a grid; None if it has none. Tensors of
    other dtypes are repeated; 0-dimensional tensors next to larger ones are unchanged."""
    tensors = sample.tensors
    spread = [i for i, t in enumerate(tensors) if t.dim() or not any(other.dim() for other in tensors)]
    floats = [i for i in spread if tensors[i].is_floating_point() or tensors[i].is_complex()]
    if not floats or len({tensors[i].dtype for i in floats}) > 1:
        return None
    found = _columns(len(floats), tensors[floats[0]].dtype, numbers, seed, grid)
    columns = dict(zip(floats, found if sample.domain is None else sample.domain(found)))
    new = [columns[i] if i in columns else _repeated(t, count) if i in spread else t for i, t in enumerate(tensors)]
    return sample.with_tensors(new)


def _columns(count: int, dtype: torch.dtype, numbers: Sequence[float], seed: int, grid: Grid) -> Sequence[torch.Tensor]:
    if not dtype.is_complex:
        return grid(count, dtype, tuple(numbers), seed)
    parts = grid(2 * count, dtype.to_real(), tuple(numbers), seed)
    return [torch.complex(*parts[2 * i : 2 * i + 2]) for i in range(count)]


def _repeated(values: torch.Tensor, count: int) -> torch.Tensor:
    if values.dtype is torch.bool:
        return points.whole_numbers(1, torch.bool)[0][:count]
    flat = values.flatten() if values.numel() else values.new_zeros(1)
    return flat.repeat(count // len(flat) + 1)[:count]


def _variants(sample: Sample, seed: int) -> Iterator[Inputs]:
    """The tensors of a call, unchanged and changed in ways that the op still accepts."""
    tensors = tuple(sample.tensors)
    yield Inputs("as sampled", tensors, trained=True)
    finite, wide = _all_finite(sample, tensors), takes(in_dtype(sample, torch.float64))
    for label, change, measured, trained in _CHANGES:
        random = torch.Generator().manual_seed(seed)
        kept = sample.fixed if trained or measured else (*sample.fixed, *sample.parameters)
        changed = tuple(change(t, random) if _changeable(t) and i not in kept else t for i, t in enumerate(tensors))
        same = all(a is b for a, b in zip(tensors, changed))
        changed = changed if same else tuple(sample.with_tensors(changed).completed().tensors)
        new = sample.with_tensors(changed)
        # Inputs that the op rejects in float64 are outside its domain, even if a narrower kernel overflows and accepts.
        if not same and takes(new) and (not wide or takes(in_dtype(new, torch.float64))):
            if not measured or not finite or _all_finite(sample, changed):
                yield Inputs(label, changed, measured, trained)


def may_overflow(run: Function, inputs: Inputs, own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Where the results `own` of an op, run by `run`, may overflow or not with the order in which it adds: of huge
    inputs, those that overflow with the same inputs without their signs. Bool, a tensor for each result."""
    nowhere = [torch.zeros(t.shape, dtype=torch.bool) for t in own]
    if inputs.label != HUGE:
        return nowhere
    try:
        found = flat(run([t.abs() if t.is_floating_point() else t for t in inputs.tensors]))
        return [~f.isfinite() if f.shape == none.shape else none for f, none in zip(found, nowhere)]
    except FAILURES:
        return nowhere


def _changeable(t: torch.Tensor) -> bool:
    return bool(t.is_floating_point()) and not is_shell_float(t.dtype) and t.dim() > 0 and t.numel() > 1


def _all_finite(sample: Sample, tensors: Sequence[torch.Tensor]) -> bool:
    try:
        results = pytree.tree_leaves(_run(sample, tensors))
    except FAILURES:
        return False
    return all(bool(r.isfinite().all()) for r in results if isinstance(r, torch.Tensor) and r.is_floating_point())


def _shifted(t: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return t + (1000 if t.dtype is not torch.float16 else 30)


def _cancelling(t: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    flat = t.flatten().clone()
    half = len(flat) // 2
    flat[half : 2 * half] = -flat[:half] * (1 + 2.0**-9)
    return flat[torch.randperm(len(flat), generator=random)].reshape(t.shape)


def _ranging(t: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    reach = 5 if t.dtype is torch.float16 else 15
    return t * torch.exp2(torch.randint(-reach, reach + 1, t.shape, generator=random).double()).to(t.dtype)


def _tied(t: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return t.round()


def _planting(*values: float) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor]:
    """A few elements replaced by these values."""

    def planted(t: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        flat = t.flatten().clone()
        where = torch.randperm(len(flat), generator=random)[: max(len(values), len(flat) // 6)]
        new = torch.tensor(values, dtype=torch.float64).repeat(len(where) // len(values) + 1)[: len(where)]
        flat[where] = new.to(t.dtype)
        return torch.empty_like(t).copy_(flat.reshape(t.shape))  # with the same strides

    return planted


def _huge(t: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return t.sign() * (torch.finfo(t.dtype).max / 2)


def _subnormal(t: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return (t.double() * (torch.finfo(t.dtype).smallest_normal / 4)).to(t.dtype)


_NAN, _INF = float("nan"), float("inf")
_CHANGES: tuple[tuple[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor], bool, bool], ...] = (
    ("shifted by 1,000", _shifted, True, False),
    ("cancelling", _cancelling, True, False),
    ("over a wide range", _ranging, True, False),
    ("with ties", _tied, True, True),
    ("NaN planted", _planting(_NAN), False, False),
    ("infinities planted", _planting(_INF, -_INF), False, False),
    ("zeros planted", _planting(0.0, -0.0), True, False),
    (HUGE, _huge, False, False),
    ("subnormal", _subnormal, False, False),
)
"""Label, change, whether errors are measured, whether gradients are."""


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Mute PyTorch's long log messages about ops that do not run on fake tensors, which are expected here."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
