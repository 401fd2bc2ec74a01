"""What a lowering was asked for, and what it was made of: the record that the project's own tools read of it, behind
the few names that `decomp.lowering.Lowering` shows to everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
import functools
from typing import TYPE_CHECKING, Any

import torch

from decomp.capture import frontends
from decomp.derive.pipeline import (
    CaptureRequest,
    capture_program,
    correspondence,
    expand_module,
    plan_program,
    rebuild_program,
)
from decomp.derive.rule_selection import RuleSelection
from decomp.derive.session import lowering_session, resumed_session
from decomp.graphs.snapshot import Snapshot
from decomp.ir.module import Module, ProgramGraph
from decomp.ir.narrow_calls import NARROWER
from decomp.proof.correspondence import Correspondence
from decomp.proof.returned_program import ReturnedProgram
from decomp.rules.accuracy import Accuracy, Policy
from decomp.rules.rules import Rules
from decomp.rules.target import MatchAllTarget
from decomp.simplification.simplifier import Settings

if TYPE_CHECKING:
    from decomp.validation.choosing_levels import Picked


@dataclass(frozen=True)
class LoweringRequest:
    """What to lower, to what, and how."""

    source: CaptureRequest
    """What is lowered, and how it is captured."""
    matching: RuleSelection
    """The rules and the target."""
    policy: Policy
    """How alternatives are chosen."""
    partial: bool
    verify: bool | str
    settings: Settings | None
    """Of simplification; None without it."""
    versions: Mapping[Any, int] = field(default_factory=dict)
    """The version of each op or pattern whose calls become composites."""

    @property
    def accuracy(self) -> Accuracy:
        """The requested levels of accuracy, by op."""
        return self.policy.accuracy

    @property
    def narrower(self) -> Mapping[torch.dtype, torch.dtype]:
        """Maps each wide dtype to the dtype computed in instead; empty without `narrow=True`."""
        own = self.matching.target.narrower
        return {wide: dtype for wide, dtype in NARROWER.items() if (wide.to_real() if wide.is_complex else wide) in own}

    def captured(self, model: Any) -> Module:
        """Another program, captured with these options. Raises `CaptureError`."""
        with lowering_session(self.matching.rules, model, captures=self.source.args is not None):
            return capture_program(replace(self.source, model=model), self.matching)


@dataclass(frozen=True, eq=False)
class LoweringInternals:
    """The graphs of a lowering at each stage, and what it was made from. It may change in any release."""

    request: LoweringRequest
    program: Module
    """The source program, as a graph."""
    pieces: tuple[ProgramGraph, ...]
    """Its graphs, lowered and simplified: the main graph, then the bodies of higher-order ops; not those of
    composites."""
    returned_program: ReturnedProgram
    """The result as it was built, for verification."""
    snapshots: tuple[Snapshot, ...]
    """The graphs of the result when it was returned, in the order of `pieces`."""
    verdicts: dict[Any, Any]
    """The results of measuring, by expansion; shared with the planner's cache."""
    times: Mapping[str, float]
    """Seconds by stage."""
    runs: int
    """How many rules were run on proxies; all other expansions came from a cache."""
    picked: Picked | None = None
    """The levels of accuracy that were picked, with `max_error=`."""

    @property
    def model(self) -> Any:
        """The program that was lowered."""
        return self.request.source.model

    @property
    def composites(self) -> tuple[ProgramGraph, ...]:
        """The bodies of composite calls, lowered and simplified."""
        return tuple(own for own in self.returned_program.module.graphs.values() if own.composite is not None)

    @property
    def correspondences(self) -> list[Correspondence]:
        """How each lowered graph, before simplification, relates to its source: the main graph, then the bodies of
        higher-order ops."""
        return [correspondence(piece, self.request.matching.target) for piece in self.pieces]

    @functools.cached_property
    def derived_to_train(self) -> bool:
        """Whether the expansions of its calls have the gradients of these calls."""
        return self.request.matching.specialise_for_program(self.program).rules.trains

    @property
    def example_inputs(self) -> tuple[Any, Any]:
        """The example inputs that the program was lowered with; (None, None) if there were none."""
        return self.request.source.args, self.request.source.kwargs

    def narrow_source(self) -> Any:
        """The source program with the same ops, in the narrow dtypes of the target."""
        return self._rebuilt(self.request.narrower)

    def captured(self) -> Any:
        """The source program with the same ops, as it was captured."""
        return self._rebuilt({})

    def _rebuilt(self, narrower: Mapping[torch.dtype, torch.dtype]) -> Any:
        no_rules, target = Rules(), MatchAllTarget("narrow dtypes alone")
        target.narrower = narrower
        matching = RuleSelection(no_rules, target, self.request.matching.training)
        with resumed_session(self.program, no_rules) as sizes:
            planned = plan_program(self.program, matching, self.request.policy, partial=True)
            returned = rebuild_program(expand_module(planned), matching.training)
            sizes.keep(returned.result)
        return returned.result

    def flat_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The inputs of the source graph for a call of the program; None if they cannot be determined."""
        return frontends.all_inputs(self.program, args, kwargs)


def internals_of(program: Any) -> LoweringInternals | None:
    """What a lowering was made of; None for any other program."""
    found = getattr(program, "internals", None)
    return found if isinstance(found, LoweringInternals) else None
