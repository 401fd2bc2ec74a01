"""What planning remembers: decisions and expansions by signature, for one pair of rules and target. It only grows, so
that a lowering that fails can be forgotten."""

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
"""The attribute of a fake mode with what is remembered of its program."""
MOST = 1 << 15
"""So many expansions are remembered, which take about half a gigabyte. What is lowered at ever other sizes has more."""


@dataclass
class Own:
    """What was found out by functions of the user's: it is good as long as these read what they read then."""

    state: Any = None
    """What they read; None where nothing was found out yet."""
    decisions: dict[Any, Decision] = field(default_factory=dict)
    at_least: dict[Any, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How much that is."""
        return len(self.decisions) + len(self.at_least)


@dataclass
class RecordedRules:
    """What rules of the user's recorded, whatever the target and the cost: it is good as long as the rules read what
    they read then."""

    state: Any = None
    expansions: dict[Any, Expansion | Declined] = field(default_factory=dict)
    renewed: int = 0
    """How often it was forgotten."""

    def forget(self, state: Any) -> None:
        """Begin anew."""
        self.expansions.clear()
        self.state, self.renewed = state, self.renewed + 1


@dataclass
class PlanningMemory:
    """What one pair of rules and target has found out; it outlives the program unless sizes are symbolic."""

    signatures: Signatures = field(default_factory=Signatures)
    decisions: dict[Any, Decision] = field(default_factory=dict)
    """By signature and level of accuracy."""
    at_least: dict[Any, float] = field(default_factory=dict)
    """By signature and level, what a call costs that was not followed to its end, because that is more than it may."""
    expansions: dict[Any, Expansion | Declined] = field(default_factory=dict)
    sure: dict[Any, bool | frozenset[torch.dtype]] = field(default_factory=dict)
    """By the target of a call, whether every such call stays; or on which dtypes."""
    laid_out: dict[Any, str] = field(default_factory=dict)
    """By the target of a call, the name of its op if kernels lay results out otherwise than is recorded, else ""."""
    aliases: set[torch._ops.OpOverload] = field(default_factory=set)
    """Overloads that were met and whose op has another name."""
    mode: FakeTensorMode = field(default_factory=FakeTensorMode)
    fakes: Fakes = field(init=False)
    """Makes the fake tensors of this mode."""
    own: Own = field(default_factory=Own)
    """The part of it that depends on functions of the user's."""
    recorded: RecordedRules = field(default_factory=RecordedRules)
    """What rules of the user's recorded."""
    origins: Origins | None = None
    """Which functions these are, once that has been asked for."""
    connected: dict[Any, ExpansionTemplate] = field(default_factory=dict)
    """By expansion and operands that may require a gradient, the same whose results do, too."""
    segment: Segment | None = None
    """What is kept on disk for these rules and this target, once that has been asked for."""
    verdicts: dict[ExpansionTemplate, Any] = field(default_factory=dict)
    """What measuring an expansion found out."""
    lasting: bool = False
    """Whether it outlives the lowering for which it was made."""

    def __post_init__(self) -> None:
        self.fakes = Fakes(self.mode)

    @classmethod
    def within(cls, found: dict[Any, PlanningMemory], how: tuple[Any, ...], key: Any) -> PlanningMemory:
        """What is known under `key`, or an empty memory, which is kept there unless `key` is None. What rules record
        depends on `how` alone (the dialect, what int64 is to be in the target if that is narrow, the default dtype) and
        not on its ops or on costs; all memories of which this is the same share it."""
        recorded = found.get(how) or found.setdefault(how, cls())
        fresh = cls(
            recorded.signatures,
            expansions=recorded.expansions,
            mode=recorded.mode,
            recorded=recorded.recorded,
            lasting=key is not None,
        )
        return fresh if key is None else found.setdefault(key, fresh)

    def of_program(self, mode: FakeTensorMode | None) -> PlanningMemory:
        """What holds at the symbolic sizes of one program alone. It stays with the fake mode of the program, and ends
        with it: lowered again, or to another target, nothing is recorded anew."""
        if mode is None or not self.lasting:
            return PlanningMemory(self.signatures, mode=self.mode)
        # What is looked up by its identity is held with it, so that nothing else ever has that.
        programs: dict[int, Any] = vars(mode).setdefault(_PROGRAMS, {})
        _, rewound, known = programs.get(id(self.signatures), (None, None, {}))
        if rewound != self.signatures.rewound:  # signatures have other numbers since
            known = {}
            programs[id(self.signatures)] = self.signatures, self.signatures.rewound, known
        _, expansions = known.setdefault(id(self.expansions), (self.expansions, {}))
        found: PlanningMemory
        _, found = known.setdefault(
            id(self), (self, PlanningMemory(self.signatures, expansions=expansions, mode=self.mode))
        )
        return found

    def met(self, graph: fx.Graph) -> None:
        """Take note of the overloads in an expansion of another process."""
        targets = (node.target for node in graph.nodes)
        overloads = (target for target in targets if isinstance(target, torch._ops.OpOverload))
        self.aliases.update(overload for overload in overloads if canonical(overload) is not overload)

    def forget_unless(self, state: Sequence[Any], rules: int) -> None:
        """Forget what was found out by functions of the user's that read something else now; so many of them are rules,
        and come first."""
        if self.own.state != state:
            self.own = Own(state)
        if self.recorded.state != state[:rules]:
            self.recorded.forget(state[:rules])

    def learn(self, state: Sequence[Any], rules: int) -> None:
        """Note what these functions read now."""
        self.own.state, self.recorded.state = state, state[:rules]

    def decision(self, key: Any) -> Decision | None:
        """What was decided for a signature and level, whatever that depends on."""
        found = self.decisions.get(key)
        return self.own.decisions.get(key) if found is None else found

    def mark(self) -> tuple[Any, ...]:
        """How much is known: nothing that is known is ever changed, so that the rest can be forgotten."""
        renewed = self.recorded.renewed
        return (self.own, renewed, *map(len, self._grown()), self.signatures.mark(), len(self.mode.enter_stack))

    def rewind(self, mark: tuple[Any, ...]) -> None:
        """Forget what was found out since, by a lowering that failed."""
        own, renewed, *lengths, signatures, entered = mark
        self.own = own
        if self.recorded.renewed != renewed:
            self.recorded.forget(None)
        for found, length in zip(self._grown(), lengths):
            while len(found) > length:
                found.popitem()
        self.signatures.rewind(signatures)
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
    """Looks at what functions of the user's read, before a program is planned and after: what was found out by them is
    forgotten when that has changed in between. A function may change it itself, as one that counts its calls."""

    def __init__(self, functions: Sequence[Callable[..., Any]], rules: int, memories: Sequence[PlanningMemory]) -> None:
        """`rules`: how many of the functions are rules, which come first."""
        self._functions, self._rules, self._memories = functions, rules, memories
        state = state_of(functions)
        for memory in memories:
            memory.forget_unless(state, rules)
        self._size = self._known()

    def close(self) -> None:
        """The program is planned."""
        if self._known() != self._size:
            state = state_of(self._functions)
            for memory in self._memories:
                memory.learn(state, self._rules)

    def _known(self) -> int:
        return sum(memory.own.size + len(memory.recorded.expansions) for memory in self._memories)


def forget_if_full(found: dict[Any, PlanningMemory]) -> None:
    """Begin anew where more than `MOST` expansions are remembered for a collection of rules. Memories share those that
    they have in common."""
    recorded = (each for memory in found.values() for each in (memory.expansions, memory.recorded.expansions))
    known = {id(each): len(each) for each in recorded}
    if sum(known.values()) > MOST:
        found.clear()


@contextlib.contextmanager
def remembering(mode: FakeTensorMode | None) -> Iterator[None]:
    """Within, a program of this mode is planned, once or more. What was found out at its symbolic sizes is forgotten
    where that fails, and where it brought new sizes, which end with the lowering."""
    known: frozenset[Any] | None = known_symbols(mode)
    try:
        yield
    except BaseException:
        known = None
        raise
    finally:
        if mode is not None and known_symbols(mode) != known:
            vars(mode).pop(_PROGRAMS, None)
