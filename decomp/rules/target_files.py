"""Targets as TOML files. A file has a `name`, a `description`, `ops` by any spelling, `tags` of PyTorch's overloads
(all ops that carry one), `namespaces` (all ops registered there), and conditions:

```toml
[[when]]
op = "constant_pad_nd"
argument = "pad"
at_least = 0
reason = "negative padding is a slice"    # optional
```

The checks are `equals`, `differs`, `one_of`, `at_least` and `at_most` (of each element, if it is a list), `length`,
`given` (passed, and not an empty list), `tensors` (how many elements of a list are tensors) and `rank` (the dimensions
of a tensor, a number or a list of them), each of one `argument`. `dtype` and `result` list the dtypes that tensor
arguments (or only `argument`, if given) and results may have: kinds (float, complex, integer, bool) or names (float32);
of a call without tensor arguments, such as `rand`, both are about its results.
`op` may be a list of ops. All conditions of an op must hold. `any_of` is a list of tables of checks, of which one must
hold: `any_of = [{dtype = "float", result = "float"}, {dtype = "integer", result = "integer"}]`.

`dtypes`, next to `ops`, lists the dtypes that tensors may have in any call except `detach`. `[costs]` is the cost model
(`decomp.costs.table`), or `costs` is the name of one: `costs = "fused"` for a compiler that fuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import functools
from pathlib import Path
from typing import Any

import torch

from decomp import costs
from decomp.costs.model import CostModel
from decomp.costs.tables import errors_name, read_toml, table_of
from decomp.errors import TargetError
from decomp.ir.call import Call, Predicate
from decomp.ir.dtypes import KINDS, is_of, unknown_in
from decomp.ir.ops import Op, known_names, op as op_of, resolve
from decomp.ir.schema import names
from decomp.metadata.symbolic_sizes import is_at_least
from decomp.ops import aten
from decomp.rules.target import Key, Target
from decomp.torch_internals.schemas import all_schemas

_LISTS = ("ops", "tags", "namespaces")
_KEYS = ("name", "description", *_LISTS, "when", "costs", "dtypes")


def read(path: Path) -> Target:
    """The target that the file describes. Raises `TargetError` and `UnknownOp`, both with the file's name."""
    with errors_name(path):
        data = read_toml(path)
        return _with_costs(_target(data, path.stem), data, path.name)


def _target(data: dict[str, Any], stem: str) -> Target:
    unknown = sorted(data.keys() - set(_KEYS))
    if unknown:
        raise TargetError(f"unknown key {unknown[0]!r}; known keys are {', '.join(_KEYS)}")
    tags, namespaces, ops = (_names(data, key) for key in ("tags", "namespaces", "ops"))
    known = [
        *(key for tag in tags for key in _ops_with_tag(tag)),
        *(key for name in namespaces for key in _registered(name)),
    ]
    target = Target(_text(data, "name", stem), [*known, *ops], description=_text(data, "description", ""))
    conditions = data.get("when", [])
    if not isinstance(conditions, list):
        raise TargetError("'when' must be a list of tables: [[when]]")
    for entry in conditions:
        for each in _each_op(entry):
            target = _with_condition(target, each)
    if "dtypes" not in data:
        return target
    dtypes = _names(data, "dtypes")
    _check_kinds("'dtypes'", dtypes)
    return target.with_dtypes(dtypes)


def _each_op(entry: Any) -> list[Any]:
    """A `[[when]]`, split into one for each of its ops."""
    ops = entry.get("op") if isinstance(entry, dict) else None
    return [{**entry, "op": op} for op in ops] if isinstance(ops, list) else [entry]


def _named_costs(name: str) -> CostModel:
    if name not in costs.NAMED:
        raise TargetError(f"costs = {name!r}: must be a table, or one of {', '.join(costs.NAMED)}")
    found: CostModel = getattr(costs, name)
    return found


def _with_costs(target: Target, data: dict[str, Any], file: str) -> Target:
    if "costs" not in data:
        return target
    if isinstance(data["costs"], str):
        return target.with_costs(_named_costs(data["costs"]))
    return target.with_costs(table_of(data["costs"], file))


def _names(data: dict[str, Any], key: str) -> list[str]:
    found = data.get(key, [])
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise TargetError(f"{key!r} must be a list of names")
    return found


