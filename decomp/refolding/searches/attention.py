"""Finds scaled dot product attention: a product with a softmax, whose operand is a product of queries and keys, perhaps
scaled and masked. The queries, keys and values are found by walking up from the products through views; grouped heads
are recognised as repeated keys and values. Candidate calls are then tried out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
import math
from typing import Any

import torch
from torch import fx

from decomp.ir.call import metadata
from decomp.ops import aten
from decomp.refolding.found import Findings, FoundCall, RegionSearch
from decomp.refolding.prepared import Operand, nodes_in, reshape_operand, shape_of, transpose_operand
from decomp.refolding.readings import CallReading
from decomp.refolding.regions import is_float, op_schema_name
from decomp.refolding.searches.masks import Mask, combine_masks, number_of
from decomp.refolding.searches.products import product_operands

SOFTMAX = (aten.softmax.int, aten._softmax.default)
STEPS = 16
TRIALS = 48
"""How many calls are tried at one softmax."""

_SCALES = ("aten::mul", "aten::div")
_PEAKS = ("aten::exp", "aten::exp2")


@dataclass
class _Scores:
    """How the operand of a softmax (the scores) is computed."""

    query: fx.Node
    key: fx.Node
    scale: float = 1.0
    masks: list[Mask] = field(default_factory=list)
    """Nearest to the softmax first."""
    places: Any = None
    """The number of keys."""

    @property
    def rare(self) -> tuple[fx.Node, ...]:
        """Masks that are true where scores are hidden. In trials they must be mostly false, or all scores are
        hidden."""
        return tuple(mask.node for mask in self.masks if mask.hides)


class Attentions(RegionSearch):
    """The search in one graph."""

    finds = {aten.scaled_dot_product_attention.default: (*SOFTMAX, aten.exp.default)}

    def search(self) -> Findings:
        """Run the search; returns the findings."""
        done: set[fx.Node] = set()
        for node in self.around.graph.nodes:
            if node.target in SOFTMAX and _is_last(node) or op_schema_name(node) in _PEAKS:
                best = self._at(node)
                if best is not None and best.region.root not in done and self.take(best):
                    done.add(best.region.root)
        return self.findings

    def _at(self, peak: fx.Node) -> FoundCall | None:
        """The attention around a softmax, or around the exponential of a softmax that is spelled out."""
        scores = self._scores_above(peak)
        if scores is None:
            return None
        tried = 0
        farthest_first = [*self._ends(peak)][::-1]
        for root, value in sorted(farthest_first, key=lambda end: not _has_rows_of(peak, end[0])):
            for args, spelling in self._calls(root, scores, value):
                tried += 1
                if tried > TRIALS:
                    return None
                found = self.agreeing_call(root, "attention", spelling, args, rare=scores.rare)
                if found is not None and self.around.why_open(found.region) is None:
                    return found
        return None

    def _scores_above(self, peak: fx.Node) -> _Scores | None:
        """The scores under a softmax: the nearest value above that is a scaled and masked product."""
        above = [peak.args[0]] if peak.target in SOFTMAX else self.around.above(peak, 2 * STEPS)
        found = next((scores for node in above if (scores := self._scores(node)) is not None), None)
        return replace(found, places=metadata(peak).shape[-1]) if found is not None and metadata(peak).dim() else None

    def _scores(self, node: fx.Node) -> _Scores | None:
        """Read `node` as a scaled and masked product; None if it is not one."""
        scale, masks = 1.0, list[Mask]()
        for _ in range(STEPS):
            pair = product_operands(node)
            if pair is not None:
                return _Scores(*pair, *_with_added(node, scale, masks))
            called, given = op_schema_name(node), self.around.data_inputs(node)
            number = _number(node)
            if called in _SCALES and number is not None and len(given) == 1:
                scale *= number if called == "aten::mul" else 1 / number
                node = given[0]
            elif called == "aten::add" and len(node.all_input_nodes) == 2:
                # The product is nearer to one operand; the mask is the other.
                operands = sorted(node.all_input_nodes, key=lambda each: self._distance(each))
                node, mask = operands
                if self._depends(mask, node):
                    return None
                masks.append(Mask(mask))
            elif called == "aten::where" and (shown := self._weighed(node)) is not None:
                hides = shown is not node.args[1]
                if not self._depends(node.args[0], shown):
                    masks.append(Mask(node.args[0], node.args[1 if hides else 2], hides))
                node = shown
            elif called == "aten::masked_fill":
                node, hidden, number = node.args
                masks.append(Mask(hidden, number, hides=True))
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
        """How many steps above a node the next product is; `STEPS` without one."""
        for step in range(STEPS):
            if product_operands(node) is not None:
                return step
            given = self.around.data_inputs(node)
            if len(given) != 1 and not (given and op_schema_name(node) in ("aten::add", "aten::where", *_SCALES)):
                return STEPS
            node = given[0]
        return STEPS

    def _ends(self, peak: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
        """The nodes where attention may end, nearest first, each with the values operand of its product."""
        waiting, seen = [peak], {peak}
        for node in waiting:
            pair = product_operands(node) if node is not peak else None
            # One operand comes from the softmax and the other does
            # not: products within the softmax itself do not count.
            if pair is not None and len({self._depends(each, peak) for each in pair}) == 2:
                value = next(each for each in pair if not self._depends(each, peak))
                for root in self._after(node, peak):
                    yield root, value
                return
            fresh = [user for user in node.users if user not in seen and user.op == "call_function"]
            seen.update(fresh)
            waiting += fresh if len(waiting) < 3 * STEPS else []

    def _after(self, product: fx.Node, peak: fx.Node) -> Iterator[fx.Node]:
        """A product, its views, and a division by the sum of the weights, which a spelled-out softmax may put last."""
        last = product
        for last in self.around.views_below(product):
            yield last
        user = self.around.only_user(last)
        if user is not None and op_schema_name(user) in _SCALES:
            if all(self._depends(given, peak) for given in self.around.data_inputs(user)):
                yield from self.around.views_below(user)

    def _depends(self, node: fx.Node, on: fx.Node) -> bool:
        """Whether a node depends on another one within a few steps."""
        waiting, seen = [node], {node}
        for current in waiting:
            if current is on:
                return True
            fresh = [given for given in self.around.data_inputs(current) if given not in seen]
            seen.update(fresh)
            waiting += fresh if len(seen) < 4 * STEPS else []
        return False

    def _calls(self, root: fx.Node, scores: _Scores, value: fx.Node) -> Iterator[tuple[tuple[Any, ...], CallReading]]:
        """The calls to try, those that replace most nodes first."""
        out = list(metadata(root).shape)
        for q in self._shown(scores.query, out):
            size = shape_of(q)[-1]
            if list(shape_of(q)[:-1]) != list(out[:-1]):
                continue
            for v in self._shown(value, out):
                if shape_of(v)[-1] != out[-1] or shape_of(v)[:-3] != out[:-3] or shape_of(v)[-2] != scores.places:
                    continue
                for k in self._keys(scores.key, [*shape_of(v)[:-1], size]):
                    yield from self._masked(q, k, v, scores)

    def _keys(self, node: fx.Node, shape: Sequence[Any]) -> list[Operand]:
        """The keys in the given shape under the views of a factor; without such keys, transposed ones."""
        found = [each for each in self._shown(node, shape) if shape_of(each) == shape]
        # With square keys the shape does not tell which is which.
        if found or shape[-2] == shape[-1]:
            return found
        across = [*shape[:-2], shape[-1], shape[-2]]
        return [transpose_operand(each) for each in self._shown(node, across) if shape_of(each) == across][-1:]

    def _shown(self, node: fx.Node, out: Sequence[Any]) -> list[Operand]:
        """The candidates for an operand: a factor of a product and the values under its views, those with the rank of
        `out`, farthest up first. Then the factor reshaped to the leading dimensions of `out`; if no candidate has
        these, also all other values under its views, reshaped."""
        found = [node]
        for _ in range(STEPS):
            given = self.around.data_inputs(node)
            plain = op_schema_name(node) in _SCALES and _number(node) is not None
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
        same: list[Operand] = [each for each in floats if metadata(each).dim() == len(out)]
        fits = any(shape_of(each)[:-2] == out[:-2] for each in same)
        # If operands were flattened for the product, other nodes may use the nearest one, so it is tried as well.
        others = (each for each in (floats[-1:] if fits else floats) if metadata(each).dim() > 1 and each not in same)
        made = (reshape_operand(each, (*out[:-2], *metadata(each).shape[-2:])) for each in others)
        return same + [each for each in made if each is not None]

    def _masked(
        self, q: Operand, k: Operand, v: Operand, scores: _Scores
    ) -> Iterator[tuple[tuple[Any, ...], CallReading]]:
        grouped = len(shape_of(q)) > 2 and shape_of(q)[-3] != shape_of(k)[-3]
        for scale in self._scales(q, k, scores):
            kwargs: tuple[tuple[str, Any], ...] = (("scale", scale),) if scale is not None else ()
            kwargs += (("enable_gqa", True),) if grouped else ()
            spelling = CallReading(aten.scaled_dot_product_attention.default, (), kwargs)
            # A causal mask is often a constant that is as good as `is_causal=True`.
            constant = all(mask.node in self.around.constant for mask in scores.masks)
            if constant and scores.masks:
                yield (q, k, v, None, 0.0, True), spelling
            if constant:  # a constant mask may hide nothing
                yield (q, k, v), spelling
            if scores.masks:
                shape = [*shape_of(q)[:-1], shape_of(k)[-2]]
                for mask in combine_masks(self.around, scores.masks, q, shape):
                    yield (q, k, v, mask), spelling

    def _scales(self, q: Operand, k: Operand, scores: _Scores) -> list[float | None]:
        """The scale to try; None for the default. Factors that scale queries or keys before the product are
        included."""
        width, query, key = shape_of(q)[-1], next(nodes_in(q)), next(nodes_in(k))
        usual = 1 / math.sqrt(width) if type(width) is int else None
        product = scores.scale * self._scale_above(scores.query, query) * self._scale_above(scores.key, key)
        # 1/√d rounded to float32 differs by less.
        if usual is not None and abs(product / usual - 1) < 1e-6:
            return [None]
        return [product]

    def _scale_above(self, node: fx.Node, until: fx.Node) -> float:
        """The product of the numbers by which a factor was scaled, from `until` on."""
        scale = 1.0
        for _ in range(2 * STEPS):
            if node is until:
                break
            number, given = _number(node), self.around.data_inputs(node)
            called = op_schema_name(node)
            if called in _SCALES and number is not None and len(given) == 1:
                scale *= number if called == "aten::mul" else 1 / number
                node = given[0]
                continue
            views = self.around.views_above(node)
            if len(views) == 1:
                break
            node = views[1]
        return scale


def _number(node: fx.Node) -> float | None:
    """The number by which a call scales a tensor."""
    if len(node.args) < 2:
        return None
    return next((found for arg in node.args[:2] if (found := number_of(arg)) is not None), None)


def _with_added(product: fx.Node, scale: float, masks: list[Mask]) -> tuple[float, list[Mask]]:
    """The scale and masks of scores, including those of a `baddbmm`, which scales a product and adds to it."""
    alpha, beta = (product.kwargs.get(name, 1) for name in ("alpha", "beta"))
    if op_schema_name(product) != "aten::baddbmm" or beta != 1 or type(alpha) not in (int, float):
        return scale, masks
    return scale * alpha, [*masks, Mask(product.args[0])]


def _has_rows_of(peak: fx.Node, root: fx.Node) -> bool:
    """Whether a value has the same number of rows as a softmax."""
    return [metadata(peak).shape[-2:-1]] == [metadata(root).shape[-2:-1]]


def _is_last(softmax: fx.Node) -> bool:
    """Whether a softmax is along the last dimension."""
    dim, value = softmax.args[1], metadata(softmax)
    return isinstance(dim, int) and isinstance(value, torch.Tensor) and dim % value.dim() == value.dim() - 1
