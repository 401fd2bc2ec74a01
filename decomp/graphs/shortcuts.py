"""Calls recorded without PyTorch's dispatcher. Which overload a call comes to, and with which of its arguments, depends
on their kinds alone: on dtypes and numbers of dimensions, and not on sizes or on the values of numbers. So the way of a
call is seen once for the kinds of its arguments; later calls of these kinds append the overload at once. What it gives
is asked of the kernel for the meta device each time, except where it is plain: an op that computes element by element,
on tensors of one shape that lie in order, gives another one of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
import operator
from typing import Any, NamedTuple

import torch
from torch import fx

from decomp.graphs.tracing import Tape
from decomp.ir.op_facts import KERNEL_STRIDES
from decomp.ops import aten
from decomp.torch_internals.fakes import FakeTensor

MOST = 50_000
"""So many ways are remembered, then all are forgotten."""
LONGEST = 64
"""With a longer list, as of the numbers of a table, a call is not worth to be remembered."""


class CallKey(NamedTuple):
    """A call, taken apart."""

    key: tuple[Any, ...]
    """Its function, and the kinds of its arguments."""
    args: tuple[Any, ...]
    """Those of its arguments that are not given by name."""
    nodes: list[fx.Node]
    """Its tensors, in order, with repeats."""
    fakes: list[FakeTensor]
    """What they are."""
    numbers: list[int | float]
    """Its numbers, in order."""
    by_place: int
    """How many of its numbers are not given by name."""
    before: int
    """How many nodes the graph had."""


@dataclass(frozen=True, slots=True)
class DispatchRecipe:
    """What a call comes to, given its tensors and its numbers."""

    overload: torch._ops.OpOverload
    arguments: Callable[[Any, Any], tuple[tuple[Any, ...], dict[str, Any]]]
    """From its tensors (as nodes, or as fake tensors) and its numbers to the arguments of the overload."""
    defaults: Mapping[int | str, Any]
    """What the dispatcher leaves out where it is given: by place, and by the name of what has no place."""
    result: torch.dtype | None
    """The dtype of the result, where it is computed element by element from all tensors."""

    def filled(self, tensors: list[Any], numbers: list[int | float]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the overload, without what is the default."""
        args, kwargs = self.arguments(tensors, numbers)
        if self.defaults:
            while args and _is_default(args[-1], self.defaults.get(len(args) - 1, _NO_DEFAULT)):
                args = args[:-1]
            kwargs = {k: v for k, v in kwargs.items() if not _is_default(v, self.defaults.get(k, _NO_DEFAULT))}
        return args, kwargs


_NO_DEFAULT = object()


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, (list, tuple)) and isinstance(default, (list, tuple)):
        return len(value) == len(default) and all(map(_is_default, value, default))
    return type(value) is type(default) and bool(value == default)


_WAYS: dict[Hashable, DispatchRecipe | None] = {}
"""What has been seen, by the keys of calls; None for calls that have no such way."""


