"""Targets: the ops that a backend has, each legal always or under a condition. Targets are values that compose with
`|`, `&` and `-`; they can be written in Python or as a TOML file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
import functools
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from decomp.costs.model import CostModel
from decomp.errors import TargetError, pickle_or_explain
from decomp.ir.call import Call, Predicate, metadata
from decomp.ir.dtypes import KINDS, common, is_of, name_of, named_by, unknown_in
from decomp.ir.narrow_calls import NARROWER, NarrowCall, has_wide, is_between
from decomp.ir.ops import Op, Spelling, meant_overload, resolve
from decomp.metadata.symbolic_sizes import SYMBOLIC, Undecided, decided_at_every_size, of_two_or_more, strides_of

Key = tuple[Op, str | None]
"""An op, and an overload, or None for all overloads."""


@dataclass(frozen=True)
class Condition:
    """A condition under which a call is legal, and its text in errors."""

    holds: Predicate
    reason: str
    remark: Callable[[Call], str] | None = None
    """Text to append to the reason for a call that violates it."""

    @property
    def of_all(self) -> bool:
        """Whether it is a condition on the calls of all ops."""
        return isinstance(self.holds, _OfAnyTensor)

    def why(self, call: Call) -> str:
        """The reason, for this call."""
        return self.reason if self.remark is None else self.reason + self.remark(call)


@dataclass(frozen=True, eq=False)
class _OfAnyTensor:
    """Whether the tensor arguments of a call and its results, if known, have a dtype of these names."""

    names: tuple[str, ...]

    def __call__(self, call: Call) -> bool:
        return next(_outside(call, self.names), None) is None


@dataclass(frozen=True, eq=False)
class _Outside:
    """Text on the dtype of a call that is not among these names."""

    names: tuple[str, ...]

    def __call__(self, call: Call) -> str:
        found = next(_outside(call, self.names), None)
        if found is None:
            return ""
        pairs = " (complex numbers become pairs of real ones where rules know how; see its reasons)"
        return f", and one is {name_of(found)}{pairs if found.is_complex else ''}"


def _dtypes_are(names: tuple[str, ...]) -> Condition:
    """The condition of `with_dtypes` on every call."""
    return Condition(_OfAnyTensor(names), f"its tensors are {' or '.join(names)}", _Outside(names))


def _outside(call: Call, names: tuple[str, ...]) -> Iterator[torch.dtype]:
    results = call.meta if isinstance(call.meta, (tuple, list)) else (call.meta,)
    tensors = (*call.tensors, *(each for each in results if isinstance(each, torch.Tensor)))
    return (tensor.dtype for tensor in tensors if not is_of(tensor.dtype, names))


class OpenCondition(str):
    """The reason of a target for a call that it cannot decide on, because the program has no metadata."""


Disjunction = tuple[tuple[Condition, ...], ...]
"""A call is legal if all conditions of one alternative hold; `((),)` is always, `()` never."""

ALWAYS: Disjunction = ((),)
_DETACH = Op("aten.detach")


class Target:
    """The set of ops that a backend has.

    ```python
    chip = Target("mychip", ["add", "mul", torch.exp, F.conv2d, torch.ops.aten.sum.dim_IntList])
    chip = chip.legal_if("convolution", lambda call: call.argument("groups") == 1, "groups must be 1")
    ```
    """

    def __init__(
        self,
        name: str,
        ops: Iterable[Any] = (),
        *,
        description: str = "",
        dtypes: Iterable[torch.dtype | str] | None = None,
    ) -> None:
        """`ops`: ops by any spelling (`"add"`, `torch.exp`, `F.conv2d`); an overload (`"sum.dim_IntList"`) means that
        overload only. `dtypes`: those that tensors may have, as in `with_dtypes`; by default all. Raises `UnknownOp`,
        and `TargetError` for an unknown dtype."""
        self.name, self.description = name, description
        self.dtypes: tuple[str, ...] | None = None
        """Names or kinds of the dtypes that tensors may have; None if the target declares none."""
        self.costs: CostModel | None = None
        """The cost model of this target, if its file has one."""
        self.narrower: Mapping[torch.dtype, torch.dtype] = {}
        """Maps dtypes that tensors may not have to the narrower ones that replace them; see `narrowed`."""
        self._entries: dict[Key, Disjunction] = {_key(spelling): ALWAYS for spelling in _listed(ops)}
        if dtypes is not None:
            limited = self.with_dtypes(dtypes)
            self._entries, self.dtypes = limited._entries, limited.dtypes

    @classmethod
    def _of(
        cls,
        name: str,
        entries: Mapping[Key, Disjunction],
        description: str = "",
        costs: CostModel | None = None,
        dtypes: tuple[str, ...] | None = None,
        narrower: Mapping[torch.dtype, torch.dtype] = MappingProxyType({}),
    ) -> Target:
        target = cls(name, description=description)
        target._entries, target.costs, target.dtypes, target.narrower = dict(entries), costs, dtypes, narrower
        return target

    def _with(self, name: str, entries: Mapping[Key, Disjunction]) -> Target:
        """A copy with other ops."""
        return self._of(name, entries, self.description, self.costs, self.dtypes, self.narrower)

    @classmethod
    def load(cls, path: str | Path) -> Target:
        """Read a target from a TOML file. Raises `TargetError`, which names the file and the key, and `UnknownOp`."""
        from decomp.rules.target_files import read

        if not isinstance(path, (str, Path)):
            raise TargetError(f"the path of a target must be a string or Path, not {type(path).__name__}")
        return read(Path(path))

    def legal_if(self, spelling: Any, predicate: Predicate, reason: str) -> Target:
        """A copy of this target in which an op is legal only if `predicate(call)` is true, in addition to its existing
        conditions. `reason` is for errors: "groups must be 1". Raises `UnknownOp`."""
        (op, overload), condition = _key(spelling), Condition(predicate, reason)
        meant = [key for key in self._entries if key[0] == op and overload in (None, key[1])]
        entries = dict(self._entries)
        # An op that the target did not have joins it under the condition.
        for key in meant or [(op, overload)]:
            now = self._lookup(key) or ALWAYS
            entries[key] = tuple((*conditions, condition) for conditions in now)
        return self._with(self.name, entries)

    def with_dtypes(self, dtypes: Iterable[torch.dtype | str]) -> Target:
        """A copy of this target on which a call is legal only if all its tensor arguments and results have one of these
        dtypes: `torch.float32` or "float32", or a kind, one of "float", "complex", "integer" and "bool". `detach`
        computes nothing and stays legal on all dtypes, and so do ops that are added to the target later. Without
        complex dtypes, programs with complex numbers are lowered to pairs of real numbers. Raises `TargetError` for an
        unknown dtype."""
        names = tuple(dict.fromkeys(map(name_of, _as_dtypes(dtypes))))
        wrong = unknown_in(names)
        if wrong is not None:
            raise TargetError(f"unknown dtype {wrong!r}; known are {', '.join(KINDS)}, and names as float32")
        condition = _dtypes_are(names)
        entries = {
            key: alternatives if key[0] == _DETACH else tuple((*each, condition) for each in alternatives)
            for key, alternatives in self._entries.items()
        }
        known = names if self.dtypes is None else common(self.dtypes, names)
        return self._of(self.name, entries, self.description, self.costs, known, self.narrower)

    def with_more_dtypes(self, dtypes: Iterable[torch.dtype]) -> Target:
        """A copy of this target on which tensors may also have these dtypes: calls that were illegal only because of
        them become legal."""
        more = tuple(map(name_of, _as_dtypes(dtypes)))

        def wider(condition: Condition) -> Condition:
            holds = condition.holds
            return _dtypes_are((*holds.names, *more)) if isinstance(holds, _OfAnyTensor) else condition

        entries = {key: tuple(tuple(map(wider, each)) for each in found) for key, found in self._entries.items()}
        known = None if self.dtypes is None else tuple(dict.fromkeys((*self.dtypes, *more)))
        narrower = {wide: narrow for wide, narrow in self.narrower.items() if not is_of(wide, more)}
        return self._of(self.name, entries, self.description, self.costs, known, narrower)

    def unknown_dtypes(self, call: Call) -> frozenset[torch.dtype]:
        """The dtypes of a call's tensor arguments and results that this target does not have."""
        return frozenset() if self.dtypes is None else frozenset(_outside(call, self.dtypes)) - self.narrower.keys()

    def knows_dtype(self, dtype: torch.dtype) -> bool:
        """Whether tensors may have this dtype."""
        return self.dtypes is None or is_of(dtype, self.dtypes)

    def narrowed(self) -> Target:
        """A copy of this target for which programs are lowered in narrow dtypes: int32 instead of int64, float32
        instead of float64, complex64 instead of complex128, each if the target has the narrow one but not the wide one.
        Raises `TargetError` if the target declares no dtypes."""
        if self.dtypes is None:
            raise TargetError(
                f"target {self.name} declares no dtypes, which narrow=True needs: declare them by "
                'target.with_dtypes(["float32", "int32", "bool"])'
            )
        known = self.knows_dtype
        narrower = {wide: narrow for wide, narrow in NARROWER.items() if not known(wide) and known(narrow)}
        return self._of(self.name, self._entries, self.description, self.costs, self.dtypes, narrower)

    def named(self, name: str) -> Target:
        """A copy of this target under another name."""
        return self._with(name, self._entries)

    def with_costs(self, costs: CostModel | None) -> Target:
        """A copy of this target with the cost model `costs`, one of `decomp.costs`."""
        return self._of(self.name, self._entries, self.description, costs, self.dtypes, self.narrower)

    def why_illegal(self, call: Call) -> str | None:
        """None if the call is legal; otherwise the reason of a violated condition, or "" if the target does not have
        the op."""
        alternatives = self._entries.get((call.op, call.overload))
        if alternatives is None:
            alternatives = self._entries.get((call.op, None))
        if self.narrower and has_wide(call, self.narrower):
            if is_between(call, self.narrower):
                return None
            # Only indices: of the wide dtypes int64 is the one that PyTorch itself requires, so that it may remain
            # beside a cast.
            narrow = NarrowCall.of(call, {torch.int64: self.narrower.get(torch.int64, torch.int64)})
            broken = _violated_alternative(alternatives, narrow)
            # The narrow view is an object of its own.
            call.looked_around |= narrow.looked_around
            return broken
        return _violated_alternative(alternatives, call)

    def surely_legal(self, op: Op, overload: str | None) -> bool:
        """Whether every call of this overload (of every overload, if None) is legal, whatever its arguments."""
        if overload is None:
            # An entry of one overload comes before that of the whole op, and may be stricter.
            own = [alternatives for (known, _), alternatives in self._entries.items() if known == op]
            return (op, None) in self._entries and all(() in alternatives for alternatives in own)
        found = self._entries.get((op, overload), self._entries.get((op, None)))
        return found is not None and () in found

    def surely_legal_on(self, op: Op, overload: str | None) -> frozenset[torch.dtype]:
        """Dtypes such that every call of this overload on tensors of them is legal; empty if that is not certain."""
        found = self._entries.get((op, overload), self._entries.get((op, None), ()))
        for conditions in found:
            on = [each.holds.names for each in conditions if isinstance(each.holds, _OfAnyTensor)]
            if on and len(on) == len(conditions):
                return frozenset.intersection(*map(named_by, on))
        return frozenset()

    def sure(self, op: Op, overload: str | None) -> bool | frozenset[torch.dtype]:
        """Whether every call of this overload is legal, or the dtypes on which every call is."""
        return self.surely_legal(op, overload) or self.surely_legal_on(op, overload)

    def knows(self, spelling: Any) -> bool:
        """Whether the target has the op, possibly under a condition."""
        key = _key(spelling)
        if key[1] is None:
            return key[0] in self._known
        return bool(self._entries.get(key, self._entries.get((key[0], None))))

    __contains__ = knows

    @functools.cached_property
    def _known(self) -> frozenset[Op]:
        return frozenset(op for (op, _), alternatives in self._entries.items() if alternatives)

    def conditions(self) -> list[tuple[str, str]]:
        """Each op by name, with the condition under which it is legal; "" if it is always legal."""
        said = {
            _shown(key): _describe_alternatives(alternatives)
            for key, alternatives in self._entries.items()
            if alternatives
        }
        return sorted(said.items())

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(_shown(key) for key, alternatives in self._entries.items() if alternatives))

    def __len__(self) -> int:
        return sum(bool(alternatives) for alternatives in self._entries.values())

    def __repr__(self) -> str:
        on = f" on {', '.join(self.dtypes)}" if self.dtypes is not None else ""
        return f"Target({self.name!r}, {len(self)} ops{on})"

    def __reduce__(self) -> tuple[Any, ...]:
        conditions = (c for alternatives in self._entries.values() for conditions in alternatives for c in conditions)
        remedy = "define its predicate at the top level of a module, or write the target as TOML"
        for condition in dict.fromkeys(conditions):
            pickle_or_explain(condition.holds, f"target {self.name}, legal only if {condition.reason},", remedy)
        given = self.name, self._entries, self.description, self.costs, self.dtypes, dict(self.narrower)
        return type(self)._of, given

    def __copy__(self) -> Target:
        return self

    def __deepcopy__(self, memo: Any) -> Target:
        return self

    def __or__(self, other: Any) -> Target:
        """The ops of both: a call is legal if it is in one of them."""
        right = _as_target(other)
        keys = dict.fromkeys((*self._entries, *right._entries))
        entries = {key: _either(self._lookup(key), right._lookup(key)) for key in keys}
        dtypes = _either_dtypes(self.dtypes, other.dtypes) if isinstance(other, Target) else self.dtypes
        costs = self.costs or right.costs
        # A dtype that the other side brings needs no narrower one.
        kept = self.narrower.items() if dtypes is not None else ()
        narrower = {wide: narrow for wide, narrow in kept if not is_of(wide, dtypes or ())}
        return self._of(_joined_name(self, "|", other), entries, self.description, costs, dtypes, narrower)

    def __and__(self, other: Any) -> Target:
        """The ops that both have: a call is legal if it is in each of them."""
        right = _as_target(other)
        keys = {*self._entries, *right._entries}
        both = {key: _both(self._lookup(key), right._lookup(key)) for key in keys}
        # An overload that is never legal stays as an entry: it hides that of the whole op.
        shared = {key: found for key, found in both.items() if found or key[1]}
        dtypes, costs = _both_dtypes(self.dtypes, right.dtypes), self.costs or right.costs
        return self._of(_joined_name(self, "&", other), shared, self.description, costs, dtypes, self.narrower)

    def __sub__(self, other: Any) -> Target:
        """The ops of this target without those of the other."""
        right = _as_target(other)
        gone = {op for op, overload in right._entries if overload is None}
        entries = {key: alternatives for key, alternatives in self._entries.items() if key[0] not in gone}
        entries.update({key: () for key in right._entries if key[1] is not None})
        return self._with(_joined_name(self, "-", other), entries)

    def _lookup(self, key: Key) -> Disjunction:
        return self._entries.get(key, self._entries.get((key[0], None), ()))


