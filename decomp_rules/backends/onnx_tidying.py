"""What a graph is written without: nodes that nothing reads, copies under another name, and transposed weights, which
are stored as they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set

import onnx

Nodes = list[onnx.NodeProto]


def names_read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """The names that nodes read, and those in their bodies."""
    for each in nodes:
        yield from each.input
        for body in bodies_of(each):
            yield from names_read(body.node)
            yield from (value.name for value in body.output)


def tidy(nodes: Nodes, results: Set[str]) -> Nodes:
    """The nodes that results need. A value that is only computed to be copied to a result has the result's name."""
    return _renamed(_needed(nodes, results), results)


def _needed(nodes: Nodes, results: Set[str]) -> Nodes:
    wanted, found = set(results), []
    for each in reversed(nodes):
        if not wanted.isdisjoint(each.output):
            found.append(each)
            wanted.update(names_read([each]))
    return found[::-1]


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
