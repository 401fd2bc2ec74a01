"""The stages of a lowering, in order, each a function from one frozen value to the next. A program is captured as
graphs: the main graph, and the bodies of its higher-order ops. Each graph is made functional, planned and rewritten;
then the program is rebuilt around them and verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
import functools
from typing import Any

import torch
from torch import fx, nn

from decomp.capture import autocast, frontends, rebuild_exported
from decomp.capture.calling import LoweredProgram
from decomp.capture.lowered_module import check_inputs, disable_gradients
from decomp.capture.module_hooks import describe_kept_leaf
from decomp.derive import own_memory
from decomp.derive.decisions import (
    ERASED_GUARD,
    LEGAL,
    Blocked,
    Decision,
    Derived,
    Plan,
    PlannedGraph,
    PlannedProgram,
    add_pattern_reasons,
    decide_left_complex,
    require_whole_operand,
)
from decomp.derive.planner import Planner
from decomp.derive.regions import bodies_of, body_named, inline_regions, runs_untracked
from decomp.derive.rewriter import InlinedGraph, inline_expansions
from decomp.derive.rule_selection import RuleSelection
from decomp.derive.stride_propagation import PINNED, StridePropagation, correct_strides, with_kernel_strides
from decomp.derive.write_checks import check_writes
from decomp.errors import CaptureError, spell_target
from decomp.functionalize.gradients import GradientSources, gradient_inputs
from decomp.functionalize.walk import Functional, Write, append_writes, functionalize, mutates
from decomp.graphs.rewrite import Rewrite
from decomp.ir.module import Module, ProgramGraph
from decomp.ir.ops import op as op_of
from decomp.ir.respelling import respell
from decomp.metadata.symbolic_sizes import planning_sizes
from decomp.narrowing.functional import IntegerRangeCheck
from decomp.narrowing.type_conversion import TypeConversion, convert_types
from decomp.patterns.fusing import PatternFusion, choose_matches
from decomp.proof.checks import check_program
from decomp.proof.correspondence import Correspondence, Proof
from decomp.proof.legality import why_illegal_in
from decomp.proof.returned_program import ReturnedProgram
from decomp.rules.accuracy import Policy
from decomp.rules.target import Target
from decomp.simplification.checking import check_simplified
from decomp.simplification.freezing import bodies_retraced
from decomp.simplification.simplifier import Settings, Simplified, Subject, simplify_graph


@dataclass(frozen=True)
class CaptureRequest:
    """The model to be lowered, and how to capture it."""

    model: Any
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    tracer_class: type[fx.Tracer]
    dynamic_shapes: Any


def capture_program(source: CaptureRequest, matching: RuleSelection) -> Module:
    """The graph of a model, with leaf modules replaced by their graphs where rules or the target require it. Raises
    `CaptureError`."""
    return frontends.capture(
        source.model,
        source.args,
        source.kwargs,
        tracer_class=source.tracer_class,
        dynamic_shapes=source.dynamic_shapes,
        leaves=matching.leaves,
        infer=matching.infer,
        trains=lambda program: matching.specialise_for_program(program).rules.trains,
    )


# Planning: a decision for each call.


def plan_program(program: Module, matching: RuleSelection, policy: Policy, partial: bool = False) -> PlannedProgram:
    """Decide how each call of a program is lowered; with `partial`, blocked calls stay unchanged."""
    matching = matching.specialise_for_program(program)
    planner = Planner(matching.rules, matching.target, program.dialect, program.mode, policy)
    with planning_sizes(program.mode):
        graphs = _Planning(program, matching, planner, partial).graphs("", program.graph, program.root, None)
    planner.memory.signatures.forget_nodes()
    planner.close()
    entries = tuple((graph.origin(node), decision) for graph in graphs for node, decision in graph.decisions.items())
    uses = tuple(use for graph in graphs for use in graph.fused.uses())
    notes = tuple(note for graph in graphs for note in graph.represented.notes())
    plan = Plan(matching.target.name, entries, patterns=uses, notes=notes)
    return PlannedProgram(program, tuple(graphs), plan, planner.memory, planner.candidates.runs)


@dataclass(frozen=True)
class _Planning:
    """The state shared by planning the graphs of one program."""

    program: Module
    matching: RuleSelection
    planner: Planner
    partial: bool
    begun: set[nn.Module] = field(default_factory=set)
    """Bodies that are planned or being planned: each is lowered once for all its callers."""
    untracked: set[nn.Module] = field(default_factory=set)
    """Bodies that run without gradients."""
    stale_strides: dict[fx.Node, Any] = field(default_factory=dict)
    """`Functional.stale_strides` of all graphs: bodies are made functional together with their callers."""

    def graphs(
        self, name: str, graph: fx.Graph, owner: nn.Module, policy: autocast.Policy | None
    ) -> list[PlannedGraph]:
        """A graph and the bodies of its higher-order ops, planned; `policy`: the autocast under which it runs."""
        state = self._state(name)
        functional = self._functional(name, graph, owner, state)
        functional, values = convert_types(functional, self.planner.pairs, self.planner.target, owner, state)
        functional, fused = self._fused(name, functional, owner, values)
        bodies = bodies_of(functional, owner, policy)
        functional, decisions = self._decided(functional, owner, values, state)
        decisions = add_pattern_reasons(decisions, fused)
        modules = {key: body for key, (body, _) in bodies.items()}
        casts_written = any(policy is not None for _, policy in bodies.values())
        found = [PlannedGraph(self.program, name, owner, functional, decisions, modules, casts_written, fused, values)]
        for key, (body, policy) in bodies.items():
            if body not in self.begun:
                self.begun.add(body)
                if owner in self.untracked or runs_untracked(functional.graph, key):
                    self.untracked.add(body)
                # Callers come before their bodies: the main graph must be the first.
                found += self.graphs(key, body.graph, body, policy)
        return found

    def _state(self, name: str) -> Mapping[str, Any]:
        """The tensors of the main graph's lifted inputs, for an exported program."""
        exported = self.program.exported if not name else None
        return rebuild_exported.lifted_state(exported) if exported is not None else {}

    def _functional(self, name: str, graph: fx.Graph, owner: nn.Module, state: Mapping[str, Any]) -> Functional:
        """A graph without mutation, with metadata that has the strides of kernels' results."""
        kernel_strides = self.planner.kernel_strides
        captured = correct_strides(graph, owner, kernel_strides)
        if captured is None:
            functional = self._without_mutation(name, graph, owner, state)
        else:
            functional = self._without_mutation(name, captured.rewrite.graph, captured.owner(owner), state)
            functional = captured.functional(functional)
        if own := {node: self.stale_strides[node] for node in graph.nodes if node in self.stale_strides}:
            now = {functional.rewrite.values.get(node, node): meta for node, meta in own.items()}
            functional = replace(functional, stale_strides={**functional.stale_strides, **now})
        return with_kernel_strides(functional, kernel_strides)

    def _without_mutation(self, name: str, graph: fx.Graph, owner: nn.Module, state: Mapping[str, Any]) -> Functional:
        exported = self.program.exported if not name else None
        functional = Functional(Rewrite(graph))
        if self.matching.must_be_functional(graph, owner):
            functional = functionalize(graph, owner, state, self.matching.rules.trains)
            self.stale_strides.update(functional.stale_strides)
        detaches = not self.matching.rules.trains or self.matching.target.surely_legal(op_of("detach"), "default")
        if exported is None or self.matching.everywhere or not detaches:
            return functional
        signature = exported.graph_signature
        frozen = {*signature.inputs_to_buffers, *signature.inputs_to_lifted_tensor_constants}
        rewrite = inline_regions(functional.graph, lambda body: body_named(body, functional, owner), owner, frozen)
        return functional if rewrite is None else functional.rewritten(rewrite)

    def _fused(
        self, name: str, functional: Functional, owner: nn.Module, values: TypeConversion
    ) -> tuple[Functional, PatternFusion]:
        """The graph with pattern matches contracted to calls where this is profitable. (Between markers of autocast
        calls are cast implicitly, and nothing matches.)"""
        rules = self.matching.rules.patterns
        if not rules or any(map(autocast.region_marker, functional.graph.nodes)):
            return functional, PatternFusion()
        kept = {write.value for write in functional.writes}
        constants = functools.partial(self._constants, name, functional, owner, values)
        fused = choose_matches(
            functional.graph, rules, self.planner, owner, kept, constants, self.planner.policy.freeze
        )
        if fused.contraction is None:
            return functional, fused
        return replace(functional.rewritten(fused.contraction.rewrite), before=functional.rewrite), fused

    def _constants(self, name: str, functional: Functional, owner: nn.Module, values: TypeConversion) -> set[fx.Node]:
        """The nodes that are computed once if the program is frozen. Bodies get their weights as operands."""
        if name or self.matching.training:
            return set()
        written, target = (write.source for write in functional.writes), self.matching.target
        subject = Subject.of(functional.graph, owner, target, self.program.exported, written, values.constants)
        return subject.frozen_nodes()

    def _decided(
        self,
        functional: Functional,
        owner: nn.Module,
        values: TypeConversion,
        state: Mapping[str, Any],
        held: frozenset[str] = frozenset(),
    ) -> tuple[Functional, dict[fx.Node, Decision]]:
        """A decision for each call of a functional graph, and that graph with metadata that is true under these
        decisions. `held`: calls that must stay, as a call that stays reads their memory by strides."""
        self.planner.memory.signatures.written.update(write.value for write in functional.writes)
        propagation = StridePropagation(functional.graph, functional.stale_strides)
        decisions: dict[fx.Node, Decision] = {}
        at_border = {node.name for node in values.border(functional.graph)}
        depth = 0
        for node in propagation.nodes():
            marker = autocast.region_marker(node)
            depth += marker
            if depth and not marker and node.op.startswith("call"):
                decisions[node] = LEGAL if self.matching.everywhere else _UNDER_AUTOCAST
            elif node.op == "call_module":
                decisions[node] = self._module(owner, node)
            elif node in propagation.lost or node.name in held:
                decisions[node] = Blocked.because(spell_target(node.target), propagation.lost.get(node, PINNED))
            elif node.name in at_border:
                decisions[node] = LEGAL
            elif node.op in ("call_function", "call_method"):
                decision = require_whole_operand(self.planner.decide(node), node)
                decisions[node] = decide_left_complex(decision, node, values.why_complex(node))
                self.planner.propagate(propagation, node, decisions[node])
        # Blocked calls stay in a partial lowering, and read memory by strides: calls before them whose strides changed
        # are kept as well, and everything is decided again.
        if self.partial and (more := propagation.changed_before_lost()):
            return self._decided(functional, owner, values, state, held | more)
        functional, decisions = _with_true_metadata(functional, decisions, propagation)
        own_memory.separate_results(functional.graph, decisions, self.planner)
        recorded = owner not in self.untracked
        own_memory.detach_results(functional.graph, decisions, self.planner, recorded)
        tracks = GradientSources(owner)
        tracks.inputs = gradient_inputs(functional.graph, owner, state)
        own_memory.connect_results(functional.graph, decisions, self.planner, tracks, recorded)
        return functional, decisions

    def _module(self, owner: nn.Module, node: fx.Node) -> Decision:
        module = owner.get_submodule(str(node.target))
        if self.matching.keeps_module(module, node):
            return LEGAL
        refused = self.program.refused_leaves.get(str(node.target)) or self.program.refused
        reason = describe_kept_leaf(module, refused)
        if self.matching.everywhere:
            raise CaptureError(f"a rule matches inside module {str(node.target)!r}, but {reason}")
        name = type(module).__name__
        return Blocked(f"module {name}", ((name, reason),), needs_metadata=refused is None)


