"""The proof of a lowering: invariants that relate the new graph to the one it came from. Each invariant is one function
and has one error. networkx sees each distinct expansion and the quotient graph; the nodes are walked directly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import functools
import time
from typing import Any

import networkx as nx
import torch
from torch import fx, nn

from decomp.calls import graphs_of, nodes_in
from decomp.effect_kinds import Effect, Effects, EffectTable
from decomp.errors import CaptureError
from decomp.proof import (
    CodegenChanged as CodegenChanged,
    Correspondence as Correspondence,
    Dangling as Dangling,
    DeadCodeAdded as DeadCodeAdded,
    EffectsChanged as EffectsChanged,
    IllegalCall as IllegalCall,
    InventedDependency as InventedDependency,
    MalformedExpansion as MalformedExpansion,
    MetadataChanged as MetadataChanged,
    OutOfOrder as OutOfOrder,
    OutputsChanged as OutputsChanged,
    PlaceholdersChanged as PlaceholdersChanged,
    Proof as Proof,
    VerificationError as VerificationError,
    WithoutOrigin as WithoutOrigin,
)
from decomp.reachability import as_networkx, reached_among

CALLS = frozenset({"call_function", "call_method", "call_module"})
SIZE_READS = frozenset(
    getattr(torch.ops.aten, name).default if "default" in getattr(torch.ops.aten, name).overloads() else None
    for name in ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset")
) | {torch.ops.aten.sym_size.int, torch.ops.aten.sym_stride.int}


def verify(source: Any, lowered: Any, *, full: bool = False) -> Proof:
    """Checks that `lowered` is a faithful lowering of `source`, and returns what was checked. A `Lowering` carries its
    provenance and is checked whole; of two plain programs (GraphModule, Graph, ExportedProgram) what needs none: order,
    references, placeholders, outputs, codegen, effects. Raises the `VerificationError` of the first broken
    invariant."""
    correspondence = getattr(lowered, "correspondence", None)
    if correspondence is not None:
        return check(correspondence, full)
    began = time.perf_counter()
    after = _graph(lowered)
    checks = _well_formed(lowered, full)
    if not _without_graph(source):
        pair = _Work(Correspondence(_graph(source), after, {}, {}))
        checks += [invariant(pair) for invariant in BETWEEN_PROGRAMS]
    return Proof(tuple(checks), len(after.nodes), 0, time.perf_counter() - began)


def check(correspondence: Correspondence, full: bool = False) -> Proof:
    """Proves a lowering from its provenance. `full` hands the whole lowered graph to networkx and to `Graph.lint` too.
    Raises the `VerificationError` of the first broken invariant."""
    began = time.perf_counter()
    work = _Work(correspondence)
    invariants = INVARIANTS + (WHOLE_GRAPH if full else ())
    checks = tuple(invariant(work) for invariant in invariants)
    return Proof(checks, len(work.place), len(correspondence.expansions), time.perf_counter() - began)


class _Work:
    """A correspondence, with what several invariants need."""

    def __init__(self, correspondence: Correspondence) -> None:
        self.source, self.lowered = correspondence.source, correspondence.lowered
        self.origin, self.values = correspondence.origin, correspondence.values
        self.correspondence = correspondence
        self.place = {node: i for i, node in enumerate(self.lowered.nodes)}
        self.source_place = {node: i for i, node in enumerate(self.source.nodes)}

    @functools.cached_property
    def effects(self) -> EffectTable:
        """Effects of the lowered calls."""
        return EffectTable(self.lowered.owning_module or self.source.owning_module)

    @functools.cached_property
    def source_effects(self) -> EffectTable:
        """Effects of the calls of the source."""
        return EffectTable(self.source.owning_module)


def _in_order(work: _Work) -> str:
    place = work.place
    for node, i in place.items():
        for user in node.users:
            if place.get(user, i + 1) <= i:
                raise OutOfOrder(f"{user.name!r} stands before its input {node.name!r}", user, work.origin.get(user))
    return "every node stands after its inputs, so there is no cycle"


def _nothing_dangling(work: _Work) -> str:
    place, uses = work.place, 0
    for node in place:
        inputs = node.all_input_nodes
        uses += len(inputs) - len(node.users)
        for given in inputs:
            if given not in place or node not in given.users:
                raise _dangling(work, node, given)
    if uses:
        raise _stray_user(work)
    return "no reference dangles, users and inputs agree"


def _dangling(work: _Work, node: fx.Node, given: fx.Node) -> Dangling:
    source = work.origin.get(node)
    if given in work.place:
        return Dangling(f"{node.name!r} reads {given.name!r}, which does not list it as a user", node, source)
    where = "was erased" if given.graph is work.lowered else "belongs to another graph"
    return Dangling(f"{node.name!r} reads {given.name!r}, which {where}", node, source)


def _stray_user(work: _Work) -> Dangling:
    for node in work.place:
        for user in node.users:
            if user not in work.place or node not in user.all_input_nodes:
                return Dangling(f"{node.name!r} lists the user {user.name!r}, which does not read it", node)
    raise AssertionError("inputs and users differ in number, yet each agrees")


def _same_placeholders(work: _Work) -> str:
    before = [str(node.target) for node in work.source.nodes if node.op == "placeholder"]
    added = work.correspondence.added
    after = [str(node.target) for node in work.lowered.nodes if node.op == "placeholder" and node.target not in added]
    if before != after:
        raise PlaceholdersChanged("the placeholders changed", expected=", ".join(before), found=", ".join(after))
    return f"the same {len(before)} placeholders"


def _same_outputs(work: _Work) -> str:
    before, after = _output(work.source), _output(work.lowered)
    expected = _structure(before.args[0], work.values)
    found = _structure(after.args[0], {})
    if not _same_structure(expected, found, bool(work.values)):
        raise OutputsChanged("the outputs changed", after, before, expected=_shown(expected), found=_shown(found))
    return "the same outputs in the same structure"


def _output(graph: fx.Graph) -> fx.Node:
    outputs = [node for node in graph.nodes if node.op == "output"]
    if len(outputs) != 1:
        raise OutputsChanged(f"a graph has one output node, this one {len(outputs)}")
    return outputs[0]


def _structure(value: Any, values: Mapping[fx.Node, Any]) -> Any:
    """A nested value with each source node replaced by what stands for it."""
    if isinstance(value, fx.Node):
        return values.get(value, value)
    if isinstance(value, (tuple, list)):
        return [_structure(item, values) for item in value]
    if isinstance(value, dict):
        return {key: _structure(item, values) for key, item in value.items()}
    return value


def _same_structure(expected: Any, found: Any, same_nodes: bool) -> bool:
    if isinstance(expected, fx.Node):
        return expected is found if same_nodes else isinstance(found, fx.Node)
    if isinstance(expected, (tuple, list)):
        same_length = isinstance(found, (tuple, list)) and len(expected) == len(found)
        return same_length and all(_same_structure(e, f, same_nodes) for e, f in zip(expected, found))
    if isinstance(expected, dict):
        same_keys = isinstance(found, dict) and list(expected) == list(found)
        return same_keys and all(_same_structure(expected[key], found[key], same_nodes) for key in expected)
    return type(expected) is type(found) and bool(expected == found)


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _same_codegen(work: _Work) -> str:
    # torch 2.13 has `Graph.set_codegen` but no public way to read it back.
    before, after = work.source._codegen, work.lowered._codegen
    if type(before) is not type(after):
        names = type(before).__name__, type(after).__name__
        raise CodegenChanged("the codegen changed", expected=names[0], found=names[1])
    expected, found = getattr(before, "pytree_info", None), getattr(after, "pytree_info", None)
    if expected != found:
        raise CodegenChanged("the pytree of inputs or outputs changed", expected=expected, found=found)
    return "the same codegen"


def _all_legal(work: _Work) -> str:
    illegal, calls = work.correspondence.illegal, 0
    for node in work.place:
        if node.op in CALLS:
            calls += 1
            reason = illegal(node)
            if reason is not None:
                raise IllegalCall(f"{node.name!r} is not legal: {reason}", node, work.origin.get(node))
    return f"all {calls} calls are legal"


def _no_invented_dependency(work: _Work) -> str:
    doubtful: list[tuple[fx.Node, fx.Node]] = []
    quotient = nx.DiGraph()
    quotient.add_edges_from(_crossing_edges(work, doubtful))
    if not nx.is_directed_acyclic_graph(quotient):
        circle = " -> ".join(node.name for node, _ in nx.find_cycle(quotient))
        raise InventedDependency(f"nodes of the source depend on each other in a circle: {circle}")
    _require_paths(work, [edge for edge in doubtful if not _explained(work, *edge)])
    return f"contracted to its {len(work.source_place)} source nodes, it depends on nothing new"


def _crossing_edges(work: _Work, doubtful: list[tuple[fx.Node, fx.Node]]) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The edges between nodes of different origin, as edges of the quotient. Those that are no edges of the source are
    put into `doubtful`."""
    origin = work.origin
    for node in work.place:
        source = origin.get(node)
        if source is None:
            _require_no_origin_needed(work, node)
            continue
        for user in node.users:
            target = origin.get(user)
            if target is source or target is None:
                continue
            if target not in source.users:
                doubtful.append((node, user))
            yield source, target


