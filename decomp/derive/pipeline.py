"""The stages of a lowering, in order, each a function from one `Module` to the next. A program is captured; it is made
functional, with the bodies of its higher-order ops, brought to the dtypes of the target, fused, decided call by call
(`PLAN`), expanded and simplified; then it is rebuilt and verified."""

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
    PlannedProgram,
    add_pattern_reasons,
    decide_left_complex,
    require_whole_operand,
)
from decomp.derive.planner import Planner
from decomp.derive.regions import bodies_of, body_named, inline_regions, runs_untracked
from decomp.derive.rewriter import inline_expansions
from decomp.derive.rule_selection import RuleSelection
from decomp.derive.stride_propagation import (
    PINNED,
    StridePropagation,
    correct_strides,
    owner_of_bodies,
    with_kernel_strides,
)
from decomp.derive.unread_draws import drop_unread_draws
from decomp.derive.write_checks import check_writes
from decomp.errors import CaptureError, spell_target
from decomp.functionalize.gradients import GradientSources, gradient_inputs
from decomp.functionalize.walk import Write, append_writes, functionalize, mutates
from decomp.ir.module import Module, ProgramGraph
from decomp.ir.ops import op as op_of
from decomp.ir.respelling import respell
from decomp.metadata.symbolic_sizes import planning_sizes
from decomp.patterns.fusing import PatternFusion, choose_matches
from decomp.proof.checks import check_program
from decomp.proof.correspondence import Correspondence, Proof
from decomp.proof.legality import why_illegal_in
from decomp.proof.outlined import check_outlined
from decomp.proof.returned_program import ReturnedProgram
from decomp.rules.accuracy import Policy
from decomp.rules.target import Target
from decomp.simplification.checking import check_simplified
from decomp.simplification.simplifier import Subject
from decomp.type_conversion.convert_types import (
    NARROW,
    check_conversions,
    conversions_at_border,
    convert_types,
    describe_conversions,
    left_complex,
)
from decomp.type_conversion.ranges import IntegerRangeCheck


@dataclass(frozen=True)
class CaptureRequest:
    """The model to be lowered, and how to capture it."""

    model: Any
    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None
    tracer_class: type[fx.Tracer] = fx.Tracer
    dynamic_shapes: Any = None

    @classmethod
    def of(cls, model: Any, given: Mapping[str, Any]) -> CaptureRequest:
        """The request for a model, with those of the keywords of a verb that are about capture."""
        return cls(model, **{name: given[name] for name in _ABOUT_CAPTURE if name in given})


_ABOUT_CAPTURE = ("args", "kwargs", "tracer_class", "dynamic_shapes")


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
        # A function and not a flag: whether the program trains
        # depends on its inputs and parameters, which capture finds.
        trains=lambda program: matching.specialise_for_program(program).rules.trains,
    )


# Planning: a decision for each call.


def plan_program(
    module: Module, matching: RuleSelection, policy: Policy, partial: bool = False, traced: bool = False
) -> PlannedProgram:
    """Decide how each call of a program is lowered; with `partial`, blocked calls stay unchanged. `traced`: whether
    expansions say what became of each call inside them."""
    # Before the planner is made: the memory that it takes is that of rules for training, or of those for inference.
    matching = matching.specialise_for_program(module)
    planner = Planner(matching, module, policy, traced)
    session = PlanningSession(module, matching, planner, partial)
    with planning_sizes(module.mode):
        for each in PLAN:
            module = each(module, session)
    # The memory outlives the program; its table by node would keep the graphs, and their fake tensors, alive.
    planner.memory.signatures.forget_nodes()
    planner.close()
    graphs = tuple(module.graphs.values())
    entries = tuple(
        (own.source_of(node), decision) for own in graphs for node, decision in (own.decisions or {}).items()
    )
    uses = tuple(use for fusion in session.fusions.values() for use in fusion.uses())
    notes = tuple(note for own in graphs for note in describe_conversions(own))
    plan = Plan(matching.target.name, entries, patterns=uses, notes=notes)
    return PlannedProgram(module, plan, planner.memory, planner.alternatives.runs, traced)


def functional_program(module: Module, matching: RuleSelection) -> Module:
    """A program as its patterns are searched by a plan; the program itself if it writes no tensor. Raises
    `MutationError`."""
    if not matching.must_be_functional(module.graph, module.root):
        return module
    planner = Planner(matching, module, Policy())
    with planning_sizes(module.mode):
        found = functionalize_module(module, PlanningSession(module, matching, planner, partial=True))
    planner.memory.signatures.forget_nodes()
    planner.close()
    return found


