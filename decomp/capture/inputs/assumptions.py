"""The assumptions of torch.export about the inputs of a program with dynamic sizes, as conditions on these inputs:
guards of the trace (`_guards_code`, Python that reads inputs by path), ranges, and sizes computed from others. Export's
own module checks them in a separate call; a lowered module checks them in the generated line that checks its inputs."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
import functools
import math
import re
from typing import Any, TypeGuard

import torch
from torch import fx
from torch.export import ExportedProgram

from decomp.errors import CaptureError
from decomp.ir.call import metadata
from decomp.metadata.symbolic_sizes import SYMBOLIC
from decomp.torch_internals import pytree


@dataclass(frozen=True, slots=True)
class Assumption:
    """A condition on inputs."""

    code: str
    """A Python expression over inputs, by name."""
    inputs: tuple[str, ...]
    """The inputs that it reads."""
    inline: bool
    """Whether it can be part of generated code: it only calls builtins and functions of math and torch."""

    @property
    def line(self) -> str:
        """The code, with names that are defined in any generated code."""
        # Generated code has `torch` among its globals, and `torch` imports `math`.
        return re.sub(r"\bmath\.", "torch.math.", self.code)

    def holds(self, given: Mapping[str, Any]) -> bool:
        """Whether it is true of these inputs."""
        return bool(_compiled(self.code, self.inputs)(*(given[name] for name in self.inputs)))


@functools.lru_cache(maxsize=4096)
def _compiled(code: str, inputs: tuple[str, ...]) -> Callable[..., Any]:
    names: dict[str, Any] = {"math": math, "torch": torch, "inf": math.inf}
    # Only these need sympy's helpers, whose import takes 0.25 s.
    if "Indicator" in code or "cast_symbool" in code:
        from decomp.torch_internals.sizes import SYMPY_INTERP

        names.update(SYMPY_INTERP)
    function: Callable[..., Any] = eval(f"lambda {', '.join(inputs)}: {code}", names)
    return function


_BUILTIN = frozenset({"abs", "bool", "float", "int", "max", "min", "round", "math", "torch"})


def assumptions_of(program: ExportedProgram, inputs: Sequence[fx.Node]) -> tuple[Assumption, ...]:
    """The assumptions about the inputs of an exported program, for the placeholders `inputs` of its module. Raises
    `CaptureError` for a condition on anything else."""
    names = [str(node.target) for node in inputs]
    return _distinct((*_of_sizes(inputs, program.range_constraints), *_recorded(program, names)), names)


def size_assumptions(inputs: Sequence[fx.Node], ranges: Mapping[Any, Any]) -> tuple[Assumption, ...]:
    """The assumptions about the open sizes of inputs, given the ranges of symbols."""
    return _distinct(_of_sizes(inputs, ranges), [str(node.target) for node in inputs])


def _distinct(codes: Iterable[str], names: Sequence[str]) -> tuple[Assumption, ...]:
    found = (_assumption(code, names) for code in codes)
    return tuple(dict.fromkeys(each for each in found if each is not None))


def _assumption(code: str, names: Sequence[str]) -> Assumption | None:
    """None for a condition that always holds."""
    tree = ast.parse(code.strip(), mode="eval")
    _require_arithmetic(tree, names)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    read = tuple(name for name in names if name in used)
    return Assumption(ast.unparse(tree), read, used - set(read) <= _BUILTIN) if read else None


_ARITHMETIC = (
    ast.Expression,
    ast.BoolOp,
    ast.UnaryOp,
    ast.BinOp,
    ast.Compare,
    ast.IfExp,
    ast.Constant,
    ast.Subscript,
    ast.boolop,
    ast.unaryop,
    ast.operator,
    ast.cmpop,
    ast.expr_context,
    ast.Call,
)


def _require_arithmetic(tree: ast.AST, names: Sequence[str]) -> None:
    """Raise `CaptureError` for code that does more than compute with sizes and numbers: a program may come from a file,
    whose code must not be executed unchecked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            known = node.id in names or node.id in _BUILTIN or node.id in ("math", "inf", *_interpreted())
        elif isinstance(node, ast.Attribute):
            known = (
                node.attr in ("shape", "size", "stride", "storage_offset")
                or isinstance(node.value, ast.Name)
                and (
                    node.value.id == "math"
                    and hasattr(math, node.attr)
                    or node.value.id == "torch"
                    and node.attr.startswith(("sym_", "_sym_"))
                )
            )
        else:
            known = isinstance(node, _ARITHMETIC)
        if not known:
            raise CaptureError(
                f"a condition of the exported program does more than compute with sizes: {ast.unparse(tree)[:200]}\n"
                "  to do: export the model again with torch.export.export"
            )


@functools.cache
def _interpreted() -> frozenset[str]:
    from decomp.torch_internals.sizes import SYMPY_INTERP

    return frozenset(SYMPY_INTERP)


# Guards of the export trace.


def _recorded(program: ExportedProgram, names: Sequence[str]) -> Iterator[str]:
    guards = getattr(program, "_guards_code", None) or ()
    paths = _Paths(_names_of_paths(program, names)) if guards else None
    for guard in guards:
        if "._base." in guard:
            continue  # about the base of which the example input is a view; no program reads it
        assert paths is not None
        tree = paths.visit(ast.parse(guard.replace("\n", " ").strip(), mode="eval"))
        if any(isinstance(node, ast.Name) and node.id == "L" for node in ast.walk(tree)):
            raise CaptureError(
                f"torch.export assumed {guard}, and the program has no such input\n"
                "  to do: export it again with torch.export.export, or lower the module itself with args="
            )
        yield ast.unparse(tree)