def _require_no_origin_needed(work: _Work, node: fx.Node) -> None:
    if node.op == "output" or (node.op == "placeholder" and node.target in work.correspondence.added):
        return
    if node.op == "get_attr":
        known = (other for other in work.source.nodes if other.op == "get_attr" and other.target == node.target)
        if next(known, None) is None:
            return
    if not _reads_sizes(node):
        raise WithoutOrigin(f"{node.name!r} comes from no node of the source", node)


def _reads_sizes(node: fx.Node) -> bool:
    """Whether a node computes with shapes alone: it depends on no data, whatever tensors it reads the shapes of."""
    if node.op != "call_function":
        return False
    if node.target in SIZE_READS:
        return True
    host = getattr(node.target, "__module__", None) in ("_operator", "math", "torch")
    inputs = node.all_input_nodes
    return host and bool(inputs) and all(_reads_sizes(given) for given in inputs)


def _explained(work: _Work, node: fx.Node, user: fx.Node) -> bool:
    """Whether `user` may read `node` although its source does not read the source of `node`: `node` is a constant or a
    size, or stands for another input too, as after a rule that returns its input."""
    if node.op == "get_attr" and work.origin[node].op != "get_attr":
        return True
    standing = (work.values.get(given) for given in work.origin[user].all_input_nodes)
    return any(node is found for value in standing for found in nodes_in(value)) or _reads_sizes(node)


