"""A wrong call as a pair of files: its operands, and a small script that makes the call again and compares it."""

from __future__ import annotations

from collections.abc import Callable
import importlib
import keyword
from pathlib import Path
import sys
from typing import Any

import torch

from decomp.runtime.tables import Backend
from decomp.samples import Sample
from decomp.tools.comparing.comparison import ComparedCall
from decomp.torch_internals import pytree

ImportPlace = tuple[str, str, str]
"""A directory, a module in it, and the name of a value of the module."""

_SCRIPT = '''\
"""{said}"""

from pathlib import Path
import sys

import torch

import decomp

{finds}
operands = torch.load(Path(__file__).with_suffix(".pt"))


class Call(torch.nn.Module):
    def forward(self{parameters}):
        return {call}


program = torch.export.export(Call(), tuple(operands))
comparison = decomp.compare(program, Call(), operands, on={on})
print(comparison)
sys.exit(not comparison.ok)
'''


def save_call(directory: Path, row: ComparedCall, sample: Sample, place: ImportPlace | None) -> Path:
    """Write the operands of a call and the script, which finds what runs it at `place`, and return the path of the
    script. Without a place, the script asks for it."""
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / f"{row.node}.py"
    tensors = sample.tensors
    torch.save([t.detach().clone() for t in tensors], script.with_suffix(".pt"))
    names = [f"x{i}" for i in range(len(tensors))]
    said = "\n".join([f"{next(row.lines())}, as the backend made it.", "", *list(row.lines())[1:]])
    text = _SCRIPT.format(
        said=said.replace("\\", "/").replace('"""', "'''"),
        finds=_import(place),
        parameters="".join(f", {name}" for name in names),
        call=_source_of(sample, names),
        on=place[2] if place is not None else "backend",
    )
    script.write_text(text, encoding="utf-8")
    return script


def _import(place: ImportPlace | None) -> str:
    if place is None:
        return "backend = None  # to do: the decomp.Backend, or the function that runs a prefix"
    directory, module, name = place
    path = f"sys.path.insert(0, {directory!r})\n" if directory else ""
    if all(part.isidentifier() and not keyword.iskeyword(part) for part in module.split(".")):
        return f"{path}from {module} import {name}"
    # A file may have any name, as `decomp compare my-chip.py:chip` takes it, and a statement cannot spell that.
    return f"import importlib\n\n{path}{name} = importlib.import_module({module!r}).{name}"


def _source_of(sample: Sample, names: list[str]) -> str:
    """The call as Python."""
    rest = iter(names)
    args, kwargs = pytree.tree_map(
        lambda leaf: _Written(next(rest)) if isinstance(leaf, torch.Tensor) else _Written(_literal(leaf)),
        (list(sample.args), dict(sample.kwargs)),
    )
    written = [repr(arg) for arg in args] + [f"{key}={value!r}" for key, value in kwargs.items()]
    name = sample.overload._schema.name.replace("::", ".")
    return f"torch.ops.{name}.{sample.overload._overloadname}({', '.join(written)})"


class _Written(str):
    """A piece of Python, which is its own representation."""

    def __repr__(self) -> str:
        return str(self)


def _literal(value: Any) -> str:
    if isinstance(value, float) and value != value or value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    return repr(value)


def place_of_runner(on: Backend | Callable[..., Any]) -> ImportPlace | None:
    """Where another process finds a backend or a function that runs prefixes; None if it cannot."""
    if isinstance(on, Backend):
        found = place_of(on)
        if found is None:
            return None
        module, _, name = found[0].rpartition(":")
        return (found[1], module, name) if module else ("", "decomp_rules.backends", found[0])
    module, name = getattr(on, "__module__", ""), getattr(on, "__qualname__", "")
    made = sys.modules.get(module)
    if made is None or not name.isidentifier() or module == "__main__" or getattr(made, name, None) is not on:
        return None
    if not _is_importable(made):
        return None
    return _top_of(made), module, name


def _is_importable(module: Any) -> bool:
    """Whether another process can import a module by its name: a dot in that of a .py file means a package there."""
    file = Path(getattr(module, "__file__", None) or "")
    return file.suffix != ".py" or "." not in file.stem


def _top_of(module: Any) -> str:
    """The directory from which a module is imported."""
    file, name = Path(module.__file__).resolve(), module.__name__
    return str(file.parents[name.count(".") + (file.name == "__init__.py")])


def place_of(backend: Backend) -> tuple[str, str] | None:
    """The name, and the directory, by which another process finds a backend; None if it cannot."""
    shipped = importlib.import_module("decomp_rules.backends")
    for name, made in shipped._made.items():
        if made is backend:
            return name, ""
    for module in list(sys.modules.values()):
        name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
        if name in ("__main__", "__mp_main__", "") or file is None or name.startswith("decomp."):
            continue
        if not _is_importable(module):
            continue
        for attribute, value in list(vars(module).items()):
            if value is backend:
                return f"{name}:{attribute}", _top_of(module)
    return None
