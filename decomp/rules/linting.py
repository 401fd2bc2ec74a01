"""The linter compares a rule's parameters with the schema of its op. It finds arguments that a rule does not take, or
takes as something else, without running anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
import inspect
from typing import Any

import torch

from decomp.errors import boundary, locate_function, spell_target
from decomp.ir import spellings
from decomp.ir.ops import Op
from decomp.ir.schema import MISSING, Parameter, names, overloads, parameters
from decomp.rules.rule import known_as
from decomp.rules.rules import Rule, Rules, as_rules
from decomp.rules.torch_tables import entries


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a rule."""

    rule: str
    """The rule and its location: `softplus (activation.py:12)`."""
    op: str
    """The op or overload whose schema it contradicts."""
    problem: str

    def __str__(self) -> str:
        return f"{self.op}: {self.rule} {self.problem}"


@boundary("lint")
def lint(rules: Rules | Mapping[Any, Callable[..., Any]]) -> tuple[Finding, ...]:
    """Return a `Finding` for each problem of rules' parameters, or of those of a decomposition table in PyTorch's
    format (functions by overload): names that the op does not have, an order or defaults that differ from the op's, and
    arguments of calls that are not taken. Otherwise empty. Raises `UnknownOp` for a key that is not an op.

    The order matters only for tables, whose entries are called by position; rules are bound by name."""
    if not isinstance(rules, Mapping):
        rules = as_rules(rules)
    if not isinstance(rules, Rules):
        return tuple(finding for overload, function in entries(rules) for finding in _of_entry(overload, function))
    served: dict[Any, list[Op]] = {}
    for rule in rules:
        served.setdefault(_code(rule), []).append(rule.op)
    return tuple(finding for rule in rules for finding in _of_rule(rule, served[_code(rule)]))


def _code(rule: Rule) -> Any:
    """The code of a rule, which several ops may share: one function for all, or closures of one function."""
    return getattr(rule.function, "__code__", rule.function)


def _of_rule(rule: Rule, served: list[Op]) -> Iterator[Finding]:
    """Findings on a rule whose code serves all of `served`: a parameter is valid if one of them has it."""
    if rule.overload is not None:
        yield from _of_entry(rule.overload, rule.function)
        return
    if rule.parameters is None or not overloads(rule.op):
        return
    # One function may serve several ops, whose calls have different arguments.
    known = {p.name for op in served for _, params in overloads(op) for p in params} | set(rule.order or ())
    places = max(len(params) for _, params in overloads(rule.op))
    for i, parameter in enumerate(rule.parameters):
        name = known_as(parameter.name, known)
        # A rule may call its operands as it likes, if it takes them first and requires them: they are bound by
        # position.
        leading = parameter.default is parameter.empty and i < places
        if name is None and not leading:
            problem = f"takes {parameter.name}, which the op does not have ({', '.join(names(rule.op))})"
            yield Finding(str(rule), str(rule.op), problem)
        elif name is not None and not _agree(parameter, served, name):
            problem = f"has {name}={parameter.default!r} by default, where the op has {_defaults(served, name)}"
            yield Finding(str(rule), str(rule.op), problem)


def _own(served: list[Op], name: str) -> list[Parameter | None]:
    """The argument in each overload, None where it has none."""
    return [next((p for p in params if p.name == name), None) for op in served for _, params in overloads(op)]


def _agree(parameter: inspect.Parameter, served: list[Op], name: str) -> bool:
    """Whether the default is that of some overload. Any default is fine where an overload has none."""
    if parameter.default is parameter.empty:
        return True
    own = _own(served, name)
    return any(p is None or p.default is MISSING or _same_default(parameter.default, p) for p in own)


def _defaults(served: list[Op], name: str) -> str:
    return " or ".join(sorted({repr(p.default) for p in _own(served, name) if p is not None}))


def _of_entry(overload: torch._ops.OpOverload, function: Callable[..., Any]) -> Iterator[Finding]:
    """Findings on an entry, which is called as its schema says: by position, and by name after the star."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    taken = tuple(signature.parameters.values())
    kinds = {p.kind for p in taken}
    for problem in _of_signature(taken, kinds, parameters(overload)):
        yield Finding(f"{spell_target(function)} ({locate_function(function)})", str(overload), problem)


def _of_signature(
    taken: tuple[inspect.Parameter, ...], kinds: set[Any], wanted: tuple[Parameter, ...]
) -> Iterator[str]:
    by_name = {p.name: i for i, p in enumerate(taken)}
    positional = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    given: set[str] = set()
    for i, parameter in enumerate(wanted):
        if parameter.keyword_only:
            yield from _by_keyword(parameter, taken, by_name, kinds)
            given.add(parameter.name)
        elif i < len(positional):
            yield from _by_place(parameter, positional[i], by_name, i)
            given.add(positional[i].name)
        elif inspect.Parameter.VAR_POSITIONAL not in kinds:
            yield f"takes no {parameter.name}, which a call may give"
    for own in taken:
        if own.default is own.empty and own.name not in given and own.kind not in _VARIADIC:
            yield f"requires {own.name}, which no call has"


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _by_keyword(
    parameter: Parameter, taken: tuple[inspect.Parameter, ...], by_name: Mapping[str, int], kinds: set[Any]
) -> Iterator[str]:
    if parameter.name in by_name:
        yield from _by_default(parameter, taken[by_name[parameter.name]])
    elif inspect.Parameter.VAR_KEYWORD not in kinds and parameter.name not in spellings.IGNORED:
        yield f"takes no {parameter.name}, which a call may give"


def _by_place(parameter: Parameter, own: inspect.Parameter, by_name: Mapping[str, int], i: int) -> Iterator[str]:
    if own.name != parameter.name and by_name.get(parameter.name, i) != i:
        yield f"takes {own.name} where the op has {parameter.name}"
    else:
        yield from _by_default(parameter, own)


def _by_default(parameter: Parameter, own: inspect.Parameter) -> Iterator[str]:
    if parameter.default is MISSING:
        return
    if own.default is own.empty:
        yield f"requires {own.name}, which a call may leave out"
    elif not _same_default(own.default, parameter):
        yield f"has {own.name}={own.default!r} by default, where the op has {parameter.default!r}"


_PLACEMENT = {*spellings.IGNORED, "layout", "pin_memory", "memory_format", "device"}
"""Arguments for the placement and layout of a result, whose defaults are spelled differently."""


def _same_default(own: Any, parameter: Parameter) -> bool:
    """Whether two defaults mean the same: a single number is a list of it, a list equals a tuple, 0 equals False."""
    theirs = parameter.default
    if own is None or parameter.name in _PLACEMENT:
        return True  # None means "not given", whatever the op then does
    if isinstance(theirs, (list, tuple)) or isinstance(own, (list, tuple)):
        return bool(_listed(own, parameter) == _listed(theirs, parameter))
    if isinstance(own, str) and parameter.name == "reduction":
        return bool(spellings.REDUCTIONS.get(own) == theirs)
    return bool(own == theirs)


def _listed(value: Any, parameter: Parameter) -> Any:
    """A default as a list; `[0]` is repeated to the length of the schema's list."""
    if isinstance(value, (list, tuple)):
        return list(value) * (parameter.length or 1) if len(value) == 1 else list(value)
    return [value] * (parameter.length or 1)