def _require_paths(work: _Work, edges: list[tuple[fx.Node, fx.Node]], batch: int = 512) -> None:
    """Raises unless the source has a path for every edge. One bit a start, one walk over the source a batch."""
    origin, place = work.origin, work.source_place
    edges.sort(key=lambda edge: place[origin[edge[0]]])
    for i in range(0, len(edges), batch):
        chunk = edges[i : i + batch]
        reached = reached_among({origin[node] for node, _ in chunk}, {origin[user] for _, user in chunk}, place)
        for node, user in chunk:
            start, end = origin[node], origin[user]
            if start not in reached.get(end, ()):
                problem = f"{user.name!r} reads {node.name!r}, but {end.name!r} does not depend on {start.name!r}"
                raise InventedDependency(problem, user, end)


def _same_metadata(work: _Work) -> str:
    compared = 0
    for source, value in work.values.items():
        expected = source.meta.get("val")
        if expected is None:
            continue
        compared += 1
        found = value.meta.get("val") if isinstance(value, fx.Node) else _found(value)
        if found is not expected and not _same_value(expected, found):
            node = value if isinstance(value, fx.Node) else None
            problem = f"what stands for {source.name!r} has other metadata"
            raise MetadataChanged(problem, node, source, expected=_described(expected), found=_described(found))
    return f"shape, dtype and device of {compared} values unchanged"


