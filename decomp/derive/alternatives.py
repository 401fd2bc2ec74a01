"""Requests to the planner, and alternatives. A request is one call with everything that its derivation may depend on.
Its alternatives are the expansions recorded by the rules for its op, in order of registration, then PyTorch's own
composite kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
import functools
import itertools
import math
import types
from typing import Any, NamedTuple, cast

import torch
from torch import fx

from decomp.derive.expansion import (
    COMPOSITE,
    NO_COMPOSITE,
    Expansion,
    Site,
    declined_for_sizes,
    drop_dead,
    expand,
    expand_composite,
)
from decomp.derive.other_sizes import OtherSizes
from decomp.derive.planning_memory import PlanningMemory
from decomp.derive.stride_propagation import changed_strides
from decomp.errors import CaptureError, RuleError, describe, spell_target
from decomp.graphs.refused_dtypes import refused_dtypes
from decomp.ir.aliases import view_bases, view_chain
from decomp.ir.call import Call, call_if_bound, metadata
from decomp.ir.dtypes import name_of
from decomp.ir.ops import Op, of_function
from decomp.ir.schema import Bound
from decomp.ir.signature import Key, Signature
from decomp.metadata.fakes import Fakes, fakes_in, is_apart, mode_of
from decomp.metadata.open_kernels import kernels_of
from decomp.patterns.pattern import Pattern
from decomp.rules.accuracy import LEVELS, Level, is_accurate_enough
from decomp.rules.declining import Declined
from decomp.rules.library import certificate_of
from decomp.rules.requirements import missing_ops
from decomp.rules.rules import Rule, Rules
from decomp.rules.target import Target
from decomp.torch_internals import pytree
from decomp.torch_internals.fakes import FakeTensor, FakeTensorMode
from decomp.type_conversion.narrowing import SHIFT_OPS, narrow_graph

# More than any op has rules, so that the order of places is the order in which alternatives are tried.
AFTER_ALL_RULES = 1 << 20
"""The index of PyTorch's composite kernel among the alternatives."""
_HOLDS_AT_SOME_SIZES = "holds only at some values of the dynamic sizes"
NO_CYCLE = 1 << 30


class Derivation(NamedTuple):
    """An alternative that is being lowered, whose expansion makes the calls that are now being decided."""

    key: Key
    """The signature of the call that it is for."""
    op: Op
    place: int
    """Its index among the alternatives for this op."""
    level: Level
    """The requested accuracy."""


Context = tuple[Derivation, ...]
"""The derivations that a call is part of, the outermost first; empty for a call of the program itself."""


@dataclass(slots=True)
class DecisionDependencies:
    """The dependencies of a decision beyond the signature of its call."""

    depends_on_context: bool = False
    """Whether the target inspected the context of the call in the program."""
    is_own: bool = False
    """Whether a user-defined function was called."""
    cycle_depth: int = NO_CYCLE
    """The index in the context of the outermost derivation to which a cycle led back."""
    beyond_limit: bool = False
    """Whether nothing was found only because all alternatives exceed the cost limit."""

    def add(self, inner: DecisionDependencies, depth: int) -> None:
        """Add the dependencies of an inner decision, made for a call in a context of this depth."""
        self.depends_on_context |= inner.depends_on_context
        self.is_own |= inner.is_own
        self.beyond_limit |= inner.beyond_limit
        # A cycle that ends inside the inner call is over: only one that leads further out concerns the outer decision.
        if inner.cycle_depth < depth:
            self.cycle_depth = min(self.cycle_depth, inner.cycle_depth)


@dataclass(frozen=True, slots=True)
class Request:
    """One call that is to be lowered to the target."""

    node: fx.Node
    signature: Signature
    level: Level
    """The requested accuracy."""
    context: Context = ()
    call: Call | None = None
    """The call with its arguments by name; None if they match no schema of its op."""
    condition: str = ""
    """The unmet condition under which the call would be legal, if there is one."""
    first: int = 0
    """The index of the first alternative to try."""
    limit: float = math.inf
    """An upper bound of the cost: costlier derivations are useless."""
    basis: DecisionDependencies = field(default_factory=DecisionDependencies)
    """Filled while the request is processed."""

    def may_be_kept(self, depth: int) -> bool:
        """Whether a decision for it may be kept on disk, where those of calls up to this many derivations deep are.
        Decisions that depend on certificates are not kept, as certificates change."""
        is_near = len(self.context) <= depth
        return is_near and isinstance(self.level, str) and not isinstance(self.node.target, Pattern)

    @property
    def disk_key(self) -> tuple[Signature, fx.Node, str]:
        """The key of a decision on disk."""
        return self.signature, self.node, str(self.level)

    @property
    def op(self) -> Op:
        """The op that is called."""
        return self.call.op if self.call is not None else Op(spell_target(self.node.target))

    @property
    def expected(self) -> Any:
        """The metadata of the call's result; None if the program has none."""
        return metadata(self.node)


@dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative for a call."""

    rule: Rule | None
    """None for PyTorch's composite kernel."""
    place: int
    expansion: Expansion | Declined

    @property
    def name(self) -> str:
        """Its name in a list of alternatives."""
        return str(self.rule) if self.rule is not None else COMPOSITE


class Alternatives:
    """Runs rules, each once per signature."""

    def __init__(
        self,
        rules: Rules,
        target: Target,
        dialect: str,
        mode: FakeTensorMode | None,
        memory: PlanningMemory,
        composites: bool,
    ) -> None:
        self.rules, self.target, self.dialect, self.mode = rules, target, dialect, mode
        self.memory, self.composites = memory, composites
        self.symbolic = memory.of_program(mode)
        """The memory for decisions with symbolic sizes, which are meaningless in another program."""
        self.own_rules = memory.origins.own_rules if memory.origins is not None else frozenset()
        """Rules whose functions are user-defined."""
        self.runs = 0
        """How many times a rule was run."""
        # Sizes are drawn once for each set of symbols, and belong to the shape environment of one program.
        self._other_sizes = OtherSizes(mode.shape_env) if mode is not None and mode.shape_env is not None else None
        self._fakes = fakes_in(mode) if mode is not None else None

    def of_rules(self, request: Request) -> Iterator[Alternative]:
        """The rules for a call, from the first requested one; each is recorded lazily, when the iterator reaches it."""
        rules = self.serving(request) if request.call is not None else ()
        for place in range(request.first, len(rules)):
            yield self.by_rule(place, request)

    def by_rule(self, place: int, request: Request) -> Alternative:
        """The rule at this index among those for a call."""
        rule = self.serving(request)[place]
        return Alternative(rule, place, self._by_rule(rule, request))

    def serving(self, request: Request) -> tuple[Rule, ...]:
        """The rules for a call of an op or a pattern."""
        if isinstance(request.node.target, Pattern):
            return self.rules.of_pattern(request.node.target)
        return self.rules.of(request.op)

    def within(self, request: Request) -> Iterator[tuple[Alternative, Level, float]]:
        """The rules for a call at each level, with the level for the calls that they make, and their error in ULP as
        measured for the target; 0 if no larger than PyTorch's own. For a rule without a certificate the limit applies
        to the calls that it makes."""
        # Certificates have an error for each dtype, that of the
        # result; an integer result is exact, and any column will do.
        tensors = [t for t in pytree.tensors_in(request.expected) if t.is_floating_point() or t.is_complex()]
        dtype = name_of(tensors[0].dtype if tensors else torch.float32)
        for level in LEVELS:
            for alternative in self.of_rules(replace(request, level=level)):
                rule = cast(Rule, alternative.rule)
                # A certificate of a rule without a level is measured at the caller's risk, and is no bound.
                certificate = certificate_of(rule) if rule.level is not None else None
                if certificate is not None:
                    error = certificate.error_on(self.target.name, level, dtype)
                    if error is not None:
                        yield alternative, level, error
                elif level == (rule.level or LEVELS[0]):
                    yield alternative, request.level, 0.0

    def of_composite(self, request: Request) -> Iterator[Alternative]:
        """PyTorch's own composite kernel for a call, if there is one."""
        known = self.composites and not isinstance(request.node.target, Pattern)
        # A custom op may have a kernel in Python that reads what it likes.
        request.basis.is_own |= known and not _is_of_pytorch(request.node)
        request.basis.depends_on_context |= known and _is_of_python(request.node)
        composite = self.recorded(None, request) if known else NO_COMPOSITE
        if composite is not NO_COMPOSITE:
            yield Alternative(None, AFTER_ALL_RULES, composite)

    def memory_for(self, symbolic: bool) -> PlanningMemory:
        """The memory for decisions about a signature."""
        return self.symbolic if symbolic else self.memory

    def declined(self, rule: Rule, request: Request) -> Declined | None:
        """Why a rule that was run for this call declined, if it did."""
        found = self._expansions(rule, request).get((rule, request.signature.key))
        return found if isinstance(found, Declined) else None

    def _expansions(self, rule: Rule | None, request: Request) -> dict[Any, Expansion | Declined]:
        """Where the expansions of a rule are memoised."""
        memory = self.memory_for(request.signature.symbolic)
        return memory.recorded.expansions if rule in self.own_rules else memory.expansions

    def _by_rule(self, rule: Rule, request: Request) -> Expansion | Declined:
        # First of all, as binding such a call took the tensor for
        # a number: nothing else that is asked of it would be true.
        if request.call is not None and request.call.reads_data:
            return Declined("takes a number, and gets a tensor, whose value is only known at run time")
        # What the target lacks comes before what the rule costs to run: declining here takes no recording.
        missing = missing_ops(rule.needs, self.target)
        if missing is not None:
            return Declined(f"is for targets that know {missing}", applicable=False)
        if rule.forward_only and self.rules.trains:
            return Declined("is for inference only", applicable=False)
        if not is_accurate_enough(rule.level, str(request.level)):
            return Declined(f"reaches the level {rule.level}, but {request.level} is required", applicable=False)
        return self.recorded(rule, request)

    def recorded(self, rule: Rule | None, request: Request) -> Expansion | Declined:
        """The expansion recorded by a rule, or by PyTorch's composite kernel, for a call, regardless of what the rule
        needs of the target."""
        expansions, key = self._expansions(rule, request), (rule, request.signature.key)
        found = expansions.get(key)
        # Composite kernels of user-defined Python functions are not memoised: they may do something else the next time.
        if found is None:
            found = self._for_all_sizes(self._record(rule, request), request)
            # The composite kernel is itself what is asked there.
            found = found if rule is None else self._view_if_one_is_known(found, request)
            if rule is not None or not _is_of_python(request.node):
                expansions[key] = found
        return found

    def _view_if_one_is_known(self, found: Expansion | Declined, request: Request) -> Expansion | Declined:
        """The expansion; but if the call returns a view and a rule copies, the expansion of PyTorch's own kernel if
        that is a view: rules compare strides as numbers, the kernel as expressions of symbolic sizes."""
        # With fixed sizes a rule that compares strides as numbers gives a view where the kernel does.
        if not request.signature.symbolic or isinstance(found, Declined) or not view_bases(request.node):
            return found
        if _is_view(found.graph, request) or self._is_copied(request.node):
            return found
        own = self.recorded(None, request)
        return own if isinstance(own, Expansion) and _is_view(own.graph, request) else found

    def _is_copied(self, node: fx.Node) -> bool:
        """Whether PyTorch's kernel copies at sizes that it does not know, which is cheaper to see than to record."""
        if self._fakes is None or not isinstance(node.target, torch._ops.OpOverload):
            return False
        args, kwargs = fx.map_arg((node.args, node.kwargs), metadata)
        made = kernels_of(self._fakes).run(node.target, args, kwargs)
        return isinstance(made, FakeTensor) and all(is_apart(made, x) for x in pytree.tensors_in((args, kwargs)))

    def _record(self, rule: Rule | None, request: Request) -> Expansion | Declined:
        site, bound = self._site(request), cast(Bound, request.call)
        try:
            found = expand_composite(site) if rule is None else expand(rule, bound, site)
        # A rule fails in PyTorch's own words if the program calls an op on dtypes that PyTorch refuses. Symbolic
        # tracing does not run the call, so that the rule is the first to notice.
        except RuleError as error:
            if why := refused_dtypes(request.node):
                raise CaptureError(_refused_by_pytorch(request.node, why)) from error
            # `from error.__cause__`: the handler is not part of the story, the exception in the rule is.
            raise error.at(request.node) from error.__cause__
        self.runs += isinstance(found, Expansion)
        return self._narrow(found)

    def _narrow(self, found: Expansion | Declined) -> Expansion | Declined:
        """The expansion with int32 instead of int64, if the target requires it. (float64 in a rule is there for
        accuracy, and stays.)"""
        narrow = self.target.narrower.get(torch.int64)
        # Without metadata no node says that it is int64.
        if narrow is None or isinstance(found, Declined) or mode_of(found.graph) is None:
            return found
        narrowed = narrow_graph(found.graph, {torch.int64: narrow})
        if narrowed is None:
            return found
        calls = (node.target for node in found.graph.nodes if node.op == "call_function")
        # Bits that int64 would keep above the 32nd are what a rule
        # shifts them for, as in a hash or in bit patterns of float64.
        if any(of_function(target).op.short in SHIFT_OPS for target in calls):
            return Declined("computes in int64 and shifts bits left, which would overflow with narrow=True")
        for call, (what, dtype) in narrowed.refused.items():
            return Declined(f"computes in int64: {spell_target(call.target)} takes {what}, which {dtype} cannot hold")
        # Casts on either side of a narrowed call that both became the identity are dead now.
        drop_dead(narrowed.rewrite.graph)
        return replace(found, graph=narrowed.rewrite.graph)

    def _site(self, request: Request) -> Site:
        """The mode and dialect in which to record: the program's own fake mode for symbolic sizes, none if metadata is
        missing. Overloads that PyTorch's kernels left in a graph of the torch dialect are recorded as ATen."""
        node, (_, tensor_args, symbolic, read) = request.node, request.signature
        mode = self.mode if symbolic else self.memory.mode
        # One unknown operand is enough: no call of the rule on it can be run on fake tensors.
        if self.mode is None or any(metadata(given) is None for given in tensor_args):
            mode = None
        dialect = "aten" if isinstance(node.target, torch._ops.OpOverload) else self.dialect
        fakes = self.memory.fakes if mode is self.memory.mode else self._fakes if mode is not None else None
        return Site(node, tensor_args, mode, dialect, read, fakes)

    def _for_all_sizes(self, found: Expansion | Declined, request: Request) -> Expansion | Declined:
        """The expansion, unless it is only correct at the sizes of the example."""
        _, tensor_args, symbolic, read = request.signature
        if not symbolic or self._other_sizes is None or isinstance(found, Declined) or found.at_other_sizes:
            return found
        why_not = self._other_sizes.why_not(found.graph, request.node, tensor_args, read)
        return found if why_not is None else declined_for_sizes(found.rule, f"{_HOLDS_AT_SOME_SIZES}: {why_not}")


