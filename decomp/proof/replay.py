"""A lowered graph compared with the record of its lowering, node by node: a kept source node must have one copy, a
replaced one the nodes of its expansion, each with the operands of its source node. No other nodes are allowed and none
may be missing, so lost, swapped and rewired operands are found as well as invented ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from decomp.graphs.template import ExpansionTemplate
from decomp.ir.arguments import equal
from decomp.ir.call import is_projection, projected
from decomp.ir.respelling import canonical, respelled
from decomp.metadata.nonfinite_constants import same_constant
from decomp.proof.correspondence import NotAsRecorded, ValueLost
from decomp.torch_internals.pytree import tree_leaves

if TYPE_CHECKING:
    from decomp.proof.correspondence import Correspondence


def matches_record(work: Correspondence) -> str:
    """Every node of the lowered graph must be the one predicted by the record. Empty without a record."""
    templates = work.templates
    if templates is None:
        return ""
    walk = _ExpansionReplay(work, templates)
    for source in work.source_place:
        if source.op != "output":
            walk.visit(source)
    walk.require_nothing_left()
    return f"each of {walk.compared} nodes is a copy or part of an expansion, with the operands of its source node"


class _ExpansionReplay:
    """One pass over the source that ticks off the lowered nodes of each source node."""

    def __init__(self, work: Correspondence, templates: Mapping[fx.Node, ExpansionTemplate]) -> None:
        self.work, self.templates = work, templates
        self.compared = 0
        self.constants = _nodes_of_constants(work)
        # Most programs have no constants of rules: nothing is copied for these.
        self.values = self._with_lifted_constants() if self.constants else work.images
        self.lowered: dict[fx.Node, list[fx.Node]] = {}
        # Several expansions may share a constant, so its node belongs to none of them.
        shared = set(self.constants.values())
        for node in work.place:
            source = work.origin.get(node)
            if source is not None and node.op != "output" and node not in shared:
                self.lowered.setdefault(source, []).append(node)

    def _with_lifted_constants(self) -> dict[fx.Node, Any]:
        """`work.images`, with lifted inputs of an exported program instead of attributes."""
        tensors = self.work.constants

        def with_lifted(node: fx.Node) -> fx.Node:
            if node.op != "get_attr" or node in self.work.place:
                return node
            return self.constants.get(id(tensors.get(str(node.target))), node)

        return {source: fx.node.map_arg(value, with_lifted) for source, value in self.work.images.items()}

    def visit(self, source: fx.Node) -> None:
        lowered = self.lowered.pop(source, ())
        template = self.templates.get(source)
        own = self.work.constants.get(str(source.target)) if source.op == "get_attr" else None
        # Before the others: it is in the source graph, but was added by a pass, so it has no decision.
        if own is not None:
            self._require_kept_constant(source, own)
        elif template is not None:
            self._require_expanded(source, template, iter(lowered))
        else:
            self._require_copied(source, lowered)

    def _require_copied(self, source: fx.Node, lowered: Any) -> None:
        found = self.values.get(source)
        if not lowered and self._is_element_of_replaced_call(source, found):
            return
        if not lowered and not source.users and found is None:
            return  # an assertion that the lowering discharged
        # Two copies of a random call, say, would each be legal.
        if len(lowered) != 1 or lowered[0] is not found or found is None:
            problem = f"{source.name!r} was kept, so it must have one copy, which is its value"
            raise NotAsRecorded(problem, lowered[0] if lowered else None, source)
        node: fx.Node = lowered[0]
        self.compared += 1
        if node.op != source.op or not self._same_call(node, source):
            wanted = fx.node.map_arg((source.args, source.kwargs), lambda given: self.values.get(given, given))
            raise NotAsRecorded(
                f"{node.name!r} is not a copy of {source.name!r}",
                node,
                source,
                expected=wanted,
                found=(node.args, node.kwargs),
            )

    def _require_kept_constant(self, source: fx.Node, tensor: torch.Tensor) -> None:
        """A tensor that a rule added to the source graph must be there, as an attribute or an input."""
        found = self.values.get(source)
        if source.users and (found is None or found is not self.constants.get(id(tensor))):
            raise ValueLost(f"the constant {source.name!r} is missing", source=source)

    def _is_element_of_replaced_call(self, source: fx.Node, found: Any) -> bool:
        """Whether a node is a getitem of a call that was replaced by a tuple, so that it needs no node of its own."""
        results = self.values.get(source.args[0]) if source.args and isinstance(source.args[0], fx.Node) else None
        return type(results) is tuple and is_projection(source) and same(projected(source, results), found)

    def _same_call(self, node: fx.Node, source: fx.Node) -> bool:
        if isinstance(source.target, torch._ops.HigherOrderOperator):
            # The flags of an autocast region differ after its casts were made explicit.
            found, wanted = (tree_leaves((each.args, each.kwargs)) for each in (node, source))
            # Flags are not compared, nodes are, including those of the bodies.
            pairs = [(f, w) for f, w in zip(found, wanted) if isinstance(f, fx.Node) or isinstance(w, fx.Node)]
            return (
                node.target is source.target
                and len(found) == len(wanted)
                and all(same(f, w, self.values) for f, w in pairs)
            )
        return same_call(node, source.target, source.args, source.kwargs, self.values)

    def _require_expanded(self, source: fx.Node, template: ExpansionTemplate, lowered: Iterator[fx.Node]) -> None:
        # The values and not the nodes: an operand may itself have been replaced by an expansion.
        given = [self.values[operand] for operand in source.all_input_nodes]
        result, made = replay_expansion(source, template, given, lowered, self.constants)
        self.compared += len(made)
        if not same(result, self.values.get(source)):
            raise NotAsRecorded(f"the value of {source.name!r} is not the result of its expansion", None, source)

    def require_nothing_left(self) -> None:
        for source, lowered in self.lowered.items():
            problem = f"{lowered[0].name!r} comes from {source.name!r}, which is not in the source"
            raise NotAsRecorded(problem, lowered[0])


def _nodes_of_constants(work: Correspondence) -> dict[int, fx.Node]:
    """The node of each constant created by rules, by the id of its tensor: an attribute, or the input to which an
    exported program lifted it."""
    constants = work.constants
    return {
        id(constants[name]): node
        for node in work.place
        if node.op in ("get_attr", "placeholder") and (name := str(node.target)) in constants
    }


def replay_expansion(
    source: fx.Node,
    template: ExpansionTemplate,
    given: Sequence[Any],
    lowered: Iterator[fx.Node],
    constants: Mapping[int, fx.Node],
) -> tuple[Any, list[fx.Node]]:
    """Require that the nodes `lowered` are, in order, those of an expansion on the operands `given`, and no others.
    Returns the results of the expansion, and these nodes. `constants`: the node of each constant, by the id of its
    tensor."""
    values, made = list(given), list[fx.Node]()
    for entry in template.entries:
        if entry.op == "get_attr":
            # By identity: an equal tensor of another rule has a node of its own.
            constant = constants.get(id(template.constants[entry.target]))
            if constant is None:
                problem = f"the constant {entry.target!r} of the expansion of {source.name!r} is missing"
                raise ValueLost(problem, source=source)
            values.append(constant)
            continue
        args, kwargs = entry.arguments(values)
        # The inliner makes no node where the item is known; see `Inlining.inline`.
        if entry.target is operator.getitem and type(args[0]) is tuple:
            values.append(args[0][args[1]])
            continue
        node = next(lowered, None)
        if node is None:
            problem = f"the call of {entry.target} is missing from the expansion of {source.name!r}"
            raise NotAsRecorded(problem, None, source)
        if node.op != entry.op or not same_call(node, entry.target, args, kwargs):
            problem = f"{node.name!r} is not the expected node of the expansion of {source.name!r}"
            wanted, found = (entry.target, args, kwargs), (node.target, node.args, node.kwargs)
            raise NotAsRecorded(problem, node, source, expected=wanted, found=found)
        made.append(node)
        values.append(node)
    extra = next(lowered, None)
    if extra is not None:
        raise NotAsRecorded(f"{extra.name!r} is not in the expansion of {source.name!r}", extra, source)
    return template.outputs(values), made


def same_call(node: fx.Node, target: Any, args: Any, kwargs: Any, values: Mapping[fx.Node, Any] | None = None) -> bool:
    """Whether a node makes this call; overloads with the same meaning (`respelled`) are equal."""
    # `!=` as well: names of methods are strings, and equal ones need not be one object.
    if node.target is not target and node.target != target:
        if not isinstance(target, torch._ops.OpOverload) or node.target is not canonical(target):
            return False
        # The lowering respells aliases, and makes defaults explicit where the two differ.
        _, kwargs = respelled(target, len(args), kwargs)
    return same(node.args, args, values) and (not (node.kwargs or kwargs) or same(node.kwargs, kwargs, values))


def same(found: Any, expected: Any, values: Mapping[fx.Node, Any] | None = None) -> bool:
    """Whether two arguments are the same: nodes by identity (those of `expected` are first looked up in `values`),
    numbers with their type, so that 1, 1.0 and True differ; NaN equals NaN."""

    def alike(wanted: Any, got: Any) -> bool:
        if not isinstance(wanted, fx.Node):
            return same_constant(got, wanted)
        image = wanted if values is None else values.get(wanted, wanted)
        return got is image or not isinstance(image, fx.Node) and same(got, image) or _is_merged_getitem(got, image)

    return equal(expected, found, alike, strict=True)


def _is_merged_getitem(found: Any, wanted: Any) -> bool:
    """Whether torch.export merged this getitem with another one that takes the same item, and erased it."""
    return isinstance(found, fx.Node) and found.target is operator.getitem and getattr(wanted, "_erased", False)
