"""The invariants of a lowering, one function each, which returns a phrase stating what holds, or raises its own error.
networkx checks each distinct expansion and the quotient graph (lowered nodes contracted to their source nodes) for
cycles; everything else is a pass over the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import fx

from decomp.ir.agreement import described, metadata_of, same_metadata, same_structure, shown
from decomp.ir.arguments import nodes_in
from decomp.ir.call import CALLS, metadata, read_results, select_results
from decomp.ir.effects import Effects, EffectTable, regions_of, switches
from decomp.ir.op_facts import SIZE_METHODS, SIZES
from decomp.ir.ops import of_function
from decomp.proof.collectives import collectives_kept, merged_kinds
from decomp.proof.contraction import patterns_stand_for_calls
from decomp.proof.correspondence import (
    CodegenChanged,
    Correspondence,
    Dangling,
    DeadCodeAdded,
    EffectsChanged,
    IllegalCall,
    InventedDependency,
    MalformedExpansion,
    MetadataChanged,
    NameClash,
    OutOfOrder,
    OutputsChanged,
    PlaceholdersChanged,
    ValueLost,
    WithoutOrigin,
    WritesChanged,
    require_same_region,
)
from decomp.proof.reachability import as_networkx, networkx, reached_among
from decomp.proof.replay import matches_record

_ABSENT = object()


def _in_order(work: Correspondence) -> str:
    place = work.place
    for node, i in place.items():
        for user in node.users:
            # A user that is in no graph is left to `_no_dangling_reference`.
            if place.get(user, i + 1) <= i:
                raise OutOfOrder(f"{user.name!r} comes before its input {node.name!r}", user, work.origin.get(user))
    return "every node comes after its inputs, so there is no cycle"


def _no_dangling_reference(work: Correspondence) -> str:
    place, uses = work.place, 0
    for node in place:
        inputs = node.all_input_nodes
        # Every use is seen from both ends; if the counts differ, a node lists a user that does not read it.
        uses += len(inputs) - len(node.users)
        for operand in inputs:
            if operand not in place or node not in operand.users:
                raise _dangling(work, node, operand)
    if uses:
        raise _stray_user(work)
    return "no reference dangles, users and inputs agree"


def _names_distinct(work: Correspondence) -> str:
    # A set first: the search for the pair runs only if there is one.
    if len({node.name for node in work.place}) < len(work.place):
        seen: set[str] = set()
        for node in work.place:
            if node.name in seen:
                raise NameClash(f"two nodes are named {node.name!r}", node, work.origin.get(node))
            seen.add(node.name)
    return "names are distinct"


def _dangling(work: Correspondence, node: fx.Node, operand: fx.Node) -> Dangling:
    source = work.origin.get(node)
    if operand in work.place:
        return Dangling(f"{node.name!r} reads {operand.name!r}, which does not list it as a user", node, source)
    where = "was erased" if operand.graph is work.lowered else "belongs to another graph"
    return Dangling(f"{node.name!r} reads {operand.name!r}, which {where}", node, source)


def _stray_user(work: Correspondence) -> Dangling:
    for node in work.place:
        for user in node.users:
            if user not in work.place or node not in user.all_input_nodes:
                return Dangling(f"{node.name!r} lists the user {user.name!r}, which does not read it", node)
    raise AssertionError("inputs and users differ in number, yet each agrees")


def same_placeholders(work: Correspondence) -> str:
    before = [str(node.target) for node in work.source.nodes if node.op == "placeholder"]
    added = work.added
    # Constants of rules are inputs of an exported program; they have no counterpart.
    after = [str(node.target) for node in work.lowered.nodes if node.op == "placeholder" and node.target not in added]
    if before != after:
        raise PlaceholdersChanged("the placeholders changed", expected=", ".join(before), found=", ".join(after))
    return f"the same {len(before)} placeholders"


def same_outputs(work: Correspondence) -> str:
    before, after = work.results or (output_of(work.source).args[0], _without_writes(work))
    values = work.images if work.images else None
    if not same_structure(before, after, values):
        nodes = output_of(work.lowered), output_of(work.source)
        raise OutputsChanged("the outputs changed", *nodes, expected=shown(before, values), found=shown(after))
    return "the same outputs in the same structure"


def _without_writes(work: Correspondence) -> Any:
    """The outputs of the lowered graph without leading ones that an exported program writes back."""
    before, after = output_of(work.source).args[0], output_of(work.lowered).args[0]
    writes, signed = work.writes, work.signed
    if signed is not None:
        return after[len(signed) :] if isinstance(after, (tuple, list)) and signed else after
    if not writes or not isinstance(before, (tuple, list)) or not isinstance(after, (tuple, list)):
        return after
    # Without a record of the writes: leading results that the source lacks must be values that are written.
    leading = len(after) - len(before)
    return after[leading:] if leading > 0 and all(value in writes for value in after[:leading]) else after


def _writes_kept(work: Correspondence) -> str:
    """Each new value of an input or buffer must be written back to it, once and in order."""
    signed, copied = work.signed or (), work.copied or ()
    if work.signed is not None:
        leading = output_of(work.lowered).args[0][: len(signed)] if signed else ()
        _require_written(work, tuple(leading), signed)
    if work.copied is not None:
        found = tuple(_target_and_value(node) for node in work.place if _copies_back(work, node))
        if found != copied:
            raise WritesChanged(
                "the trailing writes to inputs and buffers changed", expected=shown(copied), found=shown(found)
            )
    written = len(signed) + len(copied)
    return f"{written} inputs and buffers written back, each with its own new value" if written else ""


def _require_written(work: Correspondence, found: tuple[Any, ...], expected: tuple[fx.Node, ...]) -> None:
    if found != expected:
        raise WritesChanged(
            "the values that are written back changed",
            output_of(work.lowered),
            expected=shown(expected),
            found=shown(found),
        )


def _copies_back(work: Correspondence, node: fx.Node) -> bool:
    name = str(getattr(node.target, "__name__", node.target))
    return node.op in CALLS and node not in work.origin and name.startswith("copy_")


def _target_and_value(node: fx.Node) -> tuple[Any, Any]:
    """The target of a `copy_` (below the `detach` of writes hidden from autograd), and the value."""
    place, value = node.args[0], node.args[1]
    # A write that is hidden from autograd goes through `detach()`, in any spelling.
    while isinstance(place, fx.Node) and "detach" in str(getattr(place.target, "__name__", place.target)):
        place = place.args[0]
    return place, value


def output_of(graph: fx.Graph) -> fx.Node:
    outputs = [node for node in graph.nodes if node.op == "output"]
    if len(outputs) != 1:
        raise OutputsChanged(f"a graph must have one output node, this one has {len(outputs)}")
    return outputs[0]


def same_codegen(work: Correspondence) -> str:
    # torch 2.13 has `Graph.set_codegen` but no public way to read it back.
    before, after = work.source._codegen, work.lowered._codegen
    if type(before) is not type(after):
        names = type(before).__name__, type(after).__name__
        raise CodegenChanged("the codegen changed", expected=names[0], found=names[1])
    expected, found = getattr(before, "pytree_info", None), getattr(after, "pytree_info", None)
    if expected != found:
        raise CodegenChanged("the pytree of inputs or outputs changed", expected=expected, found=found)
    return "the same codegen"


def _all_legal(work: Correspondence) -> str:
    illegal, calls = work.illegal, 0
    for node in work.place:
        if node.op in CALLS:
            calls += 1
            reason = illegal(node)
            if reason is not None:
                raise IllegalCall(f"{node.name!r} is not legal: {reason}", node, work.origin.get(node))
    return f"all {calls} calls are legal"


def _no_invented_dependency(work: Correspondence) -> str:
    indirect: list[tuple[fx.Node, fx.Node]] = []
    # An expansion may only use values of its own source node's operands. So contracting each expansion to its source
    # node must give no edge that the source does not have, at least as a path.
    # Contracting parts of an acyclic graph gives a cycle where two parts read from each other: each expansion alone
    # would be acyclic.
    quotient = networkx().DiGraph()
    quotient.add_edges_from(_crossing_edges(work, indirect))
    if not networkx().is_directed_acyclic_graph(quotient):
        circle = " -> ".join(node.name for node, _ in networkx().find_cycle(quotient))
        raise InventedDependency(f"source nodes depend on each other in a cycle: {circle}")
    _require_paths(work, [edge for edge in indirect if not _may_read(work, *edge)])
    return f"contracted to its {len(work.source_place)} source nodes, it has no new dependency"


def _crossing_edges(work: Correspondence, indirect: list[tuple[fx.Node, fx.Node]]) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The edges of the quotient graph: those between nodes of different origin. Edges that the source lacks are
    appended to `indirect`: the source must have a path for them."""
    origin = work.origin
    for node in work.place:
        source = origin.get(node)
        if source is None:
            _require_no_origin_needed(work, node)
            continue
        if source not in work.source_place:
            raise WithoutOrigin(f"{node.name!r} comes from {source.name!r}, which is not in the source", node)
        for user in node.users:
            target = origin.get(user)
            # Inside one expansion; `_expansions_sound` and the replay are about these.
            if target is source or target is None:
                continue
            # Direct edges are the usual case and need no search.
            if target not in source.users:
                indirect.append((node, user))
            yield source, target


