"""An ONNX file as a lock: what it imports, its inputs and outputs, its calls by op and module, its program and weights,
so that two files, from whatever exporters, are compared as two lowerings are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
import hashlib
import math
from pathlib import Path
from typing import Any

from decomp.errors import ArgumentError, PackageMissing, first_line
from decomp.locking.lock import Lock

FEW = 4
"""A constant of at most so many elements is shown by these."""


def read(path: Path) -> Lock:
    """What an ONNX file holds, and of weights in another file beside it their digests. Raises `ArgumentError`, which
    names the file, and `OSError`."""
    try:
        import onnx
    except ImportError as error:
        raise PackageMissing(
            f"{path}: to read ONNX files install the package onnx: pip install 'decomp[onnx]'"
        ) from error
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # whatever the parser of the format says
        raise ArgumentError(f"{path} is not an ONNX file: {first_line(error)}") from error
    if not model.HasField("graph") or not model.opset_import:
        raise ArgumentError(f"{path} is not an ONNX file: it has no graph, or imports no opset")
    return _File(model, path.parent).lock()


class _File:
    """The parts of a model that are compared."""

    def __init__(self, model: Any, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.bodies = dict(_bodies("", model.graph))
        for function in model.functions:
            self.bodies |= dict(_bodies(_full_name(function.domain, function.name), function))

    def lock(self) -> Lock:
        opsets = {each.domain or "ai.onnx": each.version for each in self.model.opset_import}
        nodes = [node for body in self.bodies.values() for node in body.node]
        used: dict[str, int] = {}
        for name in (name for node in nodes for name in node.input):
            used.setdefault(name, len(used))
        weights = {weight.name: weight for body in self.bodies.values() for weight in _weights(body)}
        in_order = sorted(weights, key=lambda name: (used.get(name, len(used)), name))
        return Lock(
            target=f"ONNX (opset {opsets.get('ai.onnx', '–')})",
            versions=dict(_versions(self.model, opsets)),
            options={},
            conditions={},
            before={},
            after=dict(sorted(Counter(_full_name(node.domain, node.op_type) for node in nodes).items())),
            modules=dict(sorted(Counter(_module(node) or "outside of modules" for node in nodes).items())),
            rules={},
            calls={},
            program={name: (*map(_call, body.node), _results(body)) for name, body in self.bodies.items()},
            tensors={name: _digest(weights[name], self.folder) for name in in_order},  # names make no difference
            costs={"bytes of weights": float(sum(map(_bytes, weights.values())))},
            interface=dict(_interface(self.model.graph)),
        )


def _versions(model: Any, opsets: dict[str, int]) -> Iterator[tuple[str, str]]:
    yield "written by", f"{model.producer_name or 'unknown'} {model.producer_version}".strip()
    yield "IR version", str(model.ir_version)
    yield from ((f"opset {domain}", str(version)) for domain, version in sorted(opsets.items()))


def _interface(graph: Any) -> Iterator[tuple[str, str]]:
    weights = {weight.name for weight in _weights(graph)}
    yield from ((f"input {each.name}", _type(each.type)) for each in graph.input if each.name not in weights)
    yield from ((f"output {each.name}", _type(each.type)) for each in graph.output)


def _bodies(name: str, body: Any) -> Iterator[tuple[str, Any]]:
    """A graph or function and the graphs inside, by name."""
    yield name, body
    for node in body.node:
        for given in node.attribute:
            for inner in (*given.graphs, *([given.g] if given.HasField("g") else [])):
                yield from _bodies("/".join(filter(None, (name, node.name or node.op_type, given.name))), inner)


def _weights(body: Any) -> Sequence[Any]:
    return getattr(body, "initializer", ())  # functions have none


def _full_name(domain: str, name: str) -> str:
    return name if domain in ("", "ai.onnx") else f"{domain}.{name}"


def _module(node: Any) -> str:
    """The module of a node by the metadata that exporters write, `net: Net/net.0: Linear/linear: aten.linear`, whose
    last part is the call; empty for a node without."""
    written = next(
        (each.value for each in node.metadata_props if each.key in ("namespace", "pkg.torch.onnx.namespace")), ""
    )
    names = [part.partition(":")[0].strip() for part in written.split("/")][:-1]
    return names[-1] if names else ""


def _call(node: Any) -> str:
    given = [f"%{name}" if name else "–" for name in node.input]
    given += [f"{each.name}={_value(each)}" for each in sorted(node.attribute, key=lambda each: str(each.name))]
    made = ", ".join(f"%{name}" for name in node.output)
    return f"{made} = {_full_name(node.domain, node.op_type)}({', '.join(given)})"


def _value(attribute: Any) -> str:
    from onnx import AttributeProto, helper

    if attribute.ref_attr_name:
        return f"@{attribute.ref_attr_name}"
    if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        return "graph"
    if attribute.type == AttributeProto.TENSOR:
        return _digest(attribute.t)
    found = helper.get_attribute_value(attribute)
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def _results(body: Any) -> str:
    names = [getattr(each, "name", each) for each in body.output]  # those of a function are texts
    return f"return {', '.join(f'%{name}' for name in names)}"


def _type(type_: Any) -> str:
    """`FLOAT[batch, 3]`."""
    from onnx import TensorProto

    if not type_.HasField("tensor_type"):
        return str(type_.WhichOneof("value"))
    tensor = type_.tensor_type
    sizes = [
        each.dim_param or (str(each.dim_value) if each.HasField("dim_value") else "?") for each in tensor.shape.dim
    ]
    return f"{TensorProto.DataType.Name(tensor.elem_type)}[{', '.join(sizes)}]"


def _digest(weight: Any, folder: Path | None = None) -> str:
    """The type, and its few elements or a digest of its bits; of those in another file that is not there, the place."""
    from onnx import TensorProto, helper

    kind = f"{TensorProto.DataType.Name(weight.data_type)}{list(weight.dims)}"
    if weight.data_location == TensorProto.EXTERNAL:
        place = {each.key: each.value for each in weight.external_data}
        parts = _parts_beside(place, folder, _bytes(weight)) if folder is not None else None
        if parts is None:
            return f"{kind} at {place.get('offset', 0)} of {place.get('location', '?')}"
    else:
        parts = iter([_bits(weight)])
    if math.prod(weight.dims) <= FEW and weight.data_type != TensorProto.STRING:
        import numpy

        elements = numpy.frombuffer(b"".join(parts), helper.tensor_dtype_to_np_dtype(weight.data_type))
        return f"{kind} {elements.tolist()}"
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return f"{kind} {digest.hexdigest()[:16]}"


def _parts_beside(place: Mapping[str, str], folder: Path, most: int) -> Iterator[bytes] | None:
    """The bits of a weight in a file of the same folder; None if it is elsewhere, or not there."""
    path = (folder / place.get("location", "")).resolve()
    if not path.is_file() or not path.is_relative_to(folder.resolve()):
        return None
    return _read(path, int(place.get("offset", 0)), int(place.get("length", most)))


def _read(path: Path, offset: int, left: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while left and (part := file.read(min(left, 1 << 20))):
            yield part
            left -= len(part)


def _bits(weight: Any) -> bytes:
    from onnx import TensorProto, numpy_helper

    if weight.data_type == TensorProto.STRING:
        return b"\0".join(weight.string_data)
    return bytes(weight.raw_data or numpy_helper.to_array(weight).tobytes())


def _bytes(weight: Any) -> int:
    from onnx import TensorProto, helper

    if weight.data_type == TensorProto.STRING:
        return sum(map(len, weight.string_data))
    return int(math.prod(weight.dims) * helper.tensor_dtype_to_np_dtype(weight.data_type).itemsize)