def _text(data: dict[str, Any], key: str, default: str) -> str:
    found = data.get(key, default)
    if not isinstance(found, str):
        raise TargetError(f"{key!r} must be a string")
    return found


def _ops_with_tag(name: str) -> tuple[Key, ...]:
    if name not in torch.Tag.__members__:
        raise TargetError(f"unknown tag {name!r}; known tags are {', '.join(sorted(torch.Tag.__members__))}")
    return _with_tag(torch.Tag.__members__[name])


@functools.cache
def _with_tag(tag: torch.Tag) -> tuple[Key, ...]:
    """Every ATen overload that carries `tag`, in-place and `out=` variants left out."""
    found: list[Key] = []
    for packet in (getattr(aten, name) for name in known_names()):
        for overload in packet.overloads():
            function = getattr(packet, overload)
            spelling = resolve(function)
            # Programs are functional when they are lowered, so that these would never be called.
            if tag in function.tags and not spelling.inplace and not any(a.is_out for a in function._schema.arguments):
                found.append((spelling.op, overload))
    return tuple(found)


def _registered(namespace: str) -> list[Key]:
    """Every op that is registered in a namespace, as `prims`."""
    schemas = (schema.name.split("::") for schema in all_schemas())
    found = sorted({name for owner, name in schemas if owner == namespace})
    if not found:
        raise TargetError(f"no op is registered in the namespace {namespace!r}")
    return [(Op(f"{namespace}.{name}"), None) for name in found]


# Conditions.

Test = Callable[[Any], bool]
_CHECKS: dict[str, tuple[type | tuple[type, ...], str, Callable[[Any], Test]]] = {
    "equals": (object, "{argument} is {value!r}", lambda value: lambda v: bool(v == value)),
    "differs": (object, "{argument} is not {value!r}", lambda value: lambda v: bool(v != value)),
    "one_of": (list, "{argument} is one of {value!r}", lambda value: lambda v: v in value),
    "at_least": ((int, float), "{argument} is at least {value}", lambda value: lambda v: _at_least(v, value)),
    "at_most": (
        (int, float),
        "{argument} is at most {value}",
        lambda value: lambda v: _at_most(v, value),
    ),
    "length": (int, "{argument} has length {value}", lambda value: lambda v: v is not None and len(_items(v)) == value),
    "given": (bool, "{argument} is given", lambda value: lambda v: (v is not None and v != []) == value),
    "tensors": (int, "{argument} has tensors: {value}", lambda value: lambda v: len(_tensors(v)) == value),
    "rank": ((int, list), "{argument} has rank {value}", lambda value: lambda v: v is None or v.dim() in _items(value)),
}
"""By name: the type of the value in the file, the text of the condition, and the check of an argument."""


def _with_condition(target: Target, entry: Any) -> Target:
    """`target` with one `[[when]]` of its file."""
    if not isinstance(entry, dict) or not isinstance(entry.get("op"), str):
        raise TargetError("each [[when]] needs an 'op'")
    if "any_of" in entry:
        predicate, said = _any_condition(entry)
    else:
        ((predicate, said),) = _conditions(entry, exactly_one=True)
    return target.legal_if(entry["op"], predicate, _text(entry, "reason", said))


def _conditions(entry: dict[str, Any], exactly_one: bool) -> list[tuple[Predicate, str]]:
    """The conditions of a table that has checks, each with its text."""
    known = {*_CHECKS, "dtype", "result"}
    unknown = sorted(entry.keys() - known - {"op", "argument", "reason"})
    checks = [key for key in entry if key in known]
    if unknown or not checks or exactly_one and len(checks) > 1:
        count = "exactly one check" if exactly_one else "a check in each table of any_of"
        what = f"unknown key {unknown[0]!r}" if unknown else f"needs {count}"
        raise TargetError(f"[[when]] of {entry['op']}: {what}; checks are {', '.join(sorted(known))}")
    kinds = {check: _dtype_condition if check in ("dtype", "result") else _argument_condition for check in checks}
    return [build(entry, check, entry[check]) for check, build in kinds.items()]


