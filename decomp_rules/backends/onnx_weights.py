"""Weights of ONNX models in files of their own: `model.onnx.data`, where a model is larger than a protobuf message may
be, and `model.onnx.weights`, of weights that had no numbers when the model was written (the meta device, fake tensors).
Models of any size are written without a copy of their weights in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import onnx
from onnx import helper
import torch

from decomp import errors
from decomp_rules.backends.onnx_graph import DTYPES, tensor_proto

DATA, ABSENT = ".data", ".weights"
INLINE = 1024
"""Bytes of a tensor that stays in the model itself."""
ALIGNMENT = 4096
"""Runtimes map the files into memory by the page."""
_TORCH = {number: dtype for dtype, number in DTYPES.items()}


def absent_proto(meta: torch.Tensor, name: str) -> onnx.TensorProto:
    """A weight whose numbers are to be in another file."""
    found = onnx.TensorProto(name=name, data_type=DTYPES[meta.dtype], dims=list(meta.shape))
    found.data_location = onnx.TensorProto.EXTERNAL
    return found


def size(model: onnx.ModelProto) -> int:
    """Bytes of the weights that a model holds."""
    return sum(len(each.raw_data) for each in model.graph.initializer)


def write(model: onnx.ModelProto, path: Path, external: int) -> None:
    """Write a model; its weights beside it, if they have so many bytes."""
    apart = size(model) >= external
    absent = _place(each for each in model.graph.initializer if _is_absent(each))
    for each, offset, length in absent:
        _refer(each, path.name + ABSENT, offset, length)
    if not apart:
        path.write_bytes(model.SerializeToString())
        return
    light = _without_weights(model)
    held = [each for each in model.graph.initializer if len(each.raw_data) >= INLINE]
    with path.with_name(path.name + DATA).open("wb") as file:
        for each, offset, length in _place(held):
            _append(file, offset, each.raw_data)
            reference = light.graph.initializer.add(name=each.name, data_type=each.data_type, dims=each.dims)
            _refer(reference, path.name + DATA, offset, length)
    light.graph.initializer.extend(each for each in model.graph.initializer if len(each.raw_data) < INLINE)
    path.write_bytes(light.SerializeToString())


def check(model: onnx.ModelProto, path: Path) -> None:
    """Check a model that was written. Weights whose file is not there yet are checked as if they were inputs."""
    is_whole = not any(map(_is_absent, model.graph.initializer))
    onnx.checker.check_model(str(path) if is_whole else without_data(model), full_check=True)


def without_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without metadata, whose large and absent weights, which do not matter to shapes, are inputs."""
    found, given = _without_weights(model), {each.name for each in model.graph.input}
    for node in found.graph.node:
        del node.metadata_props[:]
    for each in model.graph.initializer:
        if not _is_absent(each) and len(each.raw_data) < INLINE:
            found.graph.initializer.append(each)
        elif each.name not in given:
            found.graph.input.append(helper.make_tensor_value_info(each.name, each.data_type, each.dims))
    return found


def fill(path: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    """Write the weights that a model lacks, of these values."""
    model = onnx.load(path, load_external_data=False)
    beside = path.with_name(path.name + ABSENT)
    wanted = [each for each in model.graph.initializer if _location(each) == beside.name]
    missing = [each.name for each in wanted if each.name not in tensors]
    if missing:
        raise errors.ArgumentError(
            f"the model has weights that are not given: {', '.join(missing[:5])}"
            + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        )
    for each in wanted:
        _require_same(each, tensors[each.name])
    with beside.open("wb") as file:
        for each in wanted:
            offset = int(_entries(each)["offset"])
            _append(file, offset, tensor_proto(tensors[each.name], each.name).raw_data)
    return beside


def _require_same(wanted: onnx.TensorProto, given: torch.Tensor) -> None:
    shape, dtype = tuple(wanted.dims), _TORCH[wanted.data_type]
    if (tuple(given.shape), given.dtype) != (shape, dtype):
        raise errors.ArgumentError(
            f"{wanted.name!r} is {dtype} {list(shape)} in the model, and cannot be {given.dtype} {list(given.shape)}"
        )


def _place(tensors: Any) -> Iterator[tuple[onnx.TensorProto, int, int]]:
    """Tensors with their offsets and lengths in a file, one after the other."""
    offset = 0
    for each in tensors:
        length = len(each.raw_data) or _length(each)
        yield each, offset, length
        offset += -(-length // ALIGNMENT) * ALIGNMENT


def _length(tensor: onnx.TensorProto) -> int:
    count = 1
    for each in tensor.dims:
        count *= each
    return count * _TORCH[tensor.data_type].itemsize


def _append(file: IO[bytes], offset: int, data: bytes) -> None:
    file.seek(offset)
    file.write(data)


def _refer(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Say in which file the numbers of a tensor are."""
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _is_absent(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _location(tensor: onnx.TensorProto) -> str:
    return _entries(tensor).get("location", "")


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model but for its weights."""
    found = onnx.ModelProto()
    _copy_fields(model, found, but="graph")
    _copy_fields(model.graph, found.graph, but="initializer")
    return found


def _copy_fields(source: Any, to: Any, but: str) -> None:
    for field, value in source.ListFields():
        if field.name == but:
            continue
        if isinstance(value, (int, float, str, bytes)):
            setattr(to, field.name, value)
        else:
            getattr(to, field.name).MergeFrom(value)
