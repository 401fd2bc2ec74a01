"""Front ends: any kind of program in, the same kind out. Between the two there is one thing: a graph, the module that
owns its attributes, its dialect, and the fake mode of its metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
import copy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.export import ExportedProgram
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.utils._pytree import tree_flatten, tree_map

from decomp import inlining
from decomp.aliases import METADATA_WRITES
from decomp.appending import copied
from decomp.calling import unlifted
from decomp.calls import metadata
from decomp.errors import CaptureError, NotLowered, first_line
from decomp.exporting import Infer, export, lacks_data, refuse_lazy
from decomp.inplace import method_name
from decomp.input_checks import flat_inputs
from decomp.rebuild_exported import rebuild_exported
from decomp.source_state import source_unchanged


@dataclass
class Program:
    """A model as a graph."""

    graph: fx.Graph
    root: nn.Module
    """Owner of the attributes and modules that the graph names."""
    kind: str
    """What came in: "module", "captured" (a module, exported here), "graph" or "exported"."""
    dialect: str
    """"aten" (overloads) or "torch" (functions, methods, modules)."""
    mode: FakeTensorMode | None
    """The fake mode of the metadata; None if there is no metadata."""
    exported: ExportedProgram | None = None
    origin: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """Where the graph was prepared (modules inlined, metadata added): its nodes -> those of the graph that came in."""
    by_example: bool = False
    """Whether the metadata is that of example inputs, on a graph that says nothing of what its inputs are."""
    refused: str | None = None
    """Why torch.export did not capture it, where it was tried."""


def capture(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tracer_class: type[fx.Tracer] = fx.Tracer,
    dynamic_shapes: Any = None,
    inline: Any = None,
    infer: Infer | None = None,
) -> Program:
    """The program behind `model`. `inline(module)` says whether a leaf module is to be replaced by its own graph, and
    `infer(node)` what a call gives that PyTorch cannot run on fake tensors. Raises `CaptureError`."""
    _refuse_odd_inputs(args, kwargs)
    if isinstance(model, ExportedProgram):
        return _exported(model, "exported")
    if isinstance(model, nn.Module):
        with source_unchanged(model):
            return _of_module(model, args, kwargs, tracer_class, dynamic_shapes, inline, infer)
    if callable(model):
        raise CaptureError(
            f"cannot lower {type(model).__name__}; pass an nn.Module, a GraphModule or an ExportedProgram "
            "(torch.fx.symbolic_trace(function) makes one of a function)"
        )
    raise CaptureError(f"cannot lower {type(model).__name__}; pass an nn.Module, a GraphModule or an ExportedProgram")


def _refuse_odd_inputs(args: Any, kwargs: Any) -> None:
    if args is not None and not isinstance(args, (list, tuple)):
        raise CaptureError(f"args= is a {type(args).__name__}\n  to do: pass a tuple of inputs, as args=(x,)")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise CaptureError(f"kwargs= is a {type(kwargs).__name__}\n  to do: pass a dict of inputs by name")


def _of_module(
    model: nn.Module, args: Any, kwargs: Any, tracer_class: Any, dynamic_shapes: Any, inline: Any, infer: Infer | None
) -> Program:
    if isinstance(model, fx.GraphModule):
        return _graph(model, args, kwargs, inline, infer)
    refuse_lazy(model)
    if args is not None or kwargs:
        return _captured(model, args or (), kwargs or {}, tracer_class, dynamic_shapes, inline, infer)
    return _traced(model, tracer_class, inline)


def _exported(program: ExportedProgram, kind: str) -> Program:
    graph = program.graph
    _lint(graph)
    return Program(graph, program.graph_module, kind, "aten", mode_of(graph), program)


def _traced(model: nn.Module, tracer_class: type[fx.Tracer], inline: Any) -> Program:
    try:
        tracer = tracer_class()
        graph = tracer.trace(model)
    except Exception as error:
        raise CaptureError(
            f"{tracer_class.__name__} could not trace {type(model).__name__}: {first_line(error)}\n"
            "  to do: pass example inputs (args=...), so that torch.export captures it"
        ) from error
    return _prepared(graph, tracer.root, "module", inline)


class NeedsData(CaptureError):
    """An op of the program does not run on fake tensors, because it reads their data."""


def _captured(
    model: nn.Module, args: Any, kwargs: Any, tracer_class: Any, dynamic_shapes: Any, inline: Any, infer: Infer | None
) -> Program:
    """The module by export. Where that runs into ops that PyTorch cannot run on fake tensors: by symbolic tracing,
    which may leave them inside a function that has a rule, or else, and where modules are left whose forward cannot be
    traced, by export with their rules in their places. What fails here too is told as export told it."""
    try:
        return _exported(export(model, args, kwargs, dynamic_shapes), "captured")
    except CaptureError as error:
        refused = error
    traced: Program | None = None
    with contextlib.suppress(CaptureError):
        if dynamic_shapes is None:
            traced = _with_metadata(_traced(model, tracer_class, inline), args, kwargs, infer)
            traced = replace(traced, refused=first_line(refused))
    if traced is not None and all(node.op != "call_module" for node in traced.graph.nodes):
        return traced
    with contextlib.suppress(CaptureError):
        if infer is not None and lacks_data(refused.__cause__):
            return _exported(export(model, args, kwargs, dynamic_shapes, infer), "captured")
    if traced is not None:
        return traced
    raise refused


def _graph(model: fx.GraphModule, args: Any, kwargs: Any, inline: Any, infer: Infer | None) -> Program:
    _lint(model.graph)
    program = _prepared(model.graph, model, "graph", inline)
    if program.mode is not None or args is None and not kwargs:
        return program
    try:
        return _with_metadata(program, args or (), kwargs or {}, infer)
    except NeedsData as refused:
        return _exported_instead(model, args or (), kwargs or {}, refused)


def _exported_instead(model: fx.GraphModule, args: Any, kwargs: Any, refused: CaptureError) -> Program:
    """The graph by export, where it has sizes that are data, for which only an exported graph has symbols."""
    try:
        return _exported(export(model, args, kwargs), "captured")
    except CaptureError:
        raise refused from refused.__cause__


def _prepared(graph: fx.Graph, root: nn.Module, kind: str, inline: Any) -> Program:
    origin: dict[fx.Node, fx.Node] = {}
    if inline is not None and any(node.op == "call_module" for node in graph.nodes):
        graph, origin = inlining.inlined(graph, root, inline)
    return Program(graph, root, kind, dialect_of(graph), mode_of(graph), origin=origin)


def dialect_of(graph: fx.Graph) -> str:
    """ "aten" if the graph calls overloads, else "torch"."""
    calls = [node for node in graph.nodes if node.op in ("call_function", "call_method")]
    return "aten" if any(isinstance(node.target, torch._ops.OpOverload) for node in calls) else "torch"


def mode_of(graph: fx.Graph) -> FakeTensorMode | None:
    """The fake mode of a graph's metadata."""
    for node in graph.nodes:
        value = metadata(node)
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, FakeTensor):
                return item.fake_mode
    return None


