"""Constraints on the simplification of a graph: which calls have effects, whose memory is visible outside or written,
which values may have gradients, and in which region of switched modes a call is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch._ops import OpOverload

from decomp.functionalize.writes import can_require_grad
from decomp.graphs.disjoint_sets import DisjointSets
from decomp.ir.accounting import write_backs
from decomp.ir.aliases import is_view, mutated_args, spelling_of, view_arguments, view_bases
from decomp.ir.call import metadata
from decomp.ir.effects import Effect, Effects, EffectTable, of_callable, recorded_behind
from decomp.ir.op_facts import MAYBE_VIEW, WITHOUT_GRADIENT
from decomp.ir.ops import of_function
from decomp.ir.uncertain_strides import of_uncertain_strides
from decomp.simplification.terms import Term


@dataclass
class RewriteConstraints:
    """Facts about each node of a graph that is to be simplified."""

    effectful: set[fx.Node] = field(default_factory=set)
    """Inputs, outputs, and calls with effects or unknown to the effect table: they stay unchanged."""
    leaving: set[fx.Node] = field(default_factory=set)
    """Nodes whose memory is visible outside: values that are returned, written back or passed to an effect, and their
    bases."""
    returned: set[fx.Node] = field(default_factory=set)
    """Nodes that the graph returns directly."""
    bases: dict[fx.Node, tuple[fx.Node, ...]] = field(default_factory=dict)
    """The possible bases of each node that may be a view."""
    written: set[fx.Node] = field(default_factory=set)
    """Nodes whose memory is written, by a call or after the program has run."""
    tracked: set[fx.Node] = field(default_factory=set)
    """Nodes whose value may have a gradient."""
    place: dict[fx.Node, tuple[int, int]] = field(default_factory=dict)
    """For each node in a region of a switched mode, or that reads memory written inside the graph: its region, and the
    number of writes before it."""

    uncertain: set[fx.Node] = field(default_factory=set)
    """Nodes whose strides are only known at run time."""
    memory: DisjointSets[fx.Node] = field(default_factory=DisjointSets)
    """The sets of nodes that may share memory."""

    @classmethod
    def of(
        cls,
        graph: fx.Graph,
        root: nn.Module | None,
        tracks: Collection[fx.Node],
        written: Iterable[fx.Node],
        results: Iterable[fx.Node] = (),
    ) -> RewriteConstraints:
        """The constraints in a graph whose attributes `root` owns. `tracks`: inputs that may require a gradient;
        `written`: inputs written back after the run; `results`: further results besides the outputs."""
        found = cls(leaving=set(results), returned=set(results), uncertain=of_uncertain_strides(graph))
        _look_around(found, graph, root, tracks, written)
        return found

    def note_view(self, node: fx.Node, bases: tuple[fx.Node, ...]) -> None:
        """Record that a node may be a view of others."""
        self.bases[node] = bases
        for base in bases:
            self.memory.join(node, base)

    def mark(self, node: fx.Node, term: Term) -> None:
        """Record on a term the visibility of a node that it represents."""
        if node in self.leaving:
            term.leaves = self.memory.of(node)
        term.returned = term.returned or node in self.returned


def _look_around(
    found: RewriteConstraints, graph: fx.Graph, root: nn.Module | None, tracks: Collection[fx.Node], written: Any
) -> None:
    table, memory, plain = EffectTable(root), found.memory, PlainCalls()
    trailing = set(write_backs(graph))
    regions: dict[fx.Node, int] = {}
    writes: dict[fx.Node, int] = {}
    to: list[fx.Node] = list(written)
    within: list[fx.Node] = []
    region, recorded = 0, True
    for node in graph.nodes:
        if region:
            regions[node] = region
        if within:
            writes[node] = len(within)
        call = plain.of(node)
        if call is not None:
            # A view taken where no gradients are recorded still reports requires_grad.
            if call.gradients and (recorded or call.is_view) and _has_gradient(node, found.tracked):
                found.tracked.add(node)
            if call.is_view:
                found.note_view(node, (node.args[0],))
            continue
        recorded = recorded_behind(node, recorded)
        views = view_bases(node, root)
        if node in tracks or (recorded or views) and _passes_gradients(node, found.tracked):
            found.tracked.add(node)
        bases = tuple([base for base in views if is_view(node, base) is not False])
        if bases:
            found.note_view(node, bases)
        effects = table.of(node)
        # Whatever a module does is unknown here.
        if node.op in ("placeholder", "output", "call_module") or effects or not effects.known:
            found.effectful.add(node)
        if Effect.REGION in effects.kinds:
            region += 1
            regions[node] = region
        if node in found.effectful and node.op != "output":
            changed = _written_by(node, effects, root)
            # What is written at the end is not read any more, so that nothing inside depends on when.
            (to if node in trailing else within).extend(changed)
        # After the write itself, which belongs to what follows.
        writes[node] = len(within)
    _add_leaving(found, graph)
    # Only now are the memory sets complete: views after a write belong to them as well.
    outside, inside = ({memory.of(node) for node in nodes} for nodes in (to, within))
    if outside or inside or regions:
        _add_places(found, graph, outside, inside, regions, writes)


def _add_places(
    found: RewriteConstraints,
    graph: fx.Graph,
    outside: Collection[Any],
    inside: Collection[Any],
    regions: Mapping[fx.Node, int],
    writes: Mapping[fx.Node, int],
) -> None:
    """Add what is written, and where calls may not be moved to. `outside`, `inside`: the memory that is written at the
    end, and before; `regions`, `writes`: how many of these have begun, or happened, before a node."""
    memory = found.memory
    for node in graph.nodes:
        group = memory.of(node)
        if group in inside or group in outside:
            found.written.add(node)
        reads = inside and any(memory.of(operand) in inside for operand in node.all_input_nodes)
        # Kept small: most graphs have no regions and no writes, and need no table.
        if reads or node in regions:
            found.place[node] = regions.get(node, 0), writes.get(node, 0) if reads else 0


class PlainCall(NamedTuple):
    """Facts about calls of an overload that only returns new tensors, or views of its first argument."""

    gradients: bool
    """Whether it passes gradients on."""
    is_view: bool


class PlainCalls:
    """Facts about plain calls by overload, each looked up once."""

    def __init__(self) -> None:
        self._known: dict[int, PlainCall | None] = {}

    def of(self, node: fx.Node) -> PlainCall | None:
        """The facts about a node's call; None if it is not plain, or they depend on its arguments."""
        target = node.target
        if type(target) is not OpOverload:
            return None
        # Keyed by id: hashing an overload costs more than the rest of a visit. The graph keeps its targets alive.
        key = id(target)
        if key not in self._known:
            self._known[key] = _plain(target)
        found = self._known[key]
        return None if found is not None and found.is_view and not _is_given_a_node(node) else found


