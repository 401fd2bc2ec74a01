"""Rules for patterns: functions that replace several calls of a program together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
import functools
import inspect
import re
from typing import Any

from torch import nn

from decomp.errors import RuleError, first_line, pickle_or_explain
from decomp.ir.ops import Op
from decomp.ir.schema import Bound
from decomp.patterns.found import Match
from decomp.patterns.pattern import Pattern
from decomp.rules.declining import Declined
from decomp.rules.requirements import Needs
from decomp.rules.rule import Rule

Where = Callable[[Match], Any]
"""Whether a match is accepted: true; or false, or the reason as a string."""


@dataclass(frozen=True, eq=False)
class PatternRule(Rule):
    """A function that computes what a pattern computes; a rule for that pattern alone."""

    pattern: Pattern = field(kw_only=True)
    where: Where | None = field(default=None, kw_only=True)
    by_name: bool = field(default=True, kw_only=True)
    """Whether its function takes the variables of the pattern by name; otherwise by position."""

    def __str__(self) -> str:
        elsewhere = "" if self.pattern.location == self.location else f", for the pattern at {self.pattern.location}"
        return f"{self.name} ({self.location}){elsewhere}"

    def accept(self, bound: Bound) -> tuple[list[Any], dict[str, Any]] | Declined:
        """The values of the pattern's variables, in order."""
        return list(bound.arguments.values()), {}

    @property
    def on_accepted(self) -> Callable[..., Any]:
        """The function, taking the values of the variables in order."""
        pattern, names = self.pattern, {parameter.name for parameter in self.parameters or ()}

        @functools.wraps(self.function)
        def replaced(*values: Any) -> Any:
            given = pattern.arguments(dict(zip(pattern.variables, values)))
            if not self.by_name:
                return self.function(*given.values())
            return self.function(**{name: value for name, value in given.items() if name in names})

        return replaced

    def why_not(self, match: Match) -> str | None:
        """Why the rule's condition rejects a match; None if it accepts it. Raises `RuleError`."""
        if self.where is None:
            return None
        try:
            found = self.where(match)
        except Exception as error:
            text = f"the condition where= failed with {type(error).__name__}: {first_line(error)}"
            raise RuleError(self, text, 'match["x"] is the metadata of the value of x, or a number') from error
        if isinstance(found, (str, Declined)):
            return found if isinstance(found, str) else found.reason
        return None if found else "the condition where= does not hold"

    def __reduce__(self) -> tuple[Any, ...]:
        remedy = "define the functions of a pattern rule at the top level of a module, under names of their own"
        source, modules = self.pattern.source
        for function in (source, self.function, self.where):
            pickle_or_explain(function, f"rule {self}", remedy)
        return pattern_rule, (source, modules, self.function, self.where, self.name, self.needs, self.level)


_LAMBDA = "<lambda>"


def pattern_rule(
    pattern: Any,
    modules: Mapping[str, type[nn.Module]],
    function: Any,
    where: Where | None,
    name: str | None,
    needs: Needs,
    level: str | None,
) -> PatternRule:
    """The rule that replaces a pattern by the result of `function`. Raises `ArgumentError`, `RuleError`."""
    # A lambda has no name that would say anything in a report.
    names = (name, getattr(function, "__name__", _LAMBDA), getattr(pattern, "__name__", _LAMBDA))
    title = re.sub(r"\W", "_", next((each for each in names if each and each != _LAMBDA), "pattern"))
    own = Pattern.of(pattern, title, **modules)
    own = own.named(title) if own is pattern else own
    try:
        signature: inspect.Signature | None = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature checks its arguments when it is called
        signature = None
    # A builtin, or a function whose parameters are called otherwise, takes the variables in order.
    by_name = signature is not None and signature.parameters.keys() <= own.parameters.keys()
    rule = PatternRule(
        Op(own.__qualname__), function, title, needs=needs, level=level, pattern=own, where=where, by_name=by_name
    )
    try:
        if signature is not None and not by_name:
            signature.bind(*own.parameters)
    except TypeError:
        assert signature is not None
        takes, has = ", ".join(signature.parameters), ", ".join(own.parameters)
        problem = f"takes ({takes}), but the pattern has ({has})"
        raise RuleError(rule, problem, "name the parameters as in the pattern, or take all of them") from None
    return rule