_SILENT_CASTS = (
    "the call is between markers of an autocast region, which casts its inputs implicitly; pass args= or an "
    "ExportedProgram, whose regions are made explicit"
)
_UNDER_AUTOCAST = Blocked.because("autocast", _SILENT_CASTS, needs_metadata=True)


def _with_true_metadata(
    functional: Functional, decisions: dict[fx.Node, Decision], propagation: StridePropagation
) -> tuple[Functional, dict[fx.Node, Decision]]:
    """The graph copied by stride propagation with its decisions, if strides changed; otherwise the arguments."""
    if propagation.emit is None:
        return functional, decisions
    rewrite = propagation.emit.rewrite
    current = {rewrite.values.get(node, node): decision for node, decision in decisions.items()}
    return functional.rewritten(rewrite), current


# Rewriting: every derived call is replaced by its expansion.


@dataclass(frozen=True)
class RewrittenGraph:
    """A lowered graph, and its relation to the functional one."""

    planned: PlannedGraph
    retraced: InlinedGraph
    writes: tuple[Write, ...] = ()
    """The writes to inputs and buffers, in terms of the lowered graph."""
    signed: int = 0
    """How many of the first writes are leading outputs of an exported program; the others are `copy_` calls."""
    simplified: Simplified | None = None
    """The simplified graph; None if it was not simplified, or could not be."""

    @property
    def graph(self) -> fx.Graph:
        """The final graph: the lowered one, or the simplified one."""
        return self.retraced.graph if self.simplified is None else self.simplified.graph

    @functools.cached_property
    def rewrite(self) -> Rewrite:
        """The rewrite from the functional graph to the final one."""
        lowered = self.retraced.rewrite
        if self.simplified is None:
            return lowered
        both = lowered.then(self.simplified.rewrite)
        # Simplification may merge nodes of different origin: each new node has the origin of its first one.
        both.origin = self.simplified.carried(lowered.origin)
        return both

    @property
    def chains(self) -> Mapping[fx.Node, tuple[Any, ...]]:
        """For each node of the final graph that a rule created, its rules, the outermost first."""
        lowered, first = self.retraced.chains, self.planned.represented.chains_of(self.source)
        if first:
            own = lowered
            lowered = {n: (*first.get(at, ()), *own.get(n, ())) for n, at in self.retraced.rewrite.origin.items()}
        return lowered if self.simplified is None else self.simplified.carried(lowered)

    @property
    def constants(self) -> Mapping[str, torch.Tensor]:
        """The tensors of rules that the final graph reads, by attribute name, before an exported program lifts them to
        inputs."""
        known, simplified = self.retraced.constants, self.simplified
        return known if simplified is None else simplified.used({**known, **simplified.constants})

    @property
    def pending_writes(self) -> tuple[Write, ...]:
        """The writes, in terms of the final graph."""
        simplified = self.simplified
        return self.writes if simplified is None else tuple(write.through(simplified.rewrite) for write in self.writes)

    @property
    def source(self) -> fx.Graph:
        """The functional graph that was rewritten."""
        return self.planned.graph

    @property
    def decisions(self) -> Mapping[fx.Node, Decision]:
        """The decision for each call of the functional graph."""
        return self.planned.decisions

    def origin(self, node: fx.Node) -> fx.Node:
        """The source node from which a node of the functional graph comes."""
        return self.planned.origin(node)

    def correspondence(self, target: Target) -> Correspondence:
        """The relation of the lowered graph to its source, as input for verification."""
        retraced = self.retraced
        at_border = self.planned.represented.border(retraced.graph)
        blocked = (retraced.rewrite.values[node] for node, d in self.decisions.items() if isinstance(d, Blocked))
        return Correspondence(
            source=self.source,
            lowered=retraced.graph,
            origin=retraced.rewrite.origin,
            values=retraced.rewrite.values,
            expansions=tuple(stamp.graph for stamp in retraced.stamps),
            illegal=why_illegal_in(target, {*blocked, *self._write_backs(), *at_border}),
            added=frozenset(rebuild_exported.input_names(retraced.constants)),
            writes=tuple(write.value for write in self.writes),
            stamps={node: d.stamp for node, d in self.decisions.items() if isinstance(d, Derived)},
            constants={n: t for key, t in retraced.constants.items() for n in rebuild_exported.input_names([key])},
            # The outputs of a simplified graph are those before writes were added.
            signed=tuple(write.value for write in self.writes[: self.signed]) if self.simplified is None else (),
            copied=tuple((write.source, write.value) for write in self.writes[self.signed :]),
            contraction=self.planned.fused.contraction,
        )

    def _write_backs(self) -> Iterator[fx.Node]:
        """The `copy_` nodes at the end of a module, and their targets: every target must support these effects."""
        for write in self.writes:
            for user in write.value.users:
                if user not in self.retraced.rewrite.origin and user.op.startswith("call"):
                    yield user
                    yield from user.all_input_nodes[:1]


