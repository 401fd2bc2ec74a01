"""The options of public functions: `Options`, one value from which each verb takes those that it knows, and the check
of each option, before anything is done: a wrong value is reported with its name, and not by what it breaks later."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
import difflib
import functools
import inspect
import math
from pathlib import Path
from typing import Any

import torch
from torch import fx

from decomp import costs
from decomp.costs.model import Cost
from decomp.errors import ArgumentError, Check, F, boundary
from decomp.ir.ops import Op, op as op_of
from decomp.patterns.pattern import Pattern
from decomp.rules import library as shipped
from decomp.rules.accuracy import DEFAULT, Accuracy, Limits, Policy, Spec
from decomp.rules.rules import Rules, as_rules
from decomp.rules.target import Target

VERIFY = (True, False, "structure", "values", "full")


@dataclass(frozen=True, kw_only=True, repr=False)
class Options:
    """How a program is lowered: the options of `decomp.lower`, which explains each, as one value. Every verb takes it
    as `options=`, and keywords beside it win: `decomp.plan(model, to=chip, options=options, freeze=True)`.
    `dataclasses.replace(options, accuracy="fast")` is a changed copy.

    A verb refuses options that it does not take, unless they have their default. Those that make no program, such as
    `plan`, pass over `partial`, `simplify`, `verify`, `lock` and `composites`. Raises `ArgumentError` for a wrong value
    and for options that exclude one another, and `UnknownOp`.
    """

    rules: Rules | Mapping[Any, Any] | None = None
    keep: Iterable[Any] = ()
    accuracy: Spec = DEFAULT
    cost: Cost | str | None = None
    max_error: float | None = None
    max_ulp: Limits | None = None
    partial: bool = False
    simplify: bool = True
    training: bool | None = None
    freeze: bool = False
    narrow: bool = False
    drop_draws: bool = False
    verify: bool | str = True
    lock: str | Path | None = None
    composites: Iterable[Any] | Mapping[Any, int] = ()

    def __post_init__(self) -> None:
        for name in OPTIONS:
            CHECKS[name](name, getattr(self, name))
        if self.max_error is not None and self.max_ulp is not None:
            raise ArgumentError("max_error= picks levels and max_ulp= replaces them: pass only one of the two")
        if self.freeze and not self.simplify:
            raise ArgumentError("freeze=True is part of simplification: leave out simplify=False")
        if self.freeze and self.training:
            raise ArgumentError("freeze=True makes parameters constants, which cannot train: leave out training=True")
        ops = (self.keep,) if isinstance(self.keep, str) or callable(self.keep) else self.keep
        # Sorted: the same ops make the same target, and planning caches hit.
        object.__setattr__(self, "keep", tuple(sorted({op_of(each) for each in ops}, key=str)))
        object.__setattr__(self, "composites", tuple(sorted(_versions(self.composites).items(), key=str)))
        if isinstance(self.cost, str):
            object.__setattr__(self, "cost", getattr(costs, self.cost))
        object.__setattr__(self, "rules", as_rules(self.rules) if self.rules is not None else None)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The options among the keywords of a verb: its `options=`, changed by the others."""
        own = {name: given[name] for name in OPTIONS if name in given}
        return replace(given.get("options") or _DEFAULTS, **own)

    @property
    def given(self) -> dict[str, Any]:
        """The options that do not have their default."""
        return {name: value for name in OPTIONS if (value := getattr(self, name)) != getattr(_DEFAULTS, name)}

    @property
    def chosen_rules(self) -> Rules:
        """The rules; by default the library's."""
        return self.rules if isinstance(self.rules, Rules) else shipped.library()

    @property
    def policy(self) -> Policy:
        """How alternatives are chosen."""
        assert not isinstance(self.cost, str)
        return Policy(Accuracy.of(self.accuracy).within(self.max_ulp), self.cost, self.freeze)

    @property
    def trains(self) -> bool | None:
        """Whether ops that only gradients need are kept; None: if something may require a gradient."""
        return False if self.freeze else self.training

    def target(self, to: Target) -> Target:
        """A target with the ops that are kept, and narrowed; the same object for the same options, so that planning
        caches hit. Raises `TargetError` for narrow=True with a target that declares no dtypes."""
        target = _narrow_target(to) if self.narrow else to
        return _with_kept_ops(target, tuple(self.keep)) if self.keep else target

    def __repr__(self) -> str:
        return f"Options({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"


# Plans are remembered by the identity of their target.
@functools.lru_cache(maxsize=64)
def _narrow_target(target: Target) -> Target:
    return target.narrowed()


