"""A program that was written, as a `GraphModule` again. The files are data: ops are looked up among those that are
registered, nothing in them is executed, and no class is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
import itertools
import operator
from pathlib import Path
import re
from typing import Any

import torch
from torch import fx, nn

from decomp.capture.inputs.assumptions import size_assumptions
from decomp.capture.inputs.checks import InputCheck, expected_inputs
from decomp.capture.lowered_module import install_input_check
from decomp.errors import ArgumentError, boundary, first_line
from decomp.files import naming_file, path_of_user
from decomp.ir.composites import KEY
from decomp.ir.host_functions import HOST_FUNCTIONS
from decomp.ir.schema import parameters
from decomp.metadata.fakes import new_mode
from decomp.metadata.shape_env import SymbolFacts, new_sizes
from decomp.ops import aten
from decomp.portable import expressions
from decomp.portable.arguments import known_dtype, parameters_of_function, read_value
from decomp.portable.composites import read_composite
from decomp.portable.trees import value_of
from decomp.portable.weights import WeightsFile, strides_of
from decomp.portable.writing import FORMAT, KIND
from decomp.records import naming_damage, read_record
from decomp.torch_internals import pytree
from decomp.torch_internals.graphs import PyTreeCodeGen, tree_info

_REMEDY = "write it by lowering.save(path), or decomp lower MODEL --to TARGET -o program.json"


@dataclass(frozen=True)
class PortableProgram:
    """A program that `Lowering.save` wrote."""

    target: str
    """The name of the target that it was lowered to."""
    module: fx.GraphModule = field(repr=False)
    """The program, to be loaded on a `Backend` or called. Its weights share the memory of the mapped file, and writing
    to them does not change it; those that were not written are on the meta device."""
    document: Mapping[str, Any] = field(repr=False)
    """What the JSON file says."""

    @classmethod
    @boundary("PortableProgram.read")
    def read(cls, path: str | Path) -> PortableProgram:
        """Read `program.json` and the file of weights beside it. Nothing in them is executed. Raises `ArgumentError`,
        which names the file, if one is not there, damaged, of another format, or calls an op that is not registered."""
        path = path_of_user(path, "PortableProgram.read")
        with naming_file(path, "cannot read"):
            document = read_record(path, KIND, FORMAT, "program", _REMEDY, dict)
            name = document.get("weights", {}).get("file")
            if not isinstance(name, str) or Path(name).name != name:
                raise ArgumentError(f"{path} is a damaged program: its weights are in {name!r}\n  to do: {_REMEDY}")
            weights = WeightsFile(path.with_name(name), document["weights"]["bytes"])
        with naming_damage(path, "program", _REMEDY):
            return cls(document["target"], _module(document, weights), document)


def _module(document: Mapping[str, Any], weights: WeightsFile) -> fx.GraphModule:
    """The program of a document. Raises `ValueError` and what else `read_record` reports for a damaged one."""
    try:
        return _checked_module(document, weights)
    except RecursionError:  # of a program that is nested too deeply, and not damaged
        raise
    # A number of a value or a graph that is not there, a size that no tensor has, a bound that is no number.
    except (IndexError, RuntimeError, AssertionError) as error:
        raise ValueError(first_line(error)) from error


def _checked_module(document: Mapping[str, Any], weights: WeightsFile) -> fx.GraphModule:
    reader = _Reader(document, weights)
    module = reader.module(0)
    if document["narrower"]:
        module.meta["custom"] = {"narrower": document["narrower"]}
    inputs = module.graph.find_nodes(op="placeholder")
    codegen = module.graph._codegen if isinstance(module.graph._codegen, PyTreeCodeGen) else None
    defaults = {str(node.target): node.args[0] for node in inputs if node.args}
    assumptions = size_assumptions(inputs, reader.ranges)
    expected = expected_inputs(module.graph, module.graph, None)
    check = InputCheck([str(node.target) for node in inputs], expected, codegen, defaults, assumptions=assumptions)
    install_input_check(module, check)
    return module


class _Reader:
    """Builds the graphs of a document."""

    def __init__(self, document: Mapping[str, Any], weights: WeightsFile) -> None:
        self.document, self.weights = document, weights
        self.env: Any = None
        facts = {each["name"]: SymbolFacts(each["min"], each["max"], each["example"]) for each in document["symbols"]}
        if facts:
            from decomp.torch_internals.sizes import ShapeEnv  # takes 0.25 s, unless sizes are dynamic

            self.env = ShapeEnv()
        self.mode = new_mode(self.env)
        self.sizes = new_sizes(self.env, self.mode, facts) if facts else {}
        self.tensors = [self._tensor(each) for each in document["tensors"]]
        self._made: dict[int, fx.GraphModule] = {}

    @property
    def ranges(self) -> Mapping[Any, Any]:
        """The ranges of open sizes, by their symbols."""
        return {} if self.env is None else self.env.var_to_range

    def module(self, number: int) -> fx.GraphModule:
        """A graph as a module."""
        if number not in self._made:
            self._made[number] = _GraphReader(self, self.document["graphs"][number]).read()
        return self._made[number]

    def size(self, text: Any) -> Any:
        """A size, as a number or a symbolic one."""
        return expressions.read(text, self.sizes)

    def _tensor(self, described: Mapping[str, Any]) -> torch.Tensor:
        dtype = known_dtype(described["dtype"])
        if described["offset"] is None:
            strides = strides_of(described["shape"], described.get("strides"))
            found = torch.empty_strided(described["shape"], strides, dtype=dtype, device="meta")
        else:
            found = self.weights.tensor(described, dtype)
        return nn.Parameter(found, described["trains"]) if described["kind"] == "parameter" else found


class _GraphReader:
    """Builds one graph."""

    def __init__(self, program: _Reader, described: Mapping[str, Any]) -> None:
        self.program, self.described = program, described
        self.graph, self.root = fx.Graph(), nn.Module()
        self.nodes: dict[int, fx.Node] = {}
        """By the number of a value."""
        self.references = {"value": self.nodes.__getitem__, "graph": self._body, "size": program.size}

    def read(self) -> fx.GraphModule:
        """The graph as a module."""
        described = self.described
        for each in described["inputs"]:  # first: generated code has their names as they are
            self._take(each["value"], self._input(each))
        for each in described["tensors"]:
            self._take(each["value"], self._attribute(each["tensor"]))
        for each in described["calls"]:
            self._call(each)
        for each in described["writes"]:
            self.graph.call_function(aten.copy_.default, (self.nodes[each["to"]], self.nodes[each["value"]]))
        self._output()
        return fx.GraphModule(self.root, self.graph)

    def _take(self, number: int, node: fx.Node) -> None:
        self.nodes[number] = node
        node.meta["val"] = self._meta(number)

    def _meta(self, number: int) -> Any:
        described = self.described["values"][number]
        if described["type"] == "tensor":
            shape = [self.program.size(each) for each in described["shape"]]
            written = described.get("strides")
            strides = strides_of(shape, written and [self.program.size(each) for each in written])
            with self.program.mode:
                return torch.empty_strided(shape, strides, dtype=known_dtype(described["dtype"]), device="cpu")
        if "expression" in described:
            return self.program.size(described["expression"])
        return read_value(described.get("constant"), {})

    def _attribute(self, number: int) -> fx.Node:
        described = self.program.document["tensors"][number]
        *path, name = _safe_path(described["name"])
        tensor, owner = self.program.tensors[number], self.root
        for part in path:
            if not hasattr(owner, part):
                owner.add_module(part, nn.Module())
            owner = getattr(owner, part)
        if isinstance(tensor, nn.Parameter):
            owner.register_parameter(name, tensor)
        else:
            owner.register_buffer(name, tensor, persistent=described["kind"] == "buffer")
        return self.graph.get_attr(".".join((*path, name)))

    def _input(self, described: Mapping[str, Any]) -> fx.Node:
        (name,) = _safe_path(described["name"])
        if not name.isidentifier():
            raise ValueError(f"the input {name!r}")
        if "default" in described:
            return self.graph.placeholder(name, default_value=read_value(described["default"], {}))
        return self.graph.placeholder(name)

    def _body(self, number: int) -> fx.Node:
        name = f"body_{number}"
        if not hasattr(self.root, name):
            self.root.add_module(name, self.program.module(number))
        return self.graph.get_attr(name)

    def _call(self, described: Mapping[str, Any]) -> None:
        target = _target(described["op"])
        given = {name: read_value(each, self.references) for name, each in described["arguments"].items()}
        results = described["results"]
        composite = "composite" in described
        # `_placed` names arguments by the signature of the op, and that of `wrap` has no names for operands.
        args, kwargs = ((given["body"], *given["operands"]), {}) if composite else _placed(target, given)
        node = self.graph.call_function(target, args, kwargs, name=self._name(results))
        if composite:
            node.meta["custom"] = {KEY: read_composite(described["composite"])}
        if results and not _has_several(target):
            self._take(results[0], node)
            if "strides" not in self.described["values"][results[0]]:
                _keep_contiguous(node)
            return
        node.meta["val"] = tuple(None if number is None else self._meta(number) for number in results)
        for i, number in enumerate(results):
            if number is not None:
                self._take(number, self._item(node, i, number))

    def _name(self, results: list[int | None]) -> str | None:
        """The name of a call: that of its only value. PyTorch replaces what no name may have."""
        (number,) = results if len(results) == 1 else (None,)
        return None if number is None else str(self.described["values"][number]["name"])

    def _item(self, node: fx.Node, i: int, number: int) -> fx.Node:
        return self.graph.call_function(operator.getitem, (node, i), name=self._name([number]))

    def _output(self) -> None:
        described = self.described
        if not isinstance(described["outputs"], list):
            raise ValueError(f"the outputs {described['outputs']!r} are not a list")
        flat = [read_value(each, self.references) for each in described["outputs"]]
        tree = value_of(described["output_tree"])
        if described["input_tree"] is None:
            self.graph.output(pytree.tree_map(flat.__getitem__, tree))
            return
        names = [_safe_path(each)[0] for each in described["input_names"]]
        specs = (pytree.tree_structure(value_of(described["input_tree"])), pytree.tree_structure(tree))
        self.graph.output(tuple(flat))
        self.graph.set_codegen(PyTreeCodeGen(tree_info(names, *specs)))


def _safe_path(name: Any) -> list[str]:
    """The parts of a name. They are attributes, and parts of generated code. Raises `ValueError` for others."""
    parts = str(name).split(".")
    if not all(re.fullmatch(r"\w+", part) and not part.startswith("__") for part in parts):
        raise ValueError(f"the name {name!r}")
    return parts


def _target(name: str) -> Any:
    """What a call of this name calls. Raises `ValueError`."""
    if name in HOST_FUNCTIONS:
        return HOST_FUNCTIONS[name]
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None) if re.fullmatch(r"\w+", part) and not part.startswith("__") else None
    if not isinstance(found, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
        raise ValueError(f"{name} is not an op of this PyTorch, or of a library that is imported")
    return found


def _placed(target: Any, given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position and by name. Raises `ValueError` for a name that the op does not have."""
    if isinstance(target, torch._ops.OpOverload):
        known = {each.name: each for each in parameters(target)}
        if unknown := given.keys() - known.keys():
            raise ValueError(f"{target} has no argument {min(unknown)}")
        absent = [name for name, each in known.items() if each.required and name not in given]
        if absent:
            raise ValueError(f"a call of {target} lacks {', '.join(absent)}")
        leading = (name for name, each in known.items() if not each.keyword_only)
        args = [given.pop(name) for name in itertools.takewhile(given.__contains__, [*leading])]
        return tuple(args), given
    lists = {each.name for each in parameters_of_function(target) if _is_list(each.annotation)}
    return tuple(
        tuple(each) if isinstance(each, list) and name not in lists else each for name, each in given.items()
    ), {}


def _is_list(annotation: Any) -> bool:
    return str(annotation).lower().startswith(("list", "typing.list", "<class 'list'"))


def _keep_contiguous(node: fx.Node) -> None:
    """Have a copy laid out as it was: layouts are written as the strides of values, and not as arguments."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None and any(each.name == "memory_format" for each in schema.arguments):
        node.update_kwarg("memory_format", torch.contiguous_format)


def _has_several(target: Any) -> bool:
    """Whether a call returns a tuple or a list."""
    if isinstance(target, torch._ops.HigherOrderOperator):
        return True
    returns = target._schema.returns if isinstance(target, torch._ops.OpOverload) else ()
    return len(returns) > 1 or any(str(each.type) == "List[Tensor]" for each in returns)
