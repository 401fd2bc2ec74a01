"""Composites in the form of Core AI: a private graph that declares the composite, and holds its decomposition, invoked
where the program calls it. `TorchConverter` makes such graphs of modules that it exports itself; here it is given the
bodies (`_externalized_exported_programs`, seen in coreai-torch 0.4.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import copy
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

Prepared = Callable[[ExportedProgram], ExportedProgram]


def has_composites(program: ExportedProgram) -> bool:
    """Whether it makes composite calls."""
    return any(True for _ in _calls(program.graph))


def outlined(program: ExportedProgram, prepared: Prepared) -> tuple[ExportedProgram, list[Any]]:
    """A copy of a program whose composite calls are left without their bodies, and what Core AI makes graphs of: each
    body once, `prepared` for it. Composites in a body, and those with an operand that is a number, or of a size that is
    open, are calls of their bodies' calls."""
    copied = _copy(program)
    module, bodies = copied.graph_module, dict[str, list[fx.Node]]()
    for node in [*_calls(copied.graph)]:
        if _is_static(node.args[1:]):
            bodies.setdefault(_body_of(node), []).append(node)
        else:
            _inline(module, node)
    graphs = [_graph(module, i, name, nodes, prepared) for i, (name, nodes) in enumerate(bodies.items())]
    for node in [node for nodes in bodies.values() for node in nodes]:
        body: Any = node.args[0]
        node.args = node.args[1:]
        if not body.users:
            module.graph.erase_node(body)
    return copied, graphs


def _calls(graph: fx.Graph) -> Iterator[fx.Node]:
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.wrap):
        if "composite" in node.meta.get("custom", {}):
            yield node


def _copy(program: ExportedProgram) -> ExportedProgram:
    """With a graph of its own, and the same weights. `run_decompositions` would put bodies in the place of calls."""
    module = copy.deepcopy(program.graph_module)
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
    )


def _body_of(node: fx.Node) -> str:
    body: Any = node.args[0]
    return str(body.target)


def _is_static(operands: Sequence[Any]) -> bool:
    values = [each.meta.get("val") if isinstance(each, fx.Node) else each for each in operands]
    return all(isinstance(x, torch.Tensor) and all(type(n) is int for n in x.shape) for x in values)


def _inline(module: fx.GraphModule, node: fx.Node) -> None:
    body: fx.GraphModule = module.get_submodule(_body_of(node))
    values = dict(zip(body.graph.find_nodes(op="placeholder"), node.args[1:]))
    with module.graph.inserting_before(node):
        results: Any = module.graph.graph_copy(body.graph, values)
    for user in [*node.users]:
        user.replace_all_uses_with(results[user.args[1]])
        module.graph.erase_node(user)
    module.graph.erase_node(node)


def _graph(module: fx.GraphModule, place: int, name: str, nodes: Sequence[fx.Node], prepared: Prepared) -> Any:
    """The graph of a body, and the names of the calls that invoke it."""
    from coreai_torch.externalize import _ExternalizedExportedProgram

    made, operands = nodes[0].meta["custom"]["composite"], nodes[0].args[1:]
    body = torch.export.export(module.get_submodule(name), tuple(each.meta["val"] for each in operands))
    results = len(nodes[0].meta["val"])
    return _ExternalizedExportedProgram(
        name=f"{made['name'].replace('.', '_')}_{place}",
        op_name=name,
        exported_program=prepared(body),
        composite_op_name=made["name"].removeprefix("coreai."),
        composite_decl_attrs={**made["attributes"], "decomp.version": made["version"]},
        composite_input_names=_input_names(made["operands"], len(operands)),
        composite_output_names=["output"] if results == 1 else [f"output_{i}" for i in range(results)],
        source_nodes=[node.name for node in nodes],
    )


def _input_names(named: Mapping[str, Any], count: int) -> list[str]:
    """The arguments that each operand is; the others are constants of the decomposition."""
    return [",".join(n for n, each in named.items() if _is_operand(each, i)) or f"constant_{i}" for i in range(count)]


def _is_operand(value: Any, place: int) -> bool:
    """Whether an argument, or a part of it, is this operand."""
    if isinstance(value, list):
        return any(_is_operand(each, place) for each in value)
    return isinstance(value, dict) and value.get("operand") == place
