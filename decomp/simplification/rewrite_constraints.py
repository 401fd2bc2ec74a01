"""What stands around the calls of a graph and limits how it may be simplified: which calls have effects, whose memory
is seen outside or written, what may have a gradient, and in which region of switched modes a call stands."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
    """Inputs, outputs and calls that do more than return a value, or of which nobody knows: they stay as they are."""
    leaving: set[fx.Node] = field(default_factory=set)
    """Nodes whose memory is seen outside: what is returned, written back or given to an effect, and its bases."""
    returned: set[fx.Node] = field(default_factory=set)
    """Nodes that the graph returns as they are."""
    bases: dict[fx.Node, tuple[fx.Node, ...]] = field(default_factory=dict)
    """For each node that may be a view, of what."""
    written: set[fx.Node] = field(default_factory=set)
    """Nodes whose memory some call writes, or is written when the program has run."""
    tracked: set[fx.Node] = field(default_factory=set)
    """Nodes whose value may have a gradient."""
    place: dict[fx.Node, tuple[int, int]] = field(default_factory=dict)
    """For each node in a region of a switched mode, or that reads memory that is written within the graph, in which
    region and after how many writes it stands."""

    uncertain: set[fx.Node] = field(default_factory=set)
    """Nodes whose strides only the run decides."""
    memory: DisjointSets[fx.Node] = field(default_factory=DisjointSets)
    """Which nodes may share memory."""

    @classmethod
    def of(
        cls,
        graph: fx.Graph,
        root: nn.Module | None,
        tracks: Collection[fx.Node],
        written: Iterable[fx.Node],
        results: Iterable[fx.Node] = (),
    ) -> RewriteConstraints:
        """The surroundings in a graph whose attributes `root` owns. `tracks` are the inputs that may require a
        gradient, `written` those that the program writes back after it has run, `results` what it gives besides its
        outputs."""
        found = cls(leaving=set(results), returned=set(results), uncertain=of_uncertain_strides(graph))
        _look_around(found, graph, root, tracks, written)
        return found

    def note_view(self, node: fx.Node, bases: tuple[fx.Node, ...]) -> None:
        """Note that a node may be a view of others."""
        self.bases[node] = bases
        for base in bases:
            self.memory.join(node, base)

    def mark(self, node: fx.Node, term: Term) -> None:
        """Note how a term that stands for a node is seen outside."""
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
            # A view that is made where no gradients are recorded says all the same that it requires one.
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
        if node.op in ("placeholder", "output", "call_module") or effects or not effects.known:
            found.effectful.add(node)
        if Effect.REGION in effects.kinds:
            region += 1
            regions[node] = region
        if node in found.effectful and node.op != "output":
            changed = _written_by(node, effects, root)
            (to if node in trailing else within).extend(changed)
        writes[node] = len(within)
    _add_leaving(found, graph)
    outside, inside = ({memory.of(node) for node in nodes} for nodes in (to, within))
    for node in graph.nodes if outside or inside or regions else ():
        group = memory.of(node)
        if group in inside or group in outside:
            found.written.add(node)
        reads = inside and any(memory.of(operand) in inside for operand in node.all_input_nodes)
        if reads or node in regions:
            found.place[node] = regions.get(node, 0), writes.get(node, 0) if reads else 0


class PlainCall(NamedTuple):
    """What is known of the calls of an overload that does nothing but return new tensors, or views of its first
    argument."""

    gradients: bool
    """Whether it passes gradients on."""
    is_view: bool


class PlainCalls:
    """Plain calls by their overloads, each looked up once."""

    def __init__(self) -> None:
        self._known: dict[int, PlainCall | None] = {}

    def of(self, node: fx.Node) -> PlainCall | None:
        """What is known of the call of a node; None if it is not plain, or that may depend on more."""
        target = node.target
        if type(target) is not OpOverload:
            return None
        # By identity: hashing an overload costs more than the rest of a visit. The graph keeps its targets alive.
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
    """What a call writes; of a function of the user's own, whatever it is given."""
    changed = mutated_args(node, root)
    if changed or effects.known or isinstance(node.target, torch._ops.HigherOrderOperator):
        return changed
    return tuple(node.all_input_nodes)


def _add_leaving(found: RewriteConstraints, graph: fx.Graph) -> None:
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
    several = isinstance(metadata(node), (tuple, list))
    return several or node.op == "call_module" or spelling_of(node).op.short not in WITHOUT_GRADIENT


def _has_gradient(node: fx.Node, tracked: set[fx.Node]) -> bool:
    """Whether a call that passes gradients on passes one on."""
    if tracked.isdisjoint(node.all_input_nodes):
        return False
    value = metadata(node)
    return isinstance(value, (tuple, list)) or can_require_grad(value)
