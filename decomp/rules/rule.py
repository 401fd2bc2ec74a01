"""Rules: a rule is a plain Python function over tensors that computes one op from others. Here the arguments of a call
are bound to those of the function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
import functools
import inspect
from typing import Any

import torch

from decomp.errors import RuleError, locate_function, pickle_or_explain
from decomp.ir import spellings
from decomp.ir.ops import Op, once_known
from decomp.ir.python_signatures import python_signature
from decomp.ir.schema import MISSING, Bound, Parameter, names, overloads
from decomp.rules.declining import Declined
from decomp.rules.limitation import from_library, library_place
from decomp.rules.requirements import Needs


# Compared by identity: one function may be registered twice, as two alternatives.
@dataclass(frozen=True, eq=False)
class Rule:
    """A function that computes one op; one alternative of possibly several."""

    op: Op
    function: Callable[..., Any]
    name: str
    order: tuple[str, ...] | None = None
    """Schema names of the positional parameters, in the order of the Python function it was registered with, if any."""
    texts: bool = False
    """Whether it takes `reduction` as a string ("mean"), as `torch.nn.functional` does, not as the schema's number."""
    needs: Needs = ()
    """Ops that a target must have, or must not have, for this rule to be tried."""
    overload: torch._ops.OpOverload | None = None
    """The overload that it decomposes, if it comes from a decomposition table: it is used for that overload only, and
    runs on fake tensors under a tracing mode instead of on proxies."""
    spelled: tuple[tuple[str, str | None, Any], ...] = ()
    """Parameters of the Python function it was registered for: name, the schema's name if there is one, default."""
    level: str | None = None
    """The level of accuracy that it reaches, as its certificate shows. None: its accuracy is its author's
    responsibility, and it is used at every level."""
    forward_only: bool = False
    """Whether it is for inference only: its values are correct, but its gradient need not be."""
    version: str | None = None
    """The author's promise that the rule behaves the same wherever this is the same."""
    parameters: tuple[inspect.Parameter, ...] | None = field(init=False)
    takes_rest: bool = field(init=False)
    """Whether it has `**kwargs`."""

    def __post_init__(self) -> None:
        found = _parameters(self.function)
        named = found and tuple(p for p in found if p.kind is not p.VAR_KEYWORD)
        # Once for a rule, as `inspect.signature` takes longer than binding.
        object.__setattr__(self, "parameters", named)
        object.__setattr__(self, "takes_rest", found != named)

    def name_of(self, parameter: str, known: set[str]) -> str | None:
        """The schema's name for a parameter, which may have the name it has in the registered function."""
        own = next((schema for name, schema, _ in self.spelled if name == parameter), None)
        return own or known_as(parameter, known)

    def beyond_schema(self, parameter: inspect.Parameter) -> bool:
        """Whether only the function it was registered for has the parameter, and no schema (`inplace`)."""
        return any(name == parameter.name and schema is None for name, schema, _ in self.spelled)

    @property
    def on_accepted(self) -> Callable[..., Any]:
        """The function, for the arguments that `accept` returns."""
        return self.function

    @property
    def location(self) -> str:
        """`file.py:12`."""
        return locate_function(self.function)

    def __str__(self) -> str:
        return f"{self.name} ({self.location})"

    def __reduce__(self) -> tuple[Any, ...]:
        place = library_place(self)
        if place is not None:
            return from_library, place
        function, overload = portable(self.function), portable(self.overload)
        pickle_or_explain(
            function, f"rule {self}", "define its function at the top level of a module, under a name of its own"
        )
        rest = self.name, self.order, self.texts, self.needs, overload, self.spelled, self.level, self.forward_only
        return _rule_from, (self.op, function, *rest, self.version)

    def __copy__(self) -> Rule:
        return self

    def __deepcopy__(self, memo: Any) -> Rule:
        return self

    def accept(self, bound: Bound) -> tuple[list[Any], dict[str, Any]] | Declined:
        """The positional and keyword arguments for the function, or `Declined` if it does not take them."""
        if self.overload is not None:
            fits = _means(self.overload, bound)
            return _arguments_in_schema_order(bound) if fits else Declined(f"is for {self.overload}", applicable=False)
        if self.parameters is None:
            return _bind_by_position(self, *_arguments_in_schema_order(bound))
        return _by_name(self, bound)