@functools.lru_cache(maxsize=256)
def _with_kept_ops(target: Target, keep: tuple[Any, ...]) -> Target:
    # Under the name of the target, which messages and caches show, and not under that of the union.
    return target._with(target.name, (target | keep)._entries)


def verb(name: str, keywords: type, checks: Mapping[str, Check] = {}) -> Callable[[F], F]:
    """Decorator of a public function whose `**given` are the keywords of a `TypedDict`: its signature lists them with
    their defaults, and it is a `boundary` that checks them and `checks`."""
    named = keywords.__annotations__
    listed = tuple(
        inspect.Parameter(
            each,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            # The annotations of a `TypedDict` are `ForwardRef`s under `from __future__ import annotations`.
            annotation=getattr(named[each], "__forward_arg__", named[each]),
        )
        for each, default in _KEYWORDS.items()
        if each in named
    )
    taken = frozenset(named)
    return boundary(name, {**_OF_VERBS, "options": functools.partial(_options, name, taken), **checks}, listed)


def _options(verb: str, taken: frozenset[str], name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, Options):
        _refuse(name, value, "decomp.Options", f"as {name}=decomp.Options(accuracy='fast')")
    passed = taken if taken & _OF_PROGRAMS else taken | _OF_PROGRAMS
    for each, own in value.given.items():
        if each not in passed:
            raise ArgumentError(f"{name}= has {each}={own!r}, and {verb} takes no {each}=")


def _target(name: str, value: Any) -> None:
    if isinstance(value, Target):
        return
    if isinstance(value, str):
        raise ArgumentError(f"{name}= must be a decomp.Target, not the name {value!r}: pass {_by_name(value)}")
    _refuse(name, value, "a decomp.Target", "decomp_rules.targets has some")


def _by_name(name: str) -> str:
    """What to pass instead of a target's name, which may be misspelt."""
    known = [target.name for target in shipped.shipped_targets()]
    near = [name] if name in known else difflib.get_close_matches(name, known, n=1)
    if near:
        return f"decomp_rules.targets.{near[0]}, or Target.load(path)"
    return f"one of decomp_rules.targets ({', '.join(known)}), or Target.load(path)"


def _targets(name: str, value: Any) -> None:
    for each in value if isinstance(value, (list, tuple, set, frozenset)) else (value,):
        if each is not None:
            _target(name, each)


def _inputs(name: str, value: Any) -> None:
    # A forgotten comma, `args=(x.shape)`, gives such a sequence.
    if value is not None and (not isinstance(value, Sequence) or isinstance(value, (str, bytes, torch.Size))):
        _refuse(name, value, "a tuple of the inputs by position", f"of one input: {name}=(x,)")


def _named_inputs(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping):
        _refuse(name, value, "a dict of the inputs by name")
    wrong = [key for key in value if not isinstance(key, str)]
    if wrong:
        raise ArgumentError(f"{name}= must have the names of inputs as keys, not {wrong[0]!r}")


def _rules(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, (Rules, Mapping)):
        _refuse(name, value, "decomp.Rules or a dict of functions by op")


def _ops(name: str, value: Any) -> None:
    if not isinstance(value, (Iterable, Op)) and not callable(value):
        _refuse(name, value, "a set of ops", f'as {name}={{"softmax", F.gelu}}')


def _composites(name: str, value: Any) -> None:
    if not isinstance(value, Pattern):
        _ops(name, value)
    for each in value.values() if isinstance(value, Mapping) else ():
        if type(each) is not int or each < 0:
            raise ArgumentError(f"{name}= must have versions as values, integers from 0 on, not {each!r}")


def _versions(given: Any) -> dict[Any, int]:
    """The version of each op or pattern that is a composite; 1 where none is given."""
    if isinstance(given, Mapping):
        return {_composite(each): version for each, version in given.items()}
    if isinstance(given, tuple) and all(isinstance(each, tuple) for each in given):
        return dict(given)  # as another value of options holds them
    listed = (given,) if isinstance(given, str) or callable(given) else given
    return {_composite(each): 1 for each in listed}


def _composite(each: Any) -> Any:
    return each if isinstance(each, Pattern) else op_of(each)


def _cost(name: str, value: Any) -> None:
    if isinstance(value, str) and value not in costs.NAMED:
        raise ArgumentError(f"{name}= must be one of {', '.join(map(repr, costs.NAMED))}, or a function, not {value!r}")
    if value is not None and not isinstance(value, str) and not callable(value):
        _refuse(name, value, "a function of a call that returns a number")


def _accuracy(name: str, value: Any) -> None:
    Accuracy.of(value)


def _levels(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, (str, Iterable)):
        _refuse(name, value, "a level of accuracy, or a list of levels", f'as {name}="standard"')


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        _refuse(name, value, "True or False")


