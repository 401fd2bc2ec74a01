"""The calls of a program before and after it is lowered, each with the modules that make it and what it costs, and the
weights: what tables by layer and by method are summed from."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from decomp.costs.counting import BYTES, FLOPS
from decomp.costs.memory import peak
from decomp.costs.model import price_of_calls
from decomp.costs.sizes import nbytes
from decomp.derive.decisions import Derived, PlannedProgram
from decomp.errors import Blocker, CostError, spell_target
from decomp.graphs.template import ExpansionTemplate
from decomp.ir.accounting import calls_for_target, effects_in
from decomp.ir.call import call_if_bound, metadata, modules_in
from decomp.ir.composites import CompositeCall, composites_in
from decomp.ir.module import Module, ProgramGraph
from decomp.ir.signature import Signatures
from decomp.torch_internals.pytree import tensors_in

if TYPE_CHECKING:
    from decomp.breakdown.layers import Layers
    from decomp.lowering import Lowering

Modules = tuple[tuple[str, str], ...]
"""Paths and class names of the modules that make a call, the outermost first."""


@dataclass(frozen=True, slots=True)
class CountedCall:
    """One call, before or after a program is lowered."""

    op: str
    modules: Modules
    """Those that make the call of the source from which it comes."""
    operations: float
    moved: float
    """Bytes that it reads and writes."""
    signature: Hashable = None
    """Of a call of the source: equal for calls that are lowered alike."""


@dataclass(frozen=True)
class ProgramAccount:
    """What a program consists of before and after it is lowered."""

    target: str
    before: Sequence[CountedCall]
    after: Sequence[CountedCall]
    weights: Mapping[str, torch.Tensor]
    """Parameters and buffers by name; one that has several names is listed under each."""
    blockers: Sequence[Blocker]
    inputs: int
    """Bytes of the inputs, without weights."""
    peak: int
    """Most bytes of results alive at once: of the lowered program, or of the source if it was only planned."""

    def layers(self) -> Layers:
        """What each layer costs. Raises `ArgumentError` for a program without module paths."""
        from decomp.breakdown.layers import layers_of  # deferred: it stands on this module

        return layers_of(self)


def account_of_plan(planned: PlannedProgram, program: Module) -> ProgramAccount:
    """What a planned program consists of, and what it becomes before it is simplified. Raises `CostError`."""
    graphs, known = list(planned.module.graphs.values()), dict[ExpansionTemplate, list[CountedCall]]()
    after = [each for own in graphs for each in _planned_calls(own, known)]
    return _account(planned.plan.target, planned.plan.blockers, program, graphs, after, graphs[0].graph)


def account_of_lowering(lowering: Lowering) -> ProgramAccount:
    """What a lowered program consists of, and its source. Raises `CostError`."""
    internals = lowering.internals
    graphs = [piece.planned for piece in internals.pieces]
    after = [_counted(node, modules_of(source)) for piece in internals.pieces for node, source in lowered_calls(piece)]
    for body, calls in composite_calls(lowering):
        after += [_counted(node, modules_of(call)) for call in calls for node in calls_for_target(body.graph)]
    own = internals.pieces[0].graph
    return _account(lowering.target.name, lowering.blockers, internals.program, graphs, after, own)


def source_calls(planned: ProgramGraph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The calls of a planned graph as they were before patterns were contracted, or complex numbers split, in it, each
    with the node of the user's program from which it comes."""
    # The first pass that changes what is counted: a call of a
    # pattern would count as one, and pairs of real numbers as many.
    changed = planned.at("fuse patterns") or planned.at("split complex")
    whole = changed.before if changed is not None and changed.before is not None else planned
    return ((node, whole.source_of(node)) for node in calls_for_target(whole.graph))


