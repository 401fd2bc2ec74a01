"""The invariant of collectives. Processes that make different collectives, or the same ones in different orders, wait
for each other for ever or compute wrong sums in silence, and a result that is read before it is complete is garbage. So
each collective of the source must be there once, or as the collectives of one derivation, all of them on its group and
in the order of the source, and every result must be waited for before it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import fx

from decomp.ir.call import is_projection
from decomp.ir.collectives import group_of, is_collective, is_wait
from decomp.ir.effects import Effect
from decomp.proof.correspondence import Correspondence, EffectsChanged


def merged_kinds(source: fx.Node, kinds: Sequence[Effect]) -> list[Effect]:
    """The kinds of the effects of the calls that replace a node: those of the collectives of a derivation, which
    `collectives_kept` compares, count once."""
    # An all_reduce may be derived as a reduce_scatter and an all_gather: two effects for one.
    if not is_collective(source) or is_wait(source) or Effect.COLLECTIVE not in kinds:
        return list(kinds)
    return [Effect.COLLECTIVE, *(kind for kind in kinds if kind is not Effect.COLLECTIVE)]


def collectives_kept(work: Correspondence) -> str:
    """Empty if neither graph communicates."""
    made = _made(work)
    kept, derived, groups = 0, 0, set()
    for source in filter(is_collective, work.source_place):
        done = made.pop(source, [])
        if not done:
            raise EffectsChanged(f"the collective {source.name!r} is lost", source=source)
        copied = _require_kept_or_derived(work, source, done)
        kept, derived = kept + copied, derived + (not copied)
        if group_of(source) is not None:
            groups.add(str(group_of(source)))
    _require_waits(work, {node for node in work.source_place if _is_unwaited(node)})
    if not kept + derived:
        return ""
    how = f"{kept} kept, {derived} derived"
    where = f"{len(groups)} group{'s' * (len(groups) != 1)}"
    return f"the collectives of {where} in the order of the source ({how}), each waited for before it is read"


def _made(work: Correspondence) -> dict[fx.Node, list[fx.Node]]:
    """The collectives of the lowered graph by the source node that they come from. They must be in its order."""
    made: dict[fx.Node, list[fx.Node]] = {}
    latest = -1
    for node in filter(is_collective, work.place):
        source = work.origin.get(node)
        # A call with unknown effects may communicate inside, as a custom op does.
        if source is None or not is_collective(source) and work.source_effects.of(source).known:
            raise EffectsChanged(f"the collective {node.name!r} comes from no collective of the source", node, source)
        place = work.source_place[source]
        if place < latest:
            raise EffectsChanged(f"the collective {node.name!r} is made after one that follows it", node, source)
        latest = place
        made.setdefault(source, []).append(node)
    return made


def _require_kept_or_derived(work: Correspondence, source: fx.Node, done: Sequence[fx.Node]) -> bool:
    """Whether a collective was kept: there is one call of its op. Otherwise it was derived."""
    for node in done:
        wrong = group_of(node) is not None and str(group_of(node)) != str(group_of(source))
        if wrong:
            problem = f"{node.name!r} communicates with another group of processes"
            raise EffectsChanged(problem, node, source, expected=group_of(source), found=group_of(node))
    same = [node for node in done if node.target is source.target]
    expanded = work.templates is not None and source in work.templates
    if not same or expanded:
        # Waiting for nothing: the communication itself was dropped.
        if all(map(is_wait, done)):
            raise EffectsChanged(f"the collective {source.name!r} is lost", done[0], source)
        return False
    if len(done) > 1:
        raise EffectsChanged(f"the collective {source.name!r} is made {len(done)} times", done[1], source)
    return True


def _require_waits(work: Correspondence, unwaited: set[fx.Node]) -> None:
    """Results must be complete before they are read, except those that the source reads as they are."""
    for node in work.place:
        reader = next(_early_readers(node), None) if _communicates(node) else None
        if reader is not None and work.origin.get(node) not in unwaited:
            problem = f"{reader.name!r} reads the result of {node.name!r}, which is not waited for"
            raise EffectsChanged(problem, reader, work.origin.get(node))


def _communicates(node: fx.Node) -> bool:
    return is_collective(node) and not is_wait(node)


def _is_unwaited(node: fx.Node) -> bool:
    return _communicates(node) and next(_early_readers(node), None) is not None


def _early_readers(node: fx.Node) -> Iterator[fx.Node]:
    """The calls that read the result of a collective, or one of its results, without waiting for it."""
    # What the program returns is waited for by its caller, or by the next call of the source.
    yield from (user for user in node.users if not (is_wait(user) or is_projection(user) or user.op == "output"))
    for part in filter(is_projection, node.users):
        yield from _early_readers(part)


def sequence_of(graph: Mapping[fx.Node, int]) -> dict[str, list[tuple[str, ...]]]:
    """The collectives of a graph in order, by their group: each as its op and the arguments that are no tensors."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for node in filter(_communicates, graph):
        settings = [str(given) for given in (*node.args, *node.kwargs.values()) if not _has_node(given)]
        found.setdefault(str(group_of(node)), []).append((str(node.target), *settings))
    return found


def _has_node(value: object) -> bool:
    return isinstance(value, fx.Node) or isinstance(value, (list, tuple)) and any(map(_has_node, value))