@dataclass(frozen=True)
class PlanningSession:
    """What the passes that plan one program share."""

    program: Module
    """The captured program."""
    matching: RuleSelection
    planner: Planner
    partial: bool
    untracked: set[nn.Module] = field(default_factory=set)
    """Bodies that run without gradients."""
    fusions: dict[nn.Module, PatternFusion] = field(default_factory=dict)
    """The pattern matches in each graph."""

    def state(self, own: ProgramGraph) -> Mapping[str, Any]:
        """The tensors behind the lifted inputs of an exported program's own graph."""
        exported = self.program.exported if not own.name else None
        return rebuild_exported.lifted_state(exported) if exported is not None else {}


def functionalize_module(module: Module, session: PlanningSession) -> Module:
    """The program, and the bodies of its higher-order ops, without mutation."""
    return replace(module, graphs=_Functionalization(session).graphs(module.main, None))


def drop_draws_module(module: Module, session: PlanningSession) -> Module:
    """The program without random draws that nothing reads, for a runtime that draws its own."""
    return module.map(drop_unread_draws) if session.matching.drop_draws else module


def convert_module(module: Module, session: PlanningSession) -> Module:
    """The program in the dtypes of the target."""
    pairs, target = session.planner.pairs, session.planner.target
    return module.map(lambda own: convert_types(own, pairs, target, session.state(own)))


def fuse_module(module: Module, session: PlanningSession) -> Module:
    """The program with pattern matches contracted to calls where this is profitable."""
    return module.map(lambda own: _fused(own, session))


def decide_module(module: Module, session: PlanningSession) -> Module:
    """The program with a decision for each call, and with metadata that is true under these decisions."""
    return module.map(lambda own: _Decisions(own, session).decided())


# Functional first: a write hides what a pattern, a rule or a result would read. Types before patterns, as a match
# must be of calls that the target has the dtypes for. Decisions last: a contracted match gets one, its calls none.
PLAN = (functionalize_module, drop_draws_module, convert_module, fuse_module, decide_module)
"""The passes before a program is expanded, in order."""


@dataclass(frozen=True)
class _Functionalization:
    """Makes the graphs of one program functional."""

    session: PlanningSession
    begun: set[nn.Module] = field(default_factory=set)
    """Bodies that are functional or being made so: each is lowered once for all its callers."""
    stale_strides: dict[fx.Node, Any] = field(default_factory=dict)
    """`Functional.stale_strides` of all graphs: bodies are made functional together with their callers."""

    def graphs(self, captured: ProgramGraph, policy: autocast.Policy | None) -> dict[nn.Module, ProgramGraph]:
        """A graph and those of the bodies that it calls, which come after it; `policy`: the autocast under which it
        runs."""
        own, untracked = self._functional(captured), self.session.untracked
        bodies = bodies_of(own, policy)
        # Bodies whose casts were made explicit are new modules;
        # the owner still has the captured ones under these names.
        own = replace(own, bodies={key: body for key, (body, _) in bodies.items()})
        found = {own.owner: own}
        for key, (body, policy) in bodies.items():
            # Two calls may share a body, and so may a call in the main graph and one in another body.
            if body not in self.begun:
                self.begun.add(body)
                if own.owner in untracked or runs_untracked(own.graph, key):
                    untracked.add(body)
                found.update(self.graphs(ProgramGraph(body.graph, body, key), policy))
        return found

    def _functional(self, captured: ProgramGraph) -> ProgramGraph:
        """A graph without mutation, with metadata that has the strides of kernels' results."""
        kernel_strides = self.session.planner.kernel_strides
        # Strides are corrected before writes are removed: they
        # decide which calls are views, and so what a write changes.
        own = self._without_mutation(correct_strides(captured, kernel_strides))
        if known := {node: self.stale_strides[node] for node in captured.graph.nodes if node in self.stale_strides}:
            values = own.since(captured).values if own is not captured else {}
            now = {values.get(node, node): meta for node, meta in known.items()}
            own = replace(own, stale_strides={**own.stale_strides, **now})
        # And once more afterwards: the functional form of a write has a kernel of its own, with strides of its own.
        return with_kernel_strides(own, kernel_strides)

    def _without_mutation(self, own: ProgramGraph) -> ProgramGraph:
        owner, matching = owner_of_bodies(own), self.session.matching
        exported = self.session.program.exported if not own.name else None
        if matching.must_be_functional(own.graph, owner):
            found = functionalize(own.graph, owner, self.session.state(own), matching.rules.trains)
            self.stale_strides.update(found.stale_strides)
            own = own.rewritten(
                found.rewrite,
                "functionalize",
                writes=found.writes,
                stale_strides=found.stale_strides,
                bodies={**own.bodies, **found.submodules},
            )
        # Inlining replaces the region by `detach` of its inputs. A
        # target that lacks it could run the region, and not these.
        detaches = not matching.rules.trains or matching.target.surely_legal(op_of("detach"), "default")
        if exported is None or matching.everywhere or not detaches:
            return own
        signature = exported.graph_signature
        # torch.export makes buffers and constants inputs of the graph.
        # They never require a gradient, so no detach is needed.
        frozen = {*signature.inputs_to_buffers, *signature.inputs_to_lifted_tensor_constants}
        rewrite = inline_regions(own.graph, lambda body: body_named(body, own), owner, frozen)
        return own if rewrite is None else own.rewritten(rewrite, "inline regions")


