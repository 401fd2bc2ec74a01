"""Reassembly of an `ExportedProgram` around a new graph: signature, state, constants, mutations, module-call graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import copy
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.export import ExportedProgram, ModuleCallEntry
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)

from decomp.capture.calling import LoweredProgram
from decomp.capture.inputs.checks import reads_strides
from decomp.metadata.fakes import mode_of
from decomp.metadata.symbolic_sizes import symbols_in
from decomp.torch_internals.graphs import lazy_graph_module, share_getitems

if TYPE_CHECKING:
    from decomp.ir.module import ProgramGraph


WRITES = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION, OutputKind.PARAMETER_MUTATION)
"""The outputs of an exported program that are written to its state or its inputs."""


def lifted_state(program: ExportedProgram) -> dict[str, Any]:
    """The tensors of the inputs that are parameters, buffers and constants, by placeholder name."""
    specs = (spec for spec in program.graph_signature.input_specs if spec.target is not None)
    return {spec.arg.name: program.state_dict.get(spec.target, program.constants.get(spec.target)) for spec in specs}


def written_inputs(program: ExportedProgram) -> set[str]:
    """The names of the inputs to which a program writes, according to its signature."""
    signature = program.graph_signature
    named = [spec for spec in signature.input_specs if hasattr(spec.arg, "name")]
    places = {spec.target or spec.arg.name: spec.arg.name for spec in named}
    return {places.get(str(spec.target), str(spec.target)) for spec in signature.output_specs if spec.kind in WRITES}


def sync_input_names(program: ExportedProgram) -> ExportedProgram:
    """The program with a signature that uses the names of its graph: `copy.deepcopy` renames an input `input` to
    `input_1`, as it is a Python builtin, and does not update the signature (torch 2.13)."""
    signature = program.graph_signature
    nodes = program.graph.find_nodes(op="placeholder")
    named = [getattr(spec.arg, "name", None) for spec in signature.input_specs]
    renamed = {name: node.name for name, node in zip(named, nodes) if name not in (None, node.name)}
    # Reported as https://github.com/pytorch/pytorch/issues/142227, for an output; put right within export alone by
    # https://github.com/pytorch/pytorch/pull/133269.
    if not renamed or len(named) != len(nodes):
        return program

    def of_graph(spec: Any) -> Any:
        name = renamed.get(getattr(spec.arg, "name", None))
        arg = dataclasses.replace(spec.arg, name=name) if name is not None else spec.arg
        is_input = isinstance(spec, OutputSpec) and spec.kind == OutputKind.USER_INPUT_MUTATION
        target = renamed.get(spec.target, spec.target) if is_input else spec.target
        return dataclasses.replace(spec, arg=arg, target=target)

    found = copy.copy(program)
    inputs, outputs = (list(map(of_graph, specs)) for specs in (signature.input_specs, signature.output_specs))
    # The property refuses to be set.
    vars(found)["_graph_signature"] = ExportGraphSignature(input_specs=inputs, output_specs=outputs)
    return found


def rebuild_exported(source: ExportedProgram, module: fx.GraphModule, own: ProgramGraph) -> LoweredProgram:
    """An exported program like `source` with another graph, which `module` owns."""
    graph = module.graph
    given = source.graph_signature.input_specs
    specs = [copy.copy(spec) for spec in given if getattr(spec.arg, "name", "") not in own.dropped]
    gone = {spec.target for spec in given} - {spec.target for spec in specs}
    constants = {name: value for name, value in source.constants.items() if name not in gone}
    state = dict(source.state_dict)
    _lift_constants(module, graph, specs, constants, state, own)
    outputs = _outputs(source, graph, specs, own)
    signature = ExportGraphSignature(input_specs=specs, output_specs=outputs)
    changed = {
        "graph_signature": signature,
        "state_dict": state,
        "range_constraints": {**source.range_constraints, **_ranges_of_data(source, graph)},
        "module_call_graph": _module_calls(source, signature),
        "example_inputs": source.example_inputs,
        "constants": constants,
        "verifiers": list(source.verifiers),
    }
    private = {f"_{name}": value for name, value in changed.items()}
    if _is_known(source, private):
        program = _like(source, module, private)
    else:
        program = LoweredProgram(root=module, graph=graph, **changed)
    # The constructor prints the guards of the shape environment, which that of a program from a file does not have.
    program._guards_code = list(getattr(source, "_guards_code", None) or [])
    program._reads_strides = getattr(source, "_reads_strides", False) or reads_strides(source.graph)
    return program


def _ranges_of_data(source: ExportedProgram, graph: fx.Graph) -> dict[Any, Any]:
    """The ranges of data-dependent sizes that only the new graph has, without which `torch.export.load` does not read
    the program."""
    mode = mode_of(graph)
    known = mode.shape_env.var_to_range if mode is not None and mode.shape_env is not None else {}
    if known.keys() <= source.range_constraints.keys():
        return {}
    from decomp.torch_internals.sizes import SymT, symbol_is_type

    new = [
        symbol for symbol in known.keys() - source.range_constraints.keys() if symbol_is_type(symbol, SymT.UNBACKED_INT)
    ]
    used = dict.fromkeys(symbols_in([node.meta.get("val") for node in graph.nodes])) if new else {}
    return {symbol: known[symbol] for symbol in used if symbol in new}


def _is_known(source: ExportedProgram, private: dict[str, Any]) -> bool:
    """Whether a program stores its constructor's arguments where torch 2.13 does, and nothing else."""
    known = {*private, "_graph_module", "_guards_code"}
    if type(source) is LoweredProgram:
        return vars(source).keys() - {"_reads_strides", "_more_checks"} == known
    return type(source) is ExportedProgram and vars(source).keys() == known


