"""`match`: find where a program makes the calls of a pattern, without replacing anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx, nn

from decomp.derive.pipeline import CaptureRequest, functional_program
from decomp.derive.rule_selection import RuleSelection
from decomp.derive.session import capture_session
from decomp.errors import MutationError, boundary
from decomp.ir.module import Module, ProgramGraph
from decomp.patterns.found import Match, NearMiss
from decomp.patterns.matching import find_matches
from decomp.patterns.pattern import Pattern
from decomp.rules.options import CHECKS
from decomp.rules.rules import Rules
from decomp.rules.target import MatchAllTarget


class Matches(list[Match]):
    """The matches of a pattern, in the order of the program; they may overlap."""

    def __init__(self, found: Sequence[Match], missed: Sequence[NearMiss]) -> None:
        super().__init__(found)
        self.refused = tuple(missed)
        """Places where the pattern occurs but cannot be replaced, or nearly matches, each with the reason."""

    def __str__(self) -> str:
        refused = [f"not {miss}" for miss in self.refused]
        return "\n".join([*map(str, self), *refused]) or "no match, and nothing near one"


@boundary("match", CHECKS)
def match(
    program: Any,
    pattern: Any,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    tracer_class: type[fx.Tracer] = fx.Tracer,
    dynamic_shapes: Any = None,
    **modules: type[nn.Module],
) -> Matches:
    """Find a pattern in a program, which is not changed, and return the `Matches`: a list of `Match`es, whose `refused`
    has the near misses with their reasons.

    - `program`: an `nn.Module`, `GraphModule` or `ExportedProgram`, captured as `decomp.lower` does, with its `args`,
      `kwargs`, `tracer_class`, `dynamic_shapes`. Where leaf modules had to be traced, or metadata was added, matches
      name nodes of the captured graph, and `match.sources` those of the program. In a program that writes tensors,
      matches are those that `decomp.lower` sees once it has made the program functional: one that cannot be replaced in
      the captured graph as it is, because it contains or crosses a write, names nodes of the functional one.
    - `pattern`: a function of free variables, or a `decomp.Pattern`; `modules` gives the types of the variables that
      match modules, as in `decomp.Rules.pattern`.

    ```python
    for found in decomp.match(exported, lambda x, w, b: F.relu(F.linear(x, w, b))):
        print(found.nodes, found["w"].shape)
    ```

    Raises `ArgumentError` if `pattern` is not a pattern, and `CaptureError`."""
    wanted = Pattern.of(pattern, None, **modules)
    rules = Rules()
    # Capturing inlines a leaf module that applies an op of a pattern, so it must know the pattern.
    rules.pattern(wanted, name=wanted.name)(lambda *values: wanted(*values))
    matching = RuleSelection(rules, MatchAllTarget("wherever the pattern is"))
    source = CaptureRequest(program, args, kwargs, tracer_class, dynamic_shapes)
    with capture_session(source, matching) as module:
        captured = _search(module.with_bodies(_CALLED_BY), wanted)
        try:
            functional = functional_program(module, matching)
        # Nothing can be lowered then, but the calls that are in the program can be named.
        except MutationError:
            return captured
        if functional is module:
            return captured
        return _merged(_search(_with_modules(functional, module), wanted), captured)


_CALLED_BY = ("get_attr", "call_module")
"""The kinds of nodes that name a graph to search."""


def _with_modules(functional: Module, captured: Module) -> Module:
    """A functional program with the graphs of modules that capture left as calls, which planning does not enter."""
    left = captured.with_bodies(("call_module",)).graphs
    return replace(functional, graphs={**left, **functional.graphs})


def _search(module: Module, pattern: Pattern) -> Matches:
    missed: list[NearMiss] = []
    return Matches([each for own in module.graphs.values() for each in _in_graph(own, pattern, missed)], missed)


def _in_graph(own: ProgramGraph, pattern: Pattern, missed: list[NearMiss]) -> Iterator[Match]:
    kept = [write.value for write in own.writes]
    for found in find_matches(own.graph, [pattern], owner=own.owner, kept=kept, missed=missed, everywhere=True):
        yield replace(found, sources=tuple(dict.fromkeys(map(own.source_of, found.nodes))))


def _merged(functional: Matches, captured: Matches) -> Matches:
    """The matches in a functional program; those that can be replaced in the captured graph, too, are given in it."""
    known = {_key(found): found for found in captured}
    return Matches([known.get(_key(found), found) for found in functional], functional.refused)


def _key(found: Match) -> tuple[object, ...]:
    # Names tell apart calls that come from one leaf module.
    return found.sources, tuple(node.name for node in found.nodes)