def _require_no_origin_needed(work: Correspondence, node: fx.Node) -> None:
    if node.op == "output" or (node.op == "placeholder" and node.target in work.added):
        return
    # A constant that a rule made.
    if node.op == "get_attr" and node.target not in work.attributes:
        return
    if not _reads_sizes(node) and not _writes_back(work, node):
        raise WithoutOrigin(f"{node.name!r} comes from no node of the source", node)


def _reads_sizes(node: fx.Node) -> bool:
    """Whether a node computes from sizes only, so that it depends on no tensor's data."""
    seen, waiting = {node}, [node]
    for current in waiting:
        if _reads_a_size(current):
            continue
        inputs = current.all_input_nodes
        # Arithmetic on sizes: `operator`, `math` and `torch.sym_*`.
        if not inputs or getattr(current.target, "__module__", None) not in ("_operator", "math", "torch"):
            return False
        waiting += [operand for operand in inputs if operand not in seen]
        seen.update(inputs)
    return True


def _reads_a_size(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in SIZE_METHODS
    return node.op == "call_function" and of_function(node.target).op.name.removeprefix("aten.") in SIZES


def _writes_back(work: Correspondence, node: fx.Node) -> bool:
    """Whether a node is one of the trailing `copy_` calls that write inputs back, or the `detach` for one."""
    name = getattr(node.target, "__name__", node.target)
    if str(name).startswith("copy_") and node.op in CALLS and len(node.args) > 1:
        return node.args[1] in work.writes
    return bool(node.users) and "detach" in str(name) and all(_writes_back(work, user) for user in node.users)


def _may_read(work: Correspondence, node: fx.Node, user: fx.Node) -> bool:
    """Whether `user` may read `node` although its source node does not read that of `node`: `node` is a constant or a
    size, or is also the value of another operand, because a rule returned its input."""
    # What is written back is an output of the lowered graph only.
    if user.op == "output" and node in work.writes:
        return True
    # A constant is shared by all expansions that use it, and belongs to the first.
    if node.op == "get_attr" and work.origin[node].op != "get_attr":
        return True
    values = (work.images.get(operand) for operand in work.origin[user].all_input_nodes)
    return any(node is found for value in values for found in nodes_in(value)) or _reads_sizes(node)


_BATCH = 512
"""How many edges are checked in one pass over the source: their masks have eight machine words."""


def _require_paths(work: Correspondence, edges: list[tuple[fx.Node, fx.Node]]) -> None:
    """Raise unless the source has a path for every edge."""
    origin, place = work.origin, work.source_place
    edges.sort(key=lambda edge: place[origin[edge[0]]])
    # Batches bound the size of the bit masks, and sorting keeps each pass short.
    for i in range(0, len(edges), _BATCH):
        chunk = edges[i : i + _BATCH]
        reached = reached_among({origin[node] for node, _ in chunk}, {origin[user] for _, user in chunk}, place)
        for node, user in chunk:
            start, end = origin[node], origin[user]
            if start not in reached.get(end, ()):
                problem = f"{user.name!r} reads {node.name!r}, but {end.name!r} does not depend on {start.name!r}"
                raise InventedDependency(problem, user, end)


def _no_value_lost(work: Correspondence) -> str:
    values, place = work.images, work.place
    for source in work.source_place:
        value = values.get(source, _ABSENT)
        if value is _ABSENT and source.users:
            raise ValueLost(f"{source.name!r} is used but has no lowered value", source=source)
        # An exported program lifts constants to placeholders afterwards, which erases their `get_attr` nodes.
        if isinstance(value, fx.Node) and value not in place and value.op != "get_attr":
            raise ValueLost(f"{value.name!r}, the value of {source.name!r}, is not in the graph", value, source)
    return f"each of {len(values)} values has a lowered value"


def _same_metadata(work: Correspondence) -> str:
    compared = 0
    for source, value in work.images.items():
        expected = metadata(source)
        if expected is None or value is None and not source.users:
            continue  # unused results need not be computed
        compared += 1
        found = metadata(value) if isinstance(value, fx.Node) else metadata_of(value)
        if isinstance(expected, (tuple, list)) and isinstance(value, (tuple, list)):
            # Metadata of unread results may be wrong: a backward op returns None where its output mask is False, but
            # its fake kernel returns a tensor.
            expected = list(select_results(read_results(source), expected))
        if found is not expected and not same_metadata(expected, found):
            node = value if isinstance(value, fx.Node) else None
            problem = f"the lowered value of {source.name!r} has other metadata"
            raise MetadataChanged(problem, node, source, expected=described(expected), found=described(found))
    return f"shape, dtype and device of {compared} values unchanged"


def _same_effects(work: Correspondence) -> str:
    done = _effects_by_origin(work)
    total = 0
    for source in work.source_place:
        effects = work.source_effects.of(source)
        # Where PyTorch does not say what an op does, there is nothing to hold a derivation to.
        if effects.known and (effects or source in done):
            total += bool(effects)
            _require_same_effects(source, effects, done.get(source, []))
    return f"the same {total} effects in the same order"


def _effects_by_origin(work: Correspondence) -> dict[fx.Node, list[tuple[fx.Node, Effects]]]:
    done: dict[fx.Node, list[tuple[fx.Node, Effects]]] = {}
    table, latest = work.effects, -1
    for node in work.place:
        effects = table.of(node)
        if not effects:
            continue
        source = work.origin.get(node)
        if source is None:
            if _writes_back(work, node):
                continue
            raise EffectsChanged(f"{node.name!r} ({effects}) comes from no node of the source", node)
        # Not <=: the effects of one expansion have the same source.
        if work.source_place[source] < latest:
            raise EffectsChanged(
                f"{node.name!r} ({effects}) comes after an effect of a later source node", node, source
            )
        latest = work.source_place[source]
        done.setdefault(source, []).append((node, effects))
    return done


def same_regions(work: Correspondence) -> str:
    """Every call must be in the region (no_grad, autocast) of its source node."""
    marks = sum(map(switches, work.source_place))
    if not marks:
        return "no regions to keep"
    regions = {**regions_of(work.source), **regions_of(work.lowered)}
    for node in work.place:
        source = work.origin.get(node)
        if source is not None:
            require_same_region(node, source, regions)
    return f"every call is in its region of {marks + 1}"


def _require_same_effects(source: fx.Node, expected: Effects, done: list[tuple[fx.Node, Effects]]) -> None:
    fewest, most = sum(e.fewest for _, e in done), sum(e.most for _, e in done)
    kinds = merged_kinds(source, [kind for _, effects in done for kind in effects.kinds])
    same_kinds = sorted(kind.name for kind in kinds) == sorted(kind.name for kind in expected.kinds)
    # Ranges, as an op may draw or not depending on an argument: they must overlap.
    if not same_kinds or fewest > expected.most or most < expected.fewest:
        shown = ", ".join(f"{effects} by {node.name!r}" for node, effects in done) or "no effect"
        node = done[0][0] if done else None
        raise EffectsChanged(f"the effects of {source.name!r} changed", node, source, expected=expected, found=shown)


def _no_dead_code_added(work: Correspondence) -> str:
    for node in work.place:
        if not node.users and node.op not in ("placeholder", "output"):
            _require_not_added(work, node)
    return "no dead code added"


def _require_not_added(work: Correspondence, node: fx.Node) -> None:
    effects, source = work.effects.of(node), work.origin.get(node)
    # A call that may do something is not dead.
    if effects or not effects.known:
        return
    # A result of an expansion that nobody uses was made for an op whose result is unused as well.
    if source is None or not any(node is found for found in nodes_in(work.images.get(source))):
        raise DeadCodeAdded(f"{node.name!r} is not used", node, source)


def _expansions_sound(work: Correspondence) -> str:
    for expansion in work.expansions:
        _require_sound(expansion, work.effects)
    return f"{len(work.expansions)} expansions are acyclic and without dead code"


def _require_sound(expansion: fx.Graph, table: EffectTable) -> None:
    graph = as_networkx(expansion)
    outputs = [node for node in expansion.nodes if node.op == "output"]
    if len(outputs) != 1:
        raise MalformedExpansion(f"an expansion must have one output node, this one has {len(outputs)}")
    if not networkx().is_directed_acyclic_graph(graph):
        raise MalformedExpansion("an expansion has a cycle", outputs[0])
    foreign = next((node for node in graph if node.graph is not expansion), None)
    if foreign is not None:
        raise MalformedExpansion(f"an expansion reads {foreign.name!r} of another graph", foreign)
    # networkx and not our own walk: a second implementation, for what the first may have wrong.
    needed = networkx().ancestors(graph, outputs[0]) | {outputs[0]}
    for node in expansion.nodes:
        if node not in needed and node.op != "placeholder" and not table.of(node) and table.of(node).known:
            raise MalformedExpansion(f"an expansion computes {node.name!r}, which its output does not need", node)


def _networkx_agrees(work: Correspondence) -> str:
    whole = as_networkx(work.lowered)
    if not networkx().is_directed_acyclic_graph(whole):
        raise OutOfOrder(f"a cycle: {' -> '.join(node.name for node, _ in networkx().find_cycle(whole))}")
    return f"networkx finds no cycle in {len(whole)} nodes"


def _lints(work: Correspondence) -> str:
    try:
        work.lowered.lint()
    except (RuntimeError, ValueError) as error:
        raise Dangling(f"the graph does not lint: {error}") from error
    return "the graph lints"


Invariant = Callable[[Correspondence], str]
"""Returns a phrase stating what holds, empty if not applicable; raises a `VerificationError`."""
INVARIANTS: tuple[Invariant, ...] = (
    # Each relies on those before it: order on references, values on order, metadata on values. Legality is last, as an
    # illegal call is often a consequence of what the others find and explain better.
    _no_dangling_reference,
    _in_order,
    _names_distinct,
    same_placeholders,
    same_outputs,
    _writes_kept,
    same_codegen,
    _expansions_sound,
    _no_value_lost,
    matches_record,
    patterns_stand_for_calls,
    _no_invented_dependency,
    _same_metadata,
    collectives_kept,
    _same_effects,
    same_regions,
    _no_dead_code_added,
    _all_legal,
)
OF_ONE_GRAPH: tuple[Invariant, ...] = (_no_dangling_reference, _in_order, _names_distinct)
"""The checks of a graph on its own."""
WHOLE_GRAPH: tuple[Invariant, ...] = (_networkx_agrees, _lints)
"""The additional checks of `full=True`."""
