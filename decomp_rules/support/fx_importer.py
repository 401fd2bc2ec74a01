"""What the importer that IREE and torch-mlir share (`extras/fx_importer.py`, seen in IREE 3.13 and torch-mlir 20261001)
misreads in a program, written in another form while it reads it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from decomp.ops import aten

_AS_INTEGERS: Mapping[torch.dtype, tuple[Callable[[torch.Tensor], torch.Tensor], torch._ops.OpOverload]] = {
    torch.bool: (lambda held: held.to(torch.int8), aten._to_copy.default),
    torch.bfloat16: (lambda held: held.view(torch.int16), aten.view.dtype),
}
"""How constants become integers, and the op that makes of them what they were."""
_OF_THE_PROGRAM = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class Importable:
    """A program, while the importer reads it:

    - Constants of bools are of int8, and cast. The importer casts them itself, to tensors that it forgets but for their
      address, so that the next constant may be given the elements of the last.
    - Constants of bfloat16 are of int16, with the same bits, and viewed. IREE's compiler takes no small ones.
    - Nodes have no `tensor_meta`, which it believes where a node's value says otherwise.
    - The values of an op that returns a list are a list; it takes no tuple.
    - Buffers that are not persistent are in the state, too; torch-mlir looks for them there alone.
    - Constants in a list, such as that of an index, are copied; torch-mlir takes no list of both them and others."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program
        self.metas: list[tuple[fx.Node, dict[str, Any]]] = []
        self.casts: list[tuple[fx.Node, fx.Node]] = []
        self.constants: list[tuple[dict[str, Any], str, Any]] = []
        self.buffers: list[str] = []

    def __enter__(self) -> ExportedProgram:
        for node in _nodes(self.program):
            self.metas.append((node, dict(node.meta)))
            node.meta.pop("tensor_meta", None)
            if isinstance(node.meta.get("val"), tuple) and _returns_list(node.target):
                node.meta["val"] = list(node.meta["val"])
        for node, store, name in list(_held(self.program, _AS_INTEGERS)):
            held = store[name]
            self.constants.append((store, name, held))
            as_integers, back = _AS_INTEGERS[held.dtype]
            integers = as_integers(held.detach())
            store[name] = nn.Parameter(integers, False) if isinstance(held, nn.Parameter) else integers
            self._cast(node, back, held.dtype)
            node.meta["val"] = as_integers(node.meta["val"])
        for node in list(_constants_in_lists(self.program)):
            self._cast(node, aten._to_copy.default, node.meta["val"].dtype)
        self.buffers = list(_buffers_outside_the_state(self.program))
        self.program.state_dict.update({name: self.program.constants[name] for name in self.buffers})
        return self.program

    def _cast(self, node: fx.Node, op: torch._ops.OpOverload, dtype: torch.dtype) -> None:
        first = next(each for each in self.program.graph.nodes if each.op != "placeholder")
        with self.program.graph.inserting_before(first):
            cast = self.program.graph.call_function(op, (node,), {"dtype": dtype})
        cast.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(cast, lambda user: user is not cast)
        self.casts.append((node, cast))

    def __exit__(self, *error: Any) -> None:
        for node, cast in self.casts:
            cast.replace_all_uses_with(node)
            self.program.graph.erase_node(cast)
        for name in self.buffers:
            del self.program.state_dict[name]
        for store, name, tensor in self.constants:
            store[name] = tensor
        for node, meta in self.metas:
            node.meta = meta


def _nodes(program: ExportedProgram) -> Iterator[fx.Node]:
    """Of the graph and of the bodies of higher-order ops."""
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            yield from module.graph.nodes


def _returns_list(target: Any) -> bool:
    returns = target._schema.returns if isinstance(target, torch._ops.OpOverload) else ()
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)


def _held(program: ExportedProgram, dtypes: Container[torch.dtype]) -> Iterator[tuple[fx.Node, dict[str, Any], str]]:
    """Placeholders of these dtypes that the program holds, with the table that holds each, and its name there."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for spec in program.graph_signature.input_specs:
        if spec.kind in _OF_THE_PROGRAM and spec.target is not None:
            store = program.constants if spec.target in program.constants else program.state_dict
            if getattr(store.get(spec.target), "dtype", None) in dtypes:
                yield placeholders[spec.arg.name], store, spec.target


def _constants_in_lists(program: ExportedProgram) -> Iterator[fx.Node]:
    """Placeholders of tensors that the program holds, and that a call has in a list."""
    held = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind in _OF_THE_PROGRAM}
    listed = {
        operand
        for node in program.graph.nodes
        for argument in node.args
        if node.op == "call_function" and isinstance(argument, (list, tuple))
        for operand in argument
        if isinstance(operand, fx.Node)
    }
    return (node for node in program.graph.nodes if node.op == "placeholder" and node.name in held and node in listed)


def _buffers_outside_the_state(program: ExportedProgram) -> Iterator[str]:
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.BUFFER and spec.target is not None and spec.target not in program.state_dict:
            yield spec.target
