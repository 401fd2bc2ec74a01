"""`refold`: replaces the nodes that spell out an op by one call of it. In a lowering ops are known from provenance; in
other programs they are found by what their nodes compute."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
import functools
from typing import Any

from torch import fx, nn

from decomp.capture.rebuild_exported import input_names
from decomp.derive.session import lowering_session
from decomp.errors import ArgumentError, NotPortable, boundary
from decomp.forks import collector_paused
from decomp.graphs.lowered_modules import lowered_modules
from decomp.graphs.rewrite import Rewrite
from decomp.graphs.snapshot import is_as_recorded
from decomp.graphs.tracing import without_guards
from decomp.ir.call import of_node
from decomp.ir.module import Module
from decomp.lowering import Lowering, without_composites
from decomp.metadata.ambient_modes import without_ambient_modes
from decomp.proof.correspondence import Proof
from decomp.proof.returned_program import inputs_of_module
from decomp.provenance import Provenance
from decomp.refolding.found import WantedCalls
from decomp.refolding.outcome import MissedCall, RefoldReport, RestoredCall
from decomp.refolding.programs import (
    capture_module,
    constants_of,
    count_calls,
    fold_graph,
    module_of_result,
    rebuild_program,
)
from decomp.refolding.proving import verify_refolding
from decomp.refolding.records import RecordedFindings, find_recorded_folds
from decomp.refolding.searching import RefoldSearch, search
from decomp.rules.options import CHECKS
from decomp.rules.rules import Rules, as_rules
from decomp.rules.target import Target
from decomp.stage_clock import StageClock
from decomp.validation.values import example_inputs

_OPTIONS = {name: check for name, check in CHECKS.items() if name != "to"}


@dataclass
class Refolding:
    """The result of `refold`: the new program, and the outcome of each call."""

    result: Any
    """The refolded program, of the same kind as the program passed in."""
    target: str
    folded: tuple[RestoredCall, ...]
    missed: tuple[MissedCall, ...]
    proof: Proof | None = field(repr=False)
    """What was verified; None with `verify=False`."""
    times: dict[str, float] = field(repr=False)
    """Seconds by stage."""
    rewrites: tuple[Rewrite, ...] = field(repr=False)
    """How the graphs of `result` were derived from those of the program passed in."""
    sizes: tuple[int, int] = field(repr=False)
    """Calls before and after."""
    lowering: Lowering | None = field(default=None, repr=False)
    """The lowering that was refolded, if it was one."""

    def __reduce__(self) -> tuple[Any, ...]:
        raise NotPortable(
            "a Refolding cannot be pickled: it holds nodes of your program\n  to do: pickle refolding.report(); save "
            "refolding.result by torch.export.save where it is an ExportedProgram, or pickle it where it is a "
            "GraphModule"
        )

    def __copy__(self) -> Refolding:
        return replace(self)

    def __deepcopy__(self, memo: Any) -> Refolding:
        return replace(self)

    def origin(self, node: fx.Node | str) -> str:
        """The name of the node, in the program passed in, from which a node comes. Raises `UnknownNode`."""
        return of_node(self._origins, node, "a node of the refolded program")

    def provenance(self, node: fx.Node | str) -> Provenance:
        """The provenance of a node of a refolded lowering. Raises `UnknownNode`, also for a node that was added after
        the lowering, and `ArgumentError` where a program was refolded that is not a lowering."""
        if self.lowering is None:
            raise ArgumentError("provenance is that of a lowering: refold what decomp.lower returned, not its result")
        found = self.lowering.provenance(self.origin(node))
        restored = getattr(node, "name", node) in self._restored
        return Provenance(found.source, found.op, found.line, found.module, ()) if restored else found

    @functools.cached_property
    def _restored(self) -> frozenset[str]:
        return frozenset(each.node for each in self.folded)

    @functools.cached_property
    def _origins(self) -> dict[str, str]:
        return {new.name: old.name for rewrite in self.rewrites for new, old in rewrite.origin.items()}

    def report(self) -> RefoldReport:
        """The ops found, those missed and why, the time by stage, and what was verified."""
        checks = self.proof.checks if self.proof is not None else ()
        return RefoldReport(self.target, self.folded, self.missed, *self.sizes, dict(self.times), checks)


@boundary("refold", _OPTIONS)
def refold(
    program: Any,
    *,
    to: Target | Iterable[Any] | None = None,
    rules: Rules | Mapping[Any, Any] | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    verify: bool | str = True,
) -> Refolding:
    """Replace the nodes that compute an op by one call of it; returns a `Refolding`.

    - `program`: a `Lowering`, to restore the ops of its source: these are known from provenance, and restored if the
      nodes of their expansion are unchanged. Your other changes to `lowering.result` are kept.
      In any other program (an `nn.Module`, `fx.GraphModule` or `ExportedProgram`) ops are found by what its nodes
      compute, however they are spelled: activations, softmax, normalizations, attention, linear layers. A match is
      accepted only if it agrees with the op on random operands, in values and gradients.
    - `to`: the ops that are wanted, as a `Target` or a list of ops; by default all. Calls that only reshape operands (a
      view, a permutation) must be ops of the `Target`; with a list of ops, any are allowed.
    - `rules`: ops of your own with the functions that compute them; each is found where the program has the same calls.
    - `args`, `kwargs`: example inputs, for a program that has no metadata.
    - `verify`: True or "structure" checks the new program; "full" also checks its graphs with `Graph.lint` and
      networkx; "values" also runs both programs on `args` and `kwargs` (by default the example inputs); False checks
      nothing.

    The program is not changed. Raises `CaptureError`, and `VerificationError`.
    """
    wanted, check = _target(to), _RefoldCheck(verify, args, kwargs)
    prepared = to if isinstance(to, Target) else None
    clock = StageClock()
    if isinstance(program, Lowering):
        with without_ambient_modes(), collector_paused():
            return _of_lowering(program, wanted, check, clock)
    backwards = as_rules(rules) if rules is not None else None
    name = wanted.name if wanted is not None else "ops"
    # Searching runs PyTorch's fake mode like a lowering does, and must not run beside one.
    with lowering_session(Rules(), program, args is not None) as sizes, without_ambient_modes(), collector_paused():
        found = _of_program(program, WantedCalls(wanted, prepared), name, backwards, check, clock)
        sizes.keep(found.result)
    return found


def _target(to: Any) -> Target | None:
    if to is None or isinstance(to, Target):
        return to
    if not isinstance(to, Iterable) or isinstance(to, str):
        raise ArgumentError(f"to= must be a decomp.Target or a list of ops, not {type(to).__name__}")
    return Target("the ops given", to)


@dataclass(frozen=True)
class _RefoldCheck:
    """How to verify."""

    level: bool | str
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None

    def given(self, default: Any) -> Any:
        """Inputs to run on, or None."""
        if self.args is not None or self.kwargs:
            return tuple(self.args or ()), dict(self.kwargs or {})
        return default


def _of_lowering(lowering: Lowering, to: Target | None, check: _RefoldCheck, clock: StageClock) -> Refolding:
    found: dict[nn.Module, RecordedFindings] = {}
    with clock.stage("find"):
        # Simplification merges nodes of different calls, so that fewer calls could be restored.
        lowering = _unsimplified(lowering)
        internals = lowering.internals
        given = module_of_result(lowering.result)
        records = zip(lowered_modules(internals.pieces, lowering.result), internals.pieces, internals.snapshots)
        for i, (module, piece, before) in enumerate(records):
            if module is not None:
                # Only the main graph has inputs that were lifted.
                inputs = _inputs(lowering, module) if not i else {}
                found[module] = find_recorded_folds(piece, module.graph, before, inputs, to)
    constants = tuple(input_names(internals.returned_program.module.main.constants))
    with clock.stage("fold"):
        folds = {owner: each.folds for owner, each in found.items()}
        folded = given.map(lambda own: fold_graph(own, folds.get(own.owner, ()), constants))
    name = to.name if to is not None else "the ops of the source"
    examples = check.given(example_inputs(internals.model, *internals.example_inputs))
    return _finished(lowering.result, given, folded, name, found.values(), check, examples, clock, lowering)


def _of_program(
    program: Any, wanted: WantedCalls, name: str, rules: Rules | None, check: _RefoldCheck, clock: StageClock
) -> Refolding:
    with clock.stage("capture"):
        given = capture_module(program, check.args, check.kwargs)
    constants = constants_of(given)
    with clock.stage("find"), without_guards(given.mode):
        found = {
            owner: search(each.graph, owner, wanted, rules, constants if owner is given.root else None)
            for owner, each in given.graphs.items()
        }
    folded = replace(
        given, graphs={owner: given.graphs[owner].rewritten(own.rewrite, "refold") for owner, own in found.items()}
    )
    examples = check.given(getattr(program, "example_inputs", None))
    return _finished(program, given, folded, name, found.values(), check, examples, clock, None)


def _unsimplified(lowering: Lowering) -> Lowering:
    """The lowering without simplification and composites, whose graphs still have the nodes of all source calls. If the
    user changed the result, the lowering itself, in which some operands may no longer be computed."""
    internals = lowering.internals
    if not internals.composites and all(piece.at("simplify") is None for piece in internals.pieces):
        return lowering
    for module, before in zip(lowered_modules(internals.pieces, lowering.result), internals.snapshots):
        nodes = list(module.graph.nodes) if module is not None else []
        known = all(node.name in before and is_as_recorded(node, before[node.name]) for node in nodes)
        if len(nodes) != len(before) or not known:
            return lowering
    # It was verified when it was made.
    return without_composites(lowering, None, verify=False)


def _finished(
    source: Any,
    given: Module,
    module: Module,
    name: str,
    found: Collection[RecordedFindings | RefoldSearch],
    check: _RefoldCheck,
    examples: Any,
    clock: StageClock,
    lowering: Lowering | None,
) -> Refolding:
    """The result of folding calls of the program `source`, which was `given` as a module."""
    with clock.stage("rebuild"):
        result = rebuild_program(module, given.graph)
    proof, graphs = None, tuple(module.graphs.values())
    if check.level:
        with clock.stage("verify"):
            proof = verify_refolding(source, result, graphs, check.level, examples)
    before, after = (sum(count_calls(each.graph) for each in side.graphs.values()) for side in (given, module))
    folded = tuple(each for one in found for each in one.folded)
    missed = tuple(each for one in found for each in one.missed)
    rewrites = tuple(each.edges for each in graphs if each.edges is not None)
    return Refolding(result, name, folded, missed, proof, clock.times, rewrites, (before, after), lowering)


def _inputs(lowering: Lowering, module: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    """If a module was captured by export: maps the inputs of the exported program to the attribute reads of the
    module."""
    exported = lowering.internals.returned_program.exported
    if exported is None or exported is lowering.result:
        return {}
    return {node: now for node, now in inputs_of_module(exported, module.graph).items() if node.name != now.name}
