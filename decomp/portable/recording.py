"""A lowered program as plain data: its graphs as flat lists of numbered values and of calls by name, the symbols of its
open sizes, and its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import functools
from typing import Any

import torch
from torch import fx, nn

from decomp.errors import NotPortable, describe, spell_target
from decomp.ir.accounting import effects_in
from decomp.ir.aliases import attribute, view_chain
from decomp.ir.arguments import leaves, substituted
from decomp.ir.call import call_if_bound, is_host, is_projection, metadata, module_path, projected
from decomp.ir.composites import CompositeCall
from decomp.ir.dtypes import name_of
from decomp.ir.host_functions import HOST_NAMES
from decomp.ir.op_facts import runs_once
from decomp.loading import Unlifted
from decomp.metadata.shape_env import SymbolFacts, facts_of
from decomp.metadata.strides import contiguous_strides
from decomp.metadata.symbolic_sizes import SYMBOLIC, same_shape
from decomp.portable import expressions
from decomp.portable.arguments import arguments_of_function, arguments_of_overload, literal, written_value
from decomp.portable.composites import written_composite
from decomp.portable.trees import tree_of, tree_of_spec
from decomp.portable.weights import values_of
from decomp.torch_internals.graphs import PyTreeCodeGen

_TYPES = {bool: "bool", int: "int", float: "float", str: "str", complex: "complex", type(None): "none"}
_SYMBOLIC_TYPES = {torch.SymBool: "bool", torch.SymInt: "int", torch.SymFloat: "float"}
_EXPORT = "lower what torch.export.export(model, args) returns"


@dataclass(frozen=True, slots=True)
class Numbered:
    """A value of a graph, by its number."""

    number: int


@dataclass(frozen=True)
class Weight:
    """A parameter, buffer or constant."""

    name: str
    kind: str
    tensor: torch.Tensor
    value: torch.Tensor | None
    """Its values, where it has some."""


class PortableRecorder:
    """Records the graphs of a program."""

    def __init__(self, program: Unlifted) -> None:
        self.source_op = program.source_op
        self.kinds = {id(each): "buffer" for each in program.root.buffers()}
        self.kinds |= {id(each): "parameter" for each in program.root.parameters()}
        self.weights: list[Weight] = []
        self.symbols: dict[str, SymbolFacts] = {}
        self.graphs: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._modules: dict[int, int] = {}
        self.graph_number(program.root, "")

    def graph_number(self, module: fx.GraphModule, name: str) -> int:
        """The number of a graph, which is taken down when it is first named."""
        if id(module) not in self._modules:
            number = self._modules[id(module)] = len(self.graphs)
            self.graphs.append({})
            self.graphs[number] = _GraphRecorder(self, name).record(module)
        return self._modules[id(module)]

    def tensor_number(self, tensor: torch.Tensor, name: str) -> int:
        """The number of a tensor."""
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.weights)
            kind = self.kinds.get(id(tensor), "constant")
            self.weights.append(Weight(name, kind, tensor, values_of(tensor, f"the {kind} {name!r}")))
        return self._numbers[id(tensor)]

    def size(self, number: Any) -> Any:
        """A size as JSON."""
        return expressions.written(number, self._use)

    def _use(self, symbol: Any, env: Any) -> None:
        if symbol.name not in self.symbols:
            self.symbols[symbol.name] = facts_of(env, symbol)


class _GraphRecorder:
    """Records one graph and, with it, the bodies that run exactly once in it."""

    def __init__(self, program: PortableRecorder, name: str) -> None:
        self.program, self.name = program, name
        self.values: list[dict[str, Any]] = []
        self.tensors: list[dict[str, int]] = []
        self.calls: list[dict[str, Any]] = []
        self.writes: list[dict[str, int]] = []
        self.now: dict[fx.Node, Any] = {}
        """What a node is: a numbered value, several of them, a body, or a Python value."""
        self.written: dict[fx.Node, fx.Node] = {}
        """By an input or a tensor that is written to: its last value."""

    def record(self, module: fx.GraphModule) -> dict[str, Any]:
        """The graph as plain data."""
        graph = module.graph
        inputs = [self._input(node) for node in graph.find_nodes(op="placeholder")]
        results = self._walk(graph, module)
        flat, tree = self._outputs(graph, results)
        return {
            "name": self.name,
            "inputs": inputs,
            "input_names": _input_names(graph),
            "input_tree": _input_tree(graph),
            "tensors": self.tensors,
            "values": self.values,
            "calls": self.calls,
            "outputs": [self._argument(each, graph.output_node()) for each in flat],
            "output_tree": tree,
            "writes": [{"value": self._number(value), "to": self._number(to)} for to, value in self.written.items()],
            "shared": list(self._shared([each if isinstance(each, fx.Node) else None for each in flat])),
        }

    def _input(self, node: fx.Node) -> dict[str, Any]:
        meta = metadata(node)
        if meta is None and node.users:
            raise _no_shapes(node)
        self.now[node] = self._new(node.name, meta, node)
        name = str(node.target).lstrip("*")
        default = {"default": self._argument(node.args[0], node)} if node.args else {}
        return {"name": name, "value": self._number(node), **default}

    def _outputs(self, graph: fx.Graph, results: Any) -> tuple[list[Any], Any]:
        codegen = graph._codegen
        if isinstance(codegen, PyTreeCodeGen) and codegen.pytree_info.out_spec is not None:
            return list(results), tree_of_spec(codegen.pytree_info.out_spec)
        return leaves(results), tree_of(substituted(results, lambda _: 0, object))

    def _walk(self, graph: fx.Graph, root: nn.Module) -> Any:
        """Record the nodes of a graph, and return its results."""
        effects = effects_in(graph)
        for node in graph.nodes:
            if node.op == "get_attr":
                self._attribute(node, root)
            elif node.op == "call_module":
                raise NotPortable(
                    f"{describe(node)} calls a module, which cannot be written as a call of an op\n  to do: {_EXPORT}"
                )
            elif effects.get(node) == "write-back":
                self._write_back(node)
            elif node.op.startswith("call") and (runs_once(node.target) or effects.get(node) in (None, "control flow")):
                self._call(node)  # assertions and markers compute nothing
        results: Any = graph.output_node().args[0]
        return results

    def _attribute(self, node: fx.Node, root: nn.Module) -> None:
        value = attribute(root, str(node.target))
        if not isinstance(value, torch.Tensor):
            self.now[node] = value
        elif node.users:
            name = f"{self.name}.{node.target}" if self.name else str(node.target)
            number = self.program.tensor_number(value, name)
            self.now[node] = self._new(node.name, value, node)
            self.tensors.append({"value": self._number(node), "tensor": number})

    def _write_back(self, node: fx.Node) -> None:
        """`copy_` into an input or a tensor, or the `detach` of it that comes before."""
        if "copy_" not in spell_target(node.target):
            self.now[node] = self.now[node.args[0]]
            return
        to, value = node.args[:2]
        while isinstance(to, fx.Node) and to.op not in ("placeholder", "get_attr"):
            to = to.args[0]
        assert isinstance(to, fx.Node) and isinstance(value, fx.Node)
        if self.name:
            raise NotPortable(
                f"{describe(node)} writes to an operand of the body {self.name!r}, and only the program itself can\n"
                "  to do: return the new value from the body, and write it outside"
            )
        self.written[to] = value
        self.now[node] = self.now[value]

    def _call(self, node: fx.Node) -> None:
        if is_projection(node):
            self.now[node] = projected(node, self.now[node.args[0]])
        elif (made := CompositeCall.of(node)) is not None:
            body, *operands = node.args
            arguments = {"body": body, "operands": operands}
            self._record(node, "higher_order.wrap", arguments, {"composite": written_composite(made, node)})
        elif runs_once(node.target):
            self._inline(node)
        else:
            self._record(node, *self._op_and_arguments(node), {})

    def _record(self, node: fx.Node, op: str, arguments: dict[str, Any], more: dict[str, Any]) -> None:
        found = {name: self._argument(value, node) for name, value in arguments.items()}
        self.now[node] = self._results(node)
        self.calls.append(
            {
                "op": op,
                "arguments": found,
                "results": [None if each is None else each.number for each in leaves(self.now[node])],
                "source": self.program.source_op(node),
                "module": module_path(node.meta.get("nn_module_stack")),
                **more,
            }
        )

    def _inline(self, node: fx.Node) -> None:
        """A body that runs exactly once: its calls take its place."""
        given = [self.now[each] if isinstance(each, fx.Node) else each for each in node.args]
        place = next(i for i, each in enumerate(given) if isinstance(each, fx.GraphModule))
        body = given[place]
        self.now.update(zip(body.graph.find_nodes(op="placeholder"), given[place + 1 :]))
        self.now[node] = substituted(self._walk(body.graph, body), self.now.__getitem__)

    def _op_and_arguments(self, node: fx.Node) -> tuple[str, dict[str, Any]]:
        """The name of the op that a node calls, and its arguments by name. Raises `NotPortable`."""
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            return f"higher_order.{target.__name__}", arguments_of_function(target, node.args, node.kwargs)
        if is_host(node) and target in HOST_NAMES:
            return HOST_NAMES[target], arguments_of_function(target, node.args, node.kwargs)
        call = call_if_bound(node)
        if call is None or call.op.packet is None:
            raise NotPortable(
                f"{describe(node)} is not a call of an op with a schema, and cannot be written by name\n"
                f"  to do: register the function as an op, by torch.library.custom_op, or {_EXPORT}"
            )
        if call.inplace:
            raise NotPortable(
                f"{describe(node)} writes to its operand in place, and the calls of a program only return values\n"
                f"  to do: {_EXPORT}"
            )
        overload = getattr(call.op.packet, call.overload or "default")
        return str(overload), arguments_of_overload(overload, call.arguments)

    def _results(self, node: fx.Node) -> Any:
        meta = metadata(node)
        if meta is None and getattr(getattr(node.target, "_schema", None), "returns", True):
            raise _no_shapes(node)
        return () if meta is None else self._new(node.name, meta, node)

    def _new(self, name: str, meta: Any, node: fx.Node) -> Any:
        """New values with this metadata."""
        if isinstance(meta, (tuple, list)):
            return tuple(None if each is None else self._new(f"{name}_{i}", each, node) for i, each in enumerate(meta))
        self.values.append({"name": name, **self._described(meta, node)})
        return Numbered(len(self.values) - 1)

    def _described(self, meta: Any, node: fx.Node) -> dict[str, Any]:
        if isinstance(meta, torch.Tensor):
            sizes = {"shape": [self.program.size(each) for each in meta.shape]}
            return {"type": "tensor", "dtype": name_of(meta.dtype), **sizes, **self._strides(meta)}
        if isinstance(meta, SYMBOLIC):
            return {"type": _SYMBOLIC_TYPES[type(meta)], "expression": self.program.size(meta)}
        if type(meta) not in _TYPES:
            raise NotPortable(
                f"{describe(node)} is a {type(meta).__name__}, a Python object that cannot be written\n"
                f"  to do: {_EXPORT}"
            )
        return {"type": _TYPES[type(meta)], **({} if meta is None else {"constant": literal(meta)})}

    def _strides(self, meta: torch.Tensor) -> dict[str, Any]:
        """The strides of a tensor that is not contiguous."""
        if meta.layout is not torch.strided:
            return {}
        fixed = all(type(each) is int for each in (*meta.shape, *meta.stride()))
        plain = meta.is_contiguous() if fixed else same_shape(contiguous_strides(meta.shape), meta.stride())
        return {} if plain else {"strides": [self.program.size(each) for each in meta.stride()]}

    def _argument(self, value: Any, node: fx.Node) -> Any:
        return written_value(value, node, functools.partial(self._reference, user=node), self.program.size)

    def _reference(self, node: fx.Node, user: fx.Node) -> Any:
        found = self.now[self.written[node]] if user.op == "output" and node in self.written else self.now[node]
        return self._written(found, node, user)

    def _written(self, found: Any, node: fx.Node, user: fx.Node) -> Any:
        if isinstance(found, Numbered):
            return {"value": found.number}
        if isinstance(found, fx.GraphModule):
            return {"graph": self.program.graph_number(found, str(node.target))}
        if isinstance(found, tuple):
            return [self._written(each, node, user) for each in found]
        return self._argument(found, user)

    def _number(self, node: fx.Node) -> int:
        found = self.now[node]
        if not isinstance(found, Numbered):
            raise NotPortable(
                f"{describe(node)} is {type(found).__name__} of values, where a program takes or writes one\n"
                f"  to do: {_EXPORT}"
            )
        return found.number

    def _shared(self, outputs: Sequence[fx.Node | None]) -> Iterator[dict[str, int]]:
        """The outputs that may share memory with an input, a tensor, or another output."""
        origins = [None if each is None else view_chain(each)[-1] for each in outputs]
        for i, origin in enumerate(origins):
            found = None if origin is None else self.now.get(origin)
            if origin is None or not isinstance(found, Numbered):
                continue
            if origin.op in ("placeholder", "get_attr") or origins.count(origin) > 1:
                yield {"output": i, "value": found.number}


def _no_shapes(node: fx.Node) -> NotPortable:
    return NotPortable(
        f"{describe(node)} has no dtype and no shape, which the file has of every value\n"
        "  to do: lower the model with example inputs, decomp.lower(model, to=..., args=...)"
    )


def _input_names(graph: fx.Graph) -> list[str]:
    """The names of the arguments of a call, before pytrees are flattened."""
    if isinstance(graph._codegen, PyTreeCodeGen):
        return list(graph._codegen.pytree_info.orig_args)
    return [str(node.target).lstrip("*") for node in graph.find_nodes(op="placeholder")]


def _input_tree(graph: fx.Graph) -> Any:
    """How the arguments of a call are nested; None if each is one input."""
    codegen = graph._codegen
    return tree_of_spec(codegen.pytree_info.in_spec) if isinstance(codegen, PyTreeCodeGen) else None