@dataclass(frozen=True)
class Rewritten:
    """A program with lowered graphs."""

    graphs: tuple[RewrittenGraph, ...]
    """In the order of the planned graphs."""

    @property
    def program(self) -> Module:
        """The program that was lowered."""
        return self.graphs[0].planned.program

    @property
    def module(self) -> Module:
        """The same as a `Module`."""
        return replace(self.program, graphs={each.planned.owner: _final_graph(each) for each in self.graphs})


def rewrite_program(planned: PlannedProgram) -> Rewritten:
    """Replace derived calls by their expansions, and append writes."""
    graphs = tuple(_rewrite_graph(graph, planned.memory.aliases) for graph in planned.graphs)
    return Rewritten(graphs)


def _rewrite_graph(planned: PlannedGraph, aliases: set[torch._ops.OpOverload]) -> RewrittenGraph:
    derived = {node: d for node, d in planned.decisions.items() if isinstance(d, Derived)}
    gone = frozenset(node for node, d in planned.decisions.items() if d is ERASED_GUARD)
    own = planned.represented.constants
    names = [*planned.owner.__dict__.get("_buffers", {}), *planned.owner.__dict__, *own]
    retraced = inline_expansions(planned.graph, derived, planned.program.mode, names, gone)
    used = {str(node.target) for node in retraced.graph.find_nodes(op="get_attr")} if own else set()
    retraced.constants.update({name: tensor for name, tensor in own.items() if name in used})
    respell(retraced.graph, aliases)
    for node in retraced.graph.nodes if planned.casts_written else ():
        if autocast.is_region(node):
            autocast.disable_region(node)
    return _with_writes(planned, retraced)


