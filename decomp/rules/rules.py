"""Collections of rules, with several alternatives for an op. A collection is a value: composed with `|` and `-`, passed
as an argument, never global."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
import functools
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from decomp.errors import ArgumentError, RuleError, spell_target
from decomp.ir.call import Call
from decomp.ir.ops import Op, op as op_of
from decomp.rules.accuracy import require_level
from decomp.rules.instance_checks import require_no_tensor_checks
from decomp.rules.limitation import Limitation, first_applicable
from decomp.rules.pattern_rules import PatternRule, Where, pattern_rule
from decomp.rules.requirements import needs_of
from decomp.rules.rule import Rule as Rule, check_arity, python_parameters
from decomp.rules.target import Target

F = TypeVar("F", bound=Callable[..., Any])
Entry = Rule | Limitation


class Rules:
    """Rules by op; the alternatives of an op are in order of registration.

    ```python
    rules = Rules()

    @rules.register(F.relu)
    def relu(x):
        return torch.where(x > 0, x, 0)
    ```
    """

    def __init__(
        self,
        rules: Mapping[Any, Any] | Iterable[Entry] = (),
        *,
        composites: bool = False,
        level: str | None = None,
        version: str | None = None,
    ) -> None:
        """`rules`: a dict from op (any spelling) to a function or a list of functions, or `Rule`s and `Limitation`s.
        With `composites`, an op without a rule is expanded by tracing PyTorch's own composite kernel, if it has one.
        `level`: the default level of functions registered here. `version`: the version of these functions, as "1.3"; a
        promise that with the same version they record the same calls, so that their expansions are cached on disk.
        Without it, they run in each process. Raises `ArgumentError`."""
        self._rules: dict[Op, tuple[Rule, ...]] = {}
        self._limitations: dict[Op, tuple[Limitation, ...]] = {}
        self._patterns: tuple[PatternRule, ...] = ()
        self.composites = composites
        self.level = level and require_level(level, "level=")
        self.version = _require_version(version)
        self.memory: dict[Any, Any] = {}
        """The planner's cache for these rules, by target; cleared when a rule is added."""
        self.origins: Any = None
        """The origins of all entries' functions, cached on first use."""
        self.trains = True
        """Whether programs planned with these rules can be trained."""
        self._forward_only: Rules | None = None
        if isinstance(rules, Mapping):
            for spelling, functions in rules.items():
                for function in functions if isinstance(functions, (list, tuple)) else (functions,):
                    self.register(spelling)(function)
        else:
            for entry in _entries(rules):
                self._limit(entry) if isinstance(entry, Limitation) else self._add(entry)

    @classmethod
    def from_torch(cls, table: Mapping[Any, Callable[..., Any]]) -> Rules:
        """Rules from a decomposition table, `{torch.ops.aten.addcdiv.default: function}`. Each entry is a rule for its
        overload only, and is traced once for each signature. Raises `UnknownOp`, and `ArgumentError` for
        what is not a table.

        ```python
        theirs = Rules.from_torch(torch._decomp.core_aten_decompositions())
        decomp.lower(model, to=chip, rules=my_rules | theirs, args=(x,))
        ```
        """
        from decomp.rules.torch_tables import rules_of

        if not isinstance(table, Mapping):
            raise ArgumentError(f"a decomposition table maps overloads to functions; got {type(table).__name__}")
        return cls(rules_of(table))

    def register(
        self,
        *spellings_: Any,
        name: str | None = None,
        needs: Any = (),
        unless: Any = (),
        level: str | None = None,
        forward_only: bool = False,
        when: Any = True,
    ) -> Callable[[F], F]:
        """A decorator that registers a function as a rule for one or more ops, by any spelling. With `needs`, the rule
        is tried only for targets that have each of these ops, or at least one op of a tuple, as in `["exp", ("softmax",
        "_softmax")]`: it would be a poor choice if these had to be expanded too. With `unless`, only for targets that
        have none of these. `level`: the accuracy that it reaches, "exact", "standard" or "fast". Of the rules with a
        level that are accurate enough the cheapest is used; of rules without a level, the first that applies.
        `forward_only`: only for programs that are not trained (`training=False`), as its gradient is not the op's.
        `when`: registers nothing if false, for an op whose meaning differs in the installed PyTorch
        (`when=not changes.ties_share_gradients`, of `decomp.ops.changes`). Raises `UnknownOp`, `RuleError` if no call
        of the op has the function's parameters, `ArgumentError`."""
        if not spellings_:
            raise ArgumentError("register() needs an op: @rules.register(F.relu)")
        # Here and not when the function comes, so that a misspelt op fails at the line of the decorator.
        found = [(spelling, op_of(spelling)) for spelling in spellings_]
        made = functools.partial(
            Rule,
            needs=needs_of(needs, unless),
            level=self.level if level is None else require_level(level, "level="),
            forward_only=forward_only,
            version=self.version,
        )

        def registered(function: F) -> F:
            if not callable(function):
                raise ArgumentError(f"a rule must be a function over tensors, not {function!r}")
            for spelling, op in found if when else ():
                own = python_parameters(spelling, op)
                order = tuple(schema or python for python, schema, _ in own) or None
                rule = made(op, function, name or _title(function, op), order, order is not None, spelled=own)
                check_arity(rule)
                require_no_tensor_checks(rule, function)
                self._add(rule)
            return function

        return registered

    def pattern(
        self,
        pattern: Any,
        *,
        where: Where | None = None,
        name: str | None = None,
        needs: Any = (),
        unless: Any = (),
        level: str | None = None,
        **modules: type[nn.Module],
    ) -> Callable[[F], F]:
        """A decorator that registers a function as the replacement of a pattern, several calls that belong together.

        ```python
        @rules.pattern(lambda x, w, b: F.relu(F.linear(x, w, b)))
        def linear_relu(x, w, b):
            return torch.ops.npu.linear_relu(x, w, b)
        ```

        `pattern`: a function of free variables, written in ordinary PyTorch, or a `decomp.Pattern`. It matches calls in
        any spelling. A variable matches any value, the same one at each use; a number matches that number. A variable
        with the default None may be absent. One annotated with a module class, or named in `modules`
        (`conv=nn.Conv2d`), matches any call of such a module in eval mode, and the function reads `conv.weight`,
        `conv.stride`, …. The function takes the variables by name, or all of them in order.

        `where(match)`: a condition; `match["x"]` is the metadata of x, or a number. It returns True, False, or the
        reason as a string. `name`, `needs`, `unless` and `level` are those of `register`. A match is replaced if the
        function can be lowered to the target and costs less than the calls. Raises `ArgumentError`, `RuleError`,
        `UnknownOp`."""
        needed = needs_of(needs, unless)
        reached = self.level if level is None else require_level(level, "level=")

        def registered(function: F) -> F:
            if not callable(function):
                raise ArgumentError(f"the replacement of a pattern must be a function over tensors, not {function!r}")
            rule = pattern_rule(pattern, modules, function, where, name, needed, reached)
            require_no_tensor_checks(rule, function)
            self._add(rule)
            return function

        return registered

    @property
    def patterns(self) -> tuple[PatternRule, ...]:
        """The rules for patterns, in order of registration."""
        return self._patterns

    def of_pattern(self, pattern: Any) -> tuple[PatternRule, ...]:
        """The rule for a pattern of this collection; none for anything else."""
        return tuple(rule for rule in self._patterns if rule.pattern is pattern)

    def limit(
        self, *spellings_: Any, reason: str, needs: Iterable[Any] = (), when: Callable[[Call], bool] | None = None
    ) -> None:
        """Declare that no rule can decompose an op, or those calls of it for which `when(call)` is true. `reason` is
        printed in the error. With `needs`, it applies to targets that lack one of these ops, or all ops of a tuple.
        With neither, a rule for the op takes its place. Raises `UnknownOp`.

        ```python
        rules.limit(torch.nonzero, reason="the shape of the result depends on data")
        ```
        """
        needed = needs_of(needs)
        for spelling in spellings_:
            self._limit(Limitation(op_of(spelling), reason, needed, when))

    @property
    def limitations(self) -> tuple[Limitation, ...]:
        """All declared limitations."""
        return tuple(limitation for declared in self._limitations.values() for limitation in declared)

    def limitation(self, call: Call, target: Target) -> str | None:
        """The declared reason why no rule can lower `call` to `target`, or None."""
        declared = self._limitations.get(call.op, ())
        # Without a condition it says that no rule exists. If one does, the reason is why that rule declines.
        declared = tuple(each for each in declared if each.is_conditional) if self.of(call.op) else declared
        return first_applicable(declared, call, target)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All rules, for ops and for patterns, and all limitations."""
        return (*self, *self._patterns, *self.limitations)

    def entries_of(self, op: Op) -> tuple[Entry, ...]:
        """All rules and all limitations of one op."""
        return (*self.of(op), *self._limitations.get(op, ()))

    def _limit(self, limitation: Limitation) -> None:
        self._limitations[limitation.op] = (*self._limitations.get(limitation.op, ()), limitation)
        self._forget()

    def _forget(self) -> None:
        self.memory.clear()
        self._forward_only = self.origins = None

    def _add(self, rule: Rule) -> None:
        self._forget()
        if isinstance(rule, PatternRule):
            self._patterns = (*self._patterns, rule)
            return
        self._rules[rule.op] = (*self._rules.get(rule.op, ()), rule)

    def of(self, op: Op) -> tuple[Rule, ...]:
        """The rules for `op`, in the order in which they are tried; possibly none."""
        return self._rules.get(op, ())

    def __getitem__(self, spelling: Any) -> tuple[Rule, ...]:
        found = self.of(op_of(spelling))
        if not found:
            raise KeyError(f"no rule for {op_of(spelling)}")
        return found

    def __contains__(self, spelling: Any) -> bool:
        return bool(self.of(op_of(spelling)))

    def __iter__(self) -> Iterator[Rule]:
        return (rule for alternatives in self._rules.values() for rule in alternatives)

    def __len__(self) -> int:
        return sum(map(len, self._rules.values()))

    def __repr__(self) -> str:
        more = f", {len(self._patterns)} for patterns" if self._patterns else ""
        return f"Rules({len(self)} rules for {len(self._rules)} ops{more})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rules_from, (self.entries, self.composites, self.level, self.version)

    def __copy__(self) -> Rules:
        return _rules_from(self.entries, self.composites, self.level, self.version)

    def __deepcopy__(self, memo: Any) -> Rules:
        return _rules_from(self.entries, self.composites, self.level, self.version)

    @property
    def forward_only(self) -> Rules:
        """These rules for programs that are not trained: `detach` is replaced by its argument unless the target has it.
        Cached, so that planning caches are shared."""
        if not self.trains:
            return self
        if self._forward_only is None:
            found = Rules(self.entries, composites=self.composites, level=self.level)
            found.register("detach")(identity_for_detach)
            # One memory for both: the planner's keys contain `trains`.
            found.trains, found.memory = False, self.memory
            self._forward_only = found
        return self._forward_only

    @property
    def ops(self) -> frozenset[Op]:
        """The ops that have a rule."""
        return frozenset(self._rules)

    def __or__(self, other: Rules | Mapping[Any, Any]) -> Rules:
        """The rules of both; where both have rules for an op, those of the left side are tried first."""
        right = other if isinstance(other, Rules) else Rules(other)
        return Rules([*self.entries, *right.entries], composites=self.composites or right.composites)

    def __ror__(self, other: Mapping[Any, Any]) -> Rules:
        return Rules(other) | self

    def __sub__(self, other: Rules | Iterable[Any]) -> Rules:
        """These rules without those of `other`: rules of a collection, or all rules for the ops of a set."""
        if isinstance(other, Rules):
            # By function: the same rule is another object in each collection that registered it.
            gone = {rule.function for rule in other}
            gone.update(rule.function for rule in other.patterns)
            kept = [rule for rule in (*self, *self.patterns) if rule.function not in gone]
            return Rules([*kept, *self.limitations], composites=self.composites)
        without = {op_of(spelling) for spelling in other}
        return Rules([entry for entry in self.entries if entry.op not in without], composites=self.composites)


def _entries(rules: Any) -> list[Entry]:
    """The entries of rules in any accepted form. Raises `ArgumentError` for anything else."""
    wanted = "rules are a dict from op to function, or a sequence of rules"
    if not isinstance(rules, Iterable) or isinstance(rules, (str, bytes, nn.Module, Tensor)):
        raise ArgumentError(f"{wanted}, not {type(rules).__name__}\n  to do: Rules({{F.relu: function}})")
    entries = list(rules)
    wrong = next((entry for entry in entries if not isinstance(entry, (Rule, PatternRule, Limitation))), None)
    if wrong is not None:
        raise ArgumentError(f"{wanted}, and not one of {type(wrong).__name__}\n  to do: Rules({{F.relu: function}})")
    return entries


def identity_for_detach(x: Any) -> Any:
    """x itself: without gradients there is nothing to detach."""
    return x


def _title(function: Any, op: Op) -> str:
    """The default name of a rule: that of its function, or that of its op if the function is named just `rule`."""
    title = getattr(function, "__name__", None) or spell_target(function)
    return op.short if title == "rule" else title


def _rules_from(entries: Iterable[Entry], composites: bool, level: str | None, version: str | None) -> Rules:
    return Rules(entries, composites=composites, level=level, version=version)


def _require_version(version: Any) -> str | None:
    if version is not None and not (isinstance(version, str) and version):
        raise ArgumentError(f'version= must be a string such as "1.3", not {version!r}')
    return version


def as_rules(rules: Any) -> Rules:
    """`rules` as a collection; a plain dict is fine."""
    if isinstance(rules, Rules):
        return rules
    if isinstance(rules, Mapping):
        try:
            return Rules(rules)
        except RuleError as error:
            if not all(isinstance(op, torch._ops.OpOverload) for op in rules):
                raise
            remedy = "pass a decomposition table of PyTorch as rules=decomp.Rules.from_torch(table)"
            raise RuleError(error.rule, error.problem, f"{remedy}, or {error.remedy}") from error
    raise ArgumentError(f"rules= must be decomp.Rules or a dict of functions by op, not {type(rules).__name__}")