def _with_metadata(
    program: Program, args: Sequence[Any], kwargs: Mapping[str, Any], infer: Infer | None
) -> Program:
    """The program with metadata from example inputs; the graph that came in is left alone."""
    graph, origin = _copied(program.graph)
    module = fx.GraphModule(program.root, graph)
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    values = _flat_inputs(graph, args, kwargs, len(inputs))
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    interpreter = _Propagation(module, mode, infer)
    try:
        interpreter.run(*[mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in values])
    except NotLowered:
        raise
    except Exception as error:
        kind = NeedsData if lacks_data(error) else CaptureError
        raise kind(f"the program does not run on the example inputs: {first_line(error)}") from error
    before = program.origin
    for node, value in zip(inputs, values):
        if value is None:
            _written_out(node)
    return Program(
        module.graph,
        program.root,
        program.kind,
        program.dialect,
        mode,
        origin={new: before.get(old, old) for new, old in _between(module.graph, origin)},
        by_example=True,
    )


def _written_out(absent: fx.Node) -> None:
    """Put None in the place of an input that is None: a rule would take the node for a tensor without metadata."""
    for user in list(absent.users):
        user.args, user.kwargs = fx.node.map_arg((user.args, user.kwargs), lambda n: None if n is absent else n)


def _between(graph: fx.Graph, origin: dict[str, fx.Node]) -> list[tuple[fx.Node, fx.Node]]:
    return [(node, origin[node.name]) for node in graph.nodes if node.name in origin]


def _copied(graph: fx.Graph) -> tuple[fx.Graph, dict[str, fx.Node]]:
    new = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        values[node] = copied(new, node, values.__getitem__)
    new._codegen = copy.copy(graph._codegen)
    return new, {node.name: node for node in graph.nodes}


class _Propagation(fx.Interpreter):
    """Runs a graph on fake tensors and notes what each node gives."""

    def __init__(self, module: fx.GraphModule, mode: FakeTensorMode, infer: Infer | None) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.mode, self.infer = mode, infer
        self.reshapes = any(method_name(node) in METADATA_WRITES for node in module.graph.nodes)

    def run(self, *args: Any, **_: Any) -> Any:
        with self.mode, torch.no_grad():
            return super().run(*args, enable_io_processing=False)

    def run_node(self, n: fx.Node) -> Any:
        try:
            result = super().run_node(n)
        except Exception as error:
            result = self.infer(n) if self.infer is not None and lacks_data(error) else None
            if result is None:
                raise
        if n.op == "get_attr" and isinstance(result, torch.Tensor) and not isinstance(result, FakeTensor):
            result = self.mode.from_tensor(result, static_shapes=True)
        n.meta["val"] = tree_map(_as_it_is_now, result) if self.reshapes else result
        return result


