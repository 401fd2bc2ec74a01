"""The normal form of a graph. Each call, in order, is rewritten by laws until none applies; if an equal term already
exists, it becomes that term (hash consing). As operands are in normal form before the calls that use them, a single
pass reaches the fixed point."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from decomp.functionalize.writes import can_require_grad
from decomp.ir.aliases import is_view, view_bases
from decomp.ir.op_facts import UNINITIALISED
from decomp.metadata.symbolic_sizes import NUMBERS
from decomp.ops import aten
from decomp.simplification.laws import Law, Laws
from decomp.simplification.new_calls import NewCalls, alone, same_value
from decomp.simplification.rewrite_constraints import RewriteConstraints
from decomp.simplification.sinking import SINKING
from decomp.simplification.terms import Term, TermCall, ViewSinking, key_of, operands_of


@dataclass
class NormalForm:
    """A graph as terms."""

    terms: dict[fx.Node, Term] = field(default_factory=dict)
    """The term of each node of the graph."""
    applied: dict[fx.Node, tuple[str, ...]] = field(default_factory=dict)
    """The names of the laws applied to each node that they changed, in order."""
    merged: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """By node that was merged with an earlier node making the same call, that node."""
    inner: dict[fx.Node, list[Inner]] = field(default_factory=dict)
    """By node at which views sank, the calls moved above these views, the uppermost first."""

    def exposed(self, order: Iterable[Term], around: RewriteConstraints, results: Iterable[fx.Node]) -> set[Term]:
        """The terms, among those in order of computation, whose memory is visible outside: operands of effects,
        `results`, and their bases. These may be fewer than the nodes with visible memory: a view that laws bypassed is
        no longer the base of anything that leaves the program."""
        found = {self.terms[node] for node in results}
        for term in reversed(list(order)):
            if term.owner in around.effectful:
                found.update(term.operands)
            elif term in found:
                found.update(self._bases(term, around))
        return found

    def _bases(self, term: Term, around: RewriteConstraints) -> Iterator[Term]:
        """The terms of which a term may be a view."""
        owner = term.owner
        # The term is the node's own call, so its bases are known from the graph.
        if owner not in self.applied and owner not in self.inner:
            return map(self.terms.__getitem__, around.bases.get(owner, ()))
        # A law changed what it is a view of: asked of the new call.
        node, inputs = alone(term)
        return (inputs[base] for base in view_bases(node) if is_view(node, base) is not False)


@dataclass(frozen=True)
class Inner:
    """A call that was moved above that of a node."""

    term: Term
    names: tuple[str, ...]
    """The laws applied to it, in order."""
    merged: fx.Node | None
    """The earlier node that makes the same call, if there is one."""


class Conditions:
    """The conditions, common to all laws, for applying a law to a node and for merging two nodes."""

    def __init__(self, around: RewriteConstraints, new: NewCalls, exact: bool) -> None:
        self._around, self._new, self._exact = around, new, exact

    def keep_gradients(self, node: fx.Node) -> bool:
        """Whether the replacement of `node` must have bitwise the same gradients."""
        return self._exact and node in self._around.tracked

    def may_apply(self, each: Law, node: fx.Node, call: TermCall, found: Term | TermCall) -> bool:
        """Whether the result of a law may replace `node`."""
        around = self._around
        if not each.exact and self._exact or not each.gradients and self.keep_gradients(node):
            return False
        # Dropping a copy changes strides, and whether these copy is decided by strides known only at run time.
        if around.uncertain and call.target in _BY_STRIDES and not around.uncertain.isdisjoint(node.all_input_nodes):
            return False
        # Whoever gets this memory may write to it, so a result with memory of its own must stay one.
        if each.copies and node in around.leaving or not self._reads_the_same(node, call, found):
            return False
        if isinstance(found, TermCall):
            return self._new.allowed(found)
        # A program must not return one tensor twice, or its input, where it returned two: callers may write to one.
        if node in around.returned and (found.returned or found.op in ("placeholder", "get_attr")):
            return False
        # The replacement would give gradients to a value that has none.
        if found.owner in around.tracked and node not in around.tracked and can_require_grad(call.value):
            return False
        return same_value(found.value, call.value)

    def placed(self, each: Law, node: fx.Node, call: TermCall, found: ViewSinking) -> TermCall | None:
        """The lower call that replaces `node` when another call is moved above it, if the law may be applied."""
        inner, around = self._new.placed(found.inner, node), self._around
        if inner is None or around.written and any(term.owner in around.written for term in inner.operands):
            return None
        if self.keep_gradients(node):
            # The gradient of a broadcast operand is a sum, whose order would change.
            stay = set(inner.operands).intersection(operands_of(call))
            if any(term.owner in around.tracked for term in stay):
                return None
        outer = call.made(found.target, inner, *found.args)
        return outer if self.may_apply(each, node, call, outer) else None

    def _reads_the_same(self, node: fx.Node, call: TermCall, found: Term | TermCall) -> bool:
        """Whether the operands have at `node` the same values and gradients as where they were computed."""
        written, place = self._around.written, self._around.place
        if written:
            read = operands_of(found) if isinstance(found, TermCall) else (found,)
            if any(term.owner in written for term in read):
                # Even before the write: the memory is read at the place of the user.
                return False
        if not place:
            return True
        # The operands are not written: only the region in which they were computed matters.
        region = place.get(node, _OUTSIDE)[0]
        return all(place.get(term.owner, _OUTSIDE)[0] == region for term in operands_of(call))

    def may_cse(self, node: fx.Node, term: Term) -> bool:
        """Whether a node may be merged with an equal call."""
        around = self._around
        if node in around.written or term.owner in around.written:
            return False
        if term.leaves and node in around.leaving and not isinstance(term.value, NUMBERS):
            # The term may already represent calls with memory of their own, one of which is visible outside.
            if term.returned and node in around.returned or term.leaves is not around.memory.of(node):
                return False
        # Two uses of one value add their gradients before the backward of the
        # op, two values after it; for other ops the sum rounds differently.
        return not self.keep_gradients(node) or term.target in _LINEAR


_OUTSIDE = (0, 0)
"""The place of nodes in no region that read nothing that is written."""
_BY_STRIDES = frozenset(
    (
        aten.clone.default,
        aten.contiguous.default,
        aten._to_copy.default,
        aten.reshape.default,
        aten.to.dtype,
        aten.to.dtype_layout,
        aten.to.device,
        aten.to.other,
        aten.flatten.using_ints,
        aten.reshape_as.default,
    )
)
"""Ops whose operand's strides decide whether they copy."""
_LINEAR = frozenset(
    (
        aten.view.default,
        aten._unsafe_view.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.slice.Tensor,
        aten.select.int,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.alias.default,
        aten.clone.default,
        aten.neg.default,
        aten.detach.default,
    )
)
"""Ops with a backward for which summing gradients before or after it is bitwise equal."""


