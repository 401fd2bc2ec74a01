"""Targets: the ops that a backend knows, each legal, legal under a condition, or not. A target is a value; sets of ops
compose with `|`, `&` and `-`, and a TOML file says the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
import functools
from pathlib import Path
import tomllib
from typing import Any

import torch

from decomp.calls import Call, Predicate
from decomp.errors import TargetError, UnknownOp
from decomp.ops import Op, Spelling, known_names, resolve

Key = tuple[Op, str | None]
"""An op, and the overload if only that one is meant."""


@dataclass(frozen=True)
class Condition:
    """Something a call must satisfy to be legal, and how to say so."""

    holds: Predicate
    reason: str


Alternatives = tuple[tuple[Condition, ...], ...]
"""A call is legal if all conditions of one alternative hold; `((),)` is always, `()` never."""

ALWAYS: Alternatives = ((),)


class Target:
    """The set of ops that a backend knows.

    ```python
    chip = Target("mychip", ["add", "mul", torch.exp, F.conv2d, torch.ops.aten.sum.dim_IntList])
    chip = chip.legal_if("convolution", lambda call: call.argument("groups") == 1, "groups must be 1")
    ```
    """

    def __init__(self, name: str, ops: Iterable[Any] = (), *, description: str = "") -> None:
        """`ops`: any spellings; an overload (`"sum.dim_IntList"`) means that overload alone. Raises `UnknownOp`."""
        self.name, self.description = name, description
        self._entries: dict[Key, Alternatives] = {_key(spelling): ALWAYS for spelling in _listed(ops)}

    @classmethod
    def _of(cls, name: str, entries: Mapping[Key, Alternatives], description: str = "") -> Target:
        target = cls(name, description=description)
        target._entries = dict(entries)
        return target

    @classmethod
    def load(cls, path: str | Path) -> Target:
        """Read a target from a TOML file. Raises `TargetError`, which names the file and the key, and `UnknownOp`."""
        return _loaded(Path(path))

    def legal_if(self, spelling: Any, predicate: Predicate, reason: str) -> Target:
        """This target, with an op that is legal only where `predicate(call)` holds. Conditions of one op add up."""
        key, condition = _key(spelling), Condition(predicate, reason)
        now = self._entries.get(key, ALWAYS)
        entries = {**self._entries, key: tuple((*conditions, condition) for conditions in now)}
        return self._of(self.name, entries, self.description)

    def why_illegal(self, call: Call) -> str | None:
        """None if the call is legal; otherwise the condition that it breaks, or "" if the op is not known at all."""
        alternatives = self._entries.get((call.op, call.overload))
        if alternatives is None:
            alternatives = self._entries.get((call.op, None))
        if alternatives is None:
            return ""
        broken = ""
        for conditions in alternatives:
            failed = next((c for c in conditions if not _holds(c, call)), None)
            if failed is None:
                return None
            broken = failed.reason
        return broken

    def surely_legal(self, op: Op, overload: str | None) -> bool:
        """Whether every call of this overload is legal, whatever its arguments."""
        found = self._entries.get((op, overload), self._entries.get((op, None)))
        return found is not None and () in found

    def knows(self, spelling: Any) -> bool:
        """Whether the op is legal at all, perhaps under a condition."""
        key = _key(spelling)
        if key[1] is None:
            return any(op == key[0] and alternatives for (op, _), alternatives in self._entries.items())
        return bool(self._entries.get(key, self._entries.get((key[0], None))))

    __contains__ = knows

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(_shown(key) for key, alternatives in self._entries.items() if alternatives))

    def __len__(self) -> int:
        return sum(bool(alternatives) for alternatives in self._entries.values())

    def __repr__(self) -> str:
        return f"Target({self.name!r}, {len(self)} ops)"

    def __or__(self, other: Any) -> Target:
        """Legal in either."""
        right = _as_target(other)
        entries = dict(self._entries)
        for key, alternatives in right._entries.items():
            entries[key] = _either(entries.get(key, ()), alternatives)
        return self._of(_joined(self, "|", other), entries, self.description)

    def __and__(self, other: Any) -> Target:
        """Legal in both."""
        right = _as_target(other)
        keys = {*self._entries, *right._entries}
        both = {key: _both(self._lookup(key), right._lookup(key)) for key in keys}
        return self._of(_joined(self, "&", other), {k: v for k, v in both.items() if v or k[1]}, self.description)

    def __sub__(self, other: Any) -> Target:
        """Legal here and not named there."""
        right = _as_target(other)
        gone = {op for op, overload in right._entries if overload is None}
        entries = {key: alternatives for key, alternatives in self._entries.items() if key[0] not in gone}
        entries.update({key: () for key in right._entries if key[1] is not None})
        return self._of(_joined(self, "-", other), entries, self.description)

    def _lookup(self, key: Key) -> Alternatives:
        return self._entries.get(key, self._entries.get((key[0], None), ()))


class Everything(Target):
    """The target of `decompose`: any op is legal as soon as no rule wants it."""

    def why_illegal(self, call: Call) -> str | None:
        return None

    def surely_legal(self, op: Op, overload: str | None) -> bool:
        return True


def _holds(condition: Condition, call: Call) -> bool:
    try:
        return bool(condition.holds(call))
    except DecompAttributeErrors as error:
        raise TargetError(f"the condition {condition.reason!r} failed on {call.op}: {error}") from error


DecompAttributeErrors = (AttributeError, TypeError, KeyError)


def _listed(ops: Any) -> Iterable[Any]:
    if isinstance(ops, (str, Op)) or callable(ops):
        return (ops,)
    return ops


def _key(spelling: Any) -> Key:
    if isinstance(spelling, tuple) and len(spelling) == 2 and isinstance(spelling[0], Op):
        return spelling
    found: Spelling = resolve(spelling)
    return found.op, _meant_overload(spelling, found)


def _meant_overload(spelling: Any, found: Spelling) -> str | None:
    """`aten.relu.default` means the op where `default` is all there is to it; `aten.sum.dim_IntList` means itself."""
    packet = found.op.packet
    if found.overload is None or packet is None:
        return None
    others = {name for name in packet.overloads() if "out" not in name}
    return None if others <= {found.overload} else found.overload


def _shown(key: Key) -> str:
    return f"{key[0]}.{key[1]}" if key[1] else str(key[0])


def _as_target(other: Any) -> Target:
    return other if isinstance(other, Target) else Target("", other)


def _joined(left: Target, sign: str, right: Any) -> str:
    return f"{left.name} {sign} {right.name}" if isinstance(right, Target) else left.name


def _either(left: Alternatives, right: Alternatives) -> Alternatives:
    return ALWAYS if () in left or () in right else tuple(dict.fromkeys((*left, *right)))


def _both(left: Alternatives, right: Alternatives) -> Alternatives:
    return tuple(dict.fromkeys((*a, *b) for a in left for b in right))


# What a TOML file may say.

_KEYS = {"name", "description", "ops", "tags", "namespaces", "when"}
_CHECKS = {"equals", "one_of", "at_least", "at_most", "length", "given", "dtype", "result"}
_KINDS: dict[str, Callable[[torch.dtype], bool]] = {
    "float": lambda dtype: dtype.is_floating_point,
    "complex": lambda dtype: dtype.is_complex,
    "integer": lambda dtype: not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool,
    "bool": lambda dtype: dtype == torch.bool,
}


def _loaded(path: Path) -> Target:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TargetError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TargetError(f"{path}: not valid TOML: {error}") from error
    unknown = sorted(data.keys() - _KEYS)
    if unknown:
        raise TargetError(f"{path}: unknown key {unknown[0]!r}; known keys are {', '.join(sorted(_KEYS))}")
    ops = data.get("ops", [])
    if not isinstance(ops, list) or not all(isinstance(op, str) for op in ops):
        raise TargetError(f"{path}: 'ops' must be a list of names")
    try:
        named = [*_tagged(path, data.get("tags", [])), *_registered(path, data.get("namespaces", [])), *ops]
        target = Target(str(data.get("name", path.stem)), named, description=str(data.get("description", "")))
        for entry in data.get("when", []):
            target = _with_condition(path, target, entry)
    except UnknownOp as error:
        raise UnknownOpIn(path, error) from error
    return target


class UnknownOpIn(UnknownOp, TargetError):
    """A file names an op that does not exist."""

    def __init__(self, path: Path, error: UnknownOp) -> None:
        TargetError.__init__(self, f"{path}: {error}")


def _tagged(path: Path, tags: Iterable[str]) -> list[Key]:
    known = {str(tag).rsplit(".", 1)[-1]: tag for tag in torch.Tag.__members__.values()}
    found: list[Key] = []
    for name in tags:
        if name not in known:
            raise TargetError(f"{path}: unknown tag {name!r}; known tags are {', '.join(sorted(known))}")
        found += _ops_with(known[name])
    return found


def _registered(path: Path, namespaces: Iterable[str]) -> list[Key]:
    """Every op that is registered in the given libraries, as `prims`."""
    schemas = [schema.name.split("::") for schema in torch._C._jit_get_all_schemas()]
    found = []
    for namespace in namespaces:
        ops = sorted({Op(f"{namespace}.{name}") for owner, name in schemas if owner == namespace}, key=str)
        if not ops:
            raise TargetError(f"{path}: no op is registered in the namespace {namespace!r}")
        found += [(op, None) for op in ops]
    return found


@functools.lru_cache(maxsize=None)
def _ops_with(tag: torch.Tag) -> tuple[Key, ...]:
    found: list[Key] = []
    for name in known_names():
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            function = getattr(packet, overload)
            if tag in function.tags and not any(a.is_out for a in function._schema.arguments):
                spelling = resolve(function)
                if not spelling.inplace:
                    found.append((spelling.op, overload))
    return tuple(found)


def _with_condition(path: Path, target: Target, entry: Any) -> Target:
    """One `[[when]]` of a file: `op`, `argument` and one check."""
    if not isinstance(entry, dict) or "op" not in entry:
        raise TargetError(f"{path}: each [[when]] needs an 'op'")
    checks = entry.keys() & _CHECKS
    unknown = sorted(entry.keys() - _CHECKS - {"op", "argument", "reason"})
    if unknown or len(checks) != 1:
        what = f"unknown key {unknown[0]!r}" if unknown else "needs exactly one check"
        raise TargetError(f"{path}: [[when]] of {entry['op']}: {what}; checks are {', '.join(sorted(_CHECKS))}")
    check = checks.pop()
    predicate, said = _checks(path, entry.get("argument"), check, entry[check])
    return target.legal_if(entry["op"], predicate, entry.get("reason", said))


def _checks(path: Path, argument: str | None, check: str, value: Any) -> tuple[Predicate, str]:
    if check in ("dtype", "result"):
        return _dtype_check(path, check, [value] if isinstance(value, str) else list(value))
    if argument is None:
        raise TargetError(f"{path}: the check {check!r} needs an 'argument'")
    tests: dict[str, tuple[Callable[[Any], bool], str]] = {
        "equals": (lambda v: bool(v == value), f"{argument} is {value!r}"),
        "one_of": (lambda v: v in value, f"{argument} is one of {value!r}"),
        "at_least": (lambda v: all(i >= value for i in _items(v)), f"{argument} is at least {value!r}"),
        "at_most": (lambda v: all(i <= value for i in _items(v)), f"{argument} is at most {value!r}"),
        "length": (lambda v: v is not None and len(_items(v)) == value, f"{argument} has length {value!r}"),
        "given": (lambda v: (v is not None and v != [] and v != ()) == value, f"{argument} is {'given' if value else 'left out'}"),
    }
    test, said = tests[check]
    return (lambda call: test(call.argument(argument))), said


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _dtype_check(path: Path, check: str, kinds: list[str]) -> tuple[Predicate, str]:
    """A condition on the kinds of dtypes of the tensor arguments, or of the result. It fails where they are unknown."""
    wrong = [kind for kind in kinds if kind not in _KINDS]
    if wrong:
        raise TargetError(f"{path}: unknown dtype kind {wrong[0]!r}; known are {', '.join(_KINDS)}")

    def holds(call: Call) -> bool:
        found = call.tensors if check == "dtype" else _tensors(call.meta)
        return bool(found) and all(any(_KINDS[kind](t.dtype) for kind in kinds) for t in found)

    whose = "its tensors are" if check == "dtype" else "its result is"
    return holds, f"{whose} {' or '.join(kinds)}"


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in _items(values) if isinstance(value, torch.Tensor)]
