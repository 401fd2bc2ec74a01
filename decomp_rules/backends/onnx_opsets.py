"""Models of another opset than the one that is emitted. From opset 18 on, what changed of the operators that are
emitted is which exist, their attributes and their dtypes, all of which ONNX checks, and the modes of GridSample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

import decomp
from decomp_rules.backends.onnx_metadata import without_data

FIRST = 18
"""The oldest opset whose operators mean what those that are emitted mean."""
_NEW_MEANING = {"GridSample": 20}


def at_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model with its operators of this opset. Raises `LoadError`, with what that opset lacks."""
    last = onnx.defs.onnx_opset_version()
    if not FIRST <= opset <= last:
        raise _refused([f"opset {opset} is not one of {FIRST} to {last}"])
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for each in (found, *found.functions):
        each.opset_import[0].version = opset
    nodes = (node for each in (found.graph, *found.functions) for node in each.node)
    problems = sorted(set(_lacking(nodes, opset)))
    if not problems:
        try:
            onnx.checker.check_model(without_data(found), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            problems = [f"opset {opset}: {str(error).strip().splitlines()[0]}"]
    if problems:
        raise _refused(problems)
    return found


def _lacking(nodes: Iterable[onnx.NodeProto], opset: int) -> Iterator[str]:
    for node in nodes:
        if node.domain:  # a call of one of the model's functions
            continue
        since = _NEW_MEANING.get(node.op_type, 0)
        if not onnx.defs.has(node.op_type, opset):
            schemas = onnx.defs.get_all_schemas_with_history()
            since = min(each.since_version for each in schemas if each.name == node.op_type)
        if since > opset:
            yield f"{node.op_type} is of opset {since}, and the model is to be of opset {opset}"
        for attribute in node.attribute:
            yield from _lacking(attribute.g.node, opset)


def _refused(problems: list[str]) -> decomp.errors.LoadError:
    remedies = ("a newer opset", "decomp.lower(model, to=targets.onnx, ...), which has fewer operators")
    return decomp.errors.LoadError("onnx", problems, remedies)
