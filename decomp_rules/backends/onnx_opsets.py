"""Models of another opset than the one that is emitted. From opset 18 on, what changed of the operators that are
emitted is which exist, their attributes and their dtypes, all of which ONNX checks, and GridSample. What is new since
and has an older form is written in it: Gelu, the greatest and the least of bools, the modes of GridSample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, helper

import decomp
from decomp_rules.backends.onnx_metadata import infer_edges
from decomp_rules.backends.onnx_tidying import bodies_of
from decomp_rules.backends.onnx_weights import without_data

FIRST = 18
"""The oldest opset whose operators mean what those that are emitted mean."""
IR = 10
"""The oldest version of the format that has metadata of nodes."""
Types = Mapping[str, onnx.TypeProto.Tensor]
"""By name, the dtypes and shapes of values."""
_GRID_MODES = {b"linear": b"bilinear", b"cubic": b"bicubic"}
_GELU = {
    b"none": """Gelu (x) => (y) {
        root = Constant <value_float = 1.4142135623730951> ()
        one = Constant <value_float = 1.0> ()
        half = Constant <value_float = 0.5> ()
        scaled = Div (x, root)
        error = Erf (scaled)
        sum = Add (error, one)
        product = Mul (x, sum)
        y = Mul (product, half)
    }""",
    b"tanh": """Gelu (x) => (y) {
        root = Constant <value_float = 0.7978845608028654> ()
        third = Constant <value_float = 0.044715> ()
        one = Constant <value_float = 1.0> ()
        half = Constant <value_float = 0.5> ()
        square = Mul (x, x)
        cube = Mul (square, x)
        small = Mul (cube, third)
        near = Add (x, small)
        scaled = Mul (near, root)
        tangent = Tanh (scaled)
        sum = Add (tangent, one)
        product = Mul (x, sum)
        y = Mul (product, half)
    }""",
}
"""Gelu by older operators, in the forms that ONNX Runtime fuses again."""


def at_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model with its operators of this opset. Raises `LoadError`, with what that opset lacks."""
    last = onnx.defs.onnx_opset_version()
    if not FIRST <= opset <= last:
        raise _refused([f"opset {opset} is not one of {FIRST} to {last}"])
    found = onnx.ModelProto()
    found.CopyFrom(model)
    types = _types_in(model.graph)
    for each in (found, *found.functions):
        next(entry for entry in each.opset_import if not entry.domain).version = opset
    if opset < 20:
        for holder in (found.graph, *found.functions):
            _write_older(holder, types)
    found.ir_version = max(IR, helper.find_min_ir_version_for(list(found.opset_import), ignore_unknown=True))
    problems = sorted({problem for node in _nodes_in(found) for problem in _problems(node, opset, types)})
    if not problems:
        try:
            onnx.checker.check_model(without_data(found), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            problems = [f"opset {opset}: {str(error).strip().splitlines()[0]}"]
    if problems:
        raise _refused(problems)
    infer_edges(found)
    return found


def _types_in(graph: onnx.GraphProto) -> Types:
    found = {each.name: each.type.tensor_type for each in (*graph.input, *graph.value_info)}
    weights = ((each.name, helper.make_tensor_type_proto(each.data_type, each.dims)) for each in graph.initializer)
    return found | {name: kind.tensor_type for name, kind in weights}


def _nodes_in(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The operators of a model, also in bodies and functions."""
    waiting = [model.graph, *model.functions]
    for each in waiting:
        yield from (node for node in each.node if not node.domain)
        waiting.extend(body for node in each.node for body in bodies_of(node))


def _problems(node: onnx.NodeProto, opset: int, types: Types) -> Iterator[str]:
    """Why this opset has no such operator, if it has none."""
    if not onnx.defs.has(node.op_type, opset):
        schemas = onnx.defs.get_all_schemas_with_history()
        since = min(each.since_version for each in schemas if each.name == node.op_type)
        yield f"{node.op_type} is of opset {since}, and the model is to be of opset {opset}"
    if opset < 20 and node.op_type == "GridSample" and _rank(types, node.input[0]) > 4:
        yield f"GridSample of volumes is of opset 20, and the model is to be of opset {opset}"


def _rank(types: Types, name: str) -> int:
    return len(types[name].shape.dim) if name in types else 0


# What has an older form.


def _write_older(holder: onnx.GraphProto | onnx.FunctionProto, types: Types) -> None:
    """Write the nodes of a graph or function, and of the bodies inside, by operators of opset 18."""
    nodes = [older for node in holder.node for older in _older(node, types)]
    del holder.node[:]
    holder.node.extend(nodes)
    for body in (body for node in holder.node for body in bodies_of(node)):
        _write_older(body, types)


def _older(node: onnx.NodeProto, types: Types) -> Iterable[onnx.NodeProto]:
    given = {each.name: each for each in node.attribute}
    if node.domain:
        return [node]
    if node.op_type == "Gelu":
        return _inlined(node, _GELU[given["approximate"].s])
    if node.op_type == "GridSample":
        given["mode"].s = _GRID_MODES.get(given["mode"].s, given["mode"].s)
    is_reduced = node.op_type in ("ReduceMax", "ReduceMin") and node.input[0] in types
    return _of_bytes(node) if is_reduced and types[node.input[0]].elem_type == TensorProto.BOOL else [node]


def _inlined(node: onnx.NodeProto, text: str) -> list[onnx.NodeProto]:
    """The nodes of a function of one operand in the place of its call."""
    body = onnx.parser.parse_function(f'<domain: "older", opset_import: ["" : {FIRST}]> {text}')
    names = {body.input[0]: node.input[0], body.output[0]: node.output[0]}
    for each in body.node:
        each.input[:] = [names[name] for name in each.input]
        each.output[:] = [names.setdefault(name, f"{node.output[0]}/{name}") for name in each.output]
    return _described(body.node, node)


def _of_bytes(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A reduction of bools as one of bytes."""
    given, found = (f"{node.output[0]}/{name}" for name in ("bytes", "found"))
    reduced = onnx.NodeProto(op_type=node.op_type, input=[given, *node.input[1:]], output=[found])
    reduced.attribute.extend(node.attribute)
    return _described(
        [
            helper.make_node("Cast", node.input[:1], [given], to=TensorProto.UINT8),
            reduced,
            helper.make_node("Cast", [found], node.output, to=TensorProto.BOOL),
        ],
        node,
    )


def _described(nodes: Sequence[onnx.NodeProto], node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Nodes with the metadata of the one that they replace, and names like its own."""
    for i, each in enumerate(nodes):
        each.name = f"{node.name}/{i}"
        each.metadata_props.extend(node.metadata_props)
    return list(nodes)


def _refused(problems: list[str]) -> decomp.errors.LoadError:
    remedies = ("a newer opset", "decomp.lower(model, to=targets.onnx, ...), which has fewer operators")
    return decomp.errors.LoadError("onnx", problems, remedies)