def _with_writes(planned: PlannedGraph, retraced: InlinedGraph) -> RewrittenGraph:
    """The lowered graph with its writes: as outputs if it has a signature, otherwise as `copy_`."""
    has_signature = planned.program.exported is not None and not planned.name
    signed: list[Write] = []
    copied: list[Write] = []
    for write in (write.through(retraced.rewrite) for write in planned.functional.writes):
        # A signature cannot express a write that is hidden from autograd: it stays in the graph.
        hidden = write.untracked and write.differentiable
        (signed if has_signature and not hidden else copied).append(write)
    if copied:
        append_writes(retraced.graph, copied, planned.program.dialect == "aten")
    return RewrittenGraph(planned, retraced, (*signed, *copied), len(signed))


# Simplification: redundant calls are removed from the lowered graphs.


def simplify_program(rewritten: Rewritten, target: Target, settings: Settings) -> Rewritten:
    """Simplify the lowered graphs."""
    graphs = rewritten.graphs
    traced = bodies_retraced(rewritten.module)
    own = [settings.without_constants if graph.planned.owner in traced else settings for graph in graphs]
    simpler = (simplify_graph(_subject(graph, target), each) for graph, each in zip(graphs, own))
    return Rewritten(tuple(replace(graph, simplified=each) for graph, each in zip(graphs, simpler)))


