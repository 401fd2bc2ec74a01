"""Front ends: a program of any kind in, the same kind out. In between it is a `Module`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
import copy
from dataclasses import replace
import functools
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from decomp.capture import inlining
from decomp.capture.calling import unlift
from decomp.capture.exporting import (
    Infer,
    export,
    exported_body,
    failure_on,
    lacks_data,
    lost_gradients,
    overload_graph,
    refuse_lazy,
    refuse_traced_state,
)
from decomp.capture.inlining import InlinedBody, Leaves
from decomp.capture.inputs.trees import flat_inputs
from decomp.capture.local_shards import holds_shards, local_program
from decomp.capture.lowered_module import LoweredModule, leave_out_of_state
from decomp.capture.module_hooks import carry_hooks, refuse_changed_graph_module, refuse_what_export_loses
from decomp.capture.propagation import NeedsData, propagate_metadata
from decomp.capture.rebuild_exported import rebuild_exported, sync_input_names
from decomp.capture.refused_kinds import refuse_distributed, refuse_inputs, refuse_module
from decomp.capture.source_state import source_unchanged
from decomp.capture.subclasses import refuse_wrapped, refused_model, unwrap_program, unwrap_subclasses, wrapped_weights
from decomp.capture.symbolic_capture import trace_symbolically
from decomp.errors import CaptureError, first_line, is_own_fault
from decomp.graphs.graph_builder import is_aten
from decomp.graphs.tracing import fake_like
from decomp.ir.aliases import attribute
from decomp.ir.call import metadata
from decomp.ir.module import Module, ProgramGraph
from decomp.metadata.fakes import mode_of
from decomp.metadata.meta_values import known_value, with_value
from decomp.metadata.nonfinite_constants import spell_numbers
from decomp.torch_internals.fakes import FakeTensor, FakeTensorMode, unset_fake_temporarily
from decomp.torch_internals.graphs import BodyModule, PyTreeCodeGen, lazy_graph_module
from decomp.torch_internals.pytree import tree_flatten
from decomp.torch_internals.transforms import has_transforms


def capture(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tracer_class: type[fx.Tracer] = fx.Tracer,
    dynamic_shapes: Any = None,
    leaves: Leaves | None = None,
    infer: Infer | None = None,
    trains: Callable[[Module], bool] = lambda program: False,
) -> Module:
    """The program of `model`. `leaves` says which leaf modules are to be replaced by their own graphs, `infer(node)`
    returns the result of a call that PyTorch cannot run on fake tensors, and `trains(program)` says whether the program
    is to have the gradients of its source. Raises `CaptureError`."""
    if isinstance(model, ExportedProgram):
        return _exported(sync_input_names(unwrap_program(model)), "exported")
    if isinstance(model, nn.Module):
        refuse_traced_state(model)
        refuse_lazy(model)
        refuse_module(model)
        # Around all attempts, as each may run the model's own Python.
        with source_unchanged(model):
            return _of_module(model, args, kwargs, tracer_class, dynamic_shapes, leaves, infer, trains)
    if callable(model):
        raise CaptureError(
            f"cannot lower {type(model).__name__}; pass an nn.Module, a GraphModule or an ExportedProgram "
            "(torch.fx.symbolic_trace(function) makes one of a function)"
        )
    raise CaptureError(f"cannot lower {type(model).__name__}; pass an nn.Module, a GraphModule or an ExportedProgram")


def _of_module(
    model: nn.Module,
    args: Any,
    kwargs: Any,
    tracer_class: Any,
    dynamic_shapes: Any,
    leaves: Leaves | None,
    infer: Infer | None,
    trains: Callable[[Module], bool],
) -> Module:
    if isinstance(model, fx.GraphModule):
        return _graph(model, args, kwargs, leaves, infer)
    if args is not None or kwargs:
        refuse_inputs(args, kwargs)
        given = (args or (), kwargs or {})
        if holds_shards(model):
            return _of_shards(model, *given, dynamic_shapes, trains)
        plain = unwrap_subclasses(model)
        captured = functools.partial(
            _capture_module, plain, *given, tracer_class, dynamic_shapes, leaves, infer, trains
        )
        return captured() if plain is model else _with_wrapped(model, plain, captured, *given, dynamic_shapes, trains)
    refuse_distributed(model)
    refuse_wrapped(model, type(model).__name__)
    return _trace_symbolically(model, tracer_class, leaves)


def _of_shards(
    model: nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any, trains: Callable[[Module], bool]
) -> Module:
    """What this process computes on its shards of the parameters of a distributed module."""
    if dynamic_shapes is not None:
        raise CaptureError(
            f"{type(model).__name__} has DTensors as parameters, and is captured with the sizes of args\n"
            "  to do: leave out dynamic_shapes, or use torch.compile with decomp.backend(to=...)"
        )
    refuse_what_export_loses(model)
    program = _graph(local_program(model, args, kwargs), None, None, None, None)
    if trains(program):
        raise CaptureError(
            f"the gradients of {type(model).__name__}, whose parameters are DTensors, are not captured\n"
            "  to do: pass training=False, for inference alone; or use torch.compile with decomp.backend(to=...)"
        )
    return program


def _with_wrapped(
    model: nn.Module,
    plain: nn.Module,
    parts_captured: Callable[[], Module],
    args: Any,
    kwargs: Any,
    dynamic_shapes: Any,
    trains: Callable[[Module], bool],
) -> Module:
    """A module with weights that are subclasses, with their parts in their place (`plain`): captured as any module is;
    or, if PyTorch sees what the subclasses compute only below autograd, exported there."""
    try:
        program = parts_captured()
        calls = [str(node.target) for node in program.graph.nodes if node.op == "call_module"]
        if not any(wrapped_weights(model.get_submodule(path)) for path in calls):
            return program
        why = str(program.refused)
    except CaptureError as error:
        why = first_line(error)
    lost: dict[str, bool] = {}
    try:
        exported = _exported(export(plain, args, kwargs, dynamic_shapes, lost=lost, below_autograd=True), "captured")
    except CaptureError as error:
        raise refused_model(model, why, first_line(error.__cause__ or error)) from error
    if lost and trains(exported):
        raise lost_gradients(model, lost)
    return exported


def _exported(program: ExportedProgram, kind: str) -> Module:
    if has_transforms(program.graph_module):
        # Imported here, as few programs have transforms and Dynamo is slow to import.
        from decomp.capture.transforms import remove_transforms

        program = remove_transforms(program)
    graph = program.graph
    _lint(graph)
    _refuse_lost_tensors(program)
    return Module.of(graph, program.graph_module, kind, "aten", mode_of(graph), program)


def _refuse_lost_tensors(program: ExportedProgram) -> None:
    """Refuse a program with a fake tensor of its own trace as a constant (torch 2.13, strict=True), unless the whole
    model was on fake tensors."""
    lost = [name for name, value in program.constants.items() if isinstance(value, FakeTensor)]
    if lost and not any(isinstance(value, FakeTensor) for value in program.state_dict.values()):
        raise CaptureError(
            f"torch.export turned a computed tensor into a constant, {lost[0]!r}: it does not follow "
            "x.data\n  to do: use x.detach() instead of x.data"
        )


def _trace_symbolically(model: nn.Module, tracer_class: type[fx.Tracer], leaves: Leaves | None) -> Module:
    graph, root = trace_symbolically(model, tracer_class)
    return _prepare(graph, root, "module", leaves)


def _capture_module(
    model: nn.Module,
    args: Any,
    kwargs: Any,
    tracer_class: Any,
    dynamic_shapes: Any,
    leaves: Leaves | None,
    infer: Infer | None,
    trains: Callable[[Module], bool],
) -> Module:
    """The module by export. If that fails on ops that PyTorch cannot run on fake tensors: by symbolic tracing, which
    may leave such ops inside a function that has a rule; and if that leaves modules whose forward cannot be traced, by
    export with rules in place of these ops. If all fail, the error of the first export is raised."""
    refuse_what_export_loses(model)
    lost: dict[str, bool] = {}
    try:
        exported = _exported(export(model, args, kwargs, dynamic_shapes, lost=lost), "captured")
    except CaptureError as error:
        refused = error
    else:
        if lost and trains(exported):
            return _with_custom_functions(model, args, kwargs, dynamic_shapes, leaves, infer, lost)
        return exported
    program: Module | None = None
    with contextlib.suppress(CaptureError):
        # Metadata from example inputs has static sizes, so this cannot replace an export with dynamic ones.
        if dynamic_shapes is None:
            program = _from_examples(_trace_symbolically(model, tracer_class, leaves), args, kwargs, leaves, infer)
            program = replace(program, refused=first_line(refused))
    if program is not None and all(node.op != "call_module" for node in program.graph.nodes):
        return program
    with contextlib.suppress(CaptureError):
        if infer is not None and lacks_data(refused.__cause__):
            exported = _exported(export(model, args, kwargs, dynamic_shapes, infer, lost), "captured")
            if not lost or not trains(exported):
                return exported
            refused = lost_gradients(model, lost)
    if program is not None:
        return program
    raise failure_on(model, args, kwargs) or refused


def _with_custom_functions(
    model: nn.Module,
    args: Any,
    kwargs: Any,
    dynamic_shapes: Any,
    leaves: Leaves | None,
    infer: Infer | None,
    lost: Mapping[str, bool],
) -> Module:
    """A module with custom autograd functions as a Dynamo graph, which holds their forward and backward. Raises
    `CaptureError` if export has `lost` more than these, or Dynamo fails to capture the module."""
    if not all(lost.values()):
        raise lost_gradients(model, lost)
    if dynamic_shapes is not None:
        raise lost_gradients(model, lost, ", and custom functions are captured only at the sizes of the example inputs")
    try:
        program = _graph(overload_graph(model, args, kwargs), args, kwargs, leaves, infer)
    except Exception as error:
        if is_own_fault(error):
            raise
        raise lost_gradients(model, lost, f"; Dynamo could not capture it: {first_line(error)}") from error
    return replace(program, by_example=True)


def _graph(model: fx.GraphModule, args: Any, kwargs: Any, leaves: Leaves | None, infer: Infer | None) -> Module:
    given = args is not None or bool(kwargs)
    refuse_changed_graph_module(model, by_example=given)
    _lint(model.graph)
    if has_transforms(model):
        # Imported here, as few programs have transforms and Dynamo is slow to import.
        from decomp.capture.transforms import remove_transforms_of_graph

        model = remove_transforms_of_graph(model)
    if not given:
        refuse_wrapped(model, "the GraphModule")
    elif (plain := unwrap_subclasses(model)) is not model:
        # The code of a subclass is Python of its own, which a graph does not show; export runs it.
        return _exported(export(plain, args or (), kwargs or {}), "captured")
    program = _prepare(model.graph, model, "graph", leaves)
    known = _complete_metadata(program, leaves, infer)
    if known is not None and not (given and _contradicts(program.graph, args or (), kwargs or {})):
        return known
    if not given:
        return program
    try:
        return _from_examples(program, args or (), kwargs or {}, leaves, infer)
    except NeedsData as refused:
        return _exported_instead(model, args or (), kwargs or {}, infer, refused)


def _complete_metadata(program: Module, leaves: Leaves | None, infer: Infer | None) -> Module | None:
    """The program with metadata propagated from its inputs to every node, including nodes that a pass added without
    any; None if its inputs have none."""
    values = [metadata(node) for node in program.graph.nodes if node.op == "placeholder"]
    if program.mode is None or any(value is None for value in values):
        return None
    # Ops refuse fake tensors of different modes, so the inputs are moved to one mode and propagated again.
    several = _of_several_modes(program.graph, program.mode)
    if several:
        values = [fake_like(program.mode, value) for value in values]
    # A leaf module has metadata of its result, and must be opened where the target does not know it.
    if several or any(node.op == "call_module" for node in program.graph.nodes) or _lacks_metadata(program.graph):
        with contextlib.suppress(CaptureError):
            known = _with_metadata(program, values, infer, program.mode)
            opened = _open_leaves(known, leaves)
            return opened if opened.graph is known.graph else _with_metadata(opened, values, infer, program.mode)
    return program


def _lacks_metadata(graph: fx.Graph) -> bool:
    calls = (node for node in graph.nodes if node.op in ("call_function", "call_method") and node.users)
    return any("val" not in node.meta and "example_value" not in node.meta for node in calls)


def _of_several_modes(graph: fx.Graph, mode: FakeTensorMode) -> bool:
    """Whether nodes have metadata of other fake modes: `make_fx` with real tracing gives each node its own."""
    return any(getattr(metadata(node), "fake_mode", mode) is not mode for node in graph.nodes)


def _contradicts(graph: fx.Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether example inputs disagree with the metadata of a graph's inputs."""
    inputs = graph.find_nodes(op="placeholder")
    given = _flat_inputs(graph, args, kwargs, len(inputs))
    return any(_differs(metadata(node), value) for node, value in zip(inputs, given))