def _found(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return value.meta.get("val")
    if isinstance(value, (tuple, list)):
        return [_found(item) for item in value]
    return value


def _same_value(expected: Any, found: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        if not isinstance(found, torch.Tensor) or expected.dtype is not found.dtype:
            return False
        return expected.device == found.device and _same_shape(expected.shape, found.shape)
    if isinstance(expected, (tuple, list)):
        many = isinstance(found, (tuple, list)) and len(expected) == len(found)
        return many and all(e is None or _same_value(e, f) for e, f in zip(expected, found))
    if isinstance(expected, (int, torch.SymInt)) and isinstance(found, (int, torch.SymInt)):
        return _same_size(expected, found)
    return not isinstance(found, torch.Tensor)


def _same_shape(expected: Sequence[Any], found: Sequence[Any]) -> bool:
    return len(expected) == len(found) and all(map(_same_size, expected, found))


def _same_size(expected: Any, found: Any) -> bool:
    """Sizes by expression: asking a symbolic size whether it equals another would add a guard to the source."""
    if type(expected) is int and type(found) is int:
        return expected == found
    return bool(_expression(expected) == _expression(found))


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}] on {value.device}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_described, value))})"
    return "no metadata" if value is None else str(value)


def _same_effects(work: _Work) -> str:
    done = _effects_by_origin(work)
    total = 0
    for source in work.source_place:
        effects = work.source_effects.of(source)
        if effects.known and (effects or source in done):
            total += bool(effects)
            _require_same_effects(source, effects, done.get(source, []))
    return f"the same {total} effects in the same order"


def _effects_by_origin(work: _Work) -> dict[fx.Node, list[tuple[fx.Node, Effects]]]:
    done: dict[fx.Node, list[tuple[fx.Node, Effects]]] = {}
    table, latest = work.effects, -1
    for node in work.place:
        effects = table.of(node)
        if not effects:
            continue
        source = work.origin.get(node)
        if source is None:
            raise EffectsChanged(f"{node.name!r} ({effects}) comes from no node of the source", node)
        if work.source_place[source] < latest:
            raise EffectsChanged(f"{node.name!r} ({effects}) comes too late", node, source)
        latest = work.source_place[source]
        done.setdefault(source, []).append((node, effects))
    return done


def _require_same_effects(source: fx.Node, expected: Effects, done: list[tuple[fx.Node, Effects]]) -> None:
    fewest, most = sum(e.fewest for _, e in done), sum(e.most for _, e in done)
    kinds = [kind for _, effects in done for kind in effects.kinds]
    same_kinds = sorted(kind.name for kind in kinds) == sorted(kind.name for kind in expected.kinds)
    if not same_kinds or fewest > expected.most or most < expected.fewest:
        shown = ", ".join(f"{effects} by {node.name!r}" for node, effects in done) or "no effect"
        node = done[0][0] if done else None
        raise EffectsChanged(f"the effects of {source.name!r} changed", node, source, expected=expected, found=shown)


def _as_many_effects(work: _Work) -> str:
    before = [work.source_effects.of(node) for node in work.source_place]
    after = [work.effects.of(node) for node in work.place]
    if all(effects.known for effects in before):
        for kind in (Effect.ASSERTION, Effect.COLLECTIVE, Effect.REGION, Effect.OTHER):
            _require_as_many(kind.value, *(sum(kind in e.kinds for e in side) for side in (before, after)))
        if sum(e.fewest for e in after) > sum(e.most for e in before) or sum(e.most for e in after) < sum(
            e.fewest for e in before
        ):
            _require_as_many("random draw", sum(e.most for e in before), sum(e.most for e in after))
    return "as many effects"