def _fused(own: ProgramGraph, session: PlanningSession) -> ProgramGraph:
    """A graph with pattern matches contracted. (Between markers of autocast calls are cast implicitly, and nothing
    matches.)"""
    rules, planner = session.matching.rules.patterns, session.planner
    if not rules or any(map(autocast.region_marker, own.graph.nodes)):
        return own
    kept = {write.value for write in own.writes}
    constants = functools.partial(_frozen_nodes, own, session)
    fusion = choose_matches(own.graph, rules, planner, own.owner, kept, constants, planner.policy.freeze)
    session.fusions[own.owner] = fusion
    return own if fusion.rewrite is None else own.rewritten(fusion.rewrite, "fuse patterns", why=fusion.matches)


def _frozen_nodes(own: ProgramGraph, session: PlanningSession) -> set[fx.Node]:
    """The nodes that are computed once if the program is frozen. Bodies get their weights as operands."""
    if own.name or session.matching.training:
        return set()
    return Subject.of(own, session.matching.target, session.program.exported).frozen_nodes()


class _Decisions:
    """Decides the calls of one functional graph."""

    def __init__(self, own: ProgramGraph, session: PlanningSession) -> None:
        self.own, self.session = own, session
        self.planner, self.matching = session.planner, session.matching

    def decided(self, pinned: frozenset[str] = frozenset()) -> ProgramGraph:
        """The graph with a decision for each call, and metadata that is true under these decisions. `pinned`: calls
        that must stay, as a call that stays reads their memory by strides."""
        own, owner = self.own, self.own.owner
        # A signature says which results are used, and a value that is only written back has no user in the graph.
        self.planner.memory.signatures.written.update(write.value for write in own.writes)
        propagation = StridePropagation(own.graph, own.stale_strides)
        decisions: dict[fx.Node, Decision] = {}
        at_border, complex_calls = {node.name for node in conversions_at_border(own)}, left_complex(own)
        depth = 0
        for node in propagation.nodes():
            # In a symbolic trace autocast is a pair of calls,
            # `_enter_autocast` and `_exit_autocast`, with no body to cast in.
            marker = autocast.region_marker(node)
            depth += marker
            if depth and not marker and node.op.startswith("call"):
                decisions[node] = LEGAL if self.matching.everywhere else _UNDER_AUTOCAST
            elif node.op == "call_module":
                decisions[node] = self._module(owner, node)
            elif node in propagation.strides_unsatisfiable or node.name in pinned:
                decisions[node] = Blocked.because(
                    spell_target(node.target), propagation.strides_unsatisfiable.get(node, PINNED)
                )
            # Casts at the border are in dtypes that the target lacks by definition: they are for the host.
            elif node.name in at_border:
                decisions[node] = LEGAL
            elif node.op in ("call_function", "call_method"):
                # Both only turn a decision into Blocked, and need the one that the rules made: reasons are added to it.
                decision = require_whole_operand(self.planner.decide(node), node)
                decisions[node] = decide_left_complex(decision, node, complex_calls.get(node.name))
                self.planner.propagate(propagation, node, decisions[node])
        # Blocked calls stay in a partial lowering, and read memory by strides: calls before them whose strides changed
        # are kept as well, and everything is decided again.
        # It ends, as each round pins at least one more call.
        if self.session.partial and (more := propagation.changed_before_unsatisfiable()):
            return self.decided(pinned | more)
        own, decisions = _with_true_metadata(own, decisions, propagation)
        # Copies and detaches come before the connection: a copy has a gradient like its operand, a detached value has
        # none, and `connect_results` looks at what the expansion then returns.
        own_memory.separate_results(own.graph, decisions, self.planner)
        recorded = owner not in self.session.untracked
        own_memory.detach_results(own.graph, decisions, self.planner, recorded)
        tracks = GradientSources(owner)
        tracks.inputs = gradient_inputs(own.graph, owner, self.session.state(own))
        own_memory.connect_results(own.graph, decisions, self.planner, tracks, recorded)
        fusion = self.session.fusions.get(owner)
        return replace(own, decisions=decisions if fusion is None else add_pattern_reasons(decisions, fusion))

    def _module(self, owner: nn.Module, node: fx.Node) -> Decision:
        module = owner.get_submodule(str(node.target))
        # Before the reasons: a module is kept for being legal, also if it could not have been captured.
        if self.matching.keeps_module(module, node):
            return LEGAL
        program = self.session.program
        refused = program.refused_leaves.get(str(node.target)) or program.refused
        reason = describe_kept_leaf(module, refused)
        # `decompose` promises that no call is left which a rule matches, and has no way to report a blocked one.
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
    own: ProgramGraph, decisions: dict[fx.Node, Decision], propagation: StridePropagation
) -> tuple[ProgramGraph, dict[fx.Node, Decision]]:
    """The graph copied by stride propagation with its decisions, if strides changed; otherwise the arguments."""
    if propagation.emit is None:
        return own, decisions
    rewrite = propagation.emit.rewrite
    current = {rewrite.values.get(node, node): decision for node, decision in decisions.items()}
    return own.rewritten(rewrite, "plan"), current


