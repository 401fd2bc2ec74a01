"""Constants: what is computed from factories alone, and on request from parameters and buffers, is computed once, by
the same kernels, and kept as a tensor of the program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
import operator
from typing import Any

import torch
from torch import fx, nn

from decomp.graphs.rewrite import Rewrite
from decomp.ir.aliases import attribute
from decomp.ir.call import substituted
from decomp.ir.effects import EffectTable
from decomp.ir.op_facts import RUN_ONCE
from decomp.metadata.ambient_modes import neutral
from decomp.metadata.meta_values import known_value, on_host, on_meta
from decomp.simplification.new_calls import same_value
from decomp.simplification.rewrite_constraints import RewriteConstraints
from decomp.simplification.terms import Term
from decomp.torch_internals import pytree
from decomp.torch_internals.fakes import unset_fake_temporarily

LARGEST = 1 << 16
"""Elements of the largest tensor that is kept, or computed on the way, where parameters are no constants: a mask of 256
by 256. A larger one makes the program heavier than the calls that it saves."""


class Constants:
    """Which terms of a graph are constants, and their values."""

    def __init__(
        self, root: nn.Module | None, state: Mapping[str, Any], around: RewriteConstraints, largest: int | None = None
    ) -> None:
        """Attributes of `root` and inputs with a `state` are constants; no tensor may have more than `largest`
        elements."""
        self._root, self._state, self._around, self._largest = root, state, around, largest
        self._constant: dict[Term, bool] = {}
        self._values: dict[Term, Any] = {}

    def is_constant(self, term: Term) -> bool:
        """Whether a term is the same each time the program runs."""
        waiting = [term]
        while waiting:
            current = waiting[-1]
            missing = [each for each in current.operands if each not in self._constant]
            if missing and self._computes(current):
                waiting += missing
                continue
            waiting.pop()
            if current not in self._constant:
                self._constant[current] = self._decided(current)
        return self._constant[term]

    def among(self, terms: Iterable[Term]) -> set[Term]:
        """Those of some terms, in order, that are the same each time."""
        return {term for term in terms if self.is_constant(term)}

    def _decided(self, term: Term) -> bool:
        if self._computes(term):
            return all(map(self._constant.__getitem__, term.operands)) and self._fits(term.value)
        known = term.op in ("placeholder", "get_attr") and term.owner not in self._around.written
        return known and self._known(term.owner) is not None

    def _computes(self, term: Term) -> bool:
        """Whether a term is a call whose operands decide whether it is constant."""
        if term.op in ("placeholder", "get_attr") or term.owner in self._around.written:
            return False
        return _depends_on_operands(term.target)

    def _fits(self, value: Any) -> bool:
        largest = self._largest
        return largest is None or all(
            all(type(size) is int for size in tensor.shape) and tensor.numel() <= largest
            for tensor in pytree.tensors_in(value)
        )

    def _known(self, node: fx.Node) -> torch.Tensor | None:
        return _tensor_of(node, self._root, self._state)

    def value(self, term: Term) -> Any:
        """What a constant is, as numbers on the host if it is one of the meta device. Raises what a kernel raises."""
        with neutral(), unset_fake_temporarily(), torch.no_grad():
            return self._computed(term)

    def _computed(self, term: Term) -> Any:
        waiting = [term]
        while waiting:
            current = waiting[-1]
            missing = [each for each in current.operands if each not in self._values]
            if missing and current.op not in ("placeholder", "get_attr"):
                waiting += missing
                continue
            waiting.pop()
            if current not in self._values:
                self._values[current] = self._evaluated(current)
        return self._values[term]

    def _evaluated(self, term: Term) -> Any:
        if term.op in ("placeholder", "get_attr"):
            known = self._known(term.owner)
            return known.detach() if known is not None else None
        args, kwargs = substituted((term.args, term.kwargs), self._values.__getitem__, Term)
        args, kwargs = on_host(args, kwargs)
        return term.target(*args, **kwargs)


def _depends_on_operands(target: Any) -> bool:
    """Whether calls of this are the same each time that their operands are, if they have no effects."""
    return isinstance(target, torch._ops.OpOverload) or target is operator.getitem


def _tensor_of(node: fx.Node, root: nn.Module | None, state: Mapping[str, Any]) -> torch.Tensor | None:
    """The tensor behind an input or an attribute, where it is known."""
    name = node.name if node.op == "placeholder" else str(node.target)
    value = state.get(name)
    if value is None and node.op == "get_attr" and root is not None:
        value = attribute(root, name)
    return known_value(value) if isinstance(value, torch.Tensor) else None


def constants_of(
    graph: fx.Graph, root: nn.Module | None, state: Mapping[str, Any], written: Collection[fx.Node]
) -> set[fx.Node]:
    """The nodes of a graph that freezing makes constants, before it is lowered: parameters and buffers that are not
    `written`, and what is computed from them and from factories alone."""
    known = {node for op in ("placeholder", "get_attr") for node in graph.find_nodes(op=op)} - set(written)
    return _computed_from({node for node in known if _tensor_of(node, root, state) is not None}, graph)


def _computed_from(known: set[fx.Node], graph: fx.Graph) -> set[fx.Node]:
    """Some nodes, and the calls that are computed from them and from factories alone."""
    effects, found = EffectTable(), set(known)
    for node in graph.nodes:
        if node.op == "call_function" and _depends_on_operands(node.target) and found.issuperset(node.all_input_nodes):
            does = effects.of(node)
            if does.known and not does:
                found.add(node)
    return found


def as_frozen(graph: fx.Graph, constants: Sequence[bool]) -> fx.Graph:
    """An expansion without the calls that freezing computes once, where `constants` says of each input whether it is
    one: their results are inputs of it. Factories alone stay calls."""
    inputs = graph.find_nodes(op="placeholder")
    own = {node for node, constant in zip(inputs, constants) if constant}
    known = _computed_from({*own, *graph.find_nodes(op="get_attr")}, graph)
    rewrite = Rewrite.of(graph)
    for node in graph.nodes:
        if node in known and node.op == "call_function" and (node.all_input_nodes or known.issuperset(node.users)):
            new = rewrite.create("placeholder", node.name, (), {}, node.name)
            new.meta.update(node.meta)
            rewrite.values[node] = new
        else:
            rewrite.copy(node)
    return rewrite.graph


def is_traced_anew(graph: fx.Graph, body: str) -> bool:
    """Whether a call traces the body of this name, with fake tensors, when it runs with gradients, as every
    higher-order op does that is differentiated by a graph of its own. (In 2.13 `materialize_as_graph` has a mode that
    takes no other tensors.) Such a body can have no constants."""
    users = (user for node in graph.find_nodes(op="get_attr") if str(node.target) == body for user in node.users)
    return any(getattr(user.target, "__name__", "") not in RUN_ONCE for user in users)


def frozen(
    terms: Sequence[Term], known: set[Term], constants: Constants, around: RewriteConstraints, exposed: Collection[Term]
) -> dict[Term, torch.Tensor]:
    """Of terms that are needed, in order, the constants (`known`) that others are computed from, with their values.
    Factories alone stay calls, and so does what is `exposed`, or written to."""
    found: dict[Term, torch.Tensor] = {}
    asked: set[Term] = set()
    for term in reversed(terms):
        if term in known and term not in asked and term.owner not in around.effectful:
            continue  # asked for by nobody, or by what is constant itself
        inside = term in asked and term not in exposed and term.owner not in around.effectful
        value = _value(term, constants) if inside else None
        if value is not None:
            found[term] = value
        else:
            asked.update(known.intersection(term.operands))
    return found


def _value(term: Term, constants: Constants) -> torch.Tensor | None:
    if not term.operands or not isinstance(term.value, torch.Tensor):
        return None
    try:
        value = constants.value(term)
    except Exception:  # whatever a kernel has against it, the program will say when it runs
        return None
    placed = on_meta(value) if term.value.is_meta and isinstance(value, torch.Tensor) else value
    return placed if same_value(placed, term.value) else None