def _require_as_many(what: str, before: int, after: int) -> None:
    if before != after:
        raise EffectsChanged(f"the number of effects changed: {what}", expected=before, found=after)


def _nothing_dead_added(work: _Work) -> str:
    for node in work.place:
        if not node.users and node.op not in ("placeholder", "output"):
            _require_not_added(work, node)
    return "no dead code added"


def _require_not_added(work: _Work, node: fx.Node) -> None:
    effects, source = work.effects.of(node), work.origin.get(node)
    if effects or not effects.known:
        return
    if source is None or not any(node is found for found in nodes_in(work.values.get(source))):
        raise DeadCodeAdded(f"nobody uses {node.name!r}", node, source)


def _expansions_sound(work: _Work) -> str:
    for expansion in work.correspondence.expansions:
        _require_sound(expansion, work.effects)
    return f"{len(work.correspondence.expansions)} expansions are acyclic and without dead code"


def _require_sound(expansion: fx.Graph, table: EffectTable) -> None:
    graph = as_networkx(expansion)
    outputs = [node for node in expansion.nodes if node.op == "output"]
    if len(outputs) != 1:
        raise MalformedExpansion(f"an expansion has one output node, this one {len(outputs)}")
    if not nx.is_directed_acyclic_graph(graph):
        raise MalformedExpansion("an expansion has a cycle", outputs[0])
    foreign = next((node for node in graph if node.graph is not expansion), None)
    if foreign is not None:
        raise MalformedExpansion(f"an expansion reads {foreign.name!r} of another graph", foreign)
    needed = nx.ancestors(graph, outputs[0]) | {outputs[0]}
    for node in expansion.nodes:
        if node not in needed and node.op != "placeholder" and not table.of(node) and table.of(node).known:
            raise MalformedExpansion(f"an expansion computes {node.name!r}, which its output does not need", node)


def _networkx_agrees(work: _Work) -> str:
    whole = as_networkx(work.lowered)
    if not nx.is_directed_acyclic_graph(whole):
        raise OutOfOrder(f"a cycle: {' -> '.join(node.name for node, _ in nx.find_cycle(whole))}")
    return f"networkx finds no cycle in {len(whole)} nodes"


def _lints(work: _Work) -> str:
    try:
        work.lowered.lint()
    except (RuntimeError, ValueError) as error:
        raise Dangling(f"the graph does not lint: {error}") from error
    return "the graph lints"


Invariant = Callable[[_Work], str]
INVARIANTS: tuple[Invariant, ...] = (
    _nothing_dangling,
    _in_order,
    _same_placeholders,
    _same_outputs,
    _same_codegen,
    _expansions_sound,
    _no_invented_dependency,
    _same_metadata,
    _same_effects,
    _nothing_dead_added,
    _all_legal,
)
WHOLE_GRAPH: tuple[Invariant, ...] = (_networkx_agrees, _lints)
BETWEEN_PROGRAMS: tuple[Invariant, ...] = (_same_placeholders, _same_outputs, _same_codegen, _as_many_effects)


def _well_formed(program: Any, full: bool) -> list[str]:
    """The checks of every graph of a program, sub-programs included, on its own."""
    invariants: Iterable[Invariant] = (_nothing_dangling, _in_order) + (WHOLE_GRAPH if full else ())
    checks: list[str] = []
    for _, graph in graphs_of(program):
        work = _Work(Correspondence(graph, graph, {}, {}))
        checks = [invariant(work) for invariant in invariants]
    return checks


def _without_graph(program: Any) -> bool:
    return isinstance(program, nn.Module) and not isinstance(program, fx.GraphModule)


def _graph(program: Any) -> fx.Graph:
    if isinstance(program, fx.Graph):
        return program
    graph = getattr(program, "graph", None)
    if not isinstance(graph, fx.Graph):
        raise CaptureError(f"{type(program).__name__} has no graph to verify; pass a GraphModule or an ExportedProgram")
    return graph
