"""Limitations: ops that cannot be decomposed in principle, declared next to the rules with the reason. Errors, tests
and documentation all use the same declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
import sys
from typing import Any

from decomp.errors import DecompError, NotPortable, RuleError, first_line, pickle_or_explain
from decomp.ir.call import Call
from decomp.ir.ops import Op
from decomp.rules.library import library
from decomp.rules.requirements import Needs, missing_ops
from decomp.rules.target import Target


@dataclass(frozen=True, eq=False)
class Limitation:
    """An op that no rule can decompose, and why."""

    op: Op
    reason: str
    """One clause, as "the shape of the result depends on data"."""
    needs: Needs = ()
    """Ops that a target must have for the op to be decomposed: the limitation does not apply to a target that has them
    all. If empty, it applies to every target without the op itself."""
    when: Callable[[Call], bool] | None = None
    """The calls it applies to; all, if None."""

    def holds(self, call: Call, target: Target) -> bool:
        """Whether the limitation applies to `call`, which is not legal in `target`."""
        return self.concerns(target) and (self.when is None or self._meant(self.when, call))

    def _meant(self, when: Callable[[Call], bool], call: Call) -> bool:
        try:
            return bool(when(call))
        # An error that a predicate raises for its user already says what to do.
        except DecompError:
            raise
        except Exception as error:
            problem = f"when= of its limitation failed with {type(error).__name__}: {first_line(error)}"
            raise RuleError(self.op, problem, "return whether the limitation is for this call", call.place) from error

    def concerns(self, target: Target) -> bool:
        """Whether some call of the op cannot be lowered to `target`."""
        if self.needs:
            return missing_ops(self.needs, target) is not None
        return self.when is not None or not target.knows(self.op)

    @property
    def is_conditional(self) -> bool:
        """Whether it says for which calls or targets it holds."""
        return self.when is not None or bool(self.needs)

    def __str__(self) -> str:
        return f"{self.op}: {self.reason}"

    def __reduce__(self) -> tuple[Any, ...]:
        place = library_place(self)
        if place is not None:
            return from_library, place
        pickle_or_explain(self.when, f"limitation {self}", "define the function of when= at the top level of a module")
        return Limitation, (self.op, self.reason, self.needs, self.when)

    def __copy__(self) -> Limitation:
        return self

    def __deepcopy__(self, memo: Any) -> Limitation:
        return self


def first_applicable(limitations: Iterable[Limitation], call: Call, target: Target) -> str | None:
    """The reason of the first limitation that applies to `call`, if any."""
    return next((limitation.reason for limitation in limitations if limitation.holds(call, target)), None)


def library_place(entry: Any) -> tuple[Op, int, str] | None:
    """A reference to this rule or limitation of the library: its op, its index there, and its text. Many rules of the
    library are closures, which cannot be pickled by name."""
    # Without importing it: no entry can come from a library that is not imported.
    loaded = getattr(sys.modules.get("decomp_rules"), "RULES", None)
    known = loaded.entries_of(entry.op) if loaded is not None else ()
    # The text goes along, so that another version of the library does not give another rule in silence.
    return next(((entry.op, i, str(entry)) for i, each in enumerate(known) if each is entry), None)


def from_library(op: Op, place: int, text: str) -> Any:
    """The rule or limitation of the library at that index. Raises `NotPortable` if this version has another there."""
    known = library().entries_of(op)
    if place >= len(known) or str(known[place]) != text:
        raise NotPortable(f"this library has no {text} for {op}; it was pickled with another version")
    return known[place]
