"""Composite calls: a call of the source that stays one call of the lowered program, with a name, a version and
attributes, and runs its own verified decomposition. It is a `wrap` of its body, the only higher-order op that PyTorch
saves, traces, compiles and differentiates in any mode (torch 2.11 to 2.15): the backward of `invoke_subgraph` runs
only while it is traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import copy
from dataclasses import asdict, dataclass, replace
import operator
from typing import Any

import torch
from torch import fx

from decomp.errors import UnknownOp, count_noun
from decomp.ir.arguments import nodes_in
from decomp.ir.call import Call
from decomp.ir.ops import op as op_of

KEY = "composite"
"""The key in `node.meta["custom"]`, the only metadata of a node that `torch.export.save` keeps."""


@dataclass(frozen=True)
class CompositeCall:
    """What a composite call says of itself. All of it can be written as JSON."""

    name: str
    """The op of the source, `aten.gelu` or `mylib.rms_norm`, or the name of a pattern."""
    version: int
    overload: str | None
    attributes: Mapping[str, Any]
    """The arguments of the op that hold no tensors and no sizes of run time, by name; dtypes as text."""
    operands: Mapping[str, Any]
    """The other arguments: `{"operand": i}` for the i-th operand of the call, also within lists. Operands that no
    argument names are constants of the decomposition."""
    results: tuple[int, ...]
    """The places of its results among those of the op, of which only those that are read are computed; empty for an op
    with one result."""

    @classmethod
    def of(cls, node: fx.Node) -> CompositeCall | None:
        """What a call says, or None if it is not a composite."""
        if node.op != "call_function" or node.target is not torch.ops.higher_order.wrap:
            return None
        found = (node.meta.get("custom") or {}).get(KEY)
        # A copy, as nodes that were copied share the containers in their metadata.
        return None if found is None else cls(**{**copy.deepcopy(found), "results": tuple(found["results"])})

    @classmethod
    def made_from(
        cls,
        name: str,
        version: int,
        overload: str | None,
        arguments: Mapping[str, Any],
        operand_of: Mapping[fx.Node, Any],
        results: Sequence[int],
    ) -> CompositeCall:
        """The composite of a call of the source. `operand_of`: for each node among its arguments, the operand."""
        given = {each: plain_attribute(fx.map_arg(value, operand_of.__getitem__)) for each, value in arguments.items()}
        operands = {each for each, value in arguments.items() if any(True for _ in nodes_in(value))}
        return cls(
            name,
            version,
            overload,
            {each: value for each, value in given.items() if each not in operands},
            {each: value for each, value in given.items() if each in operands},
            tuple(results),
        )

    def backward(self, gradients: Mapping[int, int], wanted: Sequence[int]) -> CompositeCall:
        """The call that computes its gradients: on the same operands, and on the gradients of its results, `gradients`
        by place, as further operands. It returns those of the operands `wanted`."""
        listed = [{"operand": gradients[i]} if i in gradients else None for i in range(max(gradients) + 1)]
        operands = {**self.operands, "gradients": listed}
        return replace(self, name=f"{self.name}.backward", overload=None, operands=operands, results=tuple(wanted))

    @property
    def meta(self) -> dict[str, Any]:
        """The same as plain dicts, lists, texts and numbers."""
        return {**asdict(self), "results": list(self.results)}

    @property
    def short(self) -> str:
        """The name without its library: `gelu`."""
        return self.name.rpartition(".")[2]

    def described(self, calls: int) -> str:
        """`aten.gelu (composite, 12 calls inside)`."""
        return f"{self.name} (composite, {count_noun(calls, 'call')} inside)"

    def source_call(self, node: fx.Node) -> Call | None:
        """The call of the source op that a composite call makes, on its operands; None if there is no such op here."""
        try:
            op = op_of(self.name)
        except UnknownOp:
            return None
        operands = node.args[1:]
        read = {name: read_attribute(value) for name, value in self.attributes.items()}
        filled = {name: _filled(value, operands) for name, value in self.operands.items()}
        return Call(
            op,
            self.overload,
            {**read, **filled},
            frozenset({*read, *filled}),
            place=self.single(node) or node,
            composite=True,
        )

    def single(self, node: fx.Node) -> fx.Node | None:
        """The node of the result, if the op has only one."""
        parts = [user for user in node.users if user.target is operator.getitem]
        return parts[0] if not self.results and len(parts) == 1 else None


@dataclass(frozen=True, eq=False)
class Outlined:
    """What outlining did to one graph."""

    calls: Mapping[fx.Node, CompositeCall]
    """The composite calls of the new graph."""
    declared: tuple[CompositeCall, ...]
    """What all composite calls of the new graph declare, in order, those of its source included."""
    left: Mapping[str, str]
    """Calls of the planned graph that were to become composites and did not, by name, with the reason."""


def composites_in(graph: fx.Graph) -> dict[fx.Node, CompositeCall]:
    """The composite calls of a graph, in order."""
    return {node: found for node in graph.nodes if (found := CompositeCall.of(node)) is not None}


def plain_attribute(value: Any) -> Any:
    """An argument as JSON has it; dtypes as text."""
    if isinstance(value, Mapping):
        return {str(name): plain_attribute(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_attribute(each) for each in value]
    return value if value is None or type(value) in (bool, int, float, str) else str(value)


def read_attribute(value: Any) -> Any:
    """An attribute as the op takes it: texts such as `torch.float32` are what they name."""
    if isinstance(value, list):
        return [read_attribute(each) for each in value]
    name = value.removeprefix("torch.") if isinstance(value, str) and value.startswith("torch.") else ""
    found = getattr(torch, name, value) if name else value
    return found if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)) else value


def _filled(value: Any, operands: Sequence[Any]) -> Any:
    if isinstance(value, Mapping):
        return operands[value["operand"]]
    return [_filled(each, operands) for each in value] if isinstance(value, list) else read_attribute(value)
