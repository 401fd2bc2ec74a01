"""Constant folding: values computed from factories only, and on request from parameters and buffers, are computed once,
by the same kernels, and stored as tensors of the program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
import operator
from typing import Any

import torch
from torch import fx, nn

from decomp.graphs.rewrite import Rewrite
from decomp.ir.aliases import attribute
from decomp.ir.arguments import substituted
from decomp.ir.effects import EffectTable
from decomp.ir.module import Module
from decomp.ir.op_facts import RUN_ONCE
from decomp.metadata.ambient_modes import without_ambient_modes
from decomp.metadata.meta_values import known_value, on_host, on_meta
from decomp.simplification.new_calls import same_value
from decomp.simplification.rewrite_constraints import RewriteConstraints
from decomp.simplification.terms import Term
from decomp.torch_internals import pytree
from decomp.torch_internals.fakes import unset_fake_temporarily

LARGEST = 1 << 16
"""The size limit, in elements, of constants and intermediates if parameters are not frozen: a mask of 256 by 256.
Storing larger ones costs more than the calls saved."""


class Constants:
    """The constant terms of a graph, and their values."""

    def __init__(
        self, root: nn.Module | None, state: Mapping[str, Any], around: RewriteConstraints, largest: int | None = None
    ) -> None:
        """Attributes of `root` and inputs with a `state` are constants; no tensor may have more than `largest`
        elements."""
        self._root, self._state, self._around, self._largest = root, state, around, largest
        self._constant: dict[Term, bool] = {}
        self._values: dict[Term, Any] = {}

    def is_constant(self, term: Term) -> bool:
        """Whether a term is the same in every run of the program."""
        # A stack and not recursion: a chain of constants may be longer than Python's limit of frames.
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
        """The constant terms among these, which are in order."""
        return {term for term in terms if self.is_constant(term)}

    def _decided(self, term: Term) -> bool:
        if self._computes(term):
            return all(map(self._constant.__getitem__, term.operands)) and self._fits(term.value)
        # A buffer that the program updates is another one in the next run.
        known = term.op in ("placeholder", "get_attr") and term.owner not in self._around.written
        return known and self._known(term.owner) is not None

    def _computes(self, term: Term) -> bool:
        """Whether a term is a call that is constant if its operands are."""
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
        """The value of a constant, on the host if it is a meta tensor with known numbers. Raises what a kernel
        raises."""
        # A lowering may run inside of torch.compile, whose fake mode would make fakes of these.
        with without_ambient_modes(), unset_fake_temporarily(), torch.no_grad():
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
            # Without a graph of autograd that leads from the constant to the parameter.
            return known.detach() if known is not None else None
        args, kwargs = substituted((term.args, term.kwargs), self._values.__getitem__, Term)
        args, kwargs = on_host(args, kwargs)
        return term.target(*args, **kwargs)


def _depends_on_operands(target: Any) -> bool:
    """Whether calls of this target are determined by their operands, if they have no effects."""
    # A Python function may read anything.
    return isinstance(target, torch._ops.OpOverload) or target is operator.getitem


def _tensor_of(node: fx.Node, root: nn.Module | None, state: Mapping[str, Any]) -> torch.Tensor | None:
    """The tensor of an input or an attribute, if it is known."""
    name = node.name if node.op == "placeholder" else str(node.target)
    value = state.get(name)
    # The state of an exported program comes first: its attributes are lifted inputs.
    if value is None and node.op == "get_attr" and root is not None:
        value = attribute(root, name)
    return known_value(value) if isinstance(value, torch.Tensor) else None


def constants_of(
    graph: fx.Graph, root: nn.Module | None, state: Mapping[str, Any], written: Collection[fx.Node]
) -> set[fx.Node]:
    """The nodes of a graph, before lowering, that freezing turns into constants: parameters and buffers that are not
    `written`, and values computed only from these and from factories."""
    known = {node for op in ("placeholder", "get_attr") for node in graph.find_nodes(op=op)} - set(written)
    return _computed_from({node for node in known if _tensor_of(node, root, state) is not None}, graph)


def _computed_from(known: set[fx.Node], graph: fx.Graph) -> set[fx.Node]:
    """These nodes, and calls that only depend on them and on factories."""
    effects, found = EffectTable(), set(known)
    for node in graph.nodes:
        if node.op == "call_function" and _depends_on_operands(node.target) and found.issuperset(node.all_input_nodes):
            does = effects.of(node)
            if does.known and not does:
                found.add(node)
    return found


def as_frozen(graph: fx.Graph, constants: Sequence[bool]) -> fx.Graph:
    """An expansion without the calls that freezing computes once, whose results become inputs; `constants` says of each
    input whether it is a constant. Calls that only depend on factories stay."""
    inputs = graph.find_nodes(op="placeholder")
    own = {node for node, constant in zip(inputs, constants) if constant}
    known = _computed_from({*own, *graph.find_nodes(op="get_attr")}, graph)
    rewrite = Rewrite.of(graph)
    for node in graph.nodes:
        # A factory call that only constants read disappears with them; one that others read stays a call.
        if node in known and node.op == "call_function" and (node.all_input_nodes or known.issuperset(node.users)):
            new = rewrite.create("placeholder", node.name, (), {}, node.name)
            new.meta.update(node.meta)
            rewrite.values[node] = new
        else:
            rewrite.copy(node)
    return rewrite.graph


def is_retraced(graph: fx.Graph, body: str) -> bool:
    """Whether a call traces the body of this name with fake tensors when it runs with gradients, as every higher-order
    op does that is differentiated through a graph of its own. Such a body cannot have constants: in torch 2.13
    `materialize_as_graph` enters a fake mode that accepts no other tensors."""
    users = (user for node in graph.find_nodes(op="get_attr") if str(node.target) == body for user in node.users)
    return any(getattr(user.target, "__name__", "") not in RUN_ONCE for user in users)


def bodies_retraced(module: Module) -> set[nn.Module]:
    """The owners of bodies that a call traces at run time, and of those nested in them."""
    found, waiting = set[nn.Module](), list(module.graphs.values())
    for each in waiting:
        inside = each.owner in found
        for name, body in each.bodies.items():
            if body not in found and (inside or is_retraced(each.graph, name)):
                found.add(body)
                waiting.append(module.graphs[body])
    return found


def find_constants(
    terms: Sequence[Term], known: set[Term], constants: Constants, around: RewriteConstraints, exposed: Collection[Term]
) -> dict[Term, torch.Tensor]:
    """The constants (`known`) among the needed terms, in order, from which others are computed, with their values.
    Calls that only depend on factories stay, as do terms that are `exposed` or written."""
    found: dict[Term, torch.Tensor] = {}
    asked: set[Term] = set()
    # Backwards, so that only the outermost constants are stored, not those from which they are computed.
    for term in reversed(terms):
        if term in known and term not in asked and term.owner not in around.effectful:
            continue  # unused, or used only by other constants
        # Its memory would be that of the module: a caller could write the constant.
        inside = term in asked and term not in exposed and term.owner not in around.effectful
        value = _value(term, constants) if inside else None
        if value is not None:
            found[term] = value
        else:
            asked.update(known.intersection(term.operands))
    return found


def _value(term: Term, constants: Constants) -> torch.Tensor | None:
    # A factory call is as cheap as reading an attribute, and takes no memory in the file.
    if not term.operands or not isinstance(term.value, torch.Tensor):
        return None
    try:
        value = constants.value(term)
    except Exception:  # the program raises it when it runs
        return None
    placed = on_meta(value) if term.value.is_meta and isinstance(value, torch.Tensor) else value
    return placed if same_value(placed, term.value) else None
