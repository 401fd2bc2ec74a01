"""Composites as ONNX functions. The op's library is the domain and the op the name (`mylib` and `rms_norm`); functions
of further signatures have a number as `overload`. A runtime that does not know the name computes the body, which is in
ONNX's own operators; one that does finds the attributes at the call. The version is in the function's metadata, under
`decomp.version`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import json
from typing import Any

import onnx
from onnx import helper
import torch

from decomp_rules.backends import onnx_tidying
from decomp_rules.backends.onnx_graph import (
    OPSET,
    Graph,
    Size,
    Table,
    Value,
    cast,
    entering,
    graph,
    operand,
    several,
)

OPS: Table = {}
emits = entering(OPS)

Body = Callable[..., Sequence[Any]]


@emits("wrap")
def composite(made: Any, body: Body, *operands: Any) -> Sequence[Any]:
    """A call of the function whose body this is; numbers that are known are part of it."""
    function, results = _function(made, body, operands)
    read = [each for each in operands if isinstance(each, (Value, Size))]
    found = several(function.name, read, [operand(each) for each in results])
    call = graph().nodes[-1]
    call.domain, call.overload = function.domain, function.overload
    call.attribute.extend(_attributes(made.attributes))
    return [Size(value) if isinstance(each, Size) else value for value, each in zip(found, results)]


def _function(made: Any, body: Body, operands: Sequence[Any]) -> tuple[onnx.FunctionProto, Sequence[Any]]:
    """The function of a body on operands like these, and its results. Calls of one signature share it."""
    place = graph()
    key = made.name, id(body), tuple(each if type(each) in (bool, int, float) else None for each in operands)
    if key not in place.functions:
        # The body is kept with the function, so that no other has its id.
        place.functions[key] = *_new_function(made, body, operands), body
    function, results, _ = place.functions[key]
    return function, results


def _new_function(made: Any, body: Body, operands: Sequence[Any]) -> tuple[onnx.FunctionProto, Sequence[Any]]:
    place = graph()
    with Graph(place.now, place.annotate, functions=place.functions).building() as inner:
        given = [_parameter(inner, each) for each in operands]
        results = [_named(inner, each) for each in body(*given)]
        inputs = [operand(each).name for each in given if isinstance(each, (Value, Size))]
        outputs = [operand(each).name for each in results]
        nodes = _with_constants(inner, onnx_tidying.tidy(inner.nodes, {*outputs}))
    domain, _, name = made.name.rpartition(".")
    alike = [each for each, *_ in place.functions.values() if (each.domain, each.name) == (domain, name)]
    domains = sorted({each.domain for each in nodes if each.domain})
    imports = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(each, 1) for each in domains)]
    listed = [each.name for each in _attributes(made.attributes)]
    overload = str(len(alike)) if alike else None
    function = helper.make_function(domain, name, inputs, outputs, nodes, imports, listed, overload=overload)
    helper.set_metadata_props(function, {"decomp.version": str(made.version)})
    return function, results


def _parameter(inner: Graph, value: Any) -> Any:
    """What a body is given for an operand: a name inside the function."""
    if isinstance(value, Size):
        shape = torch.empty((1,), dtype=value.value.dtype, device="meta")
        return Size(inner.input("size", value.value.dtype, shape))
    return inner.input("input", value.dtype, value.meta) if isinstance(value, Value) else value


def _named(inner: Graph, value: Any) -> Any:
    """A result under a name of its own: a function returns no input and no constant."""
    found = inner.named(value if isinstance(value, Size) else cast(value, value.dtype))
    return Size(found) if isinstance(value, Size) else found


def _with_constants(inner: Graph, nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes of a function behind the constants that they read: it reads nothing around it."""
    read = {*onnx_tidying.names_read(nodes)}
    carried = [data for _, data in inner.constants.values() if data.name in read]
    return [*(helper.make_node("Constant", [], [data.name], value=data) for data in carried), *nodes]


def _attributes(given: Any) -> list[onnx.AttributeProto]:
    """Attributes as ONNX has them: numbers, texts and lists of one kind; any other list as JSON."""
    return [helper.make_attribute(name, _value(each)) for name, each in given.items() if each is not None]


def _value(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, list):
        return value
    kinds = {type(each) for each in value}
    return value if kinds in ({int}, {float}, {str}) else json.dumps(value)


def functions_in(place: Graph, nodes: Iterable[onnx.NodeProto]) -> list[onnx.FunctionProto]:
    """The functions that nodes call, and those that these call."""
    known = {(each.domain, each.name, each.overload): each for each, *_ in place.functions.values()}
    wanted: dict[Any, onnx.FunctionProto] = {}
    waiting = list(nodes)
    for node in waiting:
        key = node.domain, node.op_type, node.overload
        if key in known and key not in wanted:
            wanted[key] = known[key]
            waiting.extend(known[key].node)
        waiting.extend(inner for body in onnx_tidying.bodies_of(node) for inner in body.node)
    return [each for key, each in known.items() if key in wanted]
