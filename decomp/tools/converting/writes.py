"""The state of a program that a converter is given: a converted model only returns results, so that nothing is written
to it, and what no call reads is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind

from decomp.capture.rebuild_exported import WRITES, lifted_state
from decomp.graphs.rewrite import copy_graph
from decomp.ir.agreement import same_elements
from decomp.ir.arguments import substituted
from decomp.simplification.freezing import constants_of
from decomp.tools.converting.converter import Converter, failure

T = TypeVar("T")


def refuse_writes(converter: Converter, program: ExportedProgram) -> None:
    """Raise for a program that writes to its state or its inputs."""
    written = [spec.target for spec in program.graph_signature.output_specs if spec.kind in WRITES]
    if written:
        others = f" and {len(written) - 1} more" if len(written) > 1 else ""
        raise failure(
            f"the model writes to {written[0]}{others}, and a model converted by {converter.name} only returns results",
            "call model.eval(), if these are running statistics",
            "call the model once before, if these are weights that its first call prepares",
            "return what is written as a result, and pass it as an input",
        )


def without_idle_writes(program: ExportedProgram) -> ExportedProgram:
    """A program without its writes of what is there already, at this call and so at each: values that no input reaches,
    bitwise those of the parameter or the buffer. `weight.div_(scale)` with a scale of 1 is one."""
    specs, results = program.graph_signature.output_specs, program.graph.output_node().args[0]
    if not any(spec.kind in WRITES for spec in specs):
        return program
    state = lifted_state(program)
    known = constants_of(program.graph, None, state, ())
    names = {spec.target: spec.arg.name for spec in program.graph_signature.input_specs if spec.target is not None}
    idle = [
        spec.kind in WRITES
        and result in known
        and spec.target in names
        and same_elements(_value(result, state), state[names[spec.target]])
        for spec, result in zip(specs, results)
    ]
    return _without(program, outputs=idle) if any(idle) else program


def without_unread_weights(program: ExportedProgram) -> ExportedProgram:
    """A program without the weights that no call reads, as those of which all that is computed was computed before:
    converters read every weight, and may not know its dtype."""
    signature, placeholders = program.graph_signature, program.graph.find_nodes(op="placeholder")
    written = {spec.target for spec in signature.output_specs if spec.kind in WRITES}
    unread = [
        spec.kind in _WEIGHTS and not node.users and spec.target not in written
        for spec, node in zip(signature.input_specs, placeholders)
    ]
    return _without(program, inputs=unread) if any(unread) else program


_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def _value(result: fx.Node, state: dict[str, torch.Tensor]) -> torch.Tensor:
    """The value of a node that depends only on the state of its program."""
    values: dict[fx.Node, torch.Tensor] = {}
    waiting = [result]
    while waiting:
        node = waiting[-1]
        missing = [operand for operand in node.all_input_nodes if operand not in values]
        waiting += missing
        if not missing:
            waiting.pop()
            args, kwargs = substituted((node.args, node.kwargs), values.__getitem__, fx.Node)
            with torch.no_grad():
                values[node] = state[node.name] if node.op == "placeholder" else node.target(*args, **kwargs)
    return values[result]


def _without(program: ExportedProgram, inputs: Sequence[bool] = (), outputs: Sequence[bool] = ()) -> ExportedProgram:
    """A program with a graph of its own that does not have these inputs, which no call reads, and these outputs."""
    signature = program.graph_signature
    # Not by `copy.deepcopy`, which renames an input that is called as a Python builtin is.
    module = fx.GraphModule(program.graph_module, copy_graph(program.graph).graph)
    module.meta.update(program.graph_module.meta)
    output = module.graph.output_node()
    output.args = (tuple(_left(output.args[0], outputs)),)
    module.graph.eliminate_dead_code()
    placeholders = module.graph.find_nodes(op="placeholder")
    for node in {*placeholders} - {*_left(placeholders, inputs)}:
        module.graph.erase_node(node)
    module.recompile()
    taken = _left(signature.input_specs, inputs)
    gone = {spec.target for spec in signature.input_specs} - {spec.target for spec in taken}
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=ExportGraphSignature(taken, _left(signature.output_specs, outputs)),
        state_dict={name: value for name, value in program.state_dict.items() if name not in gone},
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants={name: value for name, value in program.constants.items() if name not in gone},
    )


def _left(items: Sequence[T], out: Sequence[bool]) -> list[T]:
    """The items without those that are out; none is, if nothing is said."""
    return [item for item, is_out in zip(items, out, strict=True) if not is_out] if out else [*items]