_OPS_OF_PYTORCH = ("aten", "prims", "prim", "quantized", "quantized_decomposed")


def _is_of_pytorch(node: fx.Node) -> bool:
    """Whether the implementation of a call is PyTorch's own code."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in _OPS_OF_PYTORCH
    return not _is_of_python(node)


def _is_of_python(node: fx.Node) -> bool:
    """Whether a call is of a user-defined Python function, which need not do the same every time."""
    return isinstance(node.target, types.FunctionType) and not node.target.__module__.startswith("torch")


def _is_view(graph: fx.Graph, request: Request) -> bool:
    """Whether the results of a graph have the expected strides, without a copy of what the call returns a view of."""
    if changed_strides(graph, request.expected) is not None:
        return False
    return all(view_chain(node)[-1].op == "placeholder" for node in graph.output_node().all_input_nodes)


def _refused_by_pytorch(node: fx.Node, why: str) -> str:
    remedy = "cast its operands to one dtype; autocast is recorded by torch.export, and not by a symbolic trace"
    return (
        f"PyTorch itself does not run {spell_target(node.target)} here: {why}\n  at {describe(node)}\n  to do: {remedy}"
    )


@functools.lru_cache(maxsize=64)
def _target_of_pairs(target: Target) -> Target:
    """The target to which complex calls are expanded."""
    # The alternatives by `where` and `cos` are shorter, and a target that lacks these as well derives them in turn:
    # claiming them only ranks the rules. `cos` in float64 has no meaning for a target that knows no float64.
    known = {"where", "convolution"} | (set() if target.knows_dtype(torch.float64) else {"cos"})
    # As if it had none of these: a pair is two real tensors,
    # on which a complex transform is no call of the target's.
    return (target | known) - {"_fft_r2c", "_fft_c2r", "_fft_c2c", "take"}


class ComplexCalls:
    """The expansions of complex calls to be computed on pairs of real numbers. Rules that decompose complex numbers by
    Fourier transforms, or without `where`, are only for targets that have no alternative."""

    def __init__(self, alternatives: Alternatives) -> None:
        self.alternatives = Alternatives(
            alternatives.rules,
            _target_of_pairs(alternatives.target),
            alternatives.dialect,
            alternatives.mode,
            alternatives.memory,
            alternatives.composites,
        )

    def key(self, node: fx.Node) -> tuple[Any, bool]:
        """The signature of a call, and whether it has symbolic sizes of this program."""
        signature = self.alternatives.memory.signatures.of(node)
        return signature.key, signature.symbolic

    def of(self, node: fx.Node) -> Iterator[Expansion]:
        """The expansions of a call by rules, in order, then by PyTorch's own kernel."""
        signature = self.alternatives.memory.signatures.of(node)
        request = Request(node, signature, LEVELS[0], call=call_if_bound(node))
        own = self.alternatives
        for each in itertools.chain(own.of_rules(request), own.of_composite(request)):
            if isinstance(each.expansion, Expansion):
                yield each.expansion

    def recorded_in(self, symbolic: bool) -> tuple[FakeTensorMode, Fakes | None]:
        """The fake mode in which expansions for these sizes are recorded."""
        memory = self.alternatives.memory
        if not symbolic or self.alternatives.mode is None:
            return memory.mode, memory.fakes
        return self.alternatives.mode, None