def _rule_from(
    op: Op, function: Any, name: str, order: Any, texts: bool, needs: Needs, overload: Any, *rest: Any
) -> Rule:
    return Rule(op, from_portable(function), name, order, texts, needs, from_portable(overload), *rest)


@dataclass(frozen=True)
class _Overload:
    """An overload or packet by name, as torch 2.13 cannot pickle them."""

    name: str


def portable(function: Any) -> Any:
    kinds = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
    return _Overload(str(function)) if isinstance(function, kinds) else function


def from_portable(value: Any) -> Any:
    return functools.reduce(getattr, value.name.split("."), torch.ops) if isinstance(value, _Overload) else value


def _means(overload: torch._ops.OpOverload, bound: Bound) -> bool:
    return overload.overloadpacket is bound.op.packet and overload._overloadname == (bound.overload or "default")


def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...] | None:
    """The parameters of `function`, or None if it takes any arguments (builtins, `*args`)."""
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return None
    try:
        found = tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in found) or [p.kind for p in found] == [inspect.Parameter.VAR_KEYWORD]:
        return None
    return found


def _bind_by_position(
    rule: Rule, args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]] | Declined:
    """The arguments in the form of the schema, for a rule that takes them by position; or why it cannot."""
    try:
        signature = inspect.signature(rule.function)
    except (TypeError, ValueError):  # a builtin without a signature checks its arguments when it is called
        return args, kwargs
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return Declined(f"cannot be called with the arguments of the op: {error}", applicable=False)
    return args, kwargs


def python_parameters(spelling: Any, op: Op) -> tuple[tuple[str, str | None, Any], ...]:
    """The parameters of a Python function of torch in its own order: name, schema's name (None if the op has no such
    argument), default."""
    signature = python_signature(spelling) if inspect.isfunction(spelling) and op.packet is not None else None
    if signature is None:
        return ()
    known, renamed = names(op), spellings.RENAMED.get(op.short, {})
    found: list[tuple[str, str | None, Any]] = []
    for i, (name, parameter) in enumerate(signature.parameters.items()):
        canonical = renamed.get(name, name)
        canonical = canonical if canonical in known else spellings.KEYWORDS.get(canonical, canonical)
        canonical = known[0] if i == 0 and canonical not in known else canonical
        default = None if parameter.default is parameter.empty else parameter.default
        found.append((name, canonical if canonical in known else None, default))
    return tuple(found)


def check_arity(rule: Rule) -> None:
    """Raise `RuleError` for a rule that no call of its op can ever match."""
    if rule.parameters is None or not overloads(rule.op):
        return
    if not any(_can_serve(rule, params) for _, params in overloads(rule.op)):
        takes, has = ", ".join(p.name for p in rule.parameters), ", ".join(names(rule.op))
        raise RuleError(
            rule,
            f"takes ({takes}), which matches no call of {rule.op} ({has})",
            "use the op's parameter names, and give defaults to parameters that not every call has",
        )


def _can_serve(rule: Rule, params: tuple[Parameter, ...]) -> bool:
    """Whether the rule takes every argument that these parameters require, and requires no other."""
    matched = _match_parameters(rule, rule.order or tuple(p.name for p in params))
    known, taken = {p.name for p in params}, {name for name, _ in matched}
    needed = all(name in known or rule.beyond_schema(p) for name, p in matched if p.default is p.empty)
    return needed and (rule.takes_rest or all(p.name in taken for p in params if p.required))


@once_known
def _schema(op: Op, overload: str | None) -> dict[str, Parameter]:
    return {p.name: p for name, params in overloads(op) if name == overload for p in params}


def _by_name(rule: Rule, bound: Bound) -> tuple[list[Any], dict[str, Any]] | Declined:
    schema = _schema(bound.op, bound.overload)
    # The order of the function that it was registered by comes first: `F.batch_norm` takes the statistics before the
    # weight, and its op takes them after the bias.
    order = rule.order or tuple(schema) or tuple(bound.arguments)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    taken = set()
    for name, parameter in _match_parameters(rule, order):
        if name in bound.arguments:
            taken.add(name)
            value = _as_rule_means(rule, name, _listed(schema.get(name), bound.arguments[name]))
        elif parameter.default is not parameter.empty:
            value = parameter.default
        elif rule.beyond_schema(parameter):
            value = next(default for own, _, default in rule.spelled if own == parameter.name)
        else:
            return Declined(f"needs the argument {name or parameter.name}, which the call lacks", applicable=False)
        if parameter.kind is parameter.KEYWORD_ONLY:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    for name, value in bound.arguments.items():
        if name not in taken and not _is_negligible(schema.get(name), name, value, bound):
            if rule.takes_rest:
                kwargs[next((own for own, known, _ in rule.spelled if known == name), name)] = value
                continue
            return Declined(f"does not take {name}={_brief(value)}", applicable=False)
    return args, kwargs