def _as_dtypes(dtypes: Any) -> Iterable[torch.dtype | str]:
    """One or several dtypes as several. Raises `TargetError` for something else."""
    if isinstance(dtypes, (str, torch.dtype)):
        return [dtypes]
    if isinstance(dtypes, Iterable):
        return dtypes
    raise TargetError(f"dtypes are as torch.float32 or 'float32', one or several; got {type(dtypes).__name__}")


class MatchAllTarget(Target):
    """The target of `decompose`: every op is legal, so that a call without a rule is kept."""

    def why_illegal(self, call: Call) -> str | None:
        return None

    def surely_legal(self, op: Op, overload: str | None) -> bool:
        return True


def _violated_alternative(alternatives: Disjunction | None, call: Call) -> str | None:
    """None if all conditions of one alternative hold; otherwise the reason of one that does not, or ""."""
    broken, env = "", _shape_env(call) if alternatives and alternatives != ALWAYS else None
    for conditions in alternatives or ():
        failed = next((reason for c in conditions if (reason := _violated_condition(c, call, env)) is not None), None)
        if failed is None:
            return None
        broken = failed
    return broken


def _violated_condition(condition: Condition, call: Call, env: Any) -> str | None:
    """None if the condition holds; otherwise its reason. A condition on symbolic sizes (of `env`) must hold for all
    values, or else for all values except 0 and 1, as `torch.export` assumes of sizes."""
    try:
        try:
            with decided_at_every_size(env):
                return None if condition.holds(call) else condition.why(call)
        except Undecided:
            with of_two_or_more(env), decided_at_every_size(env):
                return None if condition.holds(call) else condition.why(call)
    except Undecided:
        return f"{condition.reason}, which is undecided: it depends on a size or value that is known only at run time"
    # A predicate reads `.shape` of an argument, which is a node where there is no metadata.
    except (AttributeError, TypeError, LookupError) as error:
        if _has_unknown(call):
            return OpenCondition(
                f"{condition.reason}, which is undecided: the program has no metadata for an argument; pass args="
            )
        raise TargetError(f"the condition {condition.reason!r} failed on {call.op}: {error}") from error