class Normalizer:
    """Rewrites the calls of one graph to normal form."""

    def __init__(
        self,
        around: RewriteConstraints,
        laws: Laws,
        conditions: Conditions,
        shares: bool,
        sinks: Mapping[fx.Node, int] | None = None,
    ) -> None:
        """`sinks`: the nodes at which views are to sink, and how often."""
        self._around, self._laws, self._conditions, self._shares = around, laws, conditions, shares
        self._sinks: Mapping[fx.Node, int] = sinks or {}
        self._interned: dict[Any, Term] = {}
        self.form = NormalForm()

    def visit(self, node: fx.Node) -> None:
        """Compute the term of a node whose operands have terms."""
        terms, around = self.form.terms, self._around
        if node in around.effectful:
            call = TermCall.of(node, terms)
            term = Term(node, node.op, None, call.args, call.kwargs, call.value)
            around.mark(node, term)
        else:
            term = self._normal(node, TermCall.of(node, terms))
        terms[node] = term

    def _normal(self, node: fx.Node, call: TermCall) -> Term:
        term, names, merged = self._rewritten(node, call, self._sinks.get(node, 0))
        if names:
            self.form.applied[node] = tuple(names)
        if merged is not None:
            self.form.merged[node] = merged
        self._around.mark(node, term)
        return term

    def _rewritten(self, node: fx.Node, call: TermCall, sinks: int) -> tuple[Term, list[str], fx.Node | None]:
        """The term for a call, the laws applied to reach it, and the earlier node that makes it, if any."""
        names: list[str] = []
        # Laws shorten a call, or move it towards one spelling, so that this ends.
        while True:
            lower = self._sunk(node, call) if sinks else None
            if lower is not None:
                names.append(SINKING.name)
                # Further sinking is done on the upper call, the lower one has no more views above it.
                call, sinks = self._on_inner(node, lower, sinks - 1), 0
                continue
            found = step(node, call, self._laws, self._conditions)
            if found is None:
                term, merged = self._interned_term(node, call)
                return term, names, merged
            law, result = found
            names.append(law.name)
            if isinstance(result, Term):
                return result, names, None
            call = result

    def _sunk(self, node: fx.Node, call: TermCall) -> TermCall | None:
        """The lower one of the two calls that replace a call, if the view that it uses may sink."""
        found = SINKING.rewrite(call)
        return self._conditions.placed(SINKING, node, call, found) if isinstance(found, ViewSinking) else None

    def _on_inner(self, node: fx.Node, lower: TermCall, sinks: int) -> TermCall:
        """The lower one of two calls on the normal form of the upper one."""
        call = lower.args[0].as_call()
        term, names, merged = self._rewritten(node, call, sinks)
        self.form.inner.setdefault(node, []).append(Inner(term, tuple(names), merged))
        return lower.made(lower.target, term, *lower.args[1:])

    def _interned_term(self, node: fx.Node, call: TermCall) -> tuple[Term, fx.Node | None]:
        if not self._shares or not _is_deterministic(call.target):
            return Term(node, call.op, call.target, call.args, call.kwargs, call.value), None
        # Part of the key: a call in another region, or after a write, is another call.
        place = self._around.place.get(node) if self._around.place else None
        key = key_of(call, place) if place is not None else key_of(call)
        found = self._interned.get(key)
        if found is not None and self._conditions.may_cse(node, found):
            return found, found.owner
        term = Term(node, call.op, call.target, call.args, call.kwargs, call.value)
        # The earlier term stays if the two may not be merged: later nodes may still be equal to it.
        self._interned.setdefault(key, term)
        return term, None


def step(node: fx.Node, call: TermCall, laws: Laws, conditions: Conditions) -> tuple[Law, Term | TermCall] | None:
    """The preferred law application to a call, independent of the order of laws: existing terms are preferred over new
    calls, and terms computed early over those computed late."""
    found: list[tuple[Law, Term | TermCall]] = []
    keeps_gradients = conditions.keep_gradients(node)
    for each in laws.of(call.target):
        # Asked before the law is tried, which costs more.
        result = each.rewrite(call) if each.gradients or not keeps_gradients else None
        if (
            result is not None
            and not isinstance(result, ViewSinking)
            and conditions.may_apply(each, node, call, result)
        ):
            found.append((each, result))
    # Ranking by the result makes the normal form independent of the order in which laws are listed.
    return min(found, key=_rank) if found else None


def _rank(application: tuple[Law, Term | TermCall]) -> tuple[Any, ...]:
    each, result = application
    return (0, result.owner, each.name) if type(result) is Term else (1, each.name)


def _is_deterministic(target: Any) -> bool:
    """Whether a call returns the same values each time; uninitialised memory does not."""
    overload = isinstance(target, torch._ops.OpOverload)
    return not (overload and target._schema.name.removeprefix("aten::") in UNINITIALISED)
