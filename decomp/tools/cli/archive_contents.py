"""The requirements of a `.pt2` archive: the version of its format, the ops that it calls, and the classes of its
objects. Missing ones are reported by name, where torch.export.load would fail without a reason."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import functools
import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any
import zipfile

import torch

from decomp.tools.cli.terminal import Unusable
from decomp.torch_internals.archives import SCHEMA_VERSION

OLD_LAYOUT = "serialized_exported_program.json"
"""The file of the program in archives of torch up to 2.7."""

REGISTER = {
    "quantized_decomposed": ("torch.ao.quantization.fx._decomposed", "torchao.quantization.pt2e"),
    "torchao": ("torchao",),
    "torchvision": ("torchvision",),
    "torchaudio": ("torchaudio",),
    "transformers": ("transformers.integrations.moe",),
    "fbgemm": ("fbgemm_gpu",),
    "torch_scatter": ("torch_scatter",),
    "torch_sparse": ("torch_sparse",),
    "torch_cluster": ("torch_cluster",),
}
"""Modules that register the ops of a namespace; imported, if installed, for a program that calls these ops."""


class Unregistered(Unusable):
    """A program calls ops that no imported package registers."""


class Newer(Unusable):
    """An archive was written by a PyTorch whose format this one cannot read."""


def programs_in(path: Path) -> list[Any]:
    """The serialized programs of an archive; none if the file is not an archive."""
    found = []
    with contextlib.suppress(zipfile.BadZipFile, OSError, ValueError, KeyError), zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            is_program = "/models/" in f"/{name}" and name.endswith(".json")
            if is_program or name == OLD_LAYOUT:
                found.append(json.loads(archive.read(name)))
    return [program for program in found if isinstance(program, dict)]


def require_readable(path: Path) -> None:
    """Import the modules known to register the ops that the programs of an archive call. Raises `Newer`, and
    `Unregistered` for ops that are still not registered."""
    programs = programs_in(path)
    for program in programs:
        _require_version(path, program)
    missing = _unregistered(programs)
    for namespace in dict.fromkeys(map(_namespace, missing)):
        for module in REGISTER.get(namespace, ()):
            if any(_namespace(each) == namespace for each in _unregistered(programs)):
                _imported(module)
    missing = _unregistered(programs)
    if missing:
        raise Unregistered(_said(path, missing))


def _require_version(path: Path, program: dict[str, Any]) -> None:
    version = program.get("schema_version")
    major = version.get("major") if isinstance(version, dict) else None
    if isinstance(major, int) and major > SCHEMA_VERSION[0]:
        by = program.get("torch_version")
        written = f"PyTorch {by}" if isinstance(by, str) else "a newer PyTorch"
        raise Newer(
            f"cannot read {path}: {written} wrote it, in version {major} of the format, and this PyTorch reads up to "
            f"{SCHEMA_VERSION[0]}\n  to do: update PyTorch, or export the program with this one"
        )


def _unregistered(programs: list[Any]) -> list[str]:
    """The ops that are called but not registered, as `namespace.op.overload`."""
    names = dict.fromkeys(name for program in programs for name in _targets(program))
    ops = [name.removeprefix("torch.ops.") for name in names if name.startswith("torch.ops.")]
    return [op for op in ops if not op.startswith("higher_order.") and not _is_registered(op)]


def _targets(value: Any) -> Iterator[str]:
    """The targets of the nodes of a serialized program, and the ops among their arguments."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("target", "as_operator") and isinstance(item, str):
                yield item
            else:
                yield from _targets(item)
    elif isinstance(value, list):
        for item in value:
            yield from _targets(item)


def _is_registered(op: str) -> bool:
    return functools.reduce(lambda value, part: getattr(value, part, None), op.split("."), torch.ops) is not None


def _namespace(op: str) -> str:
    return op.split(".")[0]


def _imported(module: str) -> None:
    """Import a module if it is installed. Failures are ignored, as the ops are looked up afterwards."""
    with contextlib.suppress(Exception):
        if importlib.util.find_spec(module.split(".")[0]) is not None:
            importlib.import_module(module)


def _said(path: Path, missing: list[str]) -> str:
    namespaces = dict.fromkeys(map(_namespace, missing))
    others = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    known = [REGISTER[each][-1].split(".")[0] for each in namespaces if each in REGISTER]
    remedy = f"pip install {' '.join(known)}, or pass" if known else "pass"
    return (
        f"cannot read {path}: it calls {', '.join(missing[:3])}{others}, and no imported module registers ops of "
        f"{' and '.join(map(repr, namespaces))}\n  to do: {remedy} --import MODULE, with the module that registers them"
    )
