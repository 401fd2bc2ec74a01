"""Expansion templates: a flat expansion compiled so that inlining it costs little more than creating the nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
import keyword
import re
from typing import Any

import torch
from torch import fx

from decomp.ir.arguments import substituted, text
from decomp.metadata.fakes import Fakes


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Metadata from which a fake tensor is created, on its own storage or as a view of another value."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    device: torch.device
    base: int | None
    """The index of the value whose storage it shares."""

    def make(self, fakes: Fakes, bases: list[Any]) -> Any:
        """A fake tensor; `bases` are the values so far."""
        base = bases[self.base] if self.base is not None else None
        if isinstance(base, torch.Tensor):
            return fakes.view(base, self.size, self.stride, self.offset, self.dtype, self.device)
        return fakes.empty(self.size, self.stride, self.dtype, self.device)


@dataclass(frozen=True, slots=True)
class Entry:
    """One node of a template."""

    op: str
    target: Any
    arguments: Any
    """Maps the list of values so far to `(args, kwargs)`."""
    suffix: str
    chain: tuple[Any, ...]
    """The rules that created it, the outermost first."""
    spec: Any
    """`TensorSpec`, a tuple of specs, a number, or None."""


@dataclass(frozen=True, slots=True, eq=False)
class InnerCall:
    """A call that a rule made and that was expanded in its turn: what became of it in the flat expansion."""

    source: fx.Node
    """The call, in the expansion of the rule that made it."""
    template: ExpansionTemplate
    """Its own expansion, the same for all calls of its signature."""
    operands: tuple[Any, ...]
    """For each of its distinct operands, the value in the flat expansion."""
    result: Any
    """Its value: a node, or nested containers of nodes; None for a result that nothing reads."""
    nodes: tuple[fx.Node, ...]
    """The calls that replace it, in order, those of calls inside it included."""

    def through(self, value_of: Callable[[fx.Node], Any]) -> InnerCall:
        """The same in a graph into which the flat expansion was copied or inlined; `value_of` maps its nodes."""
        # A call may have become an item of a container that is known, which needs no node.
        nodes = (value_of(node) for node in self.nodes)
        return replace(
            self,
            operands=tuple(fx.map_arg(each, value_of) for each in self.operands),
            result=fx.map_arg(self.result, value_of),
            nodes=tuple(node for node in nodes if isinstance(node, fx.Node)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class ExpansionTemplate:
    """A flat expansion, ready to be inlined any number of times."""

    graph: fx.Graph
    entries: tuple[Entry, ...]
    outputs: Any
    """Maps the list of values to the result: a node, or a nested tuple."""
    result: int | None
    """The index of the entry that takes the name of the replaced node."""
    constants: dict[str, torch.Tensor]
    calls: tuple[InnerCall, ...] = ()
    """The calls of which it consists, at any depth, each before those inside it; none unless they were asked for."""


def compile_template(
    graph: fx.Graph, constants: dict[str, torch.Tensor], calls: tuple[InnerCall, ...] = ()
) -> ExpansionTemplate:
    """Compile a flat expansion whose nodes carry `meta["chain"]`."""
    # Values are numbered in order, inputs first, so that arguments are indices into a list instead of look-ups by node.
    index: dict[fx.Node, int] = {}
    storages: dict[int, int] = {}
    entries: list[Entry] = []
    suffixes: dict[str, int] = {}
    output: Any = None
    for node in graph.nodes:
        if node.op == "output":
            output = node.args[0]
            continue
        i = index[node] = len(index)
        value = node.meta.get("val")
        # A constant shared by several expansions must not depend on the storage of another value.
        spec = spec_of(value, i, storages if node.op != "get_attr" else {})
        if node.op != "placeholder":
            arguments = _Arguments((node.args, node.kwargs), index)
            entries.append(Entry(node.op, node.target, arguments, _suffix(node, suffixes), node.meta["chain"], spec))
    inputs = len(index) - len(entries)
    final = index.get(output) if isinstance(output, fx.Node) else None
    result = final - inputs if final is not None and final >= inputs else None
    if result is not None and entries[result].op == "get_attr":
        result = None
    return ExpansionTemplate(graph, tuple(entries), _Arguments(output, index), result, constants, calls)


def spec_of(value: Any, index: int, storages: dict[int, int]) -> Any:
    if isinstance(value, (list, tuple)):
        # Parts have no index of their own: their getitem nodes follow, and are what views may have as a base.
        return tuple(spec_of(item, -1, storages) for item in value)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    # The address of the storage in C++. It is not reused here, as the graph keeps its tensors alive.
    storage = value.untyped_storage()._cdata
    base = storages.get(storage)
    if base is None and index >= 0:
        storages[storage] = index
    offset = value.storage_offset()
    return TensorSpec(tuple(value.shape), value.stride(), offset, value.dtype, value.device, base)


_ILLEGAL = re.compile(r"\W")


def _suffix(node: fx.Node, taken: dict[str, int]) -> str:
    """The suffix of a new node's name: the op that it calls, numbered from the second on."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        name = target._overloadpacket.__name__
    else:
        name = target.rsplit(".", 1)[-1] if isinstance(target, str) else getattr(target, "__name__", "call")
    name = _ILLEGAL.sub("_", name).strip("_") or "call"
    name = f"{name}_" if keyword.iskeyword(name) else name
    count = taken[name] = taken.get(name, -1) + 1
    return name if count == 0 else f"{name}_{count}"


class _Arguments:
    """A function from the list of values to `value` with its nodes replaced. It is compiled after a few calls, as most
    templates are inlined into one other template only."""

    __slots__ = ("_function", "_index", "_left", "_value")

    def __init__(self, value: Any, index: dict[fx.Node, int]) -> None:
        self._value, self._index, self._left = value, index, _CALLS_BEFORE_COMPILING
        self._function: Any = None

    def __call__(self, values: list[Any]) -> Any:
        if self._function is not None:
            return self._function(values)
        self._left -= 1
        if not self._left:
            constants: list[Any] = []
            source = text(self._value, lambda leaf: self._source(leaf, constants))
            # Anything but indices, simple literals and brackets is passed in, not spelled.
            self._function = eval(f"lambda v: {source}", {"c": constants, "slice": slice})
        return substituted(self._value, lambda node: values[self._index[node]])

    def _source(self, leaf: Any, constants: list[Any]) -> str:
        if isinstance(leaf, fx.Node):
            return f"v[{self._index[leaf]}]"
        if type(leaf) in (int, bool, str) or leaf is None:
            return repr(leaf)
        constants.append(leaf)
        return f"c[{len(constants) - 1}]"


_CALLS_BEFORE_COMPILING = 8


def make_value(spec: Any, fakes: Fakes, values: list[Any]) -> Any:
    """The metadata of a new node from its spec."""
    if type(spec) is TensorSpec:
        return spec.make(fakes, values)
    if isinstance(spec, tuple):
        return tuple(make_value(item, fakes, values) for item in spec)
    return spec
