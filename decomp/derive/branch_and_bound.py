"""The choice between the alternatives for a call: what their calls cost, and the cheapest by branch and bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
import math

import torch
from torch import fx

from decomp.costs.model import Cost, price_of_calls, price_of_graph
from decomp.derive.alternatives import Alternative, Request
from decomp.derive.decisions import Blocked, Derived
from decomp.graphs.template import ExpansionTemplate
from decomp.ir.call import call_if_bound, is_host, is_projection, metadata
from decomp.metadata.symbolic_sizes import has_fixed_sizes
from decomp.rules.accuracy import LEVELS, Level
from decomp.rules.declining import Declined
from decomp.simplification.freezing import as_frozen

# Of the order of what a rule of the library emits. Branch and bound returns the same for any guess.
_ASSUMED_CALLS = 8
"""The assumed number of calls in the lowering of a call that is not lowered yet. It only orders the search: a wrong
guess makes it visit more alternatives than necessary."""
# Not 1: a rule that halves its problem recurses for good reasons.
_RECURSION_LIMIT = 3
"""How often a rule may recurse on its own op where another derivation is known: `cat` by `stack` by `cat` never
ends."""
# Below all levels, so that among equal prices a user's own rule wins.
_UNLEVELLED = -1
"""The rank of a rule without a level: its author answers for its accuracy."""


def price_of_node(cost: Cost | None, node: fx.Node) -> float:
    """The cost of one call; 1 without a cost model. Numbers and projections of tuples cost nothing."""
    # Sizes are computed by the host, and parts of a result are no work: an expansion costs no more because of these.
    if is_host(node) or is_projection(node):
        return 0.0
    if cost is None:
        return 1.0
    call = call_if_bound(node)
    return 0.0 if call is None else price_of_calls(cost, (call,))


def least_price(cost: Cost | None, node: fx.Node) -> float:
    """A lower bound of the price of every derivation of a call, from metadata alone: without a cost model 1 if the
    result cannot be an operand, because none has its rank and dtype, or at fixed sizes its shape; otherwise 0."""
    if cost is not None or not node.op.startswith("call") or is_projection(node):
        return 0.0
    values = [metadata(each) for each in (node, *node.all_input_nodes)]
    tensors = [each for each in values if isinstance(each, torch.Tensor)]
    # Of a complex number, which is a pair, a part is an operand of another dtype.
    if len(tensors) < 2 or values[0] is not tensors[0] or any(each is None for each in values):
        return 0.0
    if any(each.is_complex() for each in tensors):
        return 0.0
    fixed = all(map(has_fixed_sizes, tensors))
    own, *others = [(each.shape if fixed else each.dim(), each.dtype) for each in tensors]
    return 0.0 if own in others else 1.0


def price_of_template(cost: Cost | None, template: ExpansionTemplate, constants: Sequence[bool] = ()) -> float:
    """The total cost of the calls of a flat expansion, without those that freezing computes once; `constants` says of
    each input whether freezing makes it a constant."""
    # What weights alone decide is computed once, before the program runs; fusing a pattern is often about that.
    graph = as_frozen(template.graph, constants) if any(constants) else template.graph
    if cost is not None:
        return price_of_graph(cost, graph)
    return sum(price_of_node(None, node) for node in graph.nodes if node.op.startswith("call"))


@dataclass
class CostLimit:
    """What the calls of an expansion may cost together, what those decided so far do, and what the others will at
    least."""

    limit: float
    least: dict[fx.Node, float]
    """A lower bound of the price of each node, regardless of decisions; empty if none is known."""
    rest: float
    """The sum of those of the nodes that are not decided yet."""
    spent: float = 0.0

    @classmethod
    def of(cls, limit: float, graph: fx.Graph, cost: Cost | None, is_sure: Callable[[fx.Node], bool]) -> CostLimit:
        """The budget for an expansion; `is_sure` says of a call that it stays."""
        # Sums of a cost model are rounded: the same price in another order might seem to exceed the limit.
        if limit == math.inf or cost is not None:
            return cls(limit, {}, 0.0)
        least = {node: (price_of_node if is_sure(node) else least_price)(None, node) for node in graph.nodes}
        return cls(limit, least, sum(least.values()))

    def left_for(self, node: fx.Node) -> float:
        """The limit for the next node."""
        # A copy that stride propagation made of a node has no bound of its own: from there on nothing is assumed.
        self.rest -= self.least.get(node, self.rest)
        return self.limit - self.spent - self.rest

    def affords(self, price: float) -> bool:
        """Whether the limit still holds after this price. Equal prices go on: of these the more accurate rule wins,
        then the first."""
        self.spent += price
        return self.spent + self.rest <= self.limit

    def declined(self) -> Declined:
        """Why the expansion is not followed any further."""
        return _costlier(self.spent + self.rest, self.limit)


def _costlier(least: float, limit: float) -> Declined:
    return Declined(f"costlier: at least {least:g}, not {limit:g}", applicable=False)


@dataclass
class BranchAndBound:
    """Branch and bound over the alternatives for a call. Each has a lower bound of its cost: the price of those calls
    in its expansion whose derivations are known. Iteration visits the most promising alternative first, and prunes
    those whose lower bound is not below the best price so far. Pruning is only valid for additive costs."""

    alternatives: list[Alternative]
    least: Callable[[fx.Graph, Level], tuple[float, int]] | None
    """The lower bound of an expansion's cost, and the number of calls not included in it; None for a single
    alternative."""
    request: Request
    found: dict[int, Derived | Declined] = field(default_factory=dict)
    """The outcome of each alternative, by its index."""
    left_out: bool = False
    """Whether an alternative was pruned by cost."""
    best: tuple[float, int, int] = field(init=False)
    """Price, accuracy rank and index of the best alternative so far; initially the limit."""

    def __post_init__(self) -> None:
        # One past the last level, so that an alternative at exactly the limit is better than none.
        self.best = self.request.limit, len(LEVELS), 0

    @property
    def price(self) -> float:
        """The price of the best alternative so far, or the limit."""
        return self.best[0]

    @property
    def limit(self) -> float:
        """The price that an alternative must not exceed; infinite if costs are not additive."""
        return math.inf if self.least is None else self.price

    def __iter__(self) -> Iterator[tuple[Alternative, float]]:
        """The alternatives that are not pruned, with their lower bounds."""
        # By estimate, then place. Without a key the sort would compare alternatives, which have no order.
        runners = sorted(map(self._promise, self.alternatives), key=lambda runner: runner[:2])
        for _, place, least, alternative in runners:
            # Compared as a triple: a bound equal to the best price may still win by accuracy or by order.
            if self.least is not None and (least, _rank(alternative), place) >= self.best:
                self.left_out = True
                self.found[place] = _costlier(least, self.price)
            # Without a winner the recursion must go on, as it may be the only derivation; the depth limit ends it.
            elif self.winner is not None and self._nested(alternative) >= _RECURSION_LIMIT:
                # What was passed over may be the best elsewhere, so the decision holds inside of that derivation alone.
                self.request.basis.cycle_depth = min(self.request.basis.cycle_depth, self._outermost(alternative))
                self.found[place] = Declined("recurses on its own op", applicable=False)
            else:
                yield alternative, least

    def _nested(self, alternative: Alternative) -> int:
        """How often the rule is already being followed, at other signatures: each time it may leave more to be done."""
        op, place = self.request.op, alternative.place
        # By op and not by signature: the same signature is caught earlier, and a chain of new ones never ends.
        return sum(outer.op == op and outer.place == place for outer in self.request.context)

    def _outermost(self, alternative: Alternative) -> int:
        op, place = self.request.op, alternative.place
        return next(i for i, outer in enumerate(self.request.context) if outer.op == op and outer.place == place)

    @property
    def winner(self) -> Derived | None:
        """The best alternative so far."""
        found = self.found.get(self.best[2])
        return found if isinstance(found, Derived) else None

    def _promise(self, alternative: Alternative) -> tuple[float, int, float, Alternative]:
        """An alternative with its estimated cost, index and lower bound; sorted by estimate."""
        expansion = alternative.expansion
        if self.least is None or isinstance(expansion, Declined):
            return 0.0, alternative.place, 0.0, alternative
        least, unknown = self.least(expansion.graph, self.request.level)
        # A rule that is being followed already is tried after all
        # others: its estimate grows with each level of nesting.
        estimate = least + unknown * _ASSUMED_CALLS ** (1 + self._nested(alternative))
        return estimate, alternative.place, least, alternative

    def result(self, alternative: Alternative, found: Derived | Declined) -> None:
        """Record the outcome of an alternative."""
        place = alternative.place
        # The composite kernel is a fallback: its reason must not hide that of a rule.
        if isinstance(found, Declined) and alternative.rule is None:
            found = replace(found, applicable=False)
        self.found[place] = found
        if isinstance(found, Derived):
            self.best = min(self.best, (found.price, _rank(alternative), place))

    def outcome(self, blocked: Blocked) -> Derived | Blocked:
        """The winner, with the reasons why the others were not chosen; or `blocked` with the reasons of all."""
        winner = self.winner
        for alternative in self.alternatives:
            found = self.found[alternative.place]
            if isinstance(found, Derived):
                found = Declined(f"costlier: {found.price:g}, not {self.price:g}", applicable=False)
            # Losers are listed too: a plan shows what else was possible and what it would have cost.
            if self.found[alternative.place] is not winner:
                blocked = blocked.after(alternative.name, found)
        return replace(winner, passed_over=blocked.tried) if winner is not None else blocked


def _rank(alternative: Alternative) -> int:
    """The rank by accuracy, the best first."""
    level = alternative.rule.level if alternative.rule is not None else None
    return _UNLEVELLED if level is None else LEVELS.index(level)
