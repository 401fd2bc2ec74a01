"""Sample calls: an op with concrete arguments. What is measured, explained and timed is measured on these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from decomp._library import samples as library_samples
from decomp.errors import ArgumentError, spelled
from decomp.ir.binding import BindingError, bind_function
from decomp.ir.call import kind_of
from decomp.ir.ops import of_function, op as op_of
from decomp.rules.rules import Rule
from decomp.torch_internals import pytree


@dataclass(frozen=True, slots=True)
class Leeway:
    """What an op leaves open: which of equal values it points at, the signs of singular vectors. Answers that are as
    good as each other have one form, and forms are what is compared."""

    results: Callable[[Sample, Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    """From a call, with the tensors that it was made with, and its results, to their form. Differentiable where the
    results are. What no answer may be, an index out of range, makes it another form, and no exception."""
    gradients: Callable[[Sample, Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None = None
    """The form of the gradients of such a form by the float tensors of the call: what equal values share."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One call of an op, and what to call it with."""

    overload: Any
    """An ATen overload, or any function that spells the op."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    exact: str = "float64"
    """What its results are held against: "float64", the op itself on float64; "own", the op itself as called, where the
    dtype is part of what it computes (`nextafter`); "shape", where values are left open (`empty`)."""
    elementwise: bool = False
    """Whether it computes element by element, though PyTorch has not tagged it so: it is tried on points."""
    leeway: Leeway | None = None
    """What the op leaves open, if anything."""
    documented: Callable[..., Any] | None = None
    """What the op is documented to compute, as a function of the same arguments, where PyTorch has no kernel for it on
    this processor: it stands for the op then."""
    differentiable: Callable[..., Any] | None = None
    """A function of the same arguments with the gradients that the op should have, where PyTorch's own are others."""
    parameters: tuple[int, ...] = ()
    """Which of its tensors are weights, whose NaN and infinities are nobody's concern, by position."""
    fixed: tuple[int, ...] = ()
    """Which of its tensors must be as they are: scales, edges in ascending order."""
    saved: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    """Computes anew those of its positional arguments that are results of others: what a forward op saved."""
    domain: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]] | None = None
    """Brings points from the whole range of the dtype to where the op can be asked, one tensor for each: a polynomial
    whose degree is 10³⁰ takes PyTorch's own kernel years."""

    @classmethod
    def of(
        cls, spelling: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Sample:
        """A call of an op in any spelling: the first overload that these arguments fit. Raises `ValueError`."""
        packet = op_of(spelling).packet
        if packet is None:
            raise ArgumentError(f"{spelling} is no registered operator; pass decomp.Sample(function, args)")
        try:
            bound = bind_function(packet, args, kwargs or {}, kind_of)
        except BindingError as error:
            raise ArgumentError(f"{error}: {', '.join(map(_brief, args))}") from error
        return cls(getattr(packet, bound.overload or "default"), args, kwargs or {}, **options)

    def run(self) -> Any:
        """What the op gives, or what it is documented to give where it has no kernel here."""
        return (self.documented or self.overload)(*self.args, **self.kwargs)

    @property
    def tags(self) -> frozenset[Any]:
        """What PyTorch says of the op: `torch.Tag.pointwise` and others."""
        if isinstance(self.overload, torch._ops.OpOverload):
            return frozenset(self.overload.tags)
        packet = of_function(self.overload).op.packet
        overloads = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
        return frozenset().union(*(overload.tags for overload in overloads))

    @property
    def pointwise(self) -> bool:
        """Whether it computes element by element, and the same each time."""
        tags = self.tags
        return (self.elementwise or torch.Tag.pointwise in tags) and torch.Tag.nondeterministic_seeded not in tags

    def completed(self) -> Sample:
        """The same call with what is saved computed anew from the other arguments."""
        return self if self.saved is None else replace(self, args=self.saved(self.args))

    def replaced(self, new: Callable[[Any], Any]) -> Sample:
        """The same call with each tensor, number or dtype among its arguments replaced."""
        args, kwargs = pytree.tree_map(new, (self.args, dict(self.kwargs)))
        return replace(self, args=args, kwargs=kwargs)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, in order."""
        return [leaf for leaf in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(leaf, torch.Tensor)]

    def with_tensors(self, tensors: Iterable[torch.Tensor]) -> Sample:
        """The same call with other tensors, in order."""
        rest = iter(tensors)
        return self.replaced(lambda leaf: next(rest) if isinstance(leaf, torch.Tensor) else leaf)

    def __str__(self) -> str:
        written = [_brief(arg) for arg in self.args] + [f"{key}={_brief(value)}" for key, value in self.kwargs.items()]
        return f"{spelled(self.overload)}({', '.join(written)})"


def samples_of(rule: Rule, given: Any = None) -> tuple[Sample, ...]:
    """The sample calls of a rule's op: those given (`Sample`s, or tuples of arguments), else those of the library.
    Raises `ValueError` where there are none."""
    if given is not None:
        found = tuple(_sample(rule, one) for one in given)
    else:
        found = _from_library(rule)
    if not found:
        raise ArgumentError(
            f"there are no sample calls of {rule.op}; pass samples=[(torch.randn(3, 4), 1), …], the arguments of a "
            "call each, or decomp.Sample(overload, args, kwargs)"
        )
    return found


def _from_library(rule: Rule) -> tuple[Sample, ...]:
    found: tuple[Sample, ...] = library_samples().calls_of(rule.op.packet or rule.op.name)
    return found


def _sample(rule: Rule, given: Any) -> Sample:
    if isinstance(given, Sample):
        return given
    return Sample.of(rule.op, tuple(given) if isinstance(given, (tuple, list)) else (given,))


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_brief, value))}]"
    return repr(value)
