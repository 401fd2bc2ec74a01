"""A test of a rule or a lowering in three lines: the program before, the program after, the rules. The one after is
captured as the one before is, and their calls are compared as text, so that a failure shows which line differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

import decomp
from tests.forms import ATEN, check, outcome, program, same, x


def becomes(before: Callable[..., Any], after: Callable[..., Any], rules: Any, form: str, args: Any = None) -> Any:
    """Assert that `decompose` makes `after` of `before`, call by call and in value; the result."""
    args = (x(),) if args is None else args
    result = check(before, rules, form, args, after)
    assert code(result) == code(program(after, args, form))
    return result


def lowers_to(
    before: Callable[..., Any], after: Callable[..., Any], to: decomp.Target, args: Any = None, **options: Any
) -> decomp.Lowering:
    """Assert that `lower` makes `after` of `before`, call by call and in value; the lowering."""
    args = (x(),) if args is None else args
    lowered = decomp.lower(program(before, args, ATEN), to=to, **options)
    assert code(lowered.result) == code(program(after, args, ATEN))
    assert same(outcome(lowered.result, *args), after(*args))
    return lowered


def code(found: Any) -> str:
    """The calls of a program, one a line: `%2 = add(%0, 1)`. Names of nodes and spellings of ops are left out, as is
    where a constant is read."""
    ops = {call.node: call.op.short for call in decomp.calls(found)}
    shown: dict[Any, str] = {}
    constants: dict[Any, str] = {}

    def text(leaf: Any) -> _Text:
        if isinstance(leaf, fx.Node) and leaf.op == "get_attr":
            return _Text(constants.setdefault(leaf.target, f"@{len(constants)}"))
        return _Text(shown[leaf] if isinstance(leaf, fx.Node) else repr(leaf))

    lines = []
    for node in (node for node in found.graph.nodes if node.op != "get_attr"):
        args, kwargs = fx.node.map_aggregate((node.args, node.kwargs), text)
        said = ", ".join([*map(repr, args), *(f"{name}={arg!r}" for name, arg in sorted(kwargs.items()))])
        shown[node] = f"%{len(shown)}"
        lines.append(f"{shown[node]} = {ops.get(node, node.op)}({said})")
    return "\n".join(lines)


class _Text(str):
    """Text that is shown without quotes."""

    __repr__ = str.__str__