def _differs(known: Any, given: Any) -> bool:
    if not isinstance(known, torch.Tensor) or not isinstance(given, torch.Tensor):
        return isinstance(known, torch.Tensor) or isinstance(given, torch.Tensor)
    if known.dtype != given.dtype or known.dim() != given.dim():
        return True
    # Symbolic sizes agree with any.
    return any(type(size) is int and size != other for size, other in zip(known.shape, given.shape))


def _exported_instead(
    model: fx.GraphModule, args: Any, kwargs: Any, infer: Infer | None, refused: CaptureError
) -> Module:
    """The graph captured by export, for a graph with data-dependent sizes: only export has symbols for these."""
    try:
        return _exported(export(model, args, kwargs, infer=infer), "captured")
    except CaptureError:
        raise refused from refused.__cause__


def _prepare(graph: fx.Graph, root: nn.Module, kind: str, leaves: Leaves | None) -> Module:
    program = Module.of(graph, root, kind, dialect_of(graph), mode_of(graph))
    if leaves is None or all(node.op != "call_module" for node in graph.nodes):
        return program
    rewrite = inlining.inline_modules(graph, root, leaves.body)
    return program.rewritten(rewrite, dialect=dialect_of(rewrite.graph), mode=mode_of(rewrite.graph))


def dialect_of(graph: fx.Graph) -> str:
    """ "aten" if the graph calls overloads only, else "torch"."""
    return "aten" if is_aten(graph) else "torch"


