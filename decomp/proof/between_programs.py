"""The invariants between two programs without a record of the lowering: the same signature and outputs, equally many
effects, and results that depend on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping

from decomp.ir.effects import Effect
from decomp.proof.collectives import sequence_of
from decomp.proof.correspondence import Correspondence, EffectsChanged, InventedDependency, LostDependency
from decomp.proof.dependence import changed_dependency, results_of_draws
from decomp.proof.invariants import Invariant, output_of, same_codegen, same_outputs, same_placeholders


def as_many_effects(work: Correspondence) -> str:
    before = [work.source_effects.of(node) for node in work.source_place]
    after = [work.effects.of(node) for node in work.place]
    # An op with unknown effects may be lowered to any number of effects.
    if all(effects.known for effects in before):
        for kind in (Effect.ASSERTION, Effect.COLLECTIVE, Effect.REGION, Effect.OTHER):
            _require_as_many(kind.value, *(sum(kind in e.kinds for e in side) for side in (before, after)))
        # A dropout with an unknown probability draws once or not at all, so counts are ranges, which must overlap.
        if sum(e.fewest for e in after) > sum(e.most for e in before) or sum(e.most for e in after) < sum(
            e.fewest for e in before
        ):
            _require_as_many("random draw", sum(e.most for e in before), sum(e.most for e in after))
    return "equally many effects"


def same_collectives(work: Correspondence) -> str:
    """The same collectives in the same order on each group. Empty if there are none."""
    before, after = sequence_of(work.source_place), sequence_of(work.place)
    for group in before | after:
        # Group by group: processes that are in one group only do not see the order of collectives of another.
        if before.get(group, []) != after.get(group, []):
            problem = f"the collectives of group {group!r} are others, or in another order"
            raise EffectsChanged(problem, expected=_listed(before, group), found=_listed(after, group))
    return f"the same collectives in the same order on {len(before)} group{'s' * (len(before) > 1)}" if before else ""


def _listed(sequences: Mapping[str, list[tuple[str, ...]]], group: str) -> str:
    return ", ".join(f"{op}({', '.join(settings)})" for op, *settings in sequences.get(group, [])) or "none"


def _same_dependencies(work: Correspondence) -> str:
    """Results must depend on the same inputs. Not checked if a program mutates: edges do not show dependencies through
    memory."""
    written = [
        Effect.MUTATION in table.of(node).kinds
        for table, graph in ((work.source_effects, work.source_place), (work.effects, work.place))
        for node in graph
    ]
    if any(written):
        return "dependencies not compared, as the graphs mutate"
    expected, drawn = (
        results_of_draws(graph, lambda node: bool(table.of(node).most))
        for graph, table in ((work.source, work.source_effects), (work.lowered, work.effects))
    )
    # Where the numbers differ, a derivation draws more or less often, which `as_many_effects` judges.
    if len(expected) == len(drawn) and expected != drawn:
        problem = "other results depend on the random draws, or they are in another order"
        raise EffectsChanged(problem, expected=expected, found=drawn)
    found = changed_dependency(work.source, work.lowered)
    if found is not None:
        place, what, inputs = found
        kind = InventedDependency if what == "invented" else LostDependency
        verb = "depends" if what == "invented" else "does not depend"
        problem = f"result {place} {verb} on {', '.join(sorted(inputs))}, unlike in the source"
        raise kind(problem, output_of(work.lowered))
    return "every result depends on the same inputs"


def _require_as_many(what: str, before: int, after: int) -> None:
    if before != after:
        raise EffectsChanged(f"the number of effects changed: {what}", expected=before, found=after)


BETWEEN_PROGRAMS: tuple[Invariant, ...] = (
    same_placeholders,
    same_outputs,
    same_codegen,
    as_many_effects,
    same_collectives,
    _same_dependencies,
)