# Expansion: every derived call is replaced by what its rules recorded.


def expand_module(planned: PlannedProgram) -> Module:
    """Replace derived calls by their expansions, and append writes."""
    module = planned.module
    return module.map(lambda own: _expanded(module, own, planned.memory.aliases, planned.traced))


def _expanded(module: Module, own: ProgramGraph, aliases: set[torch._ops.OpOverload], traced: bool) -> ProgramGraph:
    decisions = own.decisions or {}
    derived = {node: decision for node, decision in decisions.items() if isinstance(decision, Derived)}
    gone = frozenset(node for node, decision in decisions.items() if decision is ERASED_GUARD)
    made = inline_expansions(own.graph, derived, module.mode, own.attribute_names, gone, traced)
    graph, origin, chains = made.rewrite.graph, made.rewrite.origin, made.chains
    # Earlier passes made these. What is no longer read must not become an input of the exported program.
    if own.constants:
        used = {str(node.target) for node in graph.find_nodes(op="get_attr")}
        made.constants.update({name: tensor for name, tensor in own.constants.items() if name in used})
    # Backends dispatch on an op's own overload: `aten.__and__` is copied as `aten.bitwise_and`.
    respell(graph, aliases)
    for node in graph.nodes if own.bodies else ():
        # The region stays as a call with bodies that cast explicitly;
        # with its autocast on, it would cast a second time.
        if autocast.is_region(node):
            autocast.disable_region(node)  # casts were made explicit in its body
    if own.chains:
        chains = {new: (*own.chains.get(old, ()), *made.chains.get(new, ())) for new, old in origin.items()}
    after = own.rewritten(made.rewrite, "expand", why=made.calls, constants=made.constants, chains=chains)
    return replace(after, writes=_appended(module, after))


def _appended(module: Module, own: ProgramGraph) -> tuple[Write, ...]:
    """The writes of a lowered graph: those that its signature will name, then others, by `copy_` at its end."""
    has_signature = module.exported is not None and not own.name
    # A signature cannot express a write that is hidden from autograd: it stays in the graph.
    writes = [
        replace(write, signed=has_signature and not (write.untracked and write.differentiable)) for write in own.writes
    ]
    copied = [write for write in writes if not write.signed]
    if copied:
        # A module has no signature: it writes by `copy_`, after everything was read.
        append_writes(own.graph, copied, module.dialect == "aten")
    return (*(write for write in writes if write.signed), *copied)


# Rebuilding: a program of the kind of the source.


def rebuild_program(module: Module, training: bool | None = None) -> ReturnedProgram:
    """Assemble a program around the lowered graphs; with `training=False`, one that runs without gradients."""
    source = module.main.captured.graph
    result, exported = frontends.rebuild(module, source)
    _check_inputs(result, module, source, training)
    return ReturnedProgram.of(module, result, exported)


