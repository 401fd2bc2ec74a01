"""What a graph is written without: nodes that nothing reads, that compute what another does, copies under another name,
and transposed weights, which are stored as they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import onnx

Nodes = list[onnx.NodeProto]
_DRAWN = {"RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike"}
"""Operators that compute another value each time."""


def names_read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """The names that nodes read, and those in their bodies."""
    for each in nodes:
        yield from each.input
        for body in bodies_of(each):
            yield from names_read(body.node)
            yield from (value.name for value in body.output)


def tidy(nodes: Nodes, results: Set[str]) -> Nodes:
    """The nodes that results need, each once. A value that is only computed to be copied to a result has the result's
    name."""
    return _renamed(_merged(needed(nodes, results), results), results)


def needed(nodes: Nodes, results: Set[str]) -> Nodes:
    """The nodes that results need."""
    wanted, found = set(results), []
    for each in reversed(nodes):
        if not wanted.isdisjoint(each.output):
            found.append(each)
            wanted.update(names_read([each]))
    return found[::-1]


def _merged(nodes: Nodes, results: Set[str]) -> Nodes:
    """The nodes, of which those that compute the same from the same values are one."""
    names: dict[str, str] = {}
    first: dict[Any, onnx.NodeProto] = {}
    for each in nodes:
        each.input[:] = [names.get(name, name) for name in each.input]
        key = each.op_type, tuple(each.input), tuple(attribute.SerializeToString() for attribute in each.attribute)
        if not each.domain and each.op_type not in _DRAWN and results.isdisjoint(each.output):
            names.update(zip(each.output, first.setdefault(key, each).output))
    names = {name: other for name, other in names.items() if name != other}
    kept = [each for each in nodes if not each.output or each.output[0] not in names]
    _rename(kept, names)
    return kept


def _renamed(nodes: Nodes, results: Set[str]) -> Nodes:
    made = {name for each in nodes for name in each.output}
    names: dict[str, str] = {}
    for each in nodes:
        if each.op_type == "Identity" and each.output[0] in results:
            source = each.input[0]
            if source in made and source not in results and source not in names:
                names[source] = each.output[0]
    kept = [each for each in nodes if each.op_type != "Identity" or names.get(each.input[0]) != each.output[0]]
    if names:
        _rename(kept, names)
    return kept


def _rename(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    for each in nodes:
        for values in (each.input, each.output):
            values[:] = [names.get(name, name) for name in values]
        for body in bodies_of(each):
            _rename(body.node, names)
            for value in body.output:
                value.name = names.get(value.name, value.name)


def without_transposes(nodes: Nodes, weights: Set[str], results: Set[str]) -> tuple[Nodes, dict[str, str]]:
    """The nodes without Transposes of those matrices among the weights that nothing else reads, and the names under
    which these are read transposed."""
    counts = Counter(names_read(nodes))
    turned: dict[str, Nodes] = {}
    for each in nodes:
        if each.op_type == "Transpose" and each.input[0] in weights and results.isdisjoint(each.output):
            turned.setdefault(each.input[0], []).append(each)
    gone = {name: found for name, found in turned.items() if counts[name] == len(found)}
    names = {name: f"{name}/transposed" for name in gone}
    outputs = {each.output[0]: names[name] for name, found in gone.items() for each in found}
    kept = [each for each in nodes if each.output[0] not in outputs]
    _rename(kept, outputs)
    return kept, names


def bodies_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among the attributes of a node."""
    return (attribute.g for attribute in node.attribute if attribute.HasField("g"))
