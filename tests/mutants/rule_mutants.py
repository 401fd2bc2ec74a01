"""Mutants of a rule: the rule as it is, run under a mode that changes one of the calls that it makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
import functools
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class Site:
    """One call of a rule, and what to do to it."""

    function: str
    """Name of the function that is called."""
    count: int
    """How many calls of that name came before."""
    change: str
    """"drop"; "negate" the result; or "perturb" one of the arguments, which is given by its place or its name."""
    place: int | str | None = None
    value: float | None = None
    """The number that is perturbed: where another stands there, the call is left alone."""

    def __str__(self) -> str:
        what = f"{self.change} {self.value} in" if self.value is not None else self.change
        return f"{what} {self.function} number {self.count}"


@dataclass(frozen=True)
class Mutant:
    """One change, and whether it was noticed."""

    family: str
    rule: str
    op: str
    change: str
    killed: bool
    why: str
    """By what it was noticed, or what was measured instead."""


ARITHMETIC = frozenset(
    "add sub mul div truediv rsub rdiv pow rpow maximum minimum where full full_like fmod remainder masked_fill clamp"
    " clamp_min clamp_max lt le gt ge eq ne lerp xlogy ldexp floordiv radd rmul rtruediv floor_divide".split()
)
"""Functions whose numbers are values."""
PASSIVE = frozenset(
    "clone detach contiguous alias to type float double bfloat16 half int long bool view reshape expand expand_as"
    " view_as permute transpose unsqueeze squeeze flatten unflatten movedim requires_grad_ broadcast_to positive"
    " broadcast_tensors type_as conj resolve_conj resolve_neg lift_fresh getitem select narrow slice chunk split"
    " unbind zeros_like ones_like empty_like full_like rand_like randn_like new_zeros new_ones new_full".split()
)
"""Functions whose removal need change no value: they copy, cast or look at what is there; or make something new."""
NEUTRAL = {"mul": 1, "div": 1, "truediv": 1, "pow": 1, "add": 0, "sub": 0, "rmul": 1, "radd": 0}
"""Numbers that change nothing."""


def mutated(function: Callable[..., Any], site: Site) -> Callable[..., Any]:
    """The function with one of its calls changed."""

    @functools.wraps(function)
    def changed(*args: Any, **kwargs: Any) -> Any:
        with _Changing(site):
            return function(*args, **kwargs)

    return changed


def sites(function: Callable[..., Any], found: list[Site]) -> Callable[..., Any]:
    """The function, noting where it could be changed."""

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with _Watching(found):
            return function(*args, **kwargs)

    return watched


class _Counting(TorchFunctionMode):
    """Numbers the calls of each name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        self.counts[name] += 1
        return self.called(name, self.counts[name] - 1, func, args, kwargs or {})

    def called(self, name: str, count: int, func: Any, args: Any, kwargs: Any) -> Any:
        """The replacement of a call's result."""
        return func(*args, **kwargs)


class _Changing(_Counting):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site

    def called(self, name: str, count: int, func: Any, args: Any, kwargs: Any) -> Any:
        site = self.site
        if (name, count) != (site.function, site.count):
            return func(*args, **kwargs)
        if site.change == "drop":
            result = func(*args, **kwargs)
            return args[0] if _can_go(name, args, kwargs, result) else result
        if site.change == "negate":
            return -func(*args, **kwargs)
        if isinstance(site.place, str):
            if kwargs.get(site.place) == site.value:
                kwargs = {**kwargs, site.place: _another(kwargs[site.place])}
        elif site.place < len(args) and _is_number(args[site.place]) and args[site.place] == site.value:
            args = (*args[: site.place], _another(args[site.place]), *args[site.place + 1 :])
        return func(*args, **kwargs)


class _Watching(_Counting):
    def __init__(self, found: list[Site]) -> None:
        super().__init__()
        self.found = found

    def called(self, name: str, count: int, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and not result.numel():
            return result
        if _can_go(name, args, kwargs, result):
            self.found.append(Site(name, count, "drop"))
        if isinstance(result, torch.Tensor) and (result.is_floating_point() or result.is_complex()):
            self.found.append(Site(name, count, "negate"))
        if name in ARITHMETIC and isinstance(result, torch.Tensor):
            self.found += [Site(name, count, "perturb", place, value) for place, value in _numbers(name, args, kwargs)]
        return result


def _can_go(name: str, args: Any, kwargs: Any, result: Any) -> bool:
    """Whether a call can be dropped: its first argument is like its result, and it does something."""
    if name in PASSIVE or not args or not isinstance(args[0], torch.Tensor) or not isinstance(result, torch.Tensor):
        return False
    first = args[0]
    if result is first or (result.shape, result.dtype) != (first.shape, first.dtype):
        return False
    return not (name in NEUTRAL and len(args) > 1 and _is_number(args[1]) and args[1] == NEUTRAL[name])


def _numbers(name: str, args: Any, kwargs: Any) -> Iterator[tuple[int | str, float]]:
    start = 1 if name in ("full", "full_like") else 0
    for place, value in enumerate(args[start:], start):
        if _is_number(value):
            yield place, value
    for key in ("other", "value", "fill_value", "min", "max", "alpha", "exponent"):
        if _is_number(kwargs.get(key)):
            yield key, kwargs[key]


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and value == value and abs(value) != float("inf")


def _another(value: Any) -> Any:
    return value + 1 if isinstance(value, int) else value * 1.25 + 0.01