def _check_inputs(result: Any, module: Module, source: fx.Graph, training: bool | None) -> None:
    """Make the lowered program refuse inputs that it was not lowered for."""
    planned = module.main.planned
    # A write makes every input matter: which of them share memory was decided by the metadata of the examples.
    if module.by_example and (module.opened or mutates(source, module.root)):
        check_inputs(result, source, None)
    elif module.by_example:
        derived = {node for node, decision in (planned.decisions or {}).items() if isinstance(decision, Derived)}
        check_inputs(result, planned.graph, derived)
    checks: list[Callable[[fx.GraphModule], None]] = [disable_gradients] if training is False else []
    # In the source's own graph writes are where the model makes them; only moved ones may meet a changed input.
    if planned.graph is not source:
        checks.append(check_writes)
    if (narrowed := planned.record(NARROW)) is not None:
        checks.append(IntegerRangeCheck(narrowed).added)
    # An ExportedProgram is no module and has no hooks: its checks are applied to each module that is made of it.
    if isinstance(result, LoweredProgram):
        result._more_checks = (*result._more_checks, *checks)
        return
    for add in checks:
        add(result)


# Verification: each graph from its record, and the last step to the returned program.


def prove_program(program: ReturnedProgram, target: Target, full: bool) -> Proof:
    """Verify a returned program: its lowered graphs, each step of their simplification, and the last step to the
    program. Raises `VerificationError`."""
    graphs = tuple(program.module.graphs.values())
    sources = program.module.sources
    proof = check_program([correspondence(own, target) for own in sources], program, full)
    phrases: list[str] = []
    # Conversions and composites were checked against their own records, as the replay of expansions knows neither.
    proof = proof.also([phrase for own in sources for phrase in check_conversions(own)])
    proof = proof.also([phrase for own in graphs for phrase in _check_composites(own, program.module)])
    for own in graphs:
        found = own.record("simplify")
        if found is not None:
            # A constant is an attribute of a module, and a lifted input of an exported program, with another name.
            added = rebuild_exported.input_names([*own.expanded.constants, *found.constants])
            phrases += check_simplified(found, added, sum(write.signed for write in own.writes), full)
    # Bodies would repeat the phrase of the main graph.
    return proof.also(phrases[:1])


def _check_composites(final: ProgramGraph, module: Module) -> Iterator[str]:
    """The check of a graph with composite calls, before it was simplified."""
    own = final.at("composites")
    if own is None:
        return
    bodies = {name: module.graphs[owner].inlined.graph for name, owner in own.bodies.items()}
    # Writes and lifted constants were added after this stage, so that there are none to compare yet.
    if own is not final:
        yield check_outlined(own, bodies, {}, 0)
        return
    lifted = {name: key for key in own.constants for name in rebuild_exported.input_names([key])}
    yield check_outlined(own, bodies, lifted, sum(write.signed for write in own.writes))


def correspondence(final: ProgramGraph, target: Target) -> Correspondence:
    """The relation of an expanded graph to the planned one, as input for verification."""
    own, planned = final.expanded, final.planned
    edges, decisions = final.expanded.edges, planned.decisions or {}
    assert edges is not None
    blocked = (edges.values[node] for node, decision in decisions.items() if isinstance(decision, Blocked))
    templates = {node: decision.template for node, decision in decisions.items() if isinstance(decision, Derived)}
    return Correspondence(
        source=planned.graph,
        lowered=own.graph,
        origin=edges.origin,
        values=edges.values,
        expansions=tuple(template.graph for template in dict.fromkeys(templates.values())),
        # All other calls must be legal. Excluded is what was reported as blocked, or what no target is asked for.
        illegal=why_illegal_in(target, {*blocked, *_write_backs(own), *conversions_at_border(own)}),
        added=frozenset(rebuild_exported.input_names(own.constants)),
        writes=tuple(write.value for write in own.writes),
        templates=templates,
        constants={n: tensor for key, tensor in own.constants.items() for n in rebuild_exported.input_names([key])},
        # The outputs of a graph that was simplified are those before writes were added.
        signed=tuple(write.value for write in own.writes if write.signed) if own is final else (),
        copied=tuple((write.source, write.value) for write in own.writes if not write.signed),
        contraction=planned.at("fuse patterns"),
    )


def _write_backs(own: ProgramGraph) -> Iterator[fx.Node]:
    """The `copy_` nodes at the end of a module, and their targets: every target must support these effects."""
    assert own.edges is not None
    for write in own.writes:
        for user in write.value.users:
            if user not in own.edges.origin and user.op.startswith("call"):
                yield user
                yield from user.all_input_nodes[:1]
