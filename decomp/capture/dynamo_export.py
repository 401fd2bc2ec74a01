"""Export of programs that `torch.export` cannot trace but Dynamo can: nested transforms of `torch.func`. Dynamo's graph
is re-traced into overloads, which removes the transforms, and exported like any other module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from decomp.capture.dynamo import OverloadTracer, trace_with
from decomp.errors import CaptureError
from decomp.ir.call import metadata
from decomp.metadata.fakes import mode_of, new_mode
from decomp.torch_internals.compiling import export_config, export_to_torch_ir
from decomp.torch_internals.graphs import PyTreeCodeGen, tree_info
from decomp.torch_internals.pytree import tree_flatten


def export_by_dynamo(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram:
    """The exported program of a module, captured by Dynamo. Raises what Dynamo, the re-trace and torch.export raise."""
    given, named = tuple(args), dict(kwargs or {})
    # As torch.export itself chooses: only the older capture knows open sizes; the other one returns functions that
    # flatten inputs and results (`_dynamo_bytecode_flatten`), which are undone below.
    with export_config.patch(use_legacy_dynamo_graph_capture=dynamic_shapes is not None):
        module = export_to_torch_ir(
            model, given, named, dynamic_shapes, restore_fqn=dynamic_shapes is not None, _log_export_usage=False
        )
    if hasattr(module, "_dynamo_bytecode_flatten"):
        module = _with_state(model, module, given, named)
    plain = in_overloads(module, model)
    return torch.export.export(plain, given, named, dynamic_shapes=dynamic_shapes, strict=False)


def in_overloads(module: fx.GraphModule, model: nn.Module) -> fx.GraphModule:
    """A graph that Dynamo made of `model`, in overloads, with the model's state under its names."""
    theirs = mode_of(module.graph)
    mode = new_mode(theirs.shape_env if theirs is not None else None)
    inputs = [metadata(node) for node in module.graph.find_nodes(op="placeholder")]
    plain = trace_with(module, mode, inputs, _WithState)
    for name, _ in plain.named_buffers():
        owner, _, last = name.rpartition(".")
        if name not in model.state_dict():
            # In a new GraphModule every buffer is persistent, and torch.export would say so in the signature.
            plain.get_submodule(owner)._non_persistent_buffers_set.add(last)
    return plain


def _with_state(model: nn.Module, module: fx.GraphModule, args: Any, kwargs: Any) -> fx.GraphModule:
    """Dynamo's graph, which takes the model's tensors as inputs, rewritten to have them as attributes, and with the
    inputs and outputs of the model."""
    leaves, in_spec = tree_flatten((args, kwargs))
    inputs = (*args, *kwargs.values())
    # It says by identity which input of the graph is which tensor.
    values = module._dynamo_bytecode_flatten(*inputs)
    graph, users = module.graph, {id(leaf): place for place, leaf in enumerate(leaves)}
    names = {id(tensor): name for name, tensor in [*model.named_buffers(), *model.named_parameters()]}
    placeholders = graph.find_nodes(op="placeholder")
    own: dict[int, fx.Node] = {}
    for node, value in zip(placeholders, values):
        if id(value) in users:
            own[users[id(value)]] = node
        elif id(value) in names:
            _attribute_for(node, names[id(value)])
        elif type(value) is int:  # torch 2.11 makes inputs of sizes, and of the numbers of levels of torch.func
            node.replace_all_uses_with(value)
            graph.erase_node(node)
        else:
            raise CaptureError(f"Dynamo captured a {type(value).__name__} that is neither an input nor a parameter")
    # Stand-ins that are found again by identity in what the function makes of them.
    results = [object() for _ in graph.output_node().args[0]]
    found, out_spec = tree_flatten(module._dynamo_bytecode_unflatten(results, inputs))
    made = dict(zip(map(id, results), graph.output_node().args[0]))
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        ordered = [own[place] if place in own else _unused(graph, place, leaf) for place, leaf in enumerate(leaves)]
    for node in ordered:
        first.prepend(node)
    known = {**made, **{key: ordered[place] for key, place in users.items() if isinstance(leaves[place], torch.Tensor)}}
    graph.output_node().args = ([_result(value, known, names, graph) for value in found],)
    arguments = [*(f"args_{place}" for place in range(len(args))), *kwargs]
    graph._codegen = PyTreeCodeGen(tree_info(arguments, in_spec, out_spec))
    return fx.GraphModule({**_state_of(model, graph), **dict(module.named_children())}, graph)


def _attribute_for(node: fx.Node, name: str) -> None:
    with node.graph.inserting_before(next(n for n in node.graph.nodes if n.op != "placeholder")):
        attribute = node.graph.get_attr(name)
    attribute.meta = dict(node.meta)
    node.replace_all_uses_with(attribute)
    node.graph.erase_node(node)


def _unused(graph: fx.Graph, place: int, leaf: Any) -> fx.Node:
    node = graph.placeholder(f"unused_{place}")
    node.meta["val"] = leaf
    return node


def _result(value: Any, known: Mapping[int, Any], names: Mapping[int, str], graph: fx.Graph) -> Any:
    """The node for a value that the program returns; numbers and other non-tensors are returned unchanged."""
    if id(value) in known:
        return known[id(value)]
    if id(value) in names:
        with graph.inserting_before(graph.output_node()):
            return graph.get_attr(names[id(value)])
    if isinstance(value, torch.Tensor):
        raise CaptureError("the program returns a tensor that is neither computed nor an input")
    return value


def _state_of(model: nn.Module, graph: fx.Graph) -> dict[str, Any]:
    state = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    used = {str(node.target) for node in graph.find_nodes(op="get_attr")}
    return {name: value for name, value in state.items() if name in used}


class _WithState(OverloadTracer):
    """A tracer that keeps parameters and buffers as attributes under their own names."""

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        # Not that of the class above, which gives constants names of its own.
        value = fx.Interpreter.get_attr(self, target, args, kwargs)
        if not isinstance(value, torch.Tensor):
            return value
        fake = self.mode.from_tensor(value.detach(), static_shapes=True)
        node = self.tape.graph.get_attr(target)
        node.meta["val"] = fake
        self.tape.track(fake, node)
        return fake
