"""What each call of a graph became when it was simplified, from the record of it: laws are applied again, and their
conditions looked at again."""

from __future__ import annotations

from torch import fx

from decomp.metadata.fakes import mode_of
from decomp.proof.correspondence import NotAsRecorded
from decomp.simplification.new_calls import NewCalls
from decomp.simplification.normal_form import Conditions
from decomp.simplification.simplifier import Simplified
from decomp.simplification.surroundings import Surroundings
from decomp.simplification.terms import Call, Term, key_of


class Images:
    """One walk over the graph that was simplified, in order."""

    def __init__(self, found: Simplified) -> None:
        self._found = found
        self.around: Surroundings = found.subject.around(found.settings)
        new = NewCalls(found.subject.target, mode_of(found.subject.graph))
        self._conditions, self._laws = Conditions(self.around, new, found.settings.exact), found.settings.laws
        self.of: dict[fx.Node, Term] = {}
        """For each node that was visited, what stands for it."""

    def visit(self, node: fx.Node) -> Term:
        """What stands for a node, the images of whose operands are known. Raises `NotAsRecorded`."""
        image = self.of[node] = self._image(node)
        image.leaves = image.leaves or node in self.around.leaving
        image.returned = image.returned or node in self.around.returned
        return image

    def _image(self, node: fx.Node) -> Term:
        call = Call.of(node, self.of)
        if node in self.around.effectful:
            return Term(node, node.op, None, call.args, call.kwargs, call.value)
        for name in self._found.applied.get(node, ()):
            each = self._laws.by_name.get(name)
            result = each.rewrite(call) if each is not None else None
            if each is None or result is None or not self._conditions.may_apply(each, node, call, result):
                raise NotAsRecorded(f"the law {name!r} does not hold for {node.name!r}", None, node)
            if type(result) is Term:
                return result
            call = result  # type: ignore[assignment]
        owner = self._found.merged.get(node)
        if owner is None:
            return Term(node, call.op, call.target, call.args, call.kwargs, call.value)
        image = self.of.get(owner)
        if image is None or key_of(image) != key_of(call) or not self._conditions.may_share(node, image):
            raise NotAsRecorded(f"{node.name!r} is not the same call as {owner.name!r}", None, node)
        if self.around.place.get(node) != self.around.place.get(owner):
            raise NotAsRecorded(f"{node.name!r} is in another region than {owner.name!r}", None, node)
        return image