def _as_it_is_now(value: Any) -> Any:
    """A view of all of a tensor, which keeps its shape when `transpose_` changes that of the tensor itself."""
    return torch.ops.aten.alias.default(value) if isinstance(value, FakeTensor) else value


def _flat_inputs(graph: fx.Graph, args: Sequence[Any], kwargs: Mapping[str, Any], count: int) -> list[Any]:
    if isinstance(graph._codegen, fx.graph._PyTreeCodeGen):
        try:
            return flat_inputs(graph._codegen, args, kwargs)
        except Exception as error:
            raise CaptureError(f"args= and kwargs= do not fit the program: {first_line(error)}") from error
    names = [str(node.target).lstrip("*") for node in graph.nodes if node.op == "placeholder"]
    values = list(args) + [kwargs[name] for name in names[len(args) :] if name in kwargs]
    if len(values) != count:
        defaults = [n.args[0] for n in graph.nodes if n.op == "placeholder" and n.args]
        values += defaults[len(defaults) - (count - len(values)) :] if count > len(values) else []
    if len(values) != count:
        raise CaptureError(f"the program takes {count} inputs ({', '.join(names)}), args= gave {len(values)}")
    return values


def all_inputs(program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """What the graph of a program takes for a call with these arguments, state included; None where they do not fit."""
    if program.exported is None:
        count = sum(node.op == "placeholder" for node in program.graph.nodes)
        try:
            return _flat_inputs(program.graph, args, kwargs, count)
        except (CaptureError, TypeError, ValueError, RuntimeError):
            return None
    flat, spec = tree_flatten((args, kwargs))
    exported = program.exported
    if exported.call_spec.in_spec is not None and spec != exported.call_spec.in_spec:
        return None
    state: dict[str, Any] = {**exported.constants, **exported.state_dict}
    given = iter(flat)
    specs = exported.graph_signature.input_specs
    return [next(given) if spec.kind.name == "USER_INPUT" else state.get(str(spec.target)) for spec in specs]


def _lint(graph: fx.Graph) -> None:
    try:
        graph.lint()
    except Exception as error:
        raise CaptureError(f"the graph is malformed: {first_line(error)}") from error


@dataclass(frozen=True)
class Parts:
    """What a lowered program is put together from."""

    graph: fx.Graph
    constants: Mapping[str, torch.Tensor]
    """Tensors that rules use, by attribute name."""
    submodules: Mapping[str, nn.Module]
    """Lowered bodies of higher-order ops, by attribute name."""
    writes: Sequence[tuple[fx.Node, fx.Node]]
    """For exported programs: the input (of this graph) that is written back, and its new value."""


def rebuild(program: Program, parts: Parts) -> tuple[Any, ExportedProgram | None]:
    """The same kind of thing as came in, around the lowered graph; and the exported program that it is, or was made
    of."""
    if program.exported is None:
        return graph_module(program.root, parts), None
    exported = rebuild_exported(program.exported, graph_module(program.root, parts), parts)
    return (exported if program.kind == "exported" else unlifted(exported, program.graph)), exported


def graph_module(root: nn.Module, parts: Parts) -> fx.GraphModule:
    """A module around the graph that shares parameters, buffers and submodules with `root`. Code is generated when it
    is first run (the private switch is torch 2.13's; without it each node costs 30 µs at once)."""
    attributes: dict[str, Any] = {}
    for node in parts.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            name = str(node.target)
            attributes[name] = _attribute(root, name, parts)
    if isinstance(root, fx.GraphModule):
        name = root.__class__.__name__ if root.__class__.__name__ != "_LazyGraphModule" else "GraphModule"
    else:
        name = type(root).__name__
    with _use_lazy_graph_module(True):
        from torch.fx._lazy_graph_module import _make_graph_module

        module = _make_graph_module(attributes, parts.graph, class_name=name)
    module.training = root.training
    if isinstance(root, fx.GraphModule):
        module.meta = copy.copy(root.meta)
    for name in ("_in_spec", "_out_spec"):
        if hasattr(root, name):
            setattr(module, name, getattr(root, name))
    return module


def _attribute(root: nn.Module, name: str, parts: Parts) -> Any:
    if name in parts.submodules:
        return parts.submodules[name]
    if name in parts.constants:
        tensor = parts.constants[name]
        if isinstance(tensor, nn.Parameter):
            return tensor
        with unset_fake_temporarily():  # torch.compile hands graphs over under a fake mode of its own
            return nn.Buffer(tensor, persistent=False)
    value: Any = root
    for part in name.split("."):
        value = getattr(value, part)
    return value
