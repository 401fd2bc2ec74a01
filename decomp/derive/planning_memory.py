"""Memoised decisions and expansions, by signature, for one pair of rules and target. A memory only grows, so that
entries of a failed lowering can be rolled back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from decomp.cache.function_state import state_of
from decomp.ir.respelling import canonical
from decomp.ir.signature import Signatures
from decomp.metadata.fakes import Fakes
from decomp.metadata.symbolic_sizes import known_symbols
from decomp.torch_internals.fakes import FakeTensorMode

if TYPE_CHECKING:
    from decomp.cache.expansions import Segment
    from decomp.cache.fingerprints import Origins
    from decomp.derive.decisions import Decision
    from decomp.derive.expansion import Expansion
    from decomp.graphs.template import ExpansionTemplate
    from decomp.rules.declining import Declined

_PROGRAMS = "_decomp_planned"
"""The attribute of a fake mode that holds the memory of its program."""
CAPACITY = 1 << 15
"""Capacity in expansions, about half a gigabyte; cleared when full. Lowering at ever new sizes fills it."""


@dataclass
class UserDecisions:
    """Decisions made by user-defined functions: valid as long as these functions read the same state as then."""

    state: Any = None
    """The state that they read; None if there are no decisions yet."""
    decisions: dict[Any, Decision] = field(default_factory=dict)
    at_least: dict[Any, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of entries."""
        return len(self.decisions) + len(self.at_least)


@dataclass
class RecordedRules:
    """Expansions by user-defined rules, independent of target and cost: valid as long as the rules read the same
    state."""

    state: Any = None
    expansions: dict[Any, Expansion | Declined] = field(default_factory=dict)
    renewed: int = 0
    """How often it was cleared."""

    def forget(self, state: Any) -> None:
        """Clear."""
        self.expansions.clear()
        self.state, self.renewed = state, self.renewed + 1


@dataclass
class PlanningMemory:
    """The memory of one pair of rules and target; it outlives the program unless sizes are symbolic."""

    signatures: Signatures = field(default_factory=Signatures)
    decisions: dict[Any, Decision] = field(default_factory=dict)
    """By signature and level of accuracy."""
    at_least: dict[Any, float] = field(default_factory=dict)
    """By signature and level, a lower bound of the cost of a call whose derivation was abandoned at the cost limit."""
    expansions: dict[Any, Expansion | Declined] = field(default_factory=dict)
    sure: dict[Any, bool | frozenset[torch.dtype]] = field(default_factory=dict)
    """By call target, whether every such call stays, or the dtypes on which it does."""
    laid_out: dict[Any, str] = field(default_factory=dict)
    """By call target, the name of its op if its kernel's results have strides other than fake tensors show, else ""."""
    aliases: set[torch._ops.OpOverload] = field(default_factory=set)
    """Overloads in programs or expansions that are aliases of another op."""
    mode: FakeTensorMode = field(default_factory=FakeTensorMode)
    fakes: Fakes = field(init=False)
    """Creates fake tensors of this mode."""
    own: UserDecisions = field(default_factory=UserDecisions)
    """The decisions that depend on user-defined functions."""
    recorded: RecordedRules = field(default_factory=RecordedRules)
    """The expansions by user-defined rules."""
    origins: Origins | None = None
    """The origins of these functions, once computed."""
    connected: dict[Any, ExpansionTemplate] = field(default_factory=dict)
    """By expansion and operands that may require a gradient, the expansion whose results depend on these operands."""
    segment: Segment | None = None
    """The cache on disk for these rules and this target, once opened."""
    verdicts: dict[ExpansionTemplate, Any] = field(default_factory=dict)
    """The results of measuring expansions."""
    lasting: bool = False
    """Whether it outlives the lowering for which it was made."""

    def __post_init__(self) -> None:
        self.fakes = Fakes(self.mode)

    @classmethod
    def within(cls, found: dict[Any, PlanningMemory], how: tuple[Any, ...], key: Any) -> PlanningMemory:
        """The memory under `key`, or an empty one, which is stored there unless `key` is None. The expansions of rules
        depend on `how` alone (dialect, narrow replacement of int64, default dtype), not on the target's ops or costs;
        memories with equal `how` share them."""
        recorded = found.get(how) or found.setdefault(how, cls())
        # Expansions and signatures are shared by all targets; decisions are not.
        fresh = cls(
            recorded.signatures,
            expansions=recorded.expansions,
            mode=recorded.mode,
            recorded=recorded.recorded,
            lasting=key is not None,
        )
        return fresh if key is None else found.setdefault(key, fresh)

    def of_program(self, mode: FakeTensorMode | None) -> PlanningMemory:
        """The memory for the symbolic sizes of one program. It is stored on the fake mode of the program and ends with
        it: lowered again, or to another target, nothing is recorded twice."""
        if mode is None or not self.lasting:
            return PlanningMemory(self.signatures, mode=self.mode)
        # Objects looked up by id are stored along with it, so that their ids are not reused.
        programs: dict[int, Any] = vars(mode).setdefault(_PROGRAMS, {})
        _, rewound, known = programs.get(id(self.signatures), (None, None, {}))
        if rewound != self.signatures.rewound:  # signatures were renumbered since
            known = {}
            programs[id(self.signatures)] = self.signatures, self.signatures.rewound, known
        _, expansions = known.setdefault(id(self.expansions), (self.expansions, {}))
        found: PlanningMemory
        _, found = known.setdefault(
            id(self), (self, PlanningMemory(self.signatures, expansions=expansions, mode=self.mode))
        )
        return found

    def met(self, graph: fx.Graph) -> None:
        """Note the overloads in an expansion from another process."""
        targets = (node.target for node in graph.nodes)
        overloads = (target for target in targets if isinstance(target, torch._ops.OpOverload))
        self.aliases.update(overload for overload in overloads if canonical(overload) is not overload)

    def forget_unless(self, state: Sequence[Any], rules: int) -> None:
        """Clear what depends on user-defined functions if the state that they read has changed; the first `rules` of
        these functions are rules."""
        if self.own.state != state:
            self.own = UserDecisions(state)
        if self.recorded.state != state[:rules]:
            self.recorded.forget(state[:rules])

    def learn(self, state: Sequence[Any], rules: int) -> None:
        """Store the state that these functions read now."""
        self.own.state, self.recorded.state = state, state[:rules]

    def decision(self, key: Any) -> Decision | None:
        """The decision for a signature and level, whatever its dependencies."""
        found = self.decisions.get(key)
        return self.own.decisions.get(key) if found is None else found

    def mark(self) -> tuple[Any, ...]:
        """The current extent. Entries never change, so that later ones can be removed."""
        renewed = self.recorded.renewed
        return (self.own, renewed, *map(len, self._grown()), self.signatures.mark(), len(self.mode.enter_stack))

    def rewind(self, mark: tuple[Any, ...]) -> None:
        """Remove the entries that a failed lowering added since the mark."""
        own, renewed, *lengths, signatures, entered = mark
        self.own = own
        if self.recorded.renewed != renewed:
            # Entries were dropped in between, so that a length says nothing of what is new.
            self.recorded.forget(None)
        for found, length in zip(self._grown(), lengths):
            while len(found) > length:
                # Dicts keep their order of insertion: what is newest goes first.
                found.popitem()
        self.signatures.rewind(signatures)
        # An exception between two lines of `FakeTensorMode.__enter__` and `__exit__` leaves entries on this stack.
        del self.mode.enter_stack[entered:]

    def _grown(self) -> tuple[dict[Any, Any], ...]:
        own = self.own.decisions, self.own.at_least, self.recorded.expansions
        return (
            *own,
            self.decisions,
            self.at_least,
            self.expansions,
            self.sure,
            self.laid_out,
            self.verdicts,
            self.connected,
        )


