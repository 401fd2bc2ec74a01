"""Replay of a simplification record: the image of each call of the original graph, computed by applying the recorded
laws again and checking their conditions again."""

from __future__ import annotations

from torch import fx

from decomp.metadata.fakes import mode_of
from decomp.proof.correspondence import NotAsRecorded
from decomp.simplification.laws import Law
from decomp.simplification.new_calls import NewCalls
from decomp.simplification.normal_form import Conditions, Inner
from decomp.simplification.rewrite_constraints import RewriteConstraints
from decomp.simplification.simplifier import Simplified
from decomp.simplification.terms import Term, TermCall, ViewSinking, key_of


class ReplayedRewrites:
    """One pass over the original graph, in order."""

    def __init__(self, found: Simplified) -> None:
        self._found = found
        # Computed again from the graph: the record says what was done, not that it was allowed.
        self.around: RewriteConstraints = found.subject.around(found.settings)
        new = NewCalls(found.subject.target, mode_of(found.subject.graph))
        self._conditions, self._laws = Conditions(self.around, new, found.settings.exact), found.settings.laws
        self.of: dict[fx.Node, Term] = {}
        """The image of each visited node."""
        self.inner: dict[fx.Node, list[Term]] = {}
        """By node at which views sank, the calls moved above these views, the uppermost first."""

    def visit(self, node: fx.Node) -> Term:
        """The image of a node whose operands have been visited. Raises `NotAsRecorded`."""
        image = self.of[node] = self._image(node)
        self.around.mark(node, image)
        return image

    def _image(self, node: fx.Node) -> Term:
        call = TermCall.of(node, self.of)
        # No law applies to a call with an effect, whatever the record says.
        if node in self.around.effectful:
            return Term(node, node.op, None, call.args, call.kwargs, call.value)
        above = list(self._found.inner.get(node, ()))
        return self._rewritten(node, call, self._found.applied.get(node, ()), self._found.merged.get(node), above)

    def _rewritten(
        self, node: fx.Node, call: TermCall, names: tuple[str, ...], merged: fx.Node | None, above: list[Inner]
    ) -> Term:
        """The image of a call according to its record; `above`: the records of calls moved above others."""
        for name in names:
            each = self._laws.by_name.get(name)
            result = self._applied(each, node, call, above) if each is not None else None
            if result is None:
                raise NotAsRecorded(f"the law {name!r} does not hold for {node.name!r}", None, node)
            if isinstance(result, Term):
                return result
            call = result
        return self._made(node, call, merged)

    def _applied(self, each: Law, node: fx.Node, call: TermCall, above: list[Inner]) -> Term | TermCall | None:
        """The result of a law for a call; None if it may not be applied."""
        result, conditions = each.rewrite(call), self._conditions
        if isinstance(result, ViewSinking):
            lower = conditions.placed(each, node, call, result)
            # The record has the uppermost call first, and the replay begins with the lowest.
            return self._on_inner(node, lower, above.pop(), above) if lower is not None and above else None
        return result if result is not None and conditions.may_apply(each, node, call, result) else None

    def _on_inner(self, node: fx.Node, lower: TermCall, record: Inner, above: list[Inner]) -> TermCall:
        term = self._rewritten(node, lower.args[0].as_call(), record.names, record.merged, above)
        self.inner.setdefault(node, []).append(term)
        return lower.made(lower.target, term, *lower.args[1:])

    def _made(self, node: fx.Node, call: TermCall, owner: fx.Node | None) -> Term:
        """The term of a call; that of `owner`, if it must be the same call."""
        if owner is None:
            return Term(node, call.op, call.target, call.args, call.kwargs, call.value)
        # The equal call may be the owner's own, or one that sinking moved above it.
        # Not by the table of equal calls that the search used; a linear search through the few calls of the owner.
        made = ([self.of[owner]] if owner in self.of else []) + self.inner.get(owner, [])
        image = next((each for each in made if key_of(each) == key_of(call)), None)
        if image is None or not self._conditions.may_cse(node, image):
            raise NotAsRecorded(f"{node.name!r} is not the same call as {owner.name!r}", None, node)
        if self.around.place.get(node) != self.around.place.get(owner):
            raise NotAsRecorded(f"{node.name!r} is in another region than {owner.name!r}", None, node)
        return image