def _any_condition(entry: dict[str, Any]) -> tuple[Predicate, str]:
    """The condition that one of the tables of `any_of` holds, and its text."""
    tables, unknown = entry["any_of"], sorted(entry.keys() - {"op", "any_of", "reason"})
    if unknown:
        raise TargetError(f"[[when]] of {entry['op']}: {unknown[0]!r} beside any_of: move it into its tables")
    if not isinstance(tables, list) or not tables or not all(isinstance(each, dict) for each in tables):
        raise TargetError(f"[[when]] of {entry['op']}: 'any_of' must be a list of tables of checks")
    found = [_conditions({**each, "op": entry["op"]}, exactly_one=False) for each in tables]
    said = ", or ".join(" and ".join(text for _, text in each) for each in found)
    return _AnyOf(tuple(tuple(predicate for predicate, _ in each) for each in found)), said


@dataclass(frozen=True, eq=False)
class _AnyOf:
    """Whether all checks of one of several tables hold."""

    tables: tuple[tuple[Predicate, ...], ...]

    def __call__(self, call: Call) -> bool:
        return any(all(holds(call) for holds in each) for each in self.tables)


def _argument_condition(entry: dict[str, Any], check: str, value: Any) -> tuple[Predicate, str]:
    argument = entry.get("argument")
    if argument is None:
        raise TargetError(f"[[when]] of {entry['op']}: the check {check!r} needs an 'argument'")
    _require_argument(entry, argument)
    types, said, _ = _CHECKS[check]
    if not isinstance(value, types):
        raise TargetError(f"[[when]] of {entry['op']}: {check!r} cannot be {value!r}")
    said = "{argument} is left out" if (check, value) == ("given", False) else said
    return _OfArgument(check, argument, value), said.format(argument=argument, value=value)


def _require_argument(entry: dict[str, Any], argument: str | None) -> None:
    known = names(op_of(entry["op"]))
    if argument is not None and known and argument not in known:  # unknown if this PyTorch lacks the op
        raise TargetError(f"[[when]] of {entry['op']}: no argument {argument!r}; it has {', '.join(known)}")


@dataclass(frozen=True, eq=False)
class _OfArgument:
    """Whether an argument of a call passes a check. A class, because a closure could not be pickled."""

    check: str
    argument: str
    value: Any

    def __call__(self, call: Call) -> bool:
        # Looked up at each call: the functions in the table are lambdas, which could not be pickled with this object.
        _, _, build = _CHECKS[self.check]
        return build(self.value)(_plain(call.argument(self.argument)))


def _dtype_condition(entry: dict[str, Any], check: str, value: Any) -> tuple[Predicate, str]:
    """A condition on the dtypes of the tensor arguments, or of the result. It fails if they are unknown."""
    kinds, argument = value if isinstance(value, list) else [value], entry.get("argument")
    _check_kinds(f"[[when]] of {entry['op']}", kinds)
    _require_argument(entry, argument)
    whose = f"{argument} is" if argument else "its tensors are" if check == "dtype" else "its result is"
    return _OfDtypes(check == "result", tuple(kinds), argument), f"{whose} {' or '.join(kinds)}"


def _check_kinds(where: str, kinds: list[str]) -> None:
    """Raise `TargetError` for a name that is neither a kind of dtype nor a dtype."""
    wrong = unknown_in(kinds)
    if wrong is not None:
        raise TargetError(f"{where}: unknown dtype {wrong!r}; known are {', '.join(KINDS)}, and names as float32")


@dataclass(frozen=True, eq=False)
class _OfDtypes:
    """Whether the tensor arguments of a call (or one of them), or its results, have a dtype of these kinds."""

    of_result: bool
    kinds: tuple[str, ...]
    argument: str | None = None

    def __call__(self, call: Call) -> bool:
        if self.argument is not None:
            return all(is_of(t.dtype, self.kinds) for t in _tensors(call.argument(self.argument)))
        # The tensors of a call that takes none, as `rand`, are its results. What is unknown is not legal.
        found = (not self.of_result and call.tensors) or _tensors(call.meta)
        return bool(found) and all(is_of(t.dtype, self.kinds) for t in found)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _at_least(value: Any, least: float) -> bool:
    return all(is_at_least(item, least) for item in _items(value))


def _at_most(value: Any, most: float) -> bool:
    return all(is_at_least(-item, -most) for item in _items(value))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [item for item in _items(value) if isinstance(item, torch.Tensor)]