class StateWatch:
    """Compares the state that user-defined functions read before and after planning, and clears dependent entries if it
    has changed in between. A function may change it itself, by counting its calls for instance."""

    def __init__(self, functions: Sequence[Callable[..., Any]], rules: int, memories: Sequence[PlanningMemory]) -> None:
        """`rules`: how many of the functions are rules, which come first."""
        self._functions, self._rules, self._memories = functions, rules, memories
        state = state_of(functions)
        for memory in memories:
            memory.forget_unless(state, rules)
        self._size = self._known()

    def close(self) -> None:
        """Planning has ended."""
        # Reading the state of a user's functions hashes what they close over; only new entries are worth it.
        if self._known() != self._size:
            state = state_of(self._functions)
            for memory in self._memories:
                memory.learn(state, self._rules)

    def _known(self) -> int:
        return sum(memory.own.size + len(memory.recorded.expansions) for memory in self._memories)


def forget_if_full(found: dict[Any, PlanningMemory]) -> None:
    """Clear if more than `CAPACITY` expansions are stored for a collection of rules. Expansions that memories share
    are counted once."""
    recorded = (each for memory in found.values() for each in (memory.expansions, memory.recorded.expansions))
    known = {id(each): len(each) for each in recorded}
    if sum(known.values()) > CAPACITY:
        found.clear()


@contextlib.contextmanager
def keep_symbolic_memory(mode: FakeTensorMode | None) -> Iterator[None]:
    """The context in which a program of this mode is planned, possibly several times. The memory of its symbolic sizes
    is dropped on failure, and if planning introduced new symbols, which end with the lowering."""
    known: frozenset[Any] | None = known_symbols(mode)
    try:
        yield
    except BaseException:
        # Unequal to any set of symbols, so that the comparison below drops the memory.
        known = None
        raise
    finally:
        if mode is not None and known_symbols(mode) != known:
            vars(mode).pop(_PROGRAMS, None)
