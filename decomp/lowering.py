"""The two main verbs: `lower` lowers a program to a target, `decompose` applies rules wherever one matches. The source
is never modified, not even when lowering fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass, field, replace
import functools
from pathlib import Path
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from decomp._library import hold_to_lock, library, write_page
from decomp.advice.suggestions import SuggestionSearch
from decomp.capture import frontends
from decomp.costs.model import Cost
from decomp.derive.decisions import Plan, PlannedProgram
from decomp.derive.pipeline import (
    CaptureRequest,
    capture_program,
    correspondence,
    expand_module,
    plan_program,
    prove_program,
    rebuild_program,
)
from decomp.derive.rule_selection import RuleSelection
from decomp.derive.session import capture_session, lowering_session, planning, resumed_session
from decomp.errors import ArgumentError, Blocker, NotLowered, NotPortable, boundary
from decomp.forks import collector_paused
from decomp.graphs.lowered_modules import snapshots_of
from decomp.graphs.snapshot import Snapshot
from decomp.ir.dtypes import name_of
from decomp.ir.module import Module, ProgramGraph
from decomp.ir.narrow_calls import NARROWER
from decomp.ir.ops import op as op_of
from decomp.ir.stages import Stage, stages_of
from decomp.metadata.ambient_modes import without_ambient_modes
from decomp.patterns.pattern import Pattern
from decomp.proof.correspondence import Correspondence, Proof
from decomp.proof.returned_program import ReturnedProgram
from decomp.provenance import Provenance, record
from decomp.report import Report, report_of
from decomp.rules.accuracy import DEFAULT, Accuracy, Limits, Policy, Spec
from decomp.rules.options import CHECKS
from decomp.rules.rules import Rules, as_rules
from decomp.rules.target import MatchAllTarget, Target
from decomp.simplification.simplifier import Settings, simplify_module
from decomp.validation.plan_prices import PlanPricing
from decomp.validation.values import measure_lowering

if TYPE_CHECKING:
    from decomp.validation.choosing_levels import Picked


@dataclass
class Lowering:
    """What `lower` returns: the lowered program, and a record of how it was lowered."""

    result: Any
    """The lowered program, of the same kind as the source."""
    target: Target
    plan: Plan
    pieces: tuple[ProgramGraph, ...] = field(repr=False)
    """Its graphs, lowered and simplified: the main graph, then the bodies of higher-order ops."""
    proof: Proof | None = field(repr=False)
    """What verification checked; None with `verify=False`."""
    times: dict[str, float] = field(repr=False)
    """Seconds by stage."""
    runs: int
    """How many rules were run on proxies; all other expansions came from a cache."""
    returned_program: ReturnedProgram = field(repr=False)
    """`result` as it was built, for verification."""
    source: CaptureRequest = field(repr=False)
    """What was lowered, and how it was captured."""
    matching: RuleSelection = field(repr=False)
    """The rules and the target of the lowering."""
    policy: Policy = field(repr=False)
    """How alternatives were chosen."""
    program: Module = field(repr=False)
    """The source program, as a graph."""
    snapshots: tuple[Snapshot, ...] = field(repr=False)
    """The graphs of `result` when it was returned, in the order of `pieces`."""
    verdicts: dict[Any, Any] = field(repr=False)
    """The results of measuring, by expansion; shared with the planner's cache."""
    picked: Picked | None = field(default=None, repr=False)
    """The levels of accuracy that were picked, with `max_error=`."""

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """What was not lowered (with `partial=True`)."""
        return self.plan.blockers

    @property
    def accuracy(self) -> Accuracy:
        """The requested levels of accuracy, by op."""
        return self.policy.accuracy

    @property
    def model(self) -> Any:
        """The source program."""
        return self.source.model

    @property
    def trains(self) -> bool:
        """Whether the lowered program has the gradients of its source."""
        done = (piece.record("simplify") for piece in self.pieces)
        return self.derived_to_train and all(each is None or each.settings.training is not False for each in done)

    @functools.cached_property
    def derived_to_train(self) -> bool:
        """Whether the expansions of its calls have the gradients of these calls."""
        return self.matching.specialise_for_program(self.program).rules.trains

    @property
    def given(self) -> fx.Graph:
        """The graph of the source program."""
        return self.program.graph

    @property
    def root(self) -> Any:
        """The module that owns the attributes of this graph."""
        return self.program.root

    @property
    def example_inputs(self) -> tuple[Any, Any]:
        """The example inputs that the program was lowered with; (None, None) if there were none."""
        return self.source.args, self.source.kwargs

    def flat_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The inputs of the source graph for a call of the program; None if they cannot be determined."""
        return frontends.all_inputs(self.program, args, kwargs)

    @property
    def correspondences(self) -> list[Correspondence]:
        """How each lowered graph, before simplification, relates to its source: the main graph, then the bodies of
        higher-order ops."""
        return [correspondence(piece, self.target) for piece in self.pieces]

    @property
    def narrower(self) -> Mapping[torch.dtype, torch.dtype]:
        """Maps each wide dtype to the dtype computed in instead; empty without `narrow=True`."""
        own = self.target.narrower
        return {wide: dtype for wide, dtype in NARROWER.items() if (wide.to_real() if wide.is_complex else wide) in own}

    def narrow_source(self) -> Any:
        """The source program with the same ops, in the narrow dtypes of the target."""
        target = MatchAllTarget("narrow dtypes alone")
        target.narrower = self.narrower
        matching = RuleSelection(_NO_RULES, target, self.matching.training)
        with resumed_session(self.program, _NO_RULES) as sizes:
            new = _run_stages(self.source, self.program, matching, self.policy, True, False, None, _Clock())
            sizes.keep(new.result)
        return new.result

    def graph_of(self, source: Any) -> fx.Graph:
        """The graph of `source`, captured with the options of this lowering. Raises `CaptureError`."""
        with lowering_session(self.matching.rules, source, captures=self.source.args is not None):
            return capture_program(replace(self.source, model=source), self.matching).graph

    def provenance(self, node: fx.Node | str) -> Provenance:
        """Where a node of the lowered program comes from. Raises `KeyError` for an unknown node."""
        name = node if isinstance(node, str) else node.name
        return self._records[name]

    @functools.cached_property
    def _records(self) -> dict[str, Provenance]:
        records: dict[str, Provenance] = {}
        for piece in self.pieces:
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
        """The program after each stage, `capture`, `functionalize`, `expand` and (if it changed something) `simplify`:
        calls with dtypes and shapes, and for each the node of the stage before and what justifies it.
        `print(lowering.stages["expand"])`."""
        return stages_of(self.pieces)

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

    def html(self, path: str | Path, title: str | None = None) -> Path:
        """Write a page that explains the lowering, as one HTML file that needs no network: its stages side by side, and
        for each call of the source the rules and calls that it became, the alternatives with their prices and errors,
        and what was verified. `title`: by default the name of the model's class. Returns the path. Raises
        `ArgumentError` if the file cannot be written."""
        return write_page(self, path, title)

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def report(self) -> Report:
        """Ops before and after, rules used, expansions traced and inserted, time by stage, what was verified."""
        return report_of(self)


@boundary("lower", CHECKS)
def lower(
    model: Any,
    *,
    to: Target,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    rules: Rules | Mapping[Any, Any] | None = None,
    keep: Iterable[Any] = (),
    accuracy: Spec = DEFAULT,
    cost: Cost | None = None,
    max_error: float | None = None,
    max_ulp: Limits | None = None,
    partial: bool = False,
    simplify: bool = True,
    training: bool | None = None,
    freeze: bool = False,
    narrow: bool = False,
    verify: bool | str = True,
    lock: str | Path | None = None,
    tracer_class: type[fx.Tracer] = fx.Tracer,
    dynamic_shapes: Any = None,
) -> Lowering:
    """Lower a program to a target: calls that are legal in the target are kept, all others are expanded by rules.

    - `model`: an `nn.Module`, `fx.GraphModule` or `ExportedProgram`. `result` is of the same kind (a GraphModule for a
      module); the model itself is not changed.
    - `args`, `kwargs`: example inputs. With them a module is captured by `torch.export` (with `dynamic_shapes`),
      without them by `tracer_class`, and rules that need shapes or dtypes cannot run.
    - `rules`: by default the library's, `decomp_rules.RULES`. `keep`: ops that are not expanded.
    - `accuracy`: "exact", "standard" (float32 within 4 ULP for normal numbers, extremes and gradients right) or "fast"
      (textbook forms, for neural networks); or a dict of levels by op, with `...` for all other ops:
      `{"softmax": "exact", ...: "fast"}`. The level of an op of the program also applies to all calls it expands to.
      Of the rules that reach the level the cheapest is used; at "exact", the first.
    - `cost(call)`: the cost of a call on the target; 1 by default. With it, the cheapest rule is used at "exact" too,
      and rules without a level are considered.
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
    - `verify`: True or "structure" checks the new program node by node (see `decomp.verify`); "full" also checks the
      whole graph with networkx; "values" also runs each distinct expansion, and the program on `args`, and compares
      values and gradients; False checks nothing.
    - `lock`: a file. If it is not there, it is written: versions, options, the target's ops, the rules and their code,
      how each call was decided, the lowered program, and digests of the constants that were made. If it is there, the
      lowered program must be that of the file, node by node, whatever the nodes are called. `decomp diff` compares two.

    Raises `NotLowered` with every op that cannot be lowered, `CaptureError`, `RuleError`, `MutationError`,
    `VerificationError`, `OutOfRange` for a number that does not fit with `narrow`, `AccuracyError` if no levels keep
    within `max_error`, and `LockMismatch`, which names what differs from `lock`.
    """
    if max_error is not None and max_ulp is not None:
        raise ArgumentError("max_error= picks levels and max_ulp= replaces them: pass only one of the two")
    source = CaptureRequest(model, args, kwargs, tracer_class, dynamic_shapes)
    settings = settings_of(simplify, training, freeze)
    matching = RuleSelection(*rules_and_target(to, rules, keep, narrow), _training(training, freeze))
    policy = Policy(Accuracy.of(accuracy).within(max_ulp), cost, freeze)
    lowering = _lowered(source, matching, policy, partial, verify, max_error, settings)
    if lock is not None:
        hold_to_lock(lowering, lock)
    return lowering


@boundary("decompose", CHECKS)
def decompose(
    model: Any,
    rules: Rules | Mapping[Any, Any],
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    accuracy: Spec = DEFAULT,
    max_ulp: Limits | None = None,
    tracer_class: type[fx.Tracer] = fx.Tracer,
    verify: bool | str = True,
    dynamic_shapes: Any = None,
) -> Any:
    """Apply rules wherever one matches, to a fixed point, and return a program of the same kind. Where a rule calls its
    own op, that call is kept. `rules`: `Rules`, or a dict from op to function; the other arguments are those of
    `lower`. Raises `RuleCycle` if rules expand into each other endlessly, and what `lower` raises."""
    source = CaptureRequest(model, args, kwargs, tracer_class, dynamic_shapes)
    policy = Policy(Accuracy.of(accuracy).within(max_ulp))
    return _lowered(source, RuleSelection(as_rules(rules), _EVERYTHING), policy, partial=True, verify=verify).result


@boundary("plan", CHECKS)
def plan(
    model: Any,
    *,
    to: Target,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    rules: Rules | Mapping[Any, Any] | None = None,
    keep: Iterable[Any] = (),
    accuracy: Spec = DEFAULT,
    cost: Cost | None = None,
    max_ulp: Limits | None = None,
    training: bool | None = None,
    freeze: bool = False,
    narrow: bool = False,
    tracer_class: type[fx.Tracer] = fx.Tracer,
    dynamic_shapes: Any = None,
) -> Plan:
    """A dry run of `lower`: which calls are legal, which are derived and by what rules, which are blocked and why. The
    arguments are those of `lower`. Raises `CaptureError`, `RuleError`."""
    chosen, target = rules_and_target(to, rules, keep, narrow)
    policy = Policy(Accuracy.of(accuracy).within(max_ulp), cost, freeze)
    source = CaptureRequest(model, args, kwargs, tracer_class, dynamic_shapes)
    matching = RuleSelection(chosen, target, _training(training, freeze))
    with capture_session(source, matching) as program:
        return _attach_lazy_answers(plan_program(program, matching, policy), program, matching, policy)


def _attach_lazy_answers(planned: PlannedProgram, program: Module, matching: RuleSelection, policy: Policy) -> Plan:
    """The plan; its costs and its suggestions for the target are computed on first access."""
    pricing, suggesting = PlanPricing(planned, program, matching, policy), SuggestionSearch(program, matching, policy)
    return replace(planned.plan, pricing=pricing, suggesting=suggesting)


_EVERYTHING = MatchAllTarget("wherever a rule matches")
_NO_RULES = Rules()


def rules_and_target(
    to: Target, rules: Rules | Mapping[Any, Any] | None, keep: Iterable[Any], narrow: bool = False
) -> tuple[Rules, Target]:
    """The rules (by default the library's) and the target of a call. Raises `TargetError` for narrow=True with a target
    that declares no dtypes."""
    target = _keep_ops(_narrow_target(to) if narrow else to, keep)
    return as_rules(rules) if rules is not None else library(), target


@functools.lru_cache(maxsize=64)
def _narrow_target(target: Target) -> Target:
    """The same object for the same target, so that planning caches, keyed by target, hit."""
    return target.narrowed()


@functools.lru_cache(maxsize=256)
def _with_kept_ops(target: Target, keep: tuple[Any, ...]) -> Target:
    return target._with(target.name, (target | keep)._entries)


def settings_of(simplify: bool, training: bool | None, freeze: bool) -> Settings | None:
    """The settings of simplification; None without it. Raises `ArgumentError` for contradictory options."""
    training = _training(training, freeze)
    if freeze and not simplify:
        raise ArgumentError("freeze=True is part of simplification: leave out simplify=False")
    return Settings(training=training, freeze=freeze) if simplify else None


def _training(training: bool | None, freeze: bool) -> bool | None:
    """Whether ops that only gradients need are kept. Raises `ArgumentError` for freeze=True with training=True."""
    if freeze and training:
        raise ArgumentError("freeze=True makes parameters constants, which cannot train: leave out training=True")
    return False if freeze else training


def _keep_ops(target: Target, keep: Iterable[Any]) -> Target:
    """The target with the kept ops; the same object for the same ops, so that planning caches hit."""
    ops = (keep,) if isinstance(keep, str) or callable(keep) else tuple(keep)
    return _with_kept_ops(target, tuple(sorted({op_of(k) for k in ops}, key=str))) if ops else target


def _lowered(
    source: CaptureRequest,
    matching: RuleSelection,
    policy: Policy,
    partial: bool,
    verify: bool | str,
    max_error: float | None = None,
    settings: Settings | None = None,
) -> Lowering:
    clock = _Clock()
    captures = source.args is not None
    with lowering_session(matching.rules, source.model, captures) as sizes, without_ambient_modes(), collector_paused():
        with clock.stage("capture"):
            program = capture_program(source, matching)
        with planning(program):
            if max_error is not None:
                with clock.stage("levels"):
                    picked = _pick_levels(program, matching, source, policy, max_error)
                policy = replace(policy, accuracy=policy.accuracy.also(picked.levels))
            lowering = _run_stages(source, program, matching, policy, partial, verify, settings, clock)
            lowering.picked = picked if max_error is not None else None
        sizes.keep(lowering.result)
    return lowering


def resimplify(lowering: Lowering, settings: Settings | None, verify: bool = True) -> Lowering:
    """The same lowering with other simplification settings, or none; reuses cached plans."""
    source, matching, program = lowering.source, lowering.matching, lowering.program
    with resumed_session(program, matching.rules) as sizes:
        new = _run_stages(source, program, matching, lowering.policy, True, verify, settings, _Clock())
        sizes.keep(new.result)
    return replace(new, picked=lowering.picked)


def _pick_levels(
    program: Module, matching: RuleSelection, source: CaptureRequest, policy: Policy, max_error: float
) -> Picked:
    """The cheapest levels for the ops whose level the user has not named."""
    # Deferred: only max_error= needs it.
    from decomp.validation.choosing_levels import cheapest_levels
    from decomp.validation.error_budget import levels_of

    levels = levels_of(program, matching, source, policy)
    return cheapest_levels(levels, max_error, policy.accuracy)


def _run_stages(
    source: CaptureRequest,
    program: Module,
    matching: RuleSelection,
    policy: Policy,
    partial: bool,
    verify: bool | str,
    settings: Settings | None,
    clock: _Clock,
) -> Lowering:
    """The stages after capture."""
    target = matching.target
    with clock.stage("plan"):
        planned = plan_program(program, matching, policy, partial)
    if planned.plan.blocked and not partial:
        blockers = planned.plan.blockers
        known = not any(blocker.needs_metadata for blocker in blockers)
        raise NotLowered(target.name, blockers, SuggestionSearch(program, matching, policy) if known else None)
    with clock.stage("retrace"):
        module = expand_module(planned)
    if settings is not None:
        with clock.stage("simplify"):
            module = simplify_module(module, target, settings)
    with clock.stage("rebuild"):
        returned = rebuild_program(module, matching.training)
        _mark(returned.result, target)
    with clock.stage("verify") if verify else contextlib.nullcontext():
        proof = prove_program(returned, target, verify == "full") if verify else None
    plan, graphs = _attach_lazy_answers(planned, program, matching, policy), tuple(module.graphs.values())
    lowering = Lowering(
        returned.result,
        target,
        plan,
        graphs,
        proof,
        clock.times,
        planned.runs,
        returned,
        source,
        matching,
        policy,
        program,
        snapshots_of(graphs, returned.result),
        planned.memory.verdicts,
    )
    if proof is not None and verify == "values":
        with clock.stage("values"):
            found = measure_lowering(source.model, lowering, None, None)
            lowering.proof = replace(proof.also(found), program=found[-1])
    return lowering


def _mark(result: Any, target: Target) -> None:
    """Mark a program as narrowed, for backends that load it. The mark is in `meta["custom"]`, the only metadata of a
    program that `torch.export.save` keeps."""
    if target.narrower:
        module = result if isinstance(result, fx.GraphModule) else result.graph_module
        narrower = {name_of(wide): name_of(narrow) for wide, narrow in target.narrower.items()}
        module.meta["custom"] = {**module.meta.get("custom", {}), "narrower": narrower}


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - began
