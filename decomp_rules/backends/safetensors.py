"""Weights in a file that any runtime reads: `.safetensors`, a header in JSON and the elements behind it
(https://huggingface.co/docs/safetensors, format of version 0.3 and later)."""

from __future__ import annotations

from collections.abc import Mapping
import json
from pathlib import Path
from typing import Any

import numpy as np

from decomp import errors

_NAMES: Mapping[str, str] = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64",
    "complex64": "C64",
}  # fmt: skip # packed names


def write(path: Path, arrays: Mapping[str, Any]) -> Path:
    """Write arrays by name, one at a time, and return the path. Raises `ArgumentError` for a dtype that the format does
    not have."""
    header, offset = dict[str, Any](), 0
    for name, array in arrays.items():
        if str(array.dtype) not in _NAMES:
            raise errors.ArgumentError(f"{path}: {name!r} is {array.dtype}, which is no dtype of safetensors")
        end = offset + int(array.nbytes)
        header[name] = {"dtype": _NAMES[str(array.dtype)], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).tobytes())
    return path
