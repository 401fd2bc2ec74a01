"""What may become of each call of a program: a price on the chip, if it can be lowered to it, and a price on the host.
Which calls can be lowered, and to what, is decided by the planner of `decomp.lower`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
import functools
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn

from decomp.advice.suggestions import SuggestionSearch
from decomp.costs.model import Cost, price_of_calls, price_of_graph
from decomp.costs.sizes import nbytes
from decomp.derive.decisions import ERASED_GUARD, Blocked, Decision, Derived, PlannedProgram
from decomp.derive.pipeline import CaptureRequest, plan_program
from decomp.derive.rule_selection import RuleSelection
from decomp.derive.session import capture_session
from decomp.errors import CaptureError
from decomp.ir.aliases import attribute
from decomp.ir.call import CALLS, call_if_bound, is_host, is_projection, metadata
from decomp.ir.effects import Effect, EffectTable
from decomp.ir.module import ProgramGraph
from decomp.ir.op_facts import SIZES
from decomp.partitioning.assignment import AssignmentProblem, CrossingValue, PricedCall
from decomp.rules.options import Options
from decomp.rules.target import Target
from decomp.torch_internals.pytree import tensors_in

RANDOM = "draws random numbers"
COLLECTIVE = "communicates with other processes"
READS_DATA = "returns a number that depends on data"


@dataclass(frozen=True)
class Prices:
    """What calls and transfers cost, in one unit."""

    chip: Cost
    """The price of a call of the target."""
    host: Cost
    """The price of a call as the program has it, on the host."""
    transfer: Callable[[int], float]
    """The price of a transfer of so many bytes."""
    unit: str


@dataclass(frozen=True)
class Choices:
    """A functional program with what may become of each of its calls."""

    program: fx.GraphModule
    """Its parameters are attributes, and what it writes is written by `copy_` at its end."""
    calls: tuple[fx.Node, ...]
    """The calls that are assigned: all but those that write at the end, and assertions that always hold."""
    chip: Mapping[str, float]
    """By the name of a call: its price on the chip, if it can run there."""
    host: Mapping[str, float]
    """The same on the host."""
    why: Mapping[str, str]
    """For calls that cannot run on the chip: the reason, as a clause."""
    blocked: Mapping[str, str]
    """For those of them that the planner cannot lower: the op."""
    lowered: Mapping[str, int]
    """By call: how many calls of the target it is lowered to."""
    groups: tuple[tuple[str, ...], ...]
    """Calls that one pattern replaces."""
    trains: bool
    """Whether the program has the gradients of its source."""
    erased: frozenset[str]
    """Assertions that always hold, which are left out."""
    suggest: Callable[[], Any] = field(repr=False)
    """Finds the ops that would let the chip run more calls."""

    def without(self, names: Mapping[str, str]) -> Choices:
        """The same, with calls that cannot run on the chip after all, and why."""
        chip = {name: price for name, price in self.chip.items() if name not in names}
        return replace(self, chip=chip, why={**self.why, **names})

    @functools.cached_property
    def number(self) -> Mapping[fx.Node, int]:
        """The number of each call in the problem."""
        return {node: i for i, node in enumerate(self.calls)}

    def readers(self, node: fx.Node) -> Iterator[fx.Node]:
        """The users of a value."""
        return (user for user in node.users if user.name not in self.erased)

    def problem(self, transfer: Callable[[int], float]) -> AssignmentProblem:
        """The calls and values as numbers."""
        number = self.number
        calls = tuple(PricedCall(self.chip.get(node.name), self.host[node.name]) for node in self.calls)
        values = tuple(self._value(node, transfer) for node in (*inputs_of(self.program), *self.calls))
        named = {node.name: i for node, i in number.items()}
        groups = [[named[name] for name in group if name in named] for group in self.groups]
        # A tuple cannot be transferred: its parts are taken where it is computed.
        projections = [[number[node.args[0]], i] for node, i in number.items() if _is_projection_of(node, number)]
        together = tuple((one, other) for group in (*groups, *projections) for one, other in pairwise(group))
        effects = EffectTable(self.program)
        # Effects keep their order, also where parts are cut between them.
        ordered = [i for node, i in number.items() if effects.of(node)]
        return AssignmentProblem(calls, values, together, tuple(pairwise(ordered)))

    def _value(self, node: fx.Node, transfer: Callable[[int], float]) -> CrossingValue:
        number = self.number
        users = tuple(sorted(number[user] for user in self.readers(node) if user in number))
        moved = bytes_of(metadata(node))
        # Sizes and numbers are free, even if a transfer has a fixed price.
        price = float(transfer(moved)) if moved else 0.0
        return CrossingValue(number.get(node), users, price, any(user not in number for user in self.readers(node)))


def inputs_of(program: fx.GraphModule) -> list[fx.Node]:
    """The values that are on the host when the program starts: its inputs, and the buffers that it writes."""
    # A buffer that is written at the end is the host's, and crosses like an input.
    state = {write.args[0] for write in writes_of(program)}
    return [node for node in program.graph.nodes if node.op == "placeholder" or node.op == "get_attr" and node in state]


def writes_of(program: fx.GraphModule) -> list[fx.Node]:
    """The calls at the end of a functional program that write its inputs and buffers."""
    effects = EffectTable(program)
    return [node for node in program.graph.nodes if node.op in CALLS and Effect.MUTATION in effects.of(node).kinds]


def bytes_of(value: Any) -> int:
    """The bytes of the tensors of a value; sizes and other numbers are free."""
    return sum(map(nbytes, tensors_in(value)))


def _is_projection_of(node: fx.Node, number: Mapping[fx.Node, int]) -> bool:
    return is_projection(node) and node.args[0] in number


def choices_of(program: fx.GraphModule, to: Target, options: Options, prices: Prices) -> Choices:
    """Plan a functional program, and price what may become of its calls. Raises `CaptureError`, `RuleError`,
    `CostError`."""
    matching = RuleSelection.of(to, options)
    with capture_session(CaptureRequest(program), matching) as captured:
        planned = plan_program(captured, matching, options.policy)
        trains = bool(matching.specialise_for_program(captured).rules.trains)
    decided = _Decided(planned)
    calls = [node for node in program.graph.nodes if node.op in CALLS]
    written, erased = set(writes_of(program)), frozenset(decided.erased)
    assigned = tuple(node for node in calls if node not in written and node.name not in erased)
    pinned = _pinned(program, assigned, decided.why)
    chip, why = {}, {}
    for node in assigned:
        reason = pinned.get(node) or decided.why.get(node.name)
        if reason is None:
            chip[node.name] = decided.price(node.name, prices.chip)
        else:
            why[node.name] = reason
    host = {node.name: _host_price(program, node, prices.host) for node in assigned}
    blocked = {name: op for name, op in decided.blocked.items() if name in why}
    lowered = {node.name: decided.count(node.name) for node in assigned}
    suggest = SuggestionSearch(captured, matching, options.policy)
    return Choices(program, assigned, chip, host, why, blocked, lowered, decided.groups, trains, erased, suggest)


def _is_free(node: fx.Node) -> bool:
    """Whether a call has no price: it computes a number, takes one of several results, or is an assertion."""
    return is_host(node) or is_projection(node) or metadata(node) is None


def _host_price(program: fx.GraphModule, node: fx.Node, cost: Cost) -> float:
    if _is_free(node):
        return 0.0
    named = [attribute(program, str(each.target)) for each in node.all_input_nodes if each.op == "get_attr"]
    bodies = [each for each in named if isinstance(each, fx.GraphModule)]
    if bodies:  # of a higher-order op, which is priced as if each ran once
        return sum(_host_price(body, each, cost) for body in bodies for each in body.graph.nodes if each.op in CALLS)
    call = call_if_bound(node)
    return price_of_calls(cost, [call], "host_cost=") if call is not None else 0.0


def _pinned(program: fx.GraphModule, calls: Collection[fx.Node], blocked: Mapping[str, str]) -> Mapping[fx.Node, str]:
    """Calls that stay on the host although the chip may have them, with the reason."""
    effects, found = EffectTable(program), dict[fx.Node, str]()
    for node in calls:
        of = effects.of(node)
        # Two generators on two devices would give other numbers than one.
        if of.most:
            found[node] = RANDOM
        # Ranks could cut their programs differently, and wait for each other.
        elif Effect.COLLECTIVE in of.kinds:
            found[node] = COLLECTIVE
        elif Effect.ASSERTION in of.kinds or Effect.OTHER in of.kinds:
            found[node] = "is called for its effect alone"
        elif Effect.REGION in of.kinds:
            raise CaptureError(
                f"the program switches gradients or autocast at {node.name}, and parts are cut without regard to that\n"
                "  to do: pass the nn.Module with args=, so that such regions become ops of their own"
            )
        elif is_host(node) and (reason := _number_on_host(node, found, blocked)):
            found[node] = reason
    return found


def _number_on_host(node: fx.Node, pinned: Collection[fx.Node], blocked: Mapping[str, str]) -> str | None:
    """Why a number is computed on the host, if it is: it is read from data, or follows from what is there anyway."""
    tensors = [each for each in node.all_input_nodes if isinstance(metadata(each), torch.Tensor)]
    name = getattr(getattr(node.target, "overloadpacket", node.target), "__name__", "")
    if tensors and name not in SIZES:
        return READS_DATA
    computed = [each.args[0] if is_projection(each) else each for each in node.all_input_nodes]
    there = all(each.op not in CALLS or each in pinned or each.name in blocked for each in computed)
    return "is a size of what is on the host" if there else None


class _Decided:
    """The decisions of a plan, by the names of the calls of the program that was planned."""

    def __init__(self, planned: PlannedProgram) -> None:
        self.module, own = planned.module, planned.module.main
        self.why: dict[str, str] = {}
        self.blocked: dict[str, str] = {}
        self.erased: set[str] = set()
        self._by_name: dict[str, list[tuple[fx.Node, Decision, ProgramGraph]]] = {}
        groups: list[tuple[str, ...]] = []
        for node, decision in (own.decisions or {}).items():
            # More than one if a pattern replaced several calls: they are on one side, or the pattern is not used.
            names = tuple(source.name for source in own.sources_of(node))
            if len(names) > 1:
                groups.append(names)
            self._by_name.setdefault(names[0], []).append((node, decision, own))
            blocked = next(self._blocked(node, decision, own), None)
            if blocked is not None:
                self.why.update(dict.fromkeys(names, blocked.why()))
                self.blocked.update(dict.fromkeys(names, blocked.op))
            elif decision is ERASED_GUARD:
                self.erased.update(names)
        self.groups = tuple(groups)

    def _blocked(self, node: fx.Node, decision: Decision, own: ProgramGraph) -> Iterator[Blocked]:
        """The blocked decisions of a call and of the bodies that it runs."""
        if isinstance(decision, Blocked):
            yield decision
        for body in self._bodies(node, own):
            for inner, its in (body.decisions or {}).items():
                yield from self._blocked(inner, its, body)

    def _bodies(self, node: fx.Node, own: ProgramGraph) -> Iterator[ProgramGraph]:
        owners: list[nn.Module | None] = [
            own.bodies.get(str(each.target)) for each in node.all_input_nodes if each.op == "get_attr"
        ]
        return (self.module.graphs[owner] for owner in owners if owner in self.module.graphs)

    def price(self, name: str, cost: Cost) -> float:
        """The price of a call on the chip."""
        return sum(self._price(*each, cost) for each in self._by_name.get(name, ()))

    def _price(self, node: fx.Node, decision: Decision, own: ProgramGraph, cost: Cost) -> float:
        bodies = [(*each, body) for body in self._bodies(node, own) for each in (body.decisions or {}).items()]
        if bodies:
            return sum(self._price(*each, cost) for each in bodies)
        if isinstance(decision, Derived):
            return price_of_graph(cost, decision.template.graph)
        call = None if _is_free(node) else call_if_bound(node)
        return price_of_calls(cost, [call]) if call is not None else 0.0

    def count(self, name: str) -> int:
        """How many calls of the target a call is lowered to."""
        return sum(
            sum(each.op in CALLS for each in decision.template.graph.nodes) if isinstance(decision, Derived) else 1
            for _, decision, _ in self._by_name.get(name, ())
        )
