"""The two main verbs: `lower` lowers a program to a target, `decompose` applies rules wherever one matches. The source
is never modified, not even when lowering fails."""

from __future__ import annotations

from collections.abc import Mapping
import contextlib
from dataclasses import dataclass, field, replace
import functools
import operator
from pathlib import Path
from typing import TYPE_CHECKING, Any
import warnings

from torch import fx
from typing_extensions import Unpack

from decomp.advice.suggestions import SuggestionSearch
from decomp.breakdown.accounts import ProgramAccount, account_of_lowering, account_of_plan
from decomp.derive.decisions import Plan, PlannedProgram
from decomp.derive.outlining import outline_module
from decomp.derive.pipeline import (
    CaptureRequest,
    capture_program,
    expand_module,
    plan_program,
    prove_program,
    rebuild_program,
)
from decomp.derive.rule_selection import RuleSelection
from decomp.derive.session import capture_session, lowering_session, planning, resumed_session
from decomp.errors import Blocker, NotLowered, NotPortable, boundary
from decomp.forks import collector_paused
from decomp.graphs.lowered_modules import snapshots_of
from decomp.ir.call import of_node
from decomp.ir.dtypes import name_of
from decomp.ir.module import Module
from decomp.ir.stages import Stage, stages_of
from decomp.lowering_internals import LoweringInternals, LoweringRequest
from decomp.metadata.ambient_modes import without_ambient_modes
from decomp.patterns.pattern import Pattern
from decomp.proof.correspondence import Proof
from decomp.provenance import Provenance, record
from decomp.report import Report, report_of
from decomp.rules.accuracy import Accuracy, Policy
from decomp.rules.keywords import DecomposeOptions, LowerOptions, PlanOptions
from decomp.rules.options import Options, verb
from decomp.rules.rules import Rules, as_rules
from decomp.rules.target import MatchAllTarget, Target
from decomp.simplification.simplifier import Settings, simplify_module
from decomp.stage_clock import StageClock
from decomp.validation.plan_prices import PlanPricing
from decomp.validation.values import measure_lowering

if TYPE_CHECKING:
    from decomp.breakdown.layers import Layers
    from decomp.validation.choosing_levels import Picked


