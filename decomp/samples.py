"""Sample calls: an op with concrete arguments. What is measured, explained and timed is measured on these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from decomp.errors import spelled
from decomp.ops import of_function
from decomp.rules import Rule


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

    def run(self) -> Any:
        """What the op gives."""
        return self.overload(*self.args, **self.kwargs)

    @property
    def tags(self) -> frozenset[Any]:
        """What PyTorch says of the op: `torch.Tag.pointwise` and others."""
        if isinstance(self.overload, torch._ops.OpOverload):
            return frozenset(self.overload.tags)
        packet = of_function(self.overload).op.packet
        overloads = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
        return frozenset().union(*(overload.tags for overload in overloads))

    def replaced(self, replace: Callable[[Any], Any]) -> Sample:
        """The same call with each tensor, number or dtype among its arguments replaced."""
        args, kwargs = pytree.tree_map(replace, (self.args, dict(self.kwargs)))
        return Sample(self.overload, args, kwargs, self.exact)

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
        raise ValueError(
            f"there are no sample calls of {rule.op}; pass samples=[(torch.randn(3, 4), 1), …], the arguments of a "
            "call each, or decomp.Sample(overload, args, kwargs)"
        )
    return found


def _from_library(rule: Rule) -> tuple[Sample, ...]:
    """The library stands on this package, so it is imported when it is wanted."""
    from decomp_rules import samples

    found: tuple[Sample, ...] = samples.calls_of(rule.op.packet if rule.op.packet is not None else rule.op.name)
    return found


def _sample(rule: Rule, given: Any) -> Sample:
    if isinstance(given, Sample):
        return given
    packet = rule.op.packet
    if packet is None:
        raise ValueError(f"{rule.op} is no registered operator; pass samples=[decomp.Sample(function, args), …]")
    args = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    for name in packet.overloads():
        sample = Sample(getattr(packet, name), args)
        if "out" not in name and runs(sample):
            return sample
    raise ValueError(f"no overload of {rule.op} takes {', '.join(map(_brief, args))}")


def runs(sample: Sample) -> bool:
    """Whether the op takes these arguments."""
    try:
        sample.run()
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError):
        return False
    return True


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_brief, value))}]"
    return repr(value)