def _subject(graph: RewrittenGraph, target: Target) -> Subject:
    exported = graph.planned.program.exported if not graph.planned.name else None
    written, results = (write.source for write in graph.writes), (write.value for write in graph.writes[: graph.signed])
    found = Subject.of(graph.retraced.graph, graph.planned.owner, target, exported, written, graph.retraced.constants)
    return replace(found, results=tuple(results), sources=graph.retraced.rewrite.origin)


# Rebuilding: a program of the kind of the source.


def rebuild_program(rewritten: Rewritten, training: bool | None = None) -> ReturnedProgram:
    """Assemble a program around the lowered graphs; with `training=False`, one that runs without gradients."""
    module = rewritten.module
    result, exported = frontends.rebuild(module, rewritten.program.graph)
    _check_inputs(result, rewritten.graphs[0].planned, training)
    return ReturnedProgram.of(module, result, exported)


def _final_graph(each: RewrittenGraph) -> ProgramGraph:
    planned, signed = each.planned, each.pending_writes[: each.signed]
    return ProgramGraph(
        each.graph, planned.owner, planned.name, constants=each.constants, bodies=planned.bodies, writes=signed
    )


def _check_inputs(result: Any, planned: PlannedGraph, training: bool | None) -> None:
    """Make the lowered program refuse inputs that it was not lowered for."""
    program = planned.program
    if program.by_example and (program.opened or mutates(program.graph, program.root)):
        check_inputs(result, program.graph, None)
    elif program.by_example:
        check_inputs(result, planned.graph, {n for n, d in planned.decisions.items() if isinstance(d, Derived)})
    checks: list[Callable[[fx.GraphModule], None]] = [disable_gradients] if training is False else []
    if planned.graph is not program.graph:
        checks.append(check_writes)
    if planned.represented.narrowed is not None:
        checks.append(IntegerRangeCheck(planned.represented.narrowed.dtypes).added)
    if isinstance(result, LoweredProgram):
        result._more_checks = (*result._more_checks, *checks)
        return
    for add in checks:
        add(result)


# Verification: each graph from its record, and the last step to the returned program.


def prove_program(graphs: Sequence[RewrittenGraph], program: ReturnedProgram, target: Target, full: bool) -> Proof:
    """Verify the returned program: its lowered graphs, each step of their simplification, and the last step to
    `program`. Raises `VerificationError`."""
    proof = check_program([graph.correspondence(target) for graph in graphs], program, full)
    phrases: list[str] = []
    proof = proof.also([phrase for graph in graphs for phrase in graph.planned.represented.checks()])
    for graph in graphs:
        if graph.simplified is not None:
            added = rebuild_exported.input_names([*graph.retraced.constants, *graph.simplified.constants])
            phrases += check_simplified(graph.simplified, added, graph.signed, full)
    # Bodies would repeat the phrase of the main graph.
    return proof.also(phrases[:1])
