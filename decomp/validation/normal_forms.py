"""Behaviour that an op leaves unspecified, as declared by the library: which of equal elements an index points to, the
signs of singular vectors, uninitialised memory. Results that differ there are compared in a normal form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from decomp.ir.call import Call, bound_call
from decomp.rules.library import samples as library_samples
from decomp.samples import Sample, UnspecifiedBehaviour
from decomp.torch_internals import pytree
from decomp.validation.operands import concrete_size

Function = Callable[[Sequence[Any]], list[torch.Tensor]]


@dataclass(frozen=True)
class CallNormalForm:
    """The normal form of the results of a node of a program."""

    node: fx.Node
    bound: Call

    def of_results(self, function: Function) -> Function:
        """A function of the operands whose results are in normal form. It raises if results are omitted."""
        return lambda operands: self._formed(operands, function(operands), "results")

    def of_gradients(self, function: Function) -> Function:
        """The same for a function that returns the gradients of the float operands."""
        return lambda operands: self._formed(operands, function(operands), "gradients")

    def _formed(self, operands: Sequence[Any], found: list[torch.Tensor], what: str) -> list[torch.Tensor]:
        call, leeway = _call(self.node, self.bound, operands)
        form = getattr(leeway, what)
        return list(form(call, found)) if form is not None and found else found


def normal_form(node: fx.Node) -> CallNormalForm | None:
    """The normal form of the results of a call; None if its op leaves nothing unspecified."""
    bound = bound_call(node)
    if bound is None or bound.op.packet is None or not bound.overload:
        return None
    return CallNormalForm(node, bound) if bound.op.short in library_samples().leeways.LEEWAYS else None


def _call(node: fx.Node, bound: Call, operands: Sequence[Any]) -> tuple[Sample, UnspecifiedBehaviour | None]:
    """A call of a program on these operands, as a sample, and the behaviour that its op leaves unspecified."""
    overload = getattr(bound.op.packet, bound.overload or "default")
    values = dict(zip(node.all_input_nodes, operands))
    given: Any = fx.node.map_arg(bound.arguments, values.__getitem__)
    arguments = [argument for argument in overload._schema.arguments if argument.name in given]
    args = tuple(given[argument.name] for argument in arguments if not argument.kwarg_only)
    kwargs = {argument.name: given[argument.name] for argument in arguments if argument.kwarg_only}
    return Sample(overload, args, kwargs), library_samples().leeways.leeway_of(bound.op.short, args, kwargs)


def as_stated(stated: Any, found: list[torch.Tensor], own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Results converted to those of the op's kernel, where they match the `stated` metadata and the kernel's do not:
    statistics of `_batch_norm_with_update_functional` in half types, and saved values of `_embedding_bag` (torch
    2.13)."""
    if list(map(_kind, found)) == list(map(_kind, own)) or len(found) != len(own):
        return found
    values = pytree.tensors_in(stated)
    return [_as_given(*each) for each in zip(found, own, values)] if len(values) == len(own) else found


def _as_given(mine: torch.Tensor, theirs: torch.Tensor, stated: torch.Tensor) -> torch.Tensor:
    if _kind(mine) != (stated.dtype, tuple(map(concrete_size, stated.shape))):
        return mine
    return mine.to(theirs.dtype) if mine.shape == theirs.shape else theirs


def _kind(value: torch.Tensor) -> tuple[torch.dtype, tuple[Any, ...]]:
    return value.dtype, tuple(value.shape)