def _with_metadata(
    program: Module, values: Sequence[Any], infer: Infer | None, mode: FakeTensorMode | None = None
) -> Module:
    """The program with metadata propagated from `values` of its inputs: examples, or existing metadata of `mode`."""
    rewrite, mode = propagate_metadata(program.graph, program.root, values, infer, mode)
    return program.rewritten(rewrite, mode=mode, dialect=dialect_of(rewrite.graph))


def _from_examples(
    program: Module, args: Sequence[Any], kwargs: Mapping[str, Any], leaves: Leaves | None, infer: Infer | None
) -> Module:
    """The program with metadata from example inputs; the source's graph is not changed."""
    count = sum(node.op == "placeholder" for node in program.graph.nodes)
    values = _flat_inputs(program.graph, args, kwargs, count)
    known = replace(_with_metadata(program, values, infer), by_example=True)
    opened = _open_leaves(known, leaves)
    return opened if opened.graph is known.graph else _with_metadata(opened, values, infer)


def _open_leaves(program: Module, leaves: Leaves | None) -> Module:
    """The program with leaf modules that could not be traced captured by torch.export; their metadata has another fake
    mode."""
    bodies: dict[fx.Node, InlinedBody] = {}
    refused: dict[str, str] = {}
    for node in program.graph.nodes:
        module = program.root.get_submodule(str(node.target)) if node.op == "call_module" else None
        if leaves is None or module is None or not leaves.wants(module, node):
            continue
        try:
            body = exported_body(module, node)
        except CaptureError as error:
            refused[str(node.target)] = str(error)
        else:
            if leaves.serves(body.graph, module):
                bodies[node] = body
    if not bodies:
        return replace(program, refused_leaves=refused)
    rewrite = inlining.inline_modules(program.graph, program.root, lambda _, call: bodies.get(call))
    attributes = {f"{call.target}.{k}": v for call, body in bodies.items() for k, v in body.attributes.items()}
    root = inlining.with_attributes(program.root, attributes)
    return program.rewritten(rewrite, root=root, refused_leaves=refused, opened=True)


