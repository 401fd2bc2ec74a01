"""A request to the planner: one call, with all that its derivation may depend on. And the candidates for it: what each
rule for its op records for its signature, in order of registration, and then PyTorch's own composite kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import fx

from decomp.derive.expansion import (
    COMPOSITE,
    NO_COMPOSITE,
    Expansion,
    Site,
    declined_for_sizes,
    expand,
    expand_composite,
)
from decomp.derive.other_sizes import OtherSizes
from decomp.derive.planning_memory import Memory
from decomp.errors import RuleError, spelled
from decomp.ir.call import Call, metadata
from decomp.ir.ops import Op
from decomp.ir.schema import Bound
from decomp.ir.signature import Key, Signature
from decomp.rules.requirements import missing_ops
from decomp.rules.rules import Declined, Rule, Rules
from decomp.rules.target import Target
from decomp.torch_internals.fakes import FakeTensorMode

AFTER_ALL_RULES = 1 << 20
"""The place of PyTorch's composite kernel among the alternatives."""
_HOLDS_AT_SOME_SIZES = "holds at some of the sizes that are dynamic only"
NO_CYCLE = 1 << 30


class Derivation(NamedTuple):
    """An alternative that is being lowered: whose expansion makes the calls that are now asked for."""

    key: Key
    """Signature of the call that it serves."""
    op: Op
    place: int
    """Which of the alternatives for this op."""


Context = tuple[Derivation, ...]
"""The derivations that a call is part of, the outermost first; empty for a call of the program itself."""


@dataclass(slots=True)
class Basis:
    """What a decision turned out to rest on beside the signature of its call."""

    depends_on_context: bool = False
    """Whether the target asked where the call stands in the program."""
    cycle_depth: int = NO_CYCLE
    """The place in the context of the outermost derivation to which a cycle led back."""

    def add(self, inner: Basis, depth: int) -> None:
        """Rest on what the decision for a call in a context of this depth rests on, too."""
        self.depends_on_context |= inner.depends_on_context
        if inner.cycle_depth < depth:
            self.cycle_depth = min(self.cycle_depth, inner.cycle_depth)


@dataclass(frozen=True, slots=True)
class Request:
    """One call that is to reach the target."""

    node: fx.Node
    signature: Signature
    context: Context = ()
    call: Call | None = None
    """The call with its arguments by name; None if they fit no schema of its op."""
    condition: str = ""
    """The condition under which the target would know the call, where there is one."""
    first: int = 0
    """The place of the first alternative to be asked."""
    basis: Basis = field(default_factory=Basis)
    """Filled while the request is being served."""

    @property
    def op(self) -> Op:
        """What is called."""
        return self.call.op if self.call is not None else Op(spelled(self.node.target))

    @property
    def expected(self) -> Any:
        """The metadata of what the call gives; None if the program has none."""
        return metadata(self.node)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One alternative for a call."""

    rule: Rule | None
    """None for PyTorch's composite kernel."""
    place: int
    expansion: Expansion | Declined

    @property
    def name(self) -> str:
        """How it is called in a list of what was tried."""
        return str(self.rule) if self.rule is not None else COMPOSITE


class Candidates:
    """Runs rules, each once a signature."""

    def __init__(
        self, rules: Rules, target: Target, dialect: str, mode: FakeTensorMode | None, memory: Memory,
        composites: bool,
    ) -> None:
        self.rules, self.target, self.dialect, self.mode = rules, target, dialect, mode
        self.memory, self.composites = memory, composites
        self.symbolic = Memory(signatures=memory.signatures)
        """What holds within this program only, for its symbolic sizes mean nothing in another."""
        self.runs = 0
        """How often a rule was run."""
        self._other_sizes = OtherSizes(mode.shape_env) if mode is not None and mode.shape_env is not None else None

    def of(self, request: Request) -> Iterator[Candidate]:
        """The alternatives for a call, from the first that is asked for; each is recorded when it is its turn."""
        rules = self.rules.of(request.op) if request.call is not None else ()
        for place in range(request.first, len(rules)):
            yield Candidate(rules[place], place, self._by_rule(rules[place], request))
        composite = self._recorded(None, request) if self.composites else NO_COMPOSITE
        if composite is not NO_COMPOSITE:
            yield Candidate(None, AFTER_ALL_RULES, composite)

    def memory_for(self, symbolic: bool) -> Memory:
        """Where what is found out for a signature is kept."""
        return self.symbolic if symbolic else self.memory

    def declined(self, rule: Rule, request: Request) -> Declined | None:
        """Why a rule that was run for this call declined, if it did."""
        found = self.memory_for(request.signature.symbolic).expansions.get((rule, request.signature.key))
        return found if isinstance(found, Declined) else None

    def _by_rule(self, rule: Rule, request: Request) -> Expansion | Declined:
        if request.call is not None and request.call.reads_data:
            return Declined("takes a number, and is given a tensor, whose value only the running program has")
        missing = missing_ops(rule.needs, self.target)
        if missing is not None:
            return Declined(f"is for targets that know {missing}", applicable=False)
        return self._recorded(rule, request)

    def _recorded(self, rule: Rule | None, request: Request) -> Expansion | Declined:
        expansions = self.memory_for(request.signature.symbolic).expansions
        key = (rule, request.signature.key)
        if key not in expansions:
            expansions[key] = self._for_all_sizes(self._record(rule, request), request)
        return expansions[key]

    def _record(self, rule: Rule | None, request: Request) -> Expansion | Declined:
        site, bound = self._site(request), cast(Bound, request.call)
        try:
            found = expand_composite(site) if rule is None else expand(rule, bound, site)
        except RuleError as error:
            raise error.at(request.node) from error.__cause__
        self.runs += isinstance(found, Expansion)
        return found

    def _site(self, request: Request) -> Site:
        """Where to record: in the program's own fake mode where sizes are symbolic, in none where metadata is missing.
        What PyTorch's own kernels left in a graph of the torch dialect is ATen already."""
        node, (_, tensor_args, symbolic, read) = request.node, request.signature
        mode = self.mode if symbolic else self.memory.mode
        if self.mode is None or any(metadata(given) is None for given in tensor_args):
            mode = None
        dialect = "aten" if isinstance(node.target, torch._ops.OpOverload) else self.dialect
        return Site(node, tensor_args, mode, dialect, read)

    def _for_all_sizes(self, found: Expansion | Declined, request: Request) -> Expansion | Declined:
        """The expansion, unless it holds at the sizes of the example only."""
        _, tensor_args, symbolic, read = request.signature
        if not symbolic or self._other_sizes is None or isinstance(found, Declined):
            return found
        why_not = self._other_sizes.why_not(found.graph, request.node, tensor_args, read)
        return found if why_not is None else declined_for_sizes(found.rule, f"{_HOLDS_AT_SOME_SIZES}: {why_not}")