def _shape_env(call: Call) -> Any:
    """The environment of the symbolic sizes among the arguments and results of a call, or None without such sizes."""
    for node in (*call.inputs, *((call.place,) if call.place is not None else ())):
        value = metadata(node)
        for item in value if isinstance(value, (list, tuple)) else (value,):
            sizes = (*item.shape, *strides_of(item)) if isinstance(item, torch.Tensor) else (item,)
            symbolic = next((size for size in sizes if isinstance(size, SYMBOLIC)), None)
            if symbolic is not None:
                return symbolic.node.shape_env
    return None


def _has_unknown(call: Call) -> bool:
    return any(metadata(node) is None for node in call.inputs)


def _listed(ops: Any) -> tuple[Any, ...]:
    if isinstance(ops, (str, Op)) or callable(ops):
        return (ops,)
    if not isinstance(ops, Iterable):
        raise TargetError(f"the ops of a target must be a list of ops, not {type(ops).__name__}")
    return tuple(ops)


def _key(spelling: Any) -> Key:
    if isinstance(spelling, tuple) and len(spelling) == 2 and isinstance(spelling[0], Op):
        return spelling
    found: Spelling = resolve(spelling)
    return found.op, meant_overload(found)


def _shown(key: Key) -> str:
    return f"{key[0]}.{key[1]}" if key[1] else str(key[0])


def _describe_alternatives(alternatives: Disjunction) -> str:
    if () in alternatives:
        return ""
    return ", or ".join(" and ".join(condition.reason for condition in conditions) for conditions in alternatives)


def _as_target(other: Any) -> Target:
    return other if isinstance(other, Target) else Target("", other)


def _joined_name(left: Target, sign: str, right: Any) -> str:
    return f"{left.name} {sign} {right.name}" if isinstance(right, Target) else left.name


def _either_dtypes(left: tuple[str, ...] | None, right: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if left is None or right is None else tuple(dict.fromkeys((*left, *right)))


def _both_dtypes(left: tuple[str, ...] | None, right: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if left is None or right is None:
        return left if right is None else right
    return common(left, right)


def _either(left: Disjunction, right: Disjunction) -> Disjunction:
    # One alternative without conditions is enough.
    return ALWAYS if () in left or () in right else tuple(dict.fromkeys((*left, *right)))


def _both(left: Disjunction, right: Disjunction) -> Disjunction:
    return tuple(dict.fromkeys((*a, *b) for a in left for b in right))