def _like(source: ExportedProgram, module: fx.GraphModule, private: dict[str, Any]) -> LoweredProgram:
    """A copy of `source` around another graph. It does what the constructor does, except that code is generated when
    the module is first run: torch 2.13's constructor generates it at once, two thirds of the cost of a lowering."""
    program: Any = copy.copy(source)
    program.__class__ = LoweredProgram
    # The constructor of `ExportedProgram` resets the codegen likewise: its graph takes flat inputs.
    module.graph._codegen = fx.graph.CodeGen()
    owner = lazy_graph_module(module, module.graph, "GraphModule")
    owner.meta.update((key, copy.copy(value)) for key, value in module.meta.items())
    vars(program).update(private, _graph_module=owner)
    share_getitems(owner, program.graph_signature, program.module_call_graph)
    # As the constructor does, to which the caller is used: a graph that breaks the rules of its dialect is refused
    # here.
    program.validate()
    assert isinstance(program, LoweredProgram)
    return program


def _lift_constants(
    module: fx.GraphModule,
    graph: fx.Graph,
    specs: list[InputSpec],
    constants: dict[str, Any],
    state: dict[str, Any],
    own: ProgramGraph,
) -> None:
    """Turn tensors that rules created into inputs, as torch.export does, before the user's inputs: constants, and
    parameters, which keep their gradients."""
    inputs = graph.find_nodes(op="placeholder")
    for node in list(graph.nodes):
        if node.op != "get_attr" or node.target not in own.constants:
            continue
        target = str(node.target)
        trained = isinstance(own.constants[target], torch.nn.Parameter)
        place = _place(specs, trained)
        anchor = inputs[place] if place < len(inputs) else next(iter(n for n in graph.nodes if n.op != "placeholder"))
        with graph.inserting_before(anchor):
            lifted = graph.placeholder(lifted_name(target, trained))
        lifted.meta = dict(node.meta)
        node.replace_all_uses_with(lifted)
        graph.erase_node(node)
        kind = InputKind.PARAMETER if trained else InputKind.CONSTANT_TENSOR
        specs.insert(place, InputSpec(kind, TensorArgument(lifted.name), target))
        inputs.insert(place, lifted)
        (state if trained else constants)[target] = own.constants[target]
        if hasattr(module, target) and not trained:
            delattr(module, target)