@dataclass(eq=False)
class Lowering:
    """What `lower` returns: the lowered program, and a record of how it was lowered."""

    result: Any
    """The lowered program, of the same kind as the source."""
    target: Target
    plan: Plan
    proof: Proof | None = field(repr=False)
    """What verification checked; None with `verify=False`."""
    internals: LoweringInternals = field(repr=False)
    """What the project's own tools read of it; it may change in any release."""

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """What was not lowered (with `partial=True`)."""
        return self.plan.blockers

    @property
    def accuracy(self) -> Accuracy:
        """The requested levels of accuracy, by op."""
        return self.internals.request.accuracy

    @property
    def picked(self) -> Picked | None:
        """The levels of accuracy that were picked, with `max_error=`."""
        return self.internals.picked

    @property
    def trains(self) -> bool:
        """Whether the lowered program has the gradients of its source."""
        internals = self.internals
        done = (piece.record("simplify") for piece in internals.pieces)
        return internals.derived_to_train and all(each is None or each.settings.training is not False for each in done)

    def inlined(self) -> Any:
        """The program with the bodies of composite calls in their place: that of `lower` without `composites`, with the
        same calls in the same order. Inlining the bodies gives back the expanded graph, as verification requires; from
        there it is simplified as a whole. Raises what `lower` raises."""
        return without_composites(self, self.internals.request.settings, self.proof is not None).result

    def provenance(self, node: fx.Node | str) -> Provenance:
        """Where a node of the lowered program comes from. Raises `UnknownNode`."""
        return of_node(self._records, node, "a node of the lowered program")

    @functools.cached_property
    def _records(self) -> dict[str, Provenance]:
        internals = self.internals
        records: dict[str, Provenance] = {}
        for piece in (*internals.pieces, *internals.composites):
            chains = piece.chains
            planned = piece.planned
            for new, source in piece.since_planned.origin.items():
                chain = chains.get(new, ())
                where = source.target.location if isinstance(source.target, Pattern) else None
                sources = planned.sources_of(source)
                records.setdefault(new.name, record(planned.source_of(source), chain, sources, where))
        return records

    @functools.cached_property
    def stages(self) -> Mapping[str, Stage]:
        """The program after each stage, `capture`, `functionalize`, `expand` and, where these changed something,
        `composites` or `simplify`: calls with dtypes and shapes, and for each the node of the stage before and what
        justifies it. `print(lowering.stages["expand"])`."""
        internals = self.internals
        return stages_of(internals.pieces, internals.composites)

    def __getattr__(self, name: str) -> Any:
        if name not in _MOVED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        text = f"Lowering.{name} is for the project's own tools; it goes in release 0.3"
        warnings.warn(text, DeprecationWarning, stacklevel=2)  # at the line that asks for the name
        return operator.attrgetter(_MOVED[name])(self.internals)

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotPortable(
            "a Lowering cannot be pickled: its plan and its provenance hold nodes of your program\n"
            "  to do: pickle lowering.report(); save lowering.result by torch.export.save if it is an "
            "ExportedProgram, or pickle it if it is a GraphModule"
        )

    def __copy__(self) -> Lowering:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Lowering:
        # torch 2.13 drops hooks when it copies a GraphModule and renames inputs of an ExportedProgram, so a copy would
        # not be the program that was verified. Users who want a separate program deep-copy `result`.
        return replace(self)

    def __repr__(self) -> str:
        return f"<{self.report().headline}; the program is .result, the rest print(lowering.report())>"

    @boundary("Lowering.html")
    def html(self, path: str | Path, title: str | None = None, *, before: Lowering | None = None) -> Path:
        """Write a page that explains the lowering, as one HTML file that needs no network: its stages side by side, and
        for each call of the source the rules and calls that it became, the alternatives with their prices and errors,
        and what was verified. `title`: by default the name of the model's class. `before`: another lowering, of the
        same model or a similar one; the page then shows what became of each call in both, and what changed. Returns the
        path. Raises `ArgumentError` if the file cannot be written."""
        from decomp.page import writing  # deferred: few lowerings are written, and it imports this module

        return writing.write(self, path, title, before)

    @boundary("Lowering.save")
    def save(self, path: str | Path, *, weights: bool = True) -> Path:
        """Write the program for runtimes that are not Python: its calls as `program.json`, and parameters, buffers and
        constants beside it as `program.weights`; `decomp.results.PortableProgram.read` reads both. `weights=False`
        leaves parameters and buffers out, as for programs on the meta device. Returns the path. Raises `NotPortable`
        for what cannot be written, by name, and `ArgumentError` if the files cannot be."""
        from decomp.portable import writing  # deferred, as for the page

        return writing.save(self, path, weights)

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def report(self) -> Report:
        """Ops before and after, rules used, expansions traced and inserted, time by stage, what was verified."""
        return report_of(self)

    def account(self) -> ProgramAccount:
        """Its calls before and after, with modules and costs: what `layers` and `decomp.results.Methods` sum up. Raises
        `CostError`."""
        return account_of_lowering(self)

    def layers(self) -> Layers:
        """What each layer costs: calls, weights, operations, bytes; repeated blocks are one row. Raises `CostError`,
        and `ArgumentError` for a program without module paths."""
        return self.account().layers()


_MOVED = {
    **{name: name for name in "pieces program snapshots times runs composites model example_inputs".split()},
    **{name: f"request.{name}" for name in "matching policy narrower versions settings".split()},
    "given": "program.graph",
    "root": "program.root",
}
"""Attributes of a `Lowering` that were public, with where they are now; they go in release 0.3."""