def lowered_calls(
    piece: ProgramGraph, effects: Mapping[fx.Node, str] | None = None
) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The calls of a lowered graph, each with the node of the user's program from which it comes, or itself. `effects`:
    those of the graph, if they are known already."""
    planned, origins = piece.planned, piece.since_planned.origin
    for node in calls_for_target(piece.graph, effects_in(piece.graph) if effects is None else effects):
        source = origins.get(node)
        yield node, planned.source_of(source) if source is not None else node


def composite_calls(lowering: Lowering) -> list[tuple[ProgramGraph, list[fx.Node]]]:
    """The bodies of composites, each with its calls: that of a composite within another with the calls of the outer
    one, as it runs once for each of these."""
    bodies = {body.owner: body for body in lowering.internals.composites}
    found: dict[Any, list[fx.Node]] = {owner: [] for owner in bodies}

    def count(own: ProgramGraph, outer: fx.Node | None) -> None:
        for node in composites_in(own.graph):
            owner = own.bodies.get(str(node.args[0].target))
            if owner in bodies:  # those of the source have bodies among the pieces
                found[owner].append(outer or node)
                count(bodies[owner], outer or node)

    for piece in lowering.internals.pieces if bodies else ():
        count(piece, None)
    return [(body, found[owner]) for owner, body in bodies.items()]


def source_composites(lowering: Lowering) -> list[tuple[CompositeCall, ProgramGraph, int]]:
    """The composites that the source itself has, each with its body and the number of calls of this body."""
    pieces = {piece.owner: piece for piece in lowering.internals.pieces}
    found: dict[Any, tuple[CompositeCall, ProgramGraph, int]] = {}
    for own in (*pieces.values(), *lowering.internals.composites):
        for node, made in composites_in(own.graph).items():
            owner = own.bodies.get(str(node.args[0].target))
            if owner in pieces:
                found[owner] = made, pieces[owner], 1 + (found[owner][-1] if owner in found else 0)
    return list(found.values())


def modules_of(node: fx.Node) -> Modules:
    """The modules that make a call of the source; none without `nn_module_stack`."""
    return tuple((path, _class_name(kind)) for path, kind in modules_in(node.meta.get("nn_module_stack")) if path)


def _class_name(kind: Any) -> str:
    name: str = kind if isinstance(kind, str) else kind.__name__
    return name.rpartition(".")[2]


def _account(
    target: str,
    blockers: Sequence[Blocker],
    program: Module,
    graphs: Iterable[ProgramGraph],
    after: Sequence[CountedCall],
    held: fx.Graph,
) -> ProgramAccount:
    signatures = Signatures()
    before = [
        _counted(node, modules_of(source), signatures.of(node).key)
        for own in graphs
        for node, source in source_calls(own)
    ]
    return ProgramAccount(target, before, after, weights_of(program), blockers, _bytes_of_inputs(program), peak(held))


def _planned_calls(own: ProgramGraph, known: dict[ExpansionTemplate, list[CountedCall]]) -> Iterator[CountedCall]:
    decisions = own.decisions or {}
    for node in calls_for_target(own.graph):
        modules, decision = modules_of(own.source_of(node)), decisions.get(node)
        if not isinstance(decision, Derived):
            yield _counted(node, modules)
            continue
        # Equal calls share a template, and its calls are priced once.
        if decision.template not in known:
            known[decision.template] = [_counted(each, ()) for each in calls_for_target(decision.template.graph)]
        for each in known[decision.template]:
            yield CountedCall(each.op, modules, each.operations, each.moved)


def _counted(node: fx.Node, modules: Modules, signature: Hashable = None) -> CountedCall:
    call = call_if_bound(node)
    operations, moved = (price_of_calls(cost, () if call is None else (call,)) for cost in (FLOPS, BYTES))
    return CountedCall(spell_target(node.target), modules, operations, moved, signature)


def weights_of(program: Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a program by name, of which some may be the same tensor."""
    if program.exported is not None:
        found = {**program.exported.constants, **program.exported.state_dict}
        return {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    root: nn.Module = program.root
    # Each name of a tied weight, so that it is found in the module where it is read.
    both = (*root.named_parameters(remove_duplicate=False), *root.named_buffers(remove_duplicate=False))
    return dict(both)


def _bytes_of_inputs(program: Module) -> int:
    nodes = program.graph.find_nodes(op="placeholder")
    if program.exported is not None:
        signature = program.exported.graph_signature
        nodes = [node for node in nodes if node.name in signature.user_inputs]
    return sum(nbytes(tensor) for node in nodes for tensor in tensors_in(_value(node)))


def _value(node: fx.Node) -> Any:
    found = metadata(node)
    if found is None:
        raise CostError(
            f"what a program costs depends on shapes, and this one has no metadata for {node.name}\n  to do: pass args="
        )
    return found
