"""Checks of the options of public functions. Options are checked before anything is done, so that a wrong value is
reported with the option's name, and not by what it breaks later."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import difflib
import math
from pathlib import Path
from typing import Any

import torch
from torch import fx

from decomp import _library
from decomp.errors import ArgumentError
from decomp.ir.ops import Op
from decomp.rules.accuracy import Accuracy
from decomp.rules.rules import Rules
from decomp.rules.target import Target

Check = Callable[[str, Any], None]
"""Given the name of an option and its value; raises `ArgumentError`."""
VERIFY = (True, False, "structure", "values", "full")


def _target(name: str, value: Any) -> None:
    if isinstance(value, Target):
        return
    if isinstance(value, str):
        raise ArgumentError(f"{name}= must be a decomp.Target, not the name {value!r}: pass {_by_name(value)}")
    _refuse(name, value, "a decomp.Target", "decomp_rules.targets has some")


def _by_name(name: str) -> str:
    """What to pass instead of a target's name, which may be misspelt."""
    known = [target.name for target in _library.shipped_targets()]
    near = [name] if name in known else difflib.get_close_matches(name, known, n=1)
    if near:
        return f"decomp_rules.targets.{near[0]}, or Target.load(path)"
    return f"one of decomp_rules.targets ({', '.join(known)}), or Target.load(path)"


def _targets(name: str, value: Any) -> None:
    for each in value if isinstance(value, (list, tuple, set, frozenset)) else (value,):
        if each is not None:
            _target(name, each)


def _inputs(name: str, value: Any) -> None:
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


def _function(name: str, value: Any) -> None:
    if value is not None and not callable(value):
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
    "cost": _function,
    "max_error": _factor,
    "max_ulp": _limits,
    "partial": _flag,
    "simplify": _flag,
    "training": _maybe_flag,
    "freeze": _flag,
    "narrow": _flag,
    "verify": _one_of(VERIFY),
    "lock": _file,
    "level": _one_of(("structure", "values")),
    "full": _flag,
    "tracer_class": _tracer,
    "dynamic_shapes": _shapes,
}
"""The options of `lower`, `decompose`, `plan`, `verify` and `backend`."""
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