@verb("lower", LowerOptions)
def lower(model: Any, *, to: Target, **given: Unpack[LowerOptions]) -> Lowering:
    """Lower a program to a target, and return the `Lowering`: calls that are legal in the target are kept, all others
    are expanded by rules.

    - `model`: an `nn.Module`, `fx.GraphModule` or `ExportedProgram`. `result` is of the same kind (a GraphModule for a
      module); the model itself is not changed.
    - `args`, `kwargs`: example inputs. With them a module is captured by `torch.export` (with `dynamic_shapes`),
      without them by `tracer_class`, and rules that need shapes or dtypes cannot run.
    - `options`: these options as one value, `decomp.Options`; keywords beside it win.
    - `rules`: by default the library's, `decomp_rules.RULES`. `keep`: ops that are not expanded.
    - `accuracy`: "exact", "standard" (float32 within 4 ULP for normal numbers, extremes and gradients right) or "fast"
      (textbook forms, for neural networks); or a dict of levels by op, with `...` for all other ops:
      `{"softmax": "exact", ...: "fast"}`. The level of an op of the program also applies to all calls it expands to.
      Of the rules that reach the level the cheapest is used; at "exact", the first.
    - `cost`: the cost of a call on the target, as a function of it, or one of `decomp.costs`, also by name; by default
      each call costs 1. `cost="fused"` is for a compiler that fuses what it is handed. With it, the cheapest rule is
      used at "exact" too, and rules without a level are considered. The report says what was planned for.
    - `max_error`: picks the cheapest level for each op such that the program's error against float64 on the example
      inputs is at most this many times the error of PyTorch: 1.0 is as good as PyTorch. Levels that `accuracy` gives by
      op are kept. The report lists the levels picked.
    - `max_ulp`: a number, or numbers by op: `{"gelu": 16, ...: 4}`. Instead of a level: takes the cheapest alternative
      of any level whose certificate on this target (or the worst of those measured) is within this many ULP, or within
      the error of PyTorch's own kernel. Rules without a certificate are their author's responsibility.
    - `partial`: lower what can be lowered, and list the rest in the report, instead of raising `NotLowered`.
    - `simplify`: simplify the lowered program (see `decomp.simplify`): common subexpressions, dead code, copies, casts
      and views that change nothing, and chains of them. Results are bitwise the same, and so are gradients, except for
      the order in which autograd adds.
    - `training`: None keeps the ops that only gradients need, such as `detach`, where an input or a parameter may
      require one; False removes them, for inference only, so the target need not have them; True keeps them. The
      current grad mode is ignored, as the program outlives it.
    - `freeze`: treat parameters and buffers that are never written as constants, and compute what depends on them alone
      once, into buffers of the result. The result cannot be trained.
    - `narrow`: compute in int32 instead of int64 and in float32 instead of float64 where the target lacks the wide
      dtypes. Inputs, parameters and outputs keep their dtypes, and are cast at the boundary. Numbers that do not fit
      raise `OutOfRange`; sums and products may overflow.
    - `drop_draws`: leave out random calls whose numbers nothing reads, for a runtime that draws its own. By default
      they stay: without them, later draws from the same seed are others.
    - `verify`: True or "structure" checks the new program node by node (see `decomp.verify`); "full" also checks the
      whole graph with networkx; "values" also runs each distinct expansion, and the program on `args`, and compares
      values and gradients; False checks nothing.
    - `composites`: ops (and patterns) whose calls, of the program or of a rule, stay calls where they are not legal,
      each with its lowered decomposition as its body: a `wrap` of the body, whose name, version (with a dict by op;
      else 1) and attributes are in `node.meta["custom"]["composite"]`. Calls of one signature share a body.
      Simplification moves nothing across its border; `lowering.inlined()` has the program without composites.
    - `lock`: a file. If it is not there, it is written: versions, options, the target's ops, the rules and their code,
      how each call was decided, the lowered program, and digests of the constants that were made. If it is there, the
      lowered program must be that of the file, node by node, whatever the nodes are called. `decomp diff` compares two.

    Raises `NotLowered` with every op that cannot be lowered, `CaptureError`, `RuleError`, `MutationError`,
    `VerificationError`, `OutOfRange` for a number that does not fit with `narrow`, `AccuracyError` if no levels keep
    within `max_error`, and `LockMismatch`, which names what differs from `lock`.
    """
    source, options = CaptureRequest.of(model, given), Options.of(given)
    settings = Settings(training=options.trains, freeze=options.freeze) if options.simplify else None
    lowering = _lowered(source, RuleSelection.of(to, options), options, settings)
    if options.lock is not None:
        from decomp.locking.comparing import hold_to_lock  # deferred, as for the page

        hold_to_lock(lowering, Path(options.lock))
    return lowering


@verb("decompose", DecomposeOptions)
def decompose(model: Any, rules: Rules | Mapping[Any, Any], **given: Unpack[DecomposeOptions]) -> Any:
    """Apply rules wherever one matches, to a fixed point, and return a program of the same kind. Where a rule calls its
    own op, that call is kept. `rules`: `Rules`, or a dict from op to function; the other arguments are those of
    `lower`. Raises `RuleCycle` if rules expand into each other endlessly, and what `lower` raises."""
    source, options = CaptureRequest.of(model, given), replace(Options.of(given), partial=True)
    return _lowered(source, RuleSelection(as_rules(rules), _EVERYTHING), options, None).result


@verb("plan", PlanOptions)
def plan(model: Any, *, to: Target, **given: Unpack[PlanOptions]) -> Plan:
    """Return the `Plan` of a lowering, without doing it: which calls are legal, which are derived and by what rules,
    which are blocked and why. The arguments are those of `lower`. Raises `CaptureError`, `RuleError`."""
    source, options = CaptureRequest.of(model, given), Options.of(given)
    matching, policy = RuleSelection.of(to, options), options.policy
    with capture_session(source, matching) as program:
        return _attach_lazy_answers(plan_program(program, matching, policy), program, matching, policy)


