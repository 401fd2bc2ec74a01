"""Recording calls without PyTorch's dispatcher. The overload that a call dispatches to, and the order of its arguments,
depend only on the kinds of the arguments: dtypes and ranks of tensors, not sizes or values of numbers. So the first
call with given kinds is dispatched and its recipe stored; later calls of these kinds append the overload directly.
Metadata is computed each time by the kernel for the meta device, except for elementwise ops on contiguous tensors of
one shape, whose result has the same layout."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
import operator
from typing import Any, NamedTuple

import torch
from torch import fx

from decomp.graphs.tracing import Tape
from decomp.ir.arguments import equal, leaves, text
from decomp.ir.op_facts import KERNEL_STRIDES
from decomp.ops import aten
from decomp.torch_internals.fakes import FakeTensor

RECIPE_CAPACITY = 50_000
"""Cache capacity in recipes; cleared when full."""
LONGEST_LIST = 64
"""Calls with longer lists, such as tables of numbers, are not cached."""


class CallKey(NamedTuple):
    """A call, decomposed into a key and operands."""

    key: tuple[Any, ...]
    """The function, and the kinds of its arguments."""
    args: tuple[Any, ...]
    """Its positional arguments."""
    nodes: list[fx.Node]
    """Its tensors, in order, with repeats."""
    fakes: list[FakeTensor]
    """The metadata of these."""
    numbers: list[int | float]
    """Its numbers, in order."""
    by_place: int
    """How many of its numbers are in positional arguments."""
    before: int
    """The number of nodes of the graph before the call."""


@dataclass(frozen=True, slots=True)
class DispatchRecipe:
    """The recipe for a call: the overload, and its arguments as a function of the call's tensors and numbers."""

    overload: torch._ops.OpOverload
    arguments: Callable[[Any, Any], tuple[tuple[Any, ...], dict[str, Any]]]
    """Maps the tensors (as nodes or as fake tensors) and numbers of the call to the arguments of the overload."""
    defaults: Mapping[int | str, Any]
    """Defaults, which the dispatcher omits: by position, and by name for keyword-only arguments."""
    result: torch.dtype | None
    """The dtype of the result, if it is computed elementwise from all tensors."""

    def filled(self, tensors: list[Any], numbers: list[int | float]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the overload, without those at their defaults."""
        args, kwargs = self.arguments(tensors, numbers)
        if self.defaults:
            while args and _is_default(args[-1], self.defaults.get(len(args) - 1, _NO_DEFAULT)):
                args = args[:-1]
            kwargs = {k: v for k, v in kwargs.items() if not _is_default(v, self.defaults.get(k, _NO_DEFAULT))}
        return args, kwargs


_NO_DEFAULT = object()


def _is_default(value: Any, default: Any) -> bool:
    return equal(value, default, lambda one, other: type(one) is type(other) and bool(one == other))


_RECIPES: dict[Hashable, DispatchRecipe | None] = {}
"""Recipes by the keys of calls; None for calls without one."""


class Shortcuts:
    """Records calls on a tape by known recipes, and learns new ones."""

    def __init__(self, tape: Tape) -> None:
        assert tape.kernels is not None
        self.tape, self.kernels = tape, tape.kernels

    def asked(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallKey | None:
        """The decomposed call of a function, or of a method by name, whose arguments may be proxies; None if it cannot
        have a recipe."""
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
        # Which arguments are the same tensor is part of the key: a recipe learned for f(x, x) must not serve f(x, y).
        same = tuple(map(nodes.index, nodes)) if len(nodes) > 1 else ()
        # The default dtype decides to what Python floats promote integers.
        key = (name, torch.get_default_dtype(), kinds, named, same)
        return asked._replace(key=key, by_place=by_place)

    def recorded(self, asked: CallKey) -> FakeTensor | None:
        """Record the call by a known recipe; returns its result, or None if there is no recipe."""
        recipe = _RECIPES.get(asked.key)
        if recipe is None:
            return None
        out: Any = NotImplemented
        if recipe.result is not None:
            out = self.kernels.like_operands(asked.fakes, recipe.result)
        if out is NotImplemented:
            args, kwargs = recipe.filled(asked.fakes, asked.numbers)
            out = self.kernels.run(recipe.overload, args, kwargs)
        if type(out) is not FakeTensor:
            return None
        # An op that returns its operand (`contiguous`) leaves no node, as when PyTorch records it.
        if all([out is not fake for fake in asked.fakes]):
            args, kwargs = recipe.filled(asked.nodes, asked.numbers)
            self.tape.append_call(recipe.overload, args, kwargs, out)
        return out

    def learn(self, asked: CallKey, result: Any) -> None:
        """Store the recipe of a call that has just been recorded through the dispatcher, with `result`."""
        if asked.key in _RECIPES:
            return
        if len(_RECIPES) >= RECIPE_CAPACITY:
            _RECIPES.clear()
        node = next(iter(reversed(self.tape.graph.nodes)), None)
        # A call that dispatched several ops, or none, has no single overload to record.
        alone = len(self.tape.graph.nodes) == asked.before + 1 and self.tape.node_of(result) is node
        if node is None or not alone or not _passes_on(node.target, asked):
            _RECIPES[asked.key] = None
            return
        recipe = _recipe_of(node, asked, result)
        if recipe is not None:  # else a call with other numbers may be unambiguous
            _RECIPES[asked.key] = recipe

    def _kind(self, value: Any, asked: CallKey) -> Hashable:
        kind: Any = type(value)
        if isinstance(value, fx.Proxy):
            return self._tensor(value.node, asked)
        if kind is FakeTensor:
            return self._tensor(self.tape.node_of(value), asked)  # the result of a factory function
        if kind is int or kind is float:
            asked.numbers.append(value)
            return kind
        if kind in _BY_VALUE:
            return (value,)
        if (kind is list or kind is tuple or kind is torch.Size) and len(value) <= LONGEST_LIST:
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
    """A call without a recipe."""


_BY_VALUE = frozenset({bool, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})


def _named(target: Any) -> Hashable:
    """The key of a function. Only for functions written in C++ is it known that argument values do not affect
    dispatch."""
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
    """Whether an overload gets the numbers of a call unchanged: it has the name of the called function, or takes one
    number from an operator."""
    if not isinstance(overload, torch._ops.OpOverload) or overload.namespace != "aten":
        return False
    short = overload._overloadpacket.__name__
    # Strides of kernels are put right after a call by its arguments, which a recipe does not see.
    if overload._schema.is_mutable or short in KERNEL_STRIDES:
        return False
    called = asked.key[0]
    name = called if isinstance(called, str) else getattr(getattr(called, "_overloadpacket", called), "__name__", "")
    # `2 - x` becomes `rsub`: a single number has one place, whatever the op is called.
    is_operator = getattr(called, "__module__", None) == "_operator"
    return name == short or not asked.numbers or is_operator and len(asked.numbers) == 1


def _recipe_of(node: fx.Node, asked: CallKey, result: torch.Tensor) -> DispatchRecipe | None:
    """The recipe of a call, given the node that it created; None if its numbers are ambiguous."""
    overload: Any = node.target
    left_out = asked.args[len(node.args) :] if not node.kwargs else ()  # they are the defaults
    args = (*node.args, *left_out)
    numbers = [leaf for leaf in leaves((args, node.kwargs)) if type(leaf) in (int, float)]
    source = _Source(asked.nodes, _places(numbers, asked))
    try:
        code = text((args, dict(node.kwargs)), source.of)
    except (LookupError, ValueError):
        return None
    defaults: dict[int | str, Any] = {}
    for place, argument in enumerate(overload._schema.arguments if asked.numbers else ()):
        if argument.has_default_value():
            defaults[argument.name if argument.kwarg_only else place] = argument.default_value
    # The code consists of indices that are made here, and of brackets.
    arguments = eval(f"lambda t, n: {code}", {"c": source.constants, "slice": slice})
    recipe = DispatchRecipe(overload, arguments, defaults, result.dtype if _is_pointwise(node, asked) else None)
    # The recipe is only stored if it reproduces the very call from which it was learned.
    same = repr(recipe.filled(asked.nodes, asked.numbers)) == repr((tuple(node.args), dict(node.kwargs)))
    return recipe if same and len(source.used) == len(asked.numbers) else None


def _is_pointwise(node: fx.Node, asked: CallKey) -> bool:
    """Whether an op computes elementwise from all its tensors, of which there is at least one."""
    overload: Any = node.target
    converts = overload is aten._to_copy.default and set(node.kwargs) == {"dtype"}
    known = torch.Tag.pointwise in overload.tags or overload._overloadpacket in _POINTWISE
    return set(node.all_input_nodes) == set(asked.nodes) != set() and (converts or known)


_POINTWISE = frozenset(getattr(aten, name) for name in ("where", "__and__", "__or__", "__xor__"))
"""Ops with overloads that lack the tag."""


def _places(found: list[int | float], asked: CallKey) -> list[int]:
    """The index among the call's numbers of each number of the overload; empty if that is ambiguous."""
    wanted, given = ([(type(number), repr(number)) for number in numbers] for numbers in (found, asked.numbers))
    # With distinct numbers each one is found by value, whatever the order in the overload. With repeated ones only an
    # unchanged order is unambiguous.
    if len(set(given)) == len(given) == len(wanted) and set(wanted) == set(given):
        return [given.index(number) for number in wanted]
    return list(range(len(given))) if wanted == given and asked.by_place == len(given) else []


class _Source:
    """The arguments of a node as source code of a function of the tensors `t` and the numbers `n` of a call."""

    def __init__(self, nodes: list[fx.Node], places: list[int]) -> None:
        self.nodes, self.places = nodes, places
        self.used: list[int] = []
        self.constants: list[Any] = []

    def of(self, leaf: Any) -> str:
        """Raises `LookupError` for a number and `ValueError` for a node that the call does not have."""
        kind = type(leaf)
        if kind is fx.Node:
            return f"t[{self.nodes.index(leaf)}]"
        if kind is int or kind is float:
            self.used.append(self.places[len(self.used)])
            return f"n[{self.used[-1]}]"
        self.constants.append(leaf)
        return f"c[{len(self.constants) - 1}]"