def _names_of_paths(program: ExportedProgram, names: Sequence[str]) -> dict[str, str]:
    """The names of inputs by the code with which guards read them: their index among all leaves, or their path from an
    argument of `forward`."""
    found = {f"L['flat_args'][{i}]": name for i, name in enumerate(names)}
    signature = program.module_call_graph[0].signature
    arguments = (signature.forward_arg_names if signature is not None else None) or ()
    for path, name in zip(_paths_of(program), names):
        argument, *rest = path[1:]
        if path[0].idx != 1:
            argument = arguments[argument.idx] if argument.idx < len(arguments) else f"args_{argument.idx}"
        else:
            argument = argument.key
        # Unparsing normalises quotes and spaces, so that paths compare as strings.
        found[_normal(f"L[{argument!r}]{pytree.keystr(tuple(rest))}")] = name
    return found


def _paths_of(program: ExportedProgram) -> list[Any]:
    """The pytree paths of a program's inputs, from (args, kwargs)."""
    given = program.example_inputs
    if given is None:
        spec = program.call_spec.in_spec
        given = pytree.tree_unflatten([0] * spec.num_leaves, spec)
    return [path for path, _ in pytree.tree_flatten_with_path(given)[0]]


def _normal(code: str) -> str:
    return ast.unparse(ast.parse(code, mode="eval"))


class _Paths(ast.NodeTransformer):
    """Replaces the paths of inputs by their names, and `x.size()[0]` by `x.shape[0]`."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.Subscript, ast.Attribute)) and (name := self._input(node)) is not None:
            return ast.Name(name, ast.Load())
        return super().visit(node)

    def _input(self, node: ast.Subscript | ast.Attribute) -> str | None:
        if (found := self.names.get(ast.unparse(node))) is not None:
            return found
        # Each argument in `*rest` or `**more` is an input of its own: `rest_0`, or by its keyword.
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and _is_argument(node.value):
            argument = ast.literal_eval(node.value.slice)
            key = node.slice.value
            return self.names.get(f"L[{key!r}]" if isinstance(key, str) else f"L['{argument}_{key!r}']")
        return None

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        self.generic_visit(node)
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "size":
            return ast.Subscript(ast.Attribute(call.func.value, "shape", ast.Load()), node.slice, ast.Load())
        return node


def _is_argument(node: ast.AST) -> TypeGuard[ast.Subscript]:
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "L"


# Ranges, and sizes computed from others.


def _of_sizes(inputs: Sequence[fx.Node], ranges: Mapping[Any, Any]) -> Iterator[str]:
    read: dict[Any, str] = {}
    for place, size in _open_sizes(inputs):
        expr = size.node.expr
        if expr in read:
            yield f"{place} == {read[expr]}"
            continue
        read[expr] = place
        if expr in ranges:
            yield from _within(place, ranges[expr])
    # Symbols first, so that a size such as 2·s is compared with s where an input has s itself.
    known = {expr: place for expr, place in read.items() if expr.is_Symbol}
    for expr, place in read.items():
        # What depends on several symbols torch.export does not check either.
        if not expr.is_Symbol and len(expr.free_symbols) == 1:
            yield from _computed(expr, place, known)


def _open_sizes(inputs: Sequence[fx.Node]) -> Iterator[tuple[str, Any]]:
    """The symbolic sizes and numbers of inputs, with the code that reads them."""
    for node in inputs:
        value = metadata(node)
        if isinstance(value, SYMBOLIC):
            yield str(node.target), value
        elif isinstance(value, torch.Tensor):
            for i, size in enumerate(value.shape):
                if isinstance(size, SYMBOLIC):
                    yield f"{node.target}.shape[{i}]", size


def _within(place: str, ends: Any) -> Iterator[str]:
    """Lower bounds of 2 or less are not checked, nor does export check them: it sets one for every dynamic size."""
    if ends.lower.is_Integer and ends.lower > 2:
        yield f"{place} >= {ends.lower}"
    if ends.upper.is_Integer:
        yield f"{place} <= {ends.upper}"


def _computed(expr: Any, place: str, known: dict[Any, str]) -> Iterator[str]:
    """A condition on a size `a * s + b` if s is read from another input; otherwise this size defines s from then on."""
    (symbol,) = expr.free_symbols
    if symbol in known:
        yield f"{place} == {_printed(expr, symbol, known[symbol])}"
        return
    factor = expr.coeff(symbol)
    rest = expr - factor * symbol
    if factor.is_Integer and rest.is_Integer and factor != 0:
        multiple = f"({place} - {rest})" if rest else place
        if abs(factor) != 1:
            yield f"{multiple} % {factor} == 0"
        known[symbol] = f"({multiple} // {factor})"


def _printed(expr: Any, symbol: Any, code: str) -> str:
    """An expression as Python, with `code` substituted for its symbol."""
    from decomp.torch_internals.sizes import PythonPrinter

    tree = ast.parse(PythonPrinter().doprint(expr), mode="eval")
    put = {str(symbol): code}
    return ast.unparse(_Names(put).visit(tree))


class _Names(ast.NodeTransformer):
    """Substitutes code for names."""

    def __init__(self, codes: Mapping[str, str]) -> None:
        self.codes = codes

    def visit_Name(self, node: ast.Name) -> Any:
        return ast.parse(self.codes[node.id], mode="eval").body if node.id in self.codes else node