def _attach_lazy_answers(planned: PlannedProgram, program: Module, matching: RuleSelection, policy: Policy) -> Plan:
    """The plan; its costs and its suggestions for the target are computed on first access."""
    return replace(
        planned.plan,
        pricing=PlanPricing(planned, program, matching, policy),
        suggesting=SuggestionSearch(program, matching, policy),
        accounting=functools.partial(account_of_plan, planned, program),
    )


_EVERYTHING = MatchAllTarget("wherever a rule matches")


def _lowered(source: CaptureRequest, matching: RuleSelection, options: Options, settings: Settings | None) -> Lowering:
    clock, policy, picked = StageClock(), options.policy, None
    captures = source.args is not None
    with lowering_session(matching.rules, source.model, captures) as sizes, without_ambient_modes(), collector_paused():
        with clock.stage("capture"):
            program = capture_program(source, matching)
        with planning(program):
            if options.max_error is not None:
                with clock.stage("levels"):
                    picked = _pick_levels(program, matching, source, policy, options.max_error)
                policy = replace(policy, accuracy=policy.accuracy.also(picked.levels))
            versions = dict(options.composites)
            request = LoweringRequest(source, matching, policy, options.partial, options.verify, settings, versions)
            lowering = _run_stages(request, program, clock)
        sizes.keep(lowering.result)
    return replace(lowering, internals=replace(lowering.internals, picked=picked))


def resimplify(lowering: Lowering, settings: Settings | None) -> Lowering:
    """The same lowering with other simplification settings, or none; reuses cached plans."""
    return _relowered(lowering, settings, lowering.internals.request.versions, True)


def without_composites(lowering: Lowering, settings: Settings | None, verify: bool) -> Lowering:
    """The same lowering without composites, simplified with these settings, or not."""
    return _relowered(lowering, settings, {}, verify)


def _relowered(lowering: Lowering, settings: Settings | None, versions: Mapping[Any, int], verify: bool) -> Lowering:
    own = lowering.internals
    request = replace(own.request, partial=True, verify=verify, settings=settings, versions=versions)
    with resumed_session(own.program, request.matching.rules) as sizes:
        new = _run_stages(request, own.program, StageClock())
        sizes.keep(new.result)
    return replace(new, internals=replace(new.internals, picked=own.picked))


def _pick_levels(
    program: Module, matching: RuleSelection, source: CaptureRequest, policy: Policy, max_error: float
) -> Picked:
    """The cheapest levels for the ops whose level the user has not named."""
    # Deferred: only max_error= needs it.
    from decomp.validation.choosing_levels import cheapest_levels
    from decomp.validation.error_budget import levels_of

    levels = levels_of(program, matching, source, policy)
    return cheapest_levels(levels, max_error, policy.accuracy)


def _run_stages(request: LoweringRequest, program: Module, clock: StageClock) -> Lowering:
    """The stages after capture."""
    matching, policy, settings, verify = request.matching, request.policy, request.settings, request.verify
    target = matching.target
    with clock.stage("plan"):
        planned = plan_program(program, matching, policy, request.partial, traced=bool(request.versions))
    if planned.plan.blocked and not request.partial:
        blockers = planned.plan.blockers
        known = not any(blocker.needs_metadata for blocker in blockers)
        raise NotLowered(target.name, blockers, SuggestionSearch(program, matching, policy) if known else None)
    with clock.stage("expand"):
        module = expand_module(planned)
        module = outline_module(module, request.versions) if request.versions else module
    if settings is not None:
        with clock.stage("simplify"):
            module = simplify_module(module, target, settings)
    with clock.stage("rebuild"):
        returned = rebuild_program(module, matching.training)
        _mark(returned.result, target)
    with clock.stage("verify") if verify else contextlib.nullcontext():
        proof = prove_program(returned, target, verify == "full") if verify else None
    internals = LoweringInternals(
        request,
        program,
        module.sources,
        returned,
        snapshots_of(module.sources, returned.result),
        planned.memory.verdicts,
        clock.times,
        planned.runs,
    )
    plan = _attach_lazy_answers(planned, program, matching, policy)
    lowering = Lowering(returned.result, target, plan, proof, internals)
    if proof is not None and verify == "values":
        with clock.stage("values"):
            found = measure_lowering(request.source.model, lowering, None, None)
        lowering = replace(lowering, proof=replace(proof.also(found), program=found[-1]))
    return lowering


def _mark(result: Any, target: Target) -> None:
    """Mark a program as narrowed, for backends that load it. The mark is in `meta["custom"]`, the only metadata of a
    program that `torch.export.save` keeps."""
    if target.narrower:
        module = result if isinstance(result, fx.GraphModule) else result.graph_module
        narrower = {name_of(wide): name_of(narrow) for wide, narrow in target.narrower.items()}
        module.meta["custom"] = {**module.meta.get("custom", {}), "narrower": narrower}