class Shortcuts:
    """Records calls on a tape by ways that are known, and remembers new ones."""

    def __init__(self, tape: Tape) -> None:
        assert tape.kernels is not None
        self.tape, self.kernels = tape, tape.kernels

    def asked(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallKey | None:
        """A call of a function, or of a method by its name, whose arguments may be proxies; None for one that takes
        no such way."""
        name = _named(target)
        if name is None:
            return None
        asked = CallKey((), args, [], [], [], 0, len(self.tape.graph.nodes))
        nodes, numbers = asked.nodes, asked.numbers
        try:
            kinds = tuple([self._kind(value, asked) for value in args])
            by_place = len(numbers)
            named = tuple([(word, self._kind(value, asked)) for word, value in kwargs.items()])
        except _NoRecipe:
            return None
        same = tuple(map(nodes.index, nodes)) if len(nodes) > 1 else ()
        key = (name, torch.get_default_dtype(), kinds, named, same)
        return asked._replace(key=key, by_place=by_place)

    def recorded(self, asked: CallKey) -> FakeTensor | None:
        """Record the call by a known way; the tensor that it gives, None if no way is known."""
        way = _WAYS.get(asked.key)
        if way is None:
            return None
        out: Any = NotImplemented
        if way.result is not None:
            out = self.kernels.like_operands(asked.fakes, way.result)
        if out is NotImplemented:
            args, kwargs = way.filled(asked.fakes, asked.numbers)
            out = self.kernels.run(way.overload, args, kwargs)
        if type(out) is not FakeTensor:
            return None
        if all([out is not fake for fake in asked.fakes]):
            args, kwargs = way.filled(asked.nodes, asked.numbers)
            self.tape.append_call(way.overload, args, kwargs, out)
        return out

    def learn(self, asked: CallKey, result: Any) -> None:
        """Remember the way of a call that has just been recorded through the dispatcher, and gave `result`."""
        if asked.key in _WAYS:
            return
        if len(_WAYS) >= MOST:
            _WAYS.clear()
        node = next(iter(reversed(self.tape.graph.nodes)), None)
        alone = len(self.tape.graph.nodes) == asked.before + 1 and self.tape.node_of(result) is node
        if node is None or not alone or not _passes_on(node.target, asked):
            _WAYS[asked.key] = None
            return
        way = _way(node, asked, result)
        if way is not None:  # or other numbers may tell
            _WAYS[asked.key] = way

    def _kind(self, value: Any, asked: CallKey) -> Hashable:
        kind: Any = type(value)
        if isinstance(value, fx.Proxy):
            return self._tensor(value.node, asked)
        if kind is FakeTensor:
            return self._tensor(self.tape.node_of(value), asked)  # what a factory has made
        if kind is int or kind is float:
            asked.numbers.append(value)
            return kind
        if kind in _BY_VALUE:
            return (value,)
        if (kind is list or kind is tuple or kind is torch.Size) and len(value) <= LONGEST:
            return (kind, *[self._kind(item, asked) for item in value])
        raise _NoRecipe

    def _tensor(self, node: fx.Node | None, asked: CallKey) -> Hashable:
        if node is None or node.graph is not self.tape.graph:
            raise _NoRecipe
        value: Any = node.meta.get("val")
        layout = self.kernels.layout(value) if type(value) is FakeTensor else None
        if layout is None:
            raise _NoRecipe
        asked.nodes.append(node)
        asked.fakes.append(value)
        return layout.dtype, len(layout.shape), layout.device


class _NoRecipe(Exception):
    """A call that takes no such way."""


_BY_VALUE = frozenset({bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})


def _named(target: Any) -> Hashable:
    """What a call is told by: only of what is written in C++ is it known that values do not decide what it does."""
    known = _NAMES.get(target)
    if known is None and target not in _NAMES:
        known = _NAMES[target] = _name(target)
    return known


_NAMES: dict[Any, Hashable] = {}


def _name(target: Any) -> Hashable:
    if isinstance(target, str):
        return target if type(getattr(torch.Tensor, target, None)) is _METHOD else None
    if type(target) is _METHOD:
        return str(target.__name__)
    if isinstance(target, torch._ops.OpOverload):
        return target if target.namespace == "aten" else None
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target if target._qualified_op_name.startswith("aten::") else None
    written_in_c = type(target) is type(torch.add) and target not in (getattr, operator.getitem)
    return target if written_in_c else None


_METHOD = type(torch.Tensor.add)


def _passes_on(overload: Any, asked: CallKey) -> bool:
    """Whether an overload is given the numbers of a call as they are: it has the name of what is called, or takes one
    number from an operator."""
    if not isinstance(overload, torch._ops.OpOverload) or overload.namespace != "aten":
        return False
    short = overload._overloadpacket.__name__
    if overload._schema.is_mutable or short in KERNEL_STRIDES:
        return False
    called = asked.key[0]
    name = called if isinstance(called, str) else getattr(getattr(called, "_overloadpacket", called), "__name__", "")
    is_operator = getattr(called, "__module__", None) == "_operator"
    return name == short or not asked.numbers or is_operator and len(asked.numbers) == 1


def _way(node: fx.Node, asked: CallKey, result: torch.Tensor) -> DispatchRecipe | None:
    """The way that a call has just taken, given the node that it made; None where its numbers do not tell."""
    overload: Any = node.target
    left_out = asked.args[len(node.args) :] if not node.kwargs else ()  # for they are the defaults
    args = (*node.args, *left_out)
    source = _Source(asked.nodes, _places(_numbers_in((args, node.kwargs)), asked))
    try:
        text = f"({source.of(args)}, {source.of(dict(node.kwargs))})"
    except (LookupError, ValueError):
        return None
    defaults: dict[int | str, Any] = {}
    for place, argument in enumerate(overload._schema.arguments if asked.numbers else ()):
        if argument.has_default_value():
            defaults[argument.name if argument.kwarg_only else place] = argument.default_value
    arguments = eval(f"lambda t, n: {text}", {"c": source.constants})
    way = DispatchRecipe(overload, arguments, defaults, result.dtype if _is_pointwise(node, asked) else None)
    same = repr(way.filled(asked.nodes, asked.numbers)) == repr((tuple(node.args), dict(node.kwargs)))
    return way if same and len(source.used) == len(asked.numbers) else None


def _is_pointwise(node: fx.Node, asked: CallKey) -> bool:
    """Whether an op computes element by element from all tensors that it is given, at least one."""
    overload: Any = node.target
    converts = overload is aten._to_copy.default and set(node.kwargs) == {"dtype"}
    known = torch.Tag.pointwise in overload.tags or overload._overloadpacket in _POINTWISE
    return set(node.all_input_nodes) == set(asked.nodes) != set() and (converts or known)


_POINTWISE = frozenset(getattr(aten, name) for name in ("where", "__and__", "__or__", "__xor__"))
"""Ops of which not all overloads have the tag."""


def _numbers_in(value: Any) -> list[int | float]:
    if isinstance(value, (list, tuple)):
        return [number for item in value for number in _numbers_in(item)]
    if isinstance(value, dict):
        return _numbers_in(list(value.values()))
    return [value] if type(value) in (int, float) else []


def _places(found: list[int | float], asked: CallKey) -> list[int]:
    """Which of the numbers of a call each number of the overload is; empty where that cannot be told."""
    wanted, given = ([(type(number), repr(number)) for number in numbers] for numbers in (found, asked.numbers))
    if len(set(given)) == len(given) == len(wanted) and set(wanted) == set(given):
        return [given.index(number) for number in wanted]
    return list(range(len(given))) if wanted == given and asked.by_place == len(given) else []


class _Source:
    """Arguments of a node as the text of a function of the tensors `t` and the numbers `n` of a call."""

    def __init__(self, nodes: list[fx.Node], places: list[int]) -> None:
        self.nodes, self.places = nodes, places
        self.used: list[int] = []
        self.constants: list[Any] = []

    def of(self, value: Any) -> str:
        """Raises `LookupError` for a number and `ValueError` for a node that is none of the call's."""
        kind = type(value)
        if kind is fx.Node:
            return f"t[{self.nodes.index(value)}]"
        if kind is int or kind is float:
            self.used.append(self.places[len(self.used)])
            return f"n[{self.used[-1]}]"
        if isinstance(value, list):
            return "[" + ",".join([self.of(item) for item in value]) + "]"
        if isinstance(value, tuple):
            return "(" + "".join([f"{self.of(item)}," for item in value]) + ")"
        if isinstance(value, dict):
            return "{" + ",".join([f"{key!r}: {self.of(item)}" for key, item in value.items()]) + "}"
        self.constants.append(value)
        return f"c[{len(self.constants) - 1}]"
