"""Where each operation of a StableHLO module comes from, as its `loc`: the module path, the call of the source program,
and the line of the user's code. JAX keeps the names of scopes in the locations that it writes, so that each call of the
program is traced in a scope of its own, by whose name it is found again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
from contextvars import ContextVar
import re
from typing import Any

import jax
from jax.extend.mlir import ir
from torch import fx

import decomp

_traced: ContextVar[list[fx.Node] | None] = ContextVar("the calls that are being traced", default=None)
_SCOPE = re.compile(r"decomp\.call:(\d+)")
_LINE = re.compile(r'File "([^"]+)", line (\d+)')


@contextlib.contextmanager
def recording() -> Iterator[list[fx.Node]]:
    """Collect the calls that are traced meanwhile, each of which is the scope of its number."""
    calls: list[fx.Node] = []
    token = _traced.set(calls)
    try:
        yield calls
    finally:
        _traced.reset(token)


def scope(backend: decomp.Backend) -> contextlib.AbstractContextManager[Any]:
    """The scope of the call that a backend emits, if calls are being collected."""
    calls = _traced.get()
    if calls is None:
        return contextlib.nullcontext()
    calls.append(backend.node)
    return jax.named_scope(f"decomp.call:{len(calls) - 1}")


def locate(module: ir.Module, calls: Sequence[fx.Node], arguments: Sequence[str], program: Any) -> None:
    """Give each operation of a module the location of its call, and each argument of `main` its name."""

    def located(operation: Any) -> ir.WalkResult:
        numbers = _SCOPE.findall(str(operation.location))
        operation.location = _location(calls[int(numbers[-1])], program) if numbers else ir.Location.unknown()
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(located)
        main = next(
            each for each in module.body.operations if ir.StringAttr(each.attributes["sym_name"]).value == "main"
        )
        for argument, name in zip(main.regions[0].blocks[0].arguments, arguments, strict=True):
            argument.set_location(ir.Location.name(name))


def _location(node: fx.Node, program: Any) -> ir.Location:
    """`loc("MODULE: CALL = OP"("FILE":LINE:0))`."""
    line = _LINE.match(decomp.errors.source_line(node) or "")
    place = ir.Location.file(line[1], int(line[2]), 0) if line else ir.Location.unknown()
    return ir.Location.name(_described(node, program), childLoc=place)


def _described(node: fx.Node, program: Any) -> str:
    try:
        found = program.provenance(node) if isinstance(program, decomp.Lowering) else None
    except KeyError:  # inside a body
        found = None
    stack = [str(name) for name, _ in (node.meta.get("nn_module_stack") or {}).values()]
    module, call = (stack[-1] if stack else "", f"{node.name} = {node.target}")
    if found is not None:
        module, call = found.module, f"{found.source} = {found.op}"
    return f"{module}: {call}" if module else call
