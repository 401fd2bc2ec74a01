"""The ops of a target as a C header: for each op a number, and a struct of its arguments, with the names and types of
its schema. It is valid C99 and C++11, and needs nothing but the standard library's types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import re
from typing import Any

import torch

from decomp.errors import UnknownOp
from decomp.ir.dtypes import name_of
from decomp.ir.ops import meant_overload, resolve
from decomp.ir.schema import Parameter, overloads
from decomp.portable.arguments import written_parameters
from decomp.rules.target import Target

_SCALARS = {
    "bool": ("bool", "bool"),
    "int": ("int64_t", "int"),
    "SymInt": ("int64_t", "int"),
    "float": ("double", "float"),
    "complex": ("decomp_complex", "complex"),
    "number": ("decomp_number", "number"),
    "ScalarType": ("decomp_dtype", "dtype"),
    "str": ("const char *", "string"),
    "Tensor": ("decomp_tensor *", "tensor"),
}
"""By the type in a schema: the type in C, and its name in the types of lists and of optional values."""
_KEYWORDS = frozenset(
    "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class "
    "compl concept const const_cast consteval constexpr constinit continue co_await co_return co_yield decltype "
    "default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline "
    "int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "register reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast "
    "struct switch template this thread_local throw true try typedef typeid typename typeof union unsigned using "
    "virtual void volatile wchar_t while xor xor_eq NULL EOF errno stdin stdout stderr".split()
)
"""Keywords of C and C++, and macros of their standard libraries that are not all upper case."""


def header(target: Target) -> str:
    """The header of a target."""
    prefix = _identifier(target.name).lower()
    entries = list(_entries(target))
    names = _distinct(op for op, *_ in entries)
    structs = (_struct(f"{prefix}_{name}", *entry) for name, (_, *entry) in zip(names, entries))
    table = "".join(f' \\\n    X({name}, "{op}")' for name, (op, *_) in zip(names, entries))
    shown, upper = _comment(target.name), prefix.upper()
    return f"""\
/* The ops of {shown}, made by `decomp targets`. A program that `decomp lower` writes as JSON calls them by
   name, with these arguments: an absent tensor, string or list is null, and any other absent value is not given. */
#ifndef DECOMP_TARGET_{upper}_H
#define DECOMP_TARGET_{upper}_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

{_types()}
/* X(name, op): the op's name in a program. */
#define {upper}_OPS(X){table}

#define DECOMP_ENUMERATOR(name, op) {upper}_OP_##name,
typedef enum {{ {upper}_OPS(DECOMP_ENUMERATOR) {upper}_OP_COUNT }} {prefix}_op;
#undef DECOMP_ENUMERATOR

{"".join(structs)}#endif
"""


def _types() -> str:
    """What the headers of all targets share."""
    dtypes = {name_of(each): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    plain = sorted(name for name in dtypes if not name.startswith("q"))
    listed = "".join(f" \\\n    X({name}, {dtypes[name].itemsize})" for name in plain)
    named = dict.fromkeys(_SCALARS.values())
    lists = (f"typedef struct {{ {_items(c)}; size_t length; }} decomp_{_plural(name)};" for c, name in named)
    plain_types = ((c, name) for c, name in named if "*" not in c)
    optional = (f"typedef struct {{ bool given; {c} value; }} decomp_optional_{name};" for c, name in plain_types)
    return f"""\
#ifndef DECOMP_TYPES
#define DECOMP_TYPES
/* X(name, bytes) */
#define DECOMP_DTYPES(X){listed}
#define DECOMP_ENUMERATOR(name, bytes) DECOMP_##name,
typedef enum {{ DECOMP_DTYPES(DECOMP_ENUMERATOR) DECOMP_DTYPE_COUNT }} decomp_dtype;
#undef DECOMP_ENUMERATOR

typedef struct decomp_tensor decomp_tensor; /* yours */
typedef struct {{ double real, imaginary; }} decomp_complex;
typedef enum {{ DECOMP_IS_BOOL, DECOMP_IS_INT, DECOMP_IS_FLOAT, DECOMP_IS_COMPLEX }} decomp_number_kind;
/* A bool or an integer is in `integer`, any other number in `real` and `imaginary`. */
typedef struct {{ decomp_number_kind kind; int64_t integer; double real, imaginary; }} decomp_number;
{chr(10).join(lists)}
{chr(10).join(optional)}
#endif
"""


_Entry = tuple[str, Any, str]
"""The name of an overload, the overload, and the condition under which it is legal."""


def _entries(target: Target) -> Iterator[_Entry]:
    """The overloads of a target's ops. Ops without a schema, such as patterns, have no arguments to list."""
    for listed, condition in target.conditions():
        try:
            spelling = resolve(listed)
        except UnknownOp:
            continue
        packet, only = spelling.op.packet, meant_overload(spelling)
        if packet is None:
            continue
        for name in [only] if only is not None else [name for name, _ in overloads(spelling.op)]:
            overload = getattr(packet, name)
            yield str(overload), overload, condition


def _struct(name: str, overload: Any, condition: str) -> str:
    fields = [f"    {_field(each)};\n" for each in written_parameters(overload)] or ["    char no_arguments;\n"]
    said = f"\n   only if {_comment(condition)}" if condition else ""
    return f"/* {_comment(overload._schema)}{said} */\ntypedef struct {{\n{''.join(fields)}}} {name};\n\n"


def _field(parameter: Parameter) -> str:
    kind = parameter.type
    absent = parameter.optional or parameter.default is None
    name = f"{parameter.name}_" if parameter.name in _KEYWORDS else parameter.name
    if kind.endswith("[]") and kind[:-2] in _SCALARS:
        return _declared(f"decomp_{_plural(_SCALARS[kind[:-2]][1])}", name if not absent else f"*{name}", const=absent)
    if kind not in _SCALARS:
        return _declared("const void *", name)
    c, short = _SCALARS[kind]
    return _declared(f"decomp_optional_{short}" if absent and "*" not in c else c, name)


def _items(kind: str) -> str:
    """The items of a list, which are constant."""
    return f"{kind}const *items" if "*" in kind else f"const {kind} *items"


def _plural(name: str) -> str:
    return f"{name}es" if name.endswith("x") else f"{name}s"


def _declared(kind: str, name: str, const: bool = False) -> str:
    """`int64_t dim`, `decomp_tensor *self`."""
    return f"{'const ' if const else ''}{kind}{'' if kind.endswith(('*', ' ')) else ' '}{name}"


def _distinct(ops: Iterable[str]) -> list[str]:
    """Ops as identifiers: `sum_dim_IntList` of `aten.sum.dim_IntList`."""
    found: list[str] = []
    for op in ops:
        name = plain = _identifier(op.removeprefix("aten."))
        count = 1
        while name in found:
            count += 1
            name = f"{plain}_{count}"
        found.append(name)
    return found


def _identifier(text: str) -> str:
    """Text as the rest of a name in C: two underscores side by side are reserved in C++."""
    found = re.sub(r"_+", "_", re.sub(r"\W", "_", text, flags=re.ASCII)).strip("_")
    return found if found and not found[0].isdigit() else f"n{found}"


def _comment(text: Any) -> str:
    return re.sub(r"\s+", " ", str(text)).replace("*/", "* /").replace("/*", "/ *").replace("\\", "/")
