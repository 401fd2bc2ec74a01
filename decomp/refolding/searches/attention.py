"""Scaled dot product attention: a product of a softmax, whose operand is a product of queries and keys, perhaps scaled
and masked. Queries, keys and values are found by going up from the products through what only shows them otherwise;
grouped heads are keys and values that were repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
import math
from typing import Any

import torch
from torch import fx

from decomp.ir.call import metadata
from decomp.refolding.found import Findings, Found, Prepared, Trier, reshaped
from decomp.refolding.readings import Spelling
from decomp.refolding.regions import is_float, op_called
from decomp.refolding.searches.products import product_operands

aten = torch.ops.aten
SOFTMAX = (aten.softmax.int, aten._softmax.default)
STEPS = 16
TRIALS = 48
"""So many calls are tried at one softmax."""

_SCALES = ("aten::mul", "aten::div")
_PEAKS = ("aten::exp", "aten::exp2")


@dataclass
class _Scores:
    """How the operand of a softmax is made."""

    query: fx.Node
    key: fx.Node
    scale: float = 1.0
    masks: list[fx.Node] = field(default_factory=list)
    """What is added, the nearest to the softmax first; or where it is not hidden."""
    hides: bool = False
    """Whether the mask tells where scores are hidden, not where they stay; only constant ones may."""


class Attention(Trier):
    """The search in one graph."""

    def search(self) -> Findings:
        """All that is found."""
        done: set[fx.Node] = set()
        for node in self.around.graph.nodes:
            if node.target in SOFTMAX and _is_last(node) or op_called(node) in _PEAKS:
                best = self._at(node)
                if best is not None and best.region.root not in done and self.take(best):
                    done.add(best.region.root)
        return self.findings

    def _at(self, peak: fx.Node) -> Found | None:
        """The attention around a softmax, or the exponential of one that is spelled out."""
        scores = self._scores_above(peak)
        ends = list(self._ends(peak)) if scores is not None else []
        tried = 0
        for root, value in reversed(ends):
            for args, spelling in self._calls(root, scores, value):  # type: ignore[arg-type]
                tried += 1
                if tried > TRIALS:
                    return None
                found = self.stands(root, "attention", spelling, args)
                if found is not None and self.around.why_open(found.region) is None:
                    return found
        return None

    def _scores_above(self, peak: fx.Node) -> _Scores | None:
        """The operand of a softmax, that is the first value above of which a product is made."""
        if peak.target in SOFTMAX:
            return self._scores(peak.args[0])  # type: ignore[arg-type]
        above = self.around.above(peak, 2 * STEPS)
        return next((scores for node in above if (scores := self._scores(node)) is not None), None)

    def _scores(self, node: fx.Node) -> _Scores | None:
        """What is multiplied, scaled and masked to give `node`."""
        scale, masks, hides = 1.0, list[fx.Node](), False
        for _ in range(STEPS):
            pair = product_operands(node)
            if pair is not None:
                return _Scores(*pair, scale, masks, hides)
            called, given = op_called(node), self.around.data_inputs(node)
            number = _number(node)
            if called in _SCALES and number is not None and len(given) == 1:
                scale *= number if called == "aten::mul" else 1 / number
                node = given[0]
            elif called == "aten::add" and len(node.all_input_nodes) == 2:
                operands = sorted(node.all_input_nodes, key=lambda each: self._distance(each))
                node, mask = operands
                if self._depends(mask, node):
                    return None
                masks.append(mask)
            elif called == "aten::where" and (shown := self._weighed(node)) is not None:
                masks.append(node.args[0])  # type: ignore[arg-type]
                hides = shown is not node.args[1]
                node = shown
            elif len(given) == 1 and node is not given[0]:
                node = given[0]
            else:
                return None
        return None

    def _weighed(self, where: fx.Node) -> fx.Node | None:
        """The operand of `where` that is not a constant."""
        rest = [arg for arg in where.args[1:] if isinstance(arg, fx.Node) and arg not in self.around.constant]
        return rest[0] if len(rest) == 1 else None

    def _distance(self, node: fx.Node) -> int:
        """How many steps above a node there is a product; many where there is none."""
        for step in range(STEPS):
            if product_operands(node) is not None:
                return step
            given = self.around.data_inputs(node)
            if len(given) != 1 and not (given and op_called(node) in ("aten::add", "aten::where", *_SCALES)):
                return STEPS
            node = given[0]
        return STEPS

    def _ends(self, peak: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
        """Where attention may end, the nearest first, each with the values that the softmax weighs."""
        waiting, seen = [peak], {peak}
        for node in waiting:
            pair = product_operands(node) if node is not peak else None
            if pair is not None and len({self._depends(each, peak) for each in pair}) == 2:
                value = next(each for each in pair if not self._depends(each, peak))
                for root in self._after(node, peak):
                    yield root, value
                return
            fresh = [user for user in node.users if user not in seen and user.op == "call_function"]
            seen.update(fresh)
            waiting += fresh if len(waiting) < 3 * STEPS else []

    def _after(self, product: fx.Node, peak: fx.Node) -> Iterator[fx.Node]:
        """A product and what only shows it otherwise, or divides it by the sum of the weights."""
        last = product
        for last in self.around.views_below(product):
            yield last
        user = self.around.only_user(last)
        if user is not None and op_called(user) in _SCALES:
            if all(self._depends(given, peak) for given in self.around.data_inputs(user)):
                yield from self.around.views_below(user)

    def _depends(self, node: fx.Node, on: fx.Node) -> bool:
        """Whether a node is made of another one, within a few steps."""
        waiting, seen = [node], {node}
        for current in waiting:
            if current is on:
                return True
            fresh = [given for given in self.around.data_inputs(current) if given not in seen]
            seen.update(fresh)
            waiting += fresh if len(seen) < 4 * STEPS else []
        return False

    def _calls(
        self, root: fx.Node, scores: _Scores, value: fx.Node
    ) -> Iterator[tuple[tuple[Any, ...], Spelling]]:
        """The calls to be tried, those that stand for most first."""
        out = list(metadata(root).shape)
        for q in self._shown(scores.query, out):
            size = _shape(q)[-1]
            if list(_shape(q)[:-1]) != list(out[:-1]):
                continue
            for v in self._shown(value, out):
                if _shape(v)[-1] != out[-1] or _shape(v)[:-3] != out[:-3]:
                    continue
                for k in self._shown(scores.key, out):
                    if _shape(k)[:-1] == _shape(v)[:-1] and _shape(k)[-1] == size:
                        yield from self._masked(q, k, v, scores)

    def _shown(self, node: fx.Node, out: Sequence[Any]) -> list[fx.Node | Prepared]:
        """A factor of a product and what it shows, in as many dimensions as `out`, the farthest up first; where none
        has its leading dimensions, also in these."""
        found = [node]
        for _ in range(STEPS):
            given = self.around.data_inputs(node)
            plain = op_called(node) in _SCALES and _number(node) is not None
            views = self.around.views_above(node)
            if len(views) > 1:
                found += views[1:]
                node = views[-1]
            elif plain and len(given) == 1:
                node = given[0]
                found.append(node)
            else:
                break
        floats = [each for each in reversed(found) if is_float(each)]
        same: list[fx.Node | Prepared] = [each for each in floats if metadata(each).dim() == len(out)]
        if any(_shape(each)[:-2] == out[:-2] for each in same):
            return same
        others = (each for each in floats if metadata(each).dim() > 1)
        made = (reshaped(each, (*out[:-2], *metadata(each).shape[-2:])) for each in others)
        return same + [each for each in made if each is not None]

    def _masked(
        self, q: fx.Node | Prepared, k: fx.Node | Prepared, v: fx.Node | Prepared, scores: _Scores
    ) -> Iterator[tuple[tuple[Any, ...], Spelling]]:
        grouped = len(_shape(q)) > 2 and _shape(q)[-3] != _shape(k)[-3]
        for scale in self._scales(q, scores):
            kwargs: tuple[tuple[str, Any], ...] = (("scale", scale),) if scale is not None else ()
            kwargs += (("enable_gqa", True),) if grouped else ()
            spelling = Spelling(aten.scaled_dot_product_attention.default, (), kwargs)
            constant = bool(scores.masks) and scores.masks[-1] in self.around.constant
            if constant:
                yield (q, k, v, None, 0.0, True), spelling
            if constant or not scores.masks:  # one that hides nothing
                yield (q, k, v), spelling
            if scores.masks and not scores.hides:
                for mask in reversed(self.around.views_above(scores.masks[0])):
                    yield (q, k, v, mask), spelling

    def _scales(self, q: fx.Node | Prepared, scores: _Scores) -> list[float | None]:
        """The scale, as none where it is the default; that of the operands is part of the region, too."""
        width, shown = _shape(q)[-1], q.node if isinstance(q, Prepared) else q
        usual = 1 / math.sqrt(width) if type(width) is int else None
        product = scores.scale * self._scale_above(scores.query, shown) * self._scale_above(scores.key, None)
        if usual is not None and abs(product / usual - 1) < 1e-6:
            return [None]
        return [product]

    def _scale_above(self, node: fx.Node, until: fx.Node | None) -> float:
        """The product of the numbers that a factor was multiplied by."""
        scale = 1.0
        for _ in range(2 * STEPS):
            if node is until:
                break
            number, given = _number(node), self.around.data_inputs(node)
            called = op_called(node)
            if called in _SCALES and number is not None and len(given) == 1:
                scale *= number if called == "aten::mul" else 1 / number
                node = given[0]
                continue
            views = self.around.views_above(node)
            if len(views) == 1:
                break
            node = views[1]
        return scale


def _shape(operand: fx.Node | Prepared) -> Any:
    """The shape of an operand."""
    return operand.args[0] if isinstance(operand, Prepared) else list(metadata(operand).shape)


def _number(node: fx.Node) -> float | None:
    """The number by which a call scales a tensor."""
    if len(node.args) < 2:
        return None
    for arg in node.args[:2]:
        if type(arg) in (int, float):
            return float(arg)  # type: ignore[arg-type]
        place = {"aten::full": 1, "aten::scalar_tensor": 0}.get(op_called(arg)) if isinstance(arg, fx.Node) else None
        if isinstance(arg, fx.Node) and place is not None:
            value = arg.args[place]
            return float(value) if type(value) in (int, float) else None  # type: ignore[arg-type]
    return None


def _is_last(softmax: fx.Node) -> bool:
    """Whether a softmax is along the last dimension."""
    dim, value = softmax.args[1], metadata(softmax)
    return isinstance(dim, int) and isinstance(value, torch.Tensor) and dim % value.dim() == value.dim() - 1