def _maybe_flag(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, bool):
        _refuse(name, value, "True, False or None")


def _one_of(known: Collection[Any]) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, (bool, str)) or value not in known:
            raise ArgumentError(f"{name}= must be one of {', '.join(map(repr, known))}, not {value!r}")

    return check


def _tracer(name: str, value: Any) -> None:
    if not isinstance(value, type) or not issubclass(value, fx.Tracer):
        _refuse(name, value, "a class derived from torch.fx.Tracer")


def _shapes(name: str, value: Any) -> None:
    known = (Mapping, Sequence, torch.export.ShapesCollection, torch.export.AdditionalInputs)
    if value is not None and (not isinstance(value, known) or isinstance(value, (str, bytes))):
        _refuse(name, value, "a dict or a tuple of sizes, as torch.export takes it", f"as {name}=({{0: Dim.DYNAMIC}},)")


def _dtypes(name: str, value: Any) -> None:
    listed = value if isinstance(value, Iterable) else (value,)
    if value is not None and (isinstance(value, torch.dtype) or not all(isinstance(d, torch.dtype) for d in listed)):
        _refuse(name, value, "a list of dtypes", f"as {name}=[torch.float32]")


def _samples(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, Iterable):
        _refuse(name, value, "a list of sample calls", f"as {name}=[(torch.ones(3),)]")


def _seed(name: str, value: Any) -> None:
    # True is an integer to Python.
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(name, value, "an integer")


def _executor(name: str, value: Any) -> None:
    if value is not None and not callable(getattr(value, "submit", None)):
        _refuse(name, value, "a concurrent.futures.Executor")


def _seconds(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0):
        raise ArgumentError(f"{name}= must be a number of seconds above 0, not {value!r}")


def _limits(name: str, value: Any) -> None:
    for each in value.values() if isinstance(value, Mapping) else () if value is None else (value,):
        if isinstance(each, bool) or not isinstance(each, (int, float)) or not 0 < each < math.inf:
            raise ArgumentError(f"{name}= must be ULP, a number above 0, or a dict of them by op, not {each!r}")


def _factor(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ArgumentError(f"{name}= must be a number above 0, not {value!r}; 1.0 is as accurate as PyTorch")


def _progress(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, bool) and not callable(value):
        _refuse(name, value, "a function, True or False")


def _refuse(name: str, value: Any, expected: str, remedy: str = "") -> None:
    found = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    raise ArgumentError(f"{name}= must be {expected}, not {found}" + (f"; {remedy}" if remedy else ""))


def _file(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, (str, Path)):
        _refuse(name, value, "the path of a file")
    path = Path(value)
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "is a directory" if path.is_dir() else f"there is no directory {path.parent}"
        raise ArgumentError(f"{name}= {path}: {what}")


CHECKS: Mapping[str, Check] = {
    "to": _target,
    "args": _inputs,
    "kwargs": _named_inputs,
    "rules": _rules,
    "keep": _ops,
    "accuracy": _accuracy,
    "cost": _cost,
    "max_error": _factor,
    "max_ulp": _limits,
    "partial": _flag,
    "simplify": _flag,
    "training": _maybe_flag,
    "freeze": _flag,
    "narrow": _flag,
    "drop_draws": _flag,
    "verify": _one_of(VERIFY),
    "lock": _file,
    "composites": _composites,
    "level": _one_of(("structure", "values")),
    "full": _flag,
    "tracer_class": _tracer,
    "dynamic_shapes": _shapes,
}
"""The options of `lower`, `decompose`, `plan`, `verify` and `backend`."""
OPTIONS = tuple(each.name for each in fields(Options))
_OF_VERBS = {name: check for name, check in CHECKS.items() if name not in OPTIONS}
"""Checks of what `Options` does not check itself."""
_OF_PROGRAMS = frozenset({"partial", "simplify", "verify", "lock", "composites"})
"""The options of verbs that make a program."""
_DEFAULTS = Options()
_KEYWORDS: Mapping[str, Any] = {
    "args": None,
    "kwargs": None,
    **{name: getattr(_DEFAULTS, name) for name in OPTIONS},
    "options": None,
    "tracer_class": fx.Tracer,
    "dynamic_shapes": None,
}
"""All keywords with their defaults, in the order of signatures."""
OF_CERTIFY: Mapping[str, Check] = {
    "to": _targets,
    "samples": _samples,
    "dtypes": _dtypes,
    "accuracy": _levels,
    "seed": _seed,
    "executor": _executor,
    "timeout": _seconds,
    "progress": _progress,
}
"""The options of `certify`."""