def _match_parameters(rule: Rule, order: tuple[str, ...]) -> list[tuple[str | None, inspect.Parameter]]:
    """Each parameter of the rule with the schema's name for it: its own, or the one at its position."""
    assert rule.parameters is not None
    known = {*names(rule.op), *order}
    own = {p.name: rule.name_of(p.name, known) for p in rule.parameters}
    claimed = set(own.values())
    matched: list[tuple[str | None, inspect.Parameter]] = []
    for i, parameter in enumerate(rule.parameters):
        name = own[parameter.name]
        # An argument that another parameter takes by its name is not taken by position as well.
        if name is None and i < len(order) and order[i] not in claimed and _by_place(rule, parameter, order[i]):
            name = order[i]
        matched.append((name, parameter))
    return matched


def _by_place(rule: Rule, parameter: inspect.Parameter, name: str) -> bool:
    """Whether a parameter of another name takes the argument at its position. (`inplace=False` of `F.relu`, used as a
    rule for `gelu`, does not take `approximate`.)"""
    if parameter.kind is parameter.KEYWORD_ONLY:
        return False
    tensors = {p.name for _, params in overloads(rule.op) for p in params if p.type.startswith("Tensor")}
    return parameter.default is parameter.empty or not overloads(rule.op) or name in tensors


def known_as(name: str, known: set[str]) -> str | None:
    """The schema's name for a parameter of a rule: its own, or without Python's underscore (`from_` is `from`)."""
    if name in known:
        return name
    # To PyTorch's parser `x` is NumPy's name of `self`, but a rule for any op may call its first parameter so.
    other = spellings.KEYWORDS.get(name, name.rstrip("_")) if name != "x" else None
    return other if other in known else None


def _listed(parameter: Parameter | None, value: Any) -> Any:
    """A single number as a list, where the schema has a list."""
    if parameter is not None and parameter.type in ("int[]", "SymInt[]") and isinstance(value, (int, torch.SymInt)):
        return [value] * (parameter.length or 1)
    return value


def _as_rule_means(rule: Rule, name: str, value: Any) -> Any:
    if rule.texts and name == "reduction" and isinstance(value, int):
        return next(text for text, number in spellings.REDUCTIONS.items() if number == value)
    return value


def _is_negligible(parameter: Parameter | None, name: str, value: Any, bound: Bound) -> bool:
    """Whether a rule can ignore this argument: it has its default, or cannot change a value."""
    if name not in bound.given or name in spellings.IGNORED or name == "memory_format":
        return True
    if value is None or (name == "layout" and value is torch.strided):
        return True
    if parameter is None or parameter.default is MISSING:
        return False
    return type(value) in (int, float, bool, str, list, tuple) and _same(value, parameter)


def _same(value: Any, parameter: Parameter) -> bool:
    default = _listed(parameter, parameter.default)
    value = _listed(parameter, value)
    return bool((list(value) if isinstance(value, tuple) else value) == default)


def _arguments_in_schema_order(bound: Bound) -> tuple[list[Any], dict[str, Any]]:
    """All arguments, in the order and by the names of the op's schema; those at their defaults are left out."""
    schema = _schema(bound.op, bound.overload)
    written = [
        (name, value)
        for name, value in bound.arguments.items()
        if not _is_negligible(schema.get(name), name, value, bound)
        or (name in bound.given and (schema.get(name) is None or schema[name].default is MISSING))
    ]
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, value in written:
        in_place = len(args) < len(bound.arguments) and list(bound.arguments)[len(args)] == name
        if in_place and not kwargs and not (schema.get(name) is not None and schema[name].keyword_only):
            args.append(value)
        else:
            kwargs[name] = value
    return args, kwargs


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