def _place(specs: list[InputSpec], trained: bool) -> int:
    """The index after the last parameter, or before the first user input."""
    if trained:
        return sum(spec.kind == InputKind.PARAMETER for spec in specs)
    return next((i for i, spec in enumerate(specs) if spec.kind == InputKind.USER_INPUT), len(specs))


def lifted_name(constant: str, trained: bool = False) -> str:
    """The name of the placeholder for a lifted constant or parameter."""
    return f"{'p' if trained else 'c'}_{constant.strip('_')}"


def input_names(constants: Iterable[str]) -> Iterator[str]:
    """The names that a rule's tensors may have in a program: as attributes, or as inputs of an exported program."""
    for name in constants:
        yield from (name, lifted_name(name), lifted_name(name, trained=True))


def _outputs(source: ExportedProgram, graph: fx.Graph, specs: list[InputSpec], own: ProgramGraph) -> list[OutputSpec]:
    """Output specs with the names of the new nodes; written-back values come first."""
    output = graph.output_node()
    results = list(output.args[0])
    renewed = [
        OutputSpec(spec.kind, _argument(value), spec.target)
        for spec, value in zip(source.graph_signature.output_specs, results)
    ]
    targets = {spec.arg.name: spec for spec in specs if hasattr(spec.arg, "name")}
    written = [write_spec(targets[write.source.name], write.value) for write in own.signed]
    output.args = ((*(write.value for write in own.signed), *results),)
    return written + renewed


def write_spec(spec: InputSpec, value: fx.Node) -> OutputSpec:
    """The signature's entry for an output that is written back to the input of `spec`."""
    kinds = {
        InputKind.BUFFER: OutputKind.BUFFER_MUTATION,
        InputKind.USER_INPUT: OutputKind.USER_INPUT_MUTATION,
        InputKind.PARAMETER: OutputKind.PARAMETER_MUTATION,
    }
    # A user's input has no name beyond that of its placeholder.
    target = spec.target if spec.kind != InputKind.USER_INPUT else spec.arg.name
    return OutputSpec(kinds.get(spec.kind, OutputKind.BUFFER_MUTATION), TensorArgument(value.name), target)


def _argument(value: Any) -> Any:
    if isinstance(value, fx.Node):
        meta = value.meta.get("val")
        return SymIntArgument(value.name) if isinstance(meta, (int, torch.SymInt)) else TensorArgument(value.name)
    return ConstantArgument("", value)


def _module_calls(source: ExportedProgram, signature: ExportGraphSignature) -> list[ModuleCallEntry]:
    """The module-call graph with the new names of the program's outputs. Its tree specs are shared: a deep copy goes
    through a deprecated class of torch 2.13."""
    users = [spec.arg for spec in signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    entries = [dataclasses.replace(entry) for entry in source.module_call_graph]
    if entries and entries[0].signature is not None and len(entries[0].signature.outputs) == len(users):
        entries[0].signature = dataclasses.replace(entries[0].signature, outputs=users)
    return entries


def with_lifted(values: Mapping[fx.Node, Any], place: Mapping[fx.Node, int]) -> Mapping[fx.Node, Any]:
    """Values, with nodes for rules' constants replaced by the inputs to which an exported program lifted them."""
    inputs = {str(node.target): node for node in place if node.op == "placeholder"}

    def lifted(value: Any) -> Any:
        if not isinstance(value, fx.Node) or value.op != "get_attr" or value in place:
            return value
        names = (lifted_name(str(value.target), trained) for trained in (False, True))
        return next((inputs[name] for name in names if name in inputs), value)

    return {source: lifted(value) for source, value in values.items()}