def _is_given_a_node(node: fx.Node) -> bool:
    return bool(node.args) and type(node.args[0]) is fx.Node


def _plain(target: OpOverload) -> PlainCall | None:
    effects, short, arguments = of_callable(target), of_function(target).op.short, target._schema.arguments
    if effects or not effects.known or short in MAYBE_VIEW:
        return None
    places = [place for place, _ in view_arguments("call_function", target)]
    aliases = any(each.alias_info is not None for each in (*arguments, *target._schema.returns))
    if (aliases or places) and not (places == [0] and isinstance(arguments[0].type, torch.TensorType)):
        return None
    return PlainCall(short not in WITHOUT_GRADIENT, places == [0])


def _written_by(node: fx.Node, effects: Effects, root: nn.Module | None) -> Iterable[fx.Node]:
    """The tensors that a call writes; for a user-defined function, all its arguments."""
    changed = mutated_args(node, root)
    if changed or effects.known or isinstance(node.target, torch._ops.HigherOrderOperator):
        return changed
    return tuple(node.all_input_nodes)


def _add_leaving(found: RewriteConstraints, graph: fx.Graph) -> None:
    # From users to operands, as bases of what leaves the program leave it, too.
    for node in reversed(graph.nodes):
        if node.op == "output":
            found.returned.update(node.all_input_nodes)
        if node in found.effectful:
            found.leaving.update(node.all_input_nodes)
        elif node in found.leaving:
            found.leaving.update(found.bases.get(node, ()))


def _passes_gradients(node: fx.Node, tracked: set[fx.Node]) -> bool:
    if not node.op.startswith("call") or not _has_gradient(node, tracked):
        return False
    # An op with several results may pass gradients to one of them.
    several = isinstance(metadata(node), (tuple, list))
    return several or node.op == "call_module" or spelling_of(node).op.short not in WITHOUT_GRADIENT


def _has_gradient(node: fx.Node, tracked: set[fx.Node]) -> bool:
    """Whether a call that passes gradients on has an operand with one, and a result that may have one."""
    if tracked.isdisjoint(node.all_input_nodes):
        return False
    value = metadata(node)
    return isinstance(value, (tuple, list)) or can_require_grad(value)