def _flat_inputs(graph: fx.Graph, args: Sequence[Any], kwargs: Mapping[str, Any], count: int) -> list[Any]:
    if isinstance(graph._codegen, PyTreeCodeGen):
        try:
            return flat_inputs(graph._codegen, args, kwargs)
        except Exception as error:
            raise CaptureError(
                f"args= and kwargs= do not match the inputs of the program: {first_line(error)}"
            ) from error
    names = [str(node.target).lstrip("*") for node in graph.nodes if node.op == "placeholder"]
    values = list(args) + [kwargs[name] for name in names[len(args) :] if name in kwargs]
    if len(values) != count:
        # Placeholders with defaults are last, as in a Python signature.
        defaults = [n.args[0] for n in graph.nodes if n.op == "placeholder" and n.args]
        values += defaults[len(defaults) - (count - len(values)) :] if count > len(values) else []
    if len(values) != count:
        raise CaptureError(f"the program takes {count} inputs ({', '.join(names)}), args= gave {len(values)}")
    return values


def all_inputs(program: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """The inputs of a program's graph for a call with these arguments, lifted state included; None if the arguments do
    not match."""
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
    if not any(node.op == "output" for node in graph.nodes):
        raise CaptureError("the graph is malformed: it has no output\n  to do: end it with graph.output(...)")


def rebuild(module: Module, source: fx.Graph) -> tuple[Any, ExportedProgram | None]:
    """A result of the kind of the captured program around the graphs of a module; and the exported program that it is
    or belongs to. `source`: the captured graph."""
    own = module.main
    result = _built(module, own, {})
    if module.exported is None:
        carry_hooks(module.root, result)
        return result, None
    exported = rebuild_exported(module.exported, result, own)
    return (exported if module.kind == "exported" else unlift(exported, source)), exported


def _built(module: Module, own: ProgramGraph, made: dict[nn.Module, fx.GraphModule]) -> fx.GraphModule:
    """A module around one graph, after those of its bodies; `made` has those already built."""
    for owner in own.bodies.values():
        if owner not in made:
            made[owner] = _built(module, module.graphs[owner], made)
    bodies = {name: made[owner] for name, owner in own.bodies.items()}
    return graph_module(own.owner, own.graph, own.constants, bodies, is_body=own is not module.main)


def graph_module(
    root: nn.Module,
    graph: fx.Graph,
    constants: Mapping[str, torch.Tensor] = MappingProxyType({}),
    bodies: Mapping[str, nn.Module] = MappingProxyType({}),
    is_body: bool = False,
) -> fx.GraphModule:
    """A module around a graph that shares parameters, buffers and submodules with `root`, besides `constants`, tensors
    that rules created, and `bodies`. Code is generated when it is first run. `is_body`: whether it is run by a
    higher-order op."""
    attributes: dict[str, Any] = {}
    for node in graph.nodes:
        spell_numbers(node)
        if node.op in ("get_attr", "call_module"):
            name = str(node.target)
            attributes[name] = bodies[name] if name in bodies else _attribute(root, name, constants)
    if isinstance(root, fx.GraphModule):
        # The name is printed with the module; that of PyTorch's private class would be no help there.
        name = root.__class__.__name__ if root.__class__.__name__ != "_LazyGraphModule" else "GraphModule"
    else:
        name = type(root).__name__
    # A body checks no inputs: the program around it computes them.
    module = lazy_graph_module(attributes, graph, name, BodyModule if is_body else LoweredModule)
    for name in attributes:
        if name in constants or _is_non_persistent(root, name):
            leave_out_of_state(module, name)
    module.training = root.training
    if isinstance(root, fx.GraphModule):
        module.meta = {key: copy.copy(value) for key, value in root.meta.items()}
    # Or what a later pass writes into the metadata of the result would be read in the source.
    _unshare_meta(graph)
    for name in ("_in_spec", "_out_spec", "validate_inputs", "range_constraints"):  # read by hooks of torch.export
        if hasattr(root, name):
            setattr(module, name, getattr(root, name))
    return module


def _is_non_persistent(root: nn.Module, path: str) -> bool:
    """Whether this is a non-persistent buffer."""
    owner, _, name = path.rpartition(".")
    return name in getattr(attribute(root, owner) if owner else root, "_non_persistent_buffers_set", ())


def _attribute(root: nn.Module, name: str, constants: Mapping[str, torch.Tensor]) -> Any:
    if name in constants:
        tensor = constants[name]
        if isinstance(tensor, nn.Parameter):
            return tensor
        with unset_fake_temporarily():  # torch.compile calls backends under a fake mode of its own
            return with_value(nn.Buffer(tensor, persistent=False), known_value(tensor))
    return attribute(root, name)


def _unshare_meta(graph: fx.Graph) -> None:
    """Copy the dicts and lists in the metadata of nodes, which copied nodes share with the originals."""
    copies: dict[int, tuple[Any, Any]] = {}
    for node in graph.nodes:
        for key, value in node.meta.items():
            if isinstance(value, (dict, list)):
                found = copies.get(id(value))
                if found is None:
                    found = copies[id(value)] = value, value.copy()
                node.meta[key] = found[1]
