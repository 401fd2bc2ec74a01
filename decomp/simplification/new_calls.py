"""Admission of calls created by laws: a call must be legal on the target, and PyTorch must give it the metadata of the
call that it replaces. Both are checked once per signature."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from decomp.graphs.tracing import without_guards
from decomp.ir.arguments import substituted
from decomp.ir.binding import BindingError
from decomp.ir.call import bound_call
from decomp.ir.ops import of_function
from decomp.ir.signature import described, is_symbolic
from decomp.metadata.fakes import fakes_in
from decomp.metadata.open_kernels import kernels_of
from decomp.metadata.strides import is_surely_contiguous
from decomp.metadata.symbolic_sizes import expression
from decomp.ops import aten
from decomp.rules.target import Target
from decomp.simplification.terms import Term, TermCall, key_of, operands_of
from decomp.torch_internals.fakes import FakeTensor, FakeTensorMode

NEW_VIEWS = frozenset({aten.view.default, aten.reshape.default, aten.permute.default})
"""The overloads that laws call at symbolic sizes. Their results begin where their operands do."""


class NewCalls:
    """The checks for one graph."""

    def __init__(self, target: Target, mode: FakeTensorMode | None) -> None:
        self._target, self._mode = target, mode
        self._fakes = fakes_in(mode) if mode is not None else None
        self._kernels = kernels_of(self._fakes) if self._fakes is not None else None
        self._known: dict[Any, bool] = {}
        self._values: dict[Any, Any] = {}

    def placed(self, call: TermCall, owner: fx.Node) -> Term | None:
        """The term for a call whose metadata is yet unknown; None if it is illegal, or has symbolic sizes."""
        # By metadata of operands and not by identity: a model repeats its blocks.
        key = key_of(call, of=_metadata)
        if key not in self._values:
            call.value = self._value(call)
            self._values[key] = call.value if call.value is not None and self._is_legal(call) else None
        call.value = self._values[key]
        if call.value is None:
            return None
        return Term(owner, call.op, call.target, call.args, call.kwargs, call.value)

    def _value(self, call: TermCall) -> Any:
        # The fake mode takes a millisecond for a call on symbolic sizes, and its answer may hold at the example's only.
        if self._kernels is None or any(is_symbolic(term.value) for term in operands_of(call)):
            return None
        args, kwargs = substituted((call.args, call.kwargs), lambda term: term.value, Term)
        found = self.result(call.target, args, kwargs)
        return found if isinstance(found, FakeTensor) else None

    def allowed(self, call: TermCall) -> bool:
        """Whether the call is legal and has the required metadata."""
        key = key_of(call, described(call.value), of=_metadata)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._fits(call) and self._is_legal(call)
        return found

    def result(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The result of a call on fake tensors; None if it depends on data."""
        assert self._kernels is not None and self._mode is not None
        found = self._kernels.run(target, args, dict(kwargs))
        if found is not NotImplemented:
            return found
        try:
            with self._mode, without_guards(self._mode):
                return target(*args, **kwargs)
        except Exception:  # the kernel rejects the arguments
            return None

    def own_memory(self, value: FakeTensor) -> FakeTensor:
        """The metadata of a call that was `placed`, in new memory."""
        assert self._kernels is not None
        return self._kernels.empty_like(value)

    def on_memory_of(self, base: FakeTensor, value: FakeTensor, offset: Any) -> FakeTensor:
        """The metadata of `value` as that of a view of `base`, `offset` elements after its first."""
        assert self._fakes is not None
        return self._fakes.view(base, value.shape, value.stride(), offset, value.dtype, value.device)

    def _fits(self, call: TermCall) -> bool:
        operands = [term.value for term in operands_of(call)]
        if self._kernels is None or not isinstance(call.value, FakeTensor):
            return False
        if is_symbolic(call.value) or any(map(is_symbolic, operands)):
            return _fits_at_every_size(call)
        args, kwargs = substituted((call.args, call.kwargs), lambda term: term.value, Term)
        return same_value(self.result(call.target, args, kwargs), call.value)

    def _is_legal(self, call: TermCall) -> bool:
        spelling = of_function(call.target)
        # Nearly all calls end here, without a node to bind.
        if self._target.surely_legal(spelling.op, spelling.overload):
            return True
        # Conditions of targets are asked of a node, which a new call does not have yet.
        node, _ = alone(call)
        try:
            bound = bound_call(node)
        except BindingError:
            return False
        # A predicate that inspects the context of the call cannot be evaluated for a new call.
        return bound is not None and self._target.why_illegal(bound) is None and not bound.looked_around


def _metadata(term: Term) -> Any:
    return Term, described(term.value)


def alone(call: TermCall | Term) -> tuple[fx.Node, dict[fx.Node, Term]]:
    """A node that makes a call in a graph of its own, and the term of each input of that graph."""
    graph, inputs = fx.Graph(), dict[Term, fx.Node]()
    for term in operands_of(call):
        if term not in inputs:
            inputs[term] = graph.placeholder(term.owner.name)
            inputs[term].meta["val"] = term.value
    args, kwargs = substituted((call.args, call.kwargs), inputs.__getitem__, Term)
    node = graph.call_function(call.target, tuple(args), kwargs)
    node.meta["val"] = call.value
    return node, {made: term for term, made in inputs.items()}


def same_value(one: Any, other: Any) -> bool:
    """Whether two tensors have the same shape, strides, dtype and device."""
    alike = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.layout is other.layout
    if not alike or one.layout is not torch.strided:
        return False
    return bool(described(one) == described(other))


def _fits_at_every_size(call: TermCall) -> bool:
    """Whether a call with symbolic sizes has the required metadata."""
    given = call.args[0].value if type(call.args[0]) is Term else None
    if not isinstance(given, torch.Tensor) or given.dtype is not call.value.dtype or call.target not in NEW_VIEWS:
        return False
    # A reshape between contiguous layouts is a view at every
    # size; of others it may copy at one size and not at another.
    if call.target is not aten.permute.default:
        return is_surely_contiguous(given) and is_surely_contiguous(call.value)
    order = [dim % given.dim() for dim in call.args[1]]
    strides = [given.stride(dim) for dim in order]
    return list(map(expression, strides)) == list(map(expression, call.value.stride()))
